"""Compute intervals of the functions of the scalar table, for integers.

`_EXACT` says what the functions are of numbers that do not wrap. `transfer` is the only way to it: an interval that
leaves the dtype becomes all numbers of the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from tiledsl.ir.expr import ceildiv
from tiledsl.ir.scalar import ScalarFn
from tiledsl.ir.types import DType

Interval = tuple[int, int]
"""The least and the greatest number."""


def transfer(fn: ScalarFn, dtype: DType, operands: Sequence[Interval], fits: Interval | None = None) -> Interval:
    """Return the interval of row `fn` of the scalar table for integers of `dtype` in these intervals.

    Args:
        fn: A row that is defined for integers.
        dtype: The dtype of the operands.
        operands: One interval per operand.
        fits: The interval that the exact result is promised to be in, where it is.
    """
    if fn.to_bool:
        return 0, 1
    found = _EXACT[fn.name](*operands)
    return within(dtype, found if fits is None or found is None else both(found, fits))


def within(dtype: DType, found: Interval | None) -> Interval:
    """Return `found`, or all numbers of `dtype` where it is None or leaves the dtype: the value may have wrapped."""
    least, most = dtype.limits
    return found if found is not None and least <= found[0] and found[1] <= most else (least, most)


def hull(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that has all numbers of both."""
    return min(a[0], b[0]), max(a[1], b[1])


def both(found: Interval, other: Interval) -> Interval:
    """Return the numbers that are in both, or `found` where none is: nothing of such a value is ever computed."""
    least, most = max(found[0], other[0]), min(found[1], other[1])
    return (least, most) if least <= most else found


def _monotone(fn: Callable[..., int]) -> Callable[..., Interval]:
    """Of a function that is monotone in each operand: its extremes lie where those of the operands do."""

    def of(*operands: Interval) -> Interval:
        found = [fn(*ends) for ends in product(*operands)]
        return min(found), max(found)

    return of


def _quotient(rounded: Callable[[int, int], int]) -> Callable[..., Interval]:
    """Return the rule of a quotient, which is monotone where the divisor keeps its sign, and 0 for a divisor of 0."""
    monotone = _monotone(rounded)

    def of(a: Interval, b: Interval) -> Interval:
        found = [(0, 0)] if b[0] <= 0 <= b[1] else []
        parts = ((b[0], min(b[1], -1)), (max(b[0], 1), b[1]))
        found += [monotone(a, part) for part in parts if part[0] <= part[1]]
        return min(low for low, _ in found), max(high for _, high in found)

    return of


def _mod(a: Interval, b: Interval) -> Interval:
    if b[0] > 0:
        return a if a[0] >= 0 and a[1] < b[0] else (0, min(a[1], b[1] - 1) if a[0] >= 0 else b[1] - 1)
    if b[0] == 0:  # x % 0 is x
        return min(0, a[0]), max(a[1], b[1] - 1)
    return min(a[0], b[0] + 1, 0), max(a[1], b[1] - 1, 0)


def _and(a: Interval, b: Interval) -> Interval:
    tops = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(tops)) if tops else _bits(a, b)


def _bits(a: Interval, b: Interval) -> Interval:
    """Every number of as many bits as the operands have."""
    width = max((x if x >= 0 else ~x).bit_length() for x in (*a, *b))
    least = 0 if a[0] >= 0 and b[0] >= 0 else -(1 << width)
    return least, (1 << width) - 1


def _shl(a: Interval, b: Interval) -> Interval | None:
    return _monotone(int.__lshift__)(a, b) if b[0] >= 0 and b[1] < 64 else None


def _shr(a: Interval, b: Interval) -> Interval:
    return _monotone(int.__rshift__)(a, (b[0], min(b[1], 64))) if b[0] >= 0 else hull(a, (-1, 0))


def _abs(a: Interval) -> Interval:
    least, most = sorted(map(abs, a))
    return 0 if a[0] <= 0 <= a[1] else least, most


def _count(a: Interval) -> Interval:
    """Return how many bits of some kind there can be, of as many as the widest dtype has."""
    return 0, 64


_EXACT: dict[str, Callable[..., Interval | None]] = {
    "add": _monotone(int.__add__),
    "sub": _monotone(int.__sub__),
    "mul": _monotone(int.__mul__),
    "floordiv": _quotient(int.__floordiv__),
    "ceildiv": _quotient(ceildiv),
    "mod": _mod,
    "min": _monotone(min),
    "max": _monotone(max),
    "neg": _monotone(int.__neg__),
    "abs": _abs,
    "and": _and,
    "or": _bits,
    "xor": _bits,
    "not": _monotone(int.__invert__),
    "shl": _shl,
    "shr": _shr,
    "popc": _count,
    "clz": _count,
}

"""Intervals of integers: what the functions of the scalar table make of them, exactly where nothing wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.ir.types import BOOL, INDEX

__all__ = ["RULES", "Interval", "every", "hull"]

Interval = tuple[int, int]
"""The least and the greatest number."""


def every(type_: Any) -> Interval:
    """Every number of a dtype; an index has 64 bits."""
    if type_ == BOOL:
        return 0, 1
    bits = 64 if type_ == INDEX else type_.bits
    return (0, (1 << bits) - 1) if type_.kind == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _corners(fn: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    """Of a function that is monotone in each operand."""
    found = [fn(x, y) for x in a for y in b]
    return min(found), max(found)


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[1] < 0 or b[0] > 0:
        return _corners(int.__floordiv__, a, b)
    if b == (0, 0):
        return 0, 0
    parts = [part for part in ((b[0], -1), (1, b[1])) if part[0] <= part[1]]
    found = (0, 0)  # x // 0
    for part in parts:
        found = hull(found, _corners(int.__floordiv__, a, part))
    return found


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
    return _corners(int.__lshift__, a, b) if b[0] >= 0 and b[1] < 64 else None


def _shr(a: Interval, b: Interval) -> Interval:
    return _corners(int.__rshift__, a, (b[0], min(b[1], 64))) if b[0] >= 0 else hull(a, (-1, 0))


def _abs(a: Interval) -> Interval:
    return (0, max(-a[0], a[1])) if a[0] <= 0 <= a[1] else (min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1])))


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _neg(a: Interval) -> Interval:
    return -a[1], -a[0]


def _sub(a: Interval, b: Interval) -> Interval:
    return _add(a, _neg(b))


def _mul(a: Interval, b: Interval) -> Interval:
    return _corners(int.__mul__, a, b)


def _min(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


def _max(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _not(a: Interval) -> Interval:
    return ~a[1], ~a[0]


RULES: dict[str, Callable[..., Interval | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "min": _min,
    "max": _max,
    "neg": _neg,
    "abs": _abs,
    "and": _and,
    "or": _bits,
    "xor": _bits,
    "not": _not,
    "shl": _shl,
    "shr": _shr,
}

"""Integer values as sums: a constant plus multiples of other values, where equal values have one number.

Two indices with the same terms lie as far apart as their constants do, whatever the terms are: wrapping arithmetic
keeps that, modulo the dtype.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import arith, tile
from tiledsl.ir.types import DType
from tiledsl.passes.analysis.divisibility import Divisibility, power_of_two_in


@dataclass(frozen=True, slots=True)
class Sum:
    """`constant` + the sum of coefficient * value over `terms`, which name values by number, lowest first."""

    terms: tuple[tuple[int, int], ...]
    constant: int

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        terms = dict(self.terms)
        for number, coefficient in other.terms:
            terms[number] = terms.get(number, 0) + coefficient * factor
        kept = tuple(sorted((n, c) for n, c in terms.items() if c))
        return Sum(kept, self.constant + other.constant * factor)

    def times(self, factor: int) -> Sum:
        return Sum((), 0).plus(self, factor)


class Sums:
    """Reads the kernel once, at construction; values that are made later are numbers of their own."""

    def __init__(self, kernel: Kernel) -> None:
        self._divisibility = Divisibility(kernel)
        self._known: dict[Value, Sum] = {}
        self._numbers: dict[Hashable, int] = {}
        self._values: list[Value] = []
        for op in kernel.walk():
            if len(op.results) == 1 and _is_integer(op.results[0]) and not op.blocks and op.is_pure:
                self._known[op.result] = self._sum(op)

    def of(self, value: Value) -> Sum:
        known = self._known.get(value)
        return self._number(value, value) if known is None else known

    def divisor(self, value: Sum) -> int:
        """A power of two that divides `value`, at most `divisibility.LIMIT`."""
        parts = (power_of_two_in(c) * self._divisibility.of(self._values[n]) for n, c in value.terms)
        return min((power_of_two_in(value.constant), *parts))

    def _number(self, key: Hashable, value: Value) -> Sum:
        """The number of `key`, of which `value` is an instance, as a sum."""
        number = self._numbers.setdefault(key, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return Sum(((number, 1),), 0)

    def _sum(self, op: Op) -> Sum:
        if isinstance(op, arith.Constant):
            return Sum((), op.value)
        if isinstance(op, arith.Scalar):
            operands = [self.of(v) for v in op.operands]
            return _linear(op.fn.name, operands) or self._number((type(op), op.result.type, *operands), op.result)
        if isinstance(op, tile.Extract) and op.packed is not None:
            return self.of(op.packed)
        # With its type, since equal sums are equal values of one dtype only.
        keys = [(v.type, self.of(v)) if _is_integer(v) else v for v in op.operands]
        return self._number((type(op), *op.attrs.values(), *keys), op.result)


def _is_integer(value: Value) -> bool:
    return isinstance(value.type, DType) and value.type.is_integer


def _linear(fn: str, operands: list[Sum]) -> Sum | None:
    """What a row of the scalar table gives, if it is a sum again."""
    match fn, operands:
        case "neg", [a]:
            return a.times(-1)
        case "add", [a, b]:
            return a.plus(b)
        case "sub", [a, b]:
            return a.plus(b, -1)
        case "mul", [a, Sum((), factor)] | [Sum((), factor), a]:
            return a.times(factor)
        case "shl", [a, Sum((), by)] if 0 <= by < 31:
            return a.times(1 << by)
        case _:
            return None

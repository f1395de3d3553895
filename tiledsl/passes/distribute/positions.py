"""Where a thread is, as ops that are written where they are needed.

`FragmentLayout.place` and `ThreadMap.place` compute with numbers; the emulator gives them arrays, `distribute` a
`Position`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX
from tiledsl.passes.analysis.constants import integer


class Position:
    """``variable + constant``: a number of which only the first part differs between threads, from 0 on below `bound`.

    terms: write the ops of that part, which is their sum. Arithmetic leaves out what changes nothing, such as a
    remainder of what is smaller anyway.
    """

    def __init__(self, b: Builder, bound: int, *terms: Callable[[], Value], constant: int = 0) -> None:
        self.b, self.bound, self.constant = b, bound, constant
        self.terms = terms if bound > 1 else ()

    @property
    def variable(self) -> Value | None:
        """None where it is 0 in all threads."""
        return self.write() if self.terms else None

    def write(self) -> Value:
        return reduce(lambda a, c: self.b.scalar("add", a, c), [term() for term in self.terms])

    def __add__(self, other: Position | int) -> Position:
        if isinstance(other, int):
            return Position(self.b, self.bound, *self.terms, constant=self.constant + other)
        bound, constant = self.bound + other.bound - 1, self.constant + other.constant
        return Position(self.b, bound, *self.terms, *other.terms, constant=constant)

    __radd__ = __add__

    def __sub__(self, number: int) -> Position:
        return self + -number

    def __mul__(self, factor: int) -> Position:
        return self._with("mul", factor, (self.bound - 1) * factor + 1, self.constant * factor)

    def __floordiv__(self, divisor: int) -> Position:
        rest = self.constant % divisor
        if rest + self.bound <= divisor:
            return Position(self.b, 1, constant=self.constant // divisor)
        if rest:
            return self._summed() // divisor
        return self._with("floordiv", divisor, -(-self.bound // divisor), self.constant // divisor)

    def __mod__(self, modulus: int) -> Position:
        rest = self.constant % modulus
        if rest + self.bound <= modulus:
            return Position(self.b, self.bound, *self.terms, constant=rest)
        return self._summed() % modulus if rest else self._with("mod", modulus, modulus, 0)

    def _summed(self) -> Position:
        """The same with the constant in the part that ops compute."""
        bound = self.bound + self.constant
        return Position(self.b, bound, lambda: self.b.scalar("add", self.write(), self.constant))

    def _with(self, fn: str, number: int, bound: int, constant: int) -> Position:
        """With `fn` and a number applied to the variable part."""
        terms = self.terms if number == 1 else (lambda: self.b.scalar(fn, self.write(), number),)
        return Position(self.b, bound, *terms, constant=constant)


def indices(b: Builder, side: tile.Side, at: Iterable[Position | int]) -> list[Value]:
    """Of what is `at` further along the axes of a side, counted from its origin."""
    found = list(side.origin)
    for axis, part in zip(side.axes, at, strict=True):
        found[axis] = index(b, side.origin[axis], part)
    return found


def index(b: Builder, origin: Value | None, part: Position | int) -> Value:
    """``origin + part``. Constants come last: they become immediates of one address."""
    variable, constant = (None, part) if isinstance(part, int) else (part.variable, part.constant)
    known = 0 if origin is None else integer(origin)
    if known is not None:
        origin, constant = None, constant + known
    base = b.scalar("add", origin, variable) if origin is not None and variable is not None else origin or variable
    if base is None:
        return b.constant(constant, INDEX)
    return base if constant == 0 else b.scalar("add", base, constant)

"""Intervals: between which two numbers an integer of a tile-level kernel always lies.

An `index` means a number of 64 bits, of which `expand` may keep 32: this says where nothing is lost. It starts from
what a launch proves (extents below `INDEX32_LIMIT`), from the grid's own expressions and from the bounds
of loops. What a loop carries is guessed, first as what enters it, and the guess is verified; bounds that a comparison
names are tried before giving up. Nothing is assumed of an integer that memory holds but its dtype.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import reduce
from math import prod

from tiledsl.arch import MOST_GRID, MOST_PROCESSORS, WARP
from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.expr import PROCESSORS, CallExpr, Expr, never_wraps
from tiledsl.ir.ops import arith, barriers, control, gpu, matrix, tile
from tiledsl.ir.scalar import OPPOSITE, SCALAR
from tiledsl.ir.types import BOOL, INDEX, DType, FragmentType
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.interval_rules import Interval, both, hull, transfer, within
from tiledsl.passes.analysis.structure import incoming

DEPTH = 200
"""How many ops deep one looks."""

GUESSES = 16
"""How often what a loop carries is guessed."""


class Intervals:
    """`of(value)` answers; nothing is computed before it is asked for."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.known: dict[Value, Interval] = {}
        self.depth = 0
        self._stops: list[int] = []
        self._most_extent = (INDEX32_LIMIT if kernel.index_bits == 32 else 1 << 63) - 1
        self._names = {arg.name: arg.type.limits for arg in kernel.body.args if isinstance(arg.type, DType)}
        self._names[PROCESSORS] = 1, MOST_PROCESSORS

    def of(self, value: Value) -> Interval:
        """The least and the greatest number that an integer, or an element of a fragment of integers, can be."""
        found = self.known.get(value)
        if found is not None:
            return found
        dtype = _dtype(value)
        if self.depth >= DEPTH:
            return dtype.limits
        self.depth += 1
        op = value.op
        found = within(dtype, self._argument(value) if op is None else self._result(op, value))
        self.depth -= 1
        self.known[value] = found
        return found

    # -- ops -----------------------------------------------------------------------------------

    def _result(self, op: Op, value: Value) -> Interval | None:
        match op:
            case arith.Constant():
                number = integer(value)
                return None if number is None else (number, number)
            case arith.Scalar() if op.operands[0].dtype.is_integer:
                return self._scalar(op)
            case arith.Cast():
                return (0, 1) if op.src.type == BOOL else self.of(op.src) if op.src.dtype.is_integer else None
            case arith.Select():
                return self._either(op.condition, op.a, op.b)
            case control.If():
                return self._either(op.condition, *incoming(value))
            case control.For() | control.While():
                return self._any(incoming(value))
            case tile.Stride():
                return None  # an axis of extent 1 may have any
            case tile.Dim():
                return 0, self._most_extent
            case tile.Extract():
                return self.of(op.fragment)
            case tile.Pack() | tile.Insert():
                return self._any(op.operands)
            case matrix.Coordinates():
                return 0, value.fragment.dims[op.axis] - 1
            case gpu.ThreadId():
                return 0, (*self.kernel.threads, 1, 1)[op.axis] - 1
            case gpu.WarpId():
                return 0, (self.kernel.thread_count - 1) // WARP
            case gpu.LaneId():
                return 0, WARP - 1
            case gpu.GridSize():
                return self._blocks(op.axis)
            case gpu.BlockId():
                return 0, self._blocks(op.axis)[1] - 1
            case barriers.ClusterRank():
                return 0, prod(self.kernel.cluster) - 1
            case _:
                return None

    def _scalar(self, op: arith.Scalar) -> Interval:
        rounded = self._rounded_down(op) if op.fn.name == "mul" and not self._fits_extents(op) else None
        return rounded or self._applied(op, [self.of(v) for v in op.operands])

    def _applied(self, op: arith.Scalar, operands: Sequence[Interval]) -> Interval:
        """Return the interval of the result of `op`, an op of integers, for operands in these intervals."""
        fits = (-self._most_extent, self._most_extent) if self._fits_extents(op) else None
        return transfer(op.fn, op.operands[0].dtype, operands, fits)

    @staticmethod
    def _fits_extents(op: arith.Scalar) -> bool:
        """Return whether the result is promised to be as small as an extent."""
        return op.nowrap and op.operands[0].type == INDEX

    def _rounded_down(self, op: arith.Scalar) -> Interval | None:
        """``x // (n * m) * n`` is not beyond x."""
        quotient, factor = op.operands
        made = quotient.op
        if not isinstance(made, arith.Scalar) or made.fn.name != "floordiv":
            return None
        (x, divisor), times = made.operands, made.operands[1].op
        if not isinstance(times, arith.Scalar) or times.fn.name != "mul" or self.of(x)[0] < 0:
            return None
        known = integer(factor)
        same = any(v is factor or (known is not None and integer(v) == known) for v in times.operands)
        fits = self.of(divisor) != divisor.dtype.limits
        return (0, self.of(x)[1]) if same and fits and min(self.of(v)[0] for v in times.operands) >= 0 else None

    def _blocks(self, axis: int) -> Interval:
        """How many blocks there are along an axis, in a launch that has any."""
        if axis >= len(self.kernel.grid):
            return 1, 1
        least, most = self._host(self.kernel.grid[axis])
        least = max(least, self.kernel.cluster[axis], 1)
        return least, max(least, min(most, MOST_GRID[axis]))

    def _host(self, expr: Expr) -> Interval:
        match expr:
            case int():
                return expr, expr
            case str():
                return self._names.get(expr, (0, self._most_extent))
            case CallExpr("select", (_, a, b)):
                return hull(self._host(a), self._host(b))
            case CallExpr("cast", (arg,), dtype):
                return within(dtype, self._host(arg))
            case CallExpr(fn, args, dtype):
                fits = dtype.limits if never_wraps(fn, dtype) else None
                return transfer(SCALAR[fn], dtype, [self._host(arg) for arg in args], fits)

    def _any(self, values: Sequence[Value]) -> Interval:
        return reduce(hull, map(self.of, values))

    def _either(self, condition: Value, a: Value, b: Value) -> Interval:
        """One of two values, each where the condition is as it must be for that."""
        return hull(self._under(condition, True, a), self._under(condition, False, b))

    def _under(self, condition: Value, holds: bool, value: Value) -> Interval:
        """Return the interval of `value` where `condition` holds, or does not: also of ``x + 1`` if it speaks of x."""
        found = self._where(condition, holds, value, self.of(value))
        op = value.op
        if not isinstance(op, arith.Scalar) or not op.operands[0].dtype.is_integer:
            return found
        return both(found, self._applied(op, [self._where(condition, holds, v, self.of(v)) for v in op.operands]))

    def _where(self, condition: Value, holds: bool, value: Value, found: Interval) -> Interval:
        """What is left of the interval of `value` where `condition` holds, or does not."""
        op = condition.op
        if not isinstance(op, arith.Scalar):
            return found
        name = op.fn.name
        if name == "not":
            return self._where(op.operands[0], not holds, value, found)
        if name == ("and" if holds else "or"):
            for part in op.operands:
                found = self._where(part, holds, value, found)
            return found
        if name not in OPPOSITE or not op.operands[0].dtype.is_integer:
            return found
        a, b = op.operands
        name = name if holds else OPPOSITE[name]
        distance = self._distance(a, value)
        if distance is None:
            a, b, name = b, a, _MIRRORED[name]
            distance = self._distance(a, value)
        if distance is None:
            return found
        low, high = (bound - distance for bound in self.of(b))
        least, most = found
        match name:
            case "lt" | "le":
                most = min(most, high - (name == "lt"))
            case "gt" | "ge":
                least = max(least, low + (name == "gt"))
            case "eq":
                least, most = max(least, low), min(most, high)
            case _:
                least, most = least + (least == low == high), most - (most == low == high)
        return (least, most) if least <= most else found

    def _distance(self, sum_: Value, value: Value) -> int | None:
        """Return ``sum_ - value``: 0 for the same value, the constant where `sum_` adds one to it and does not wrap."""
        if sum_ is value:
            return 0
        op = sum_.op
        if (
            not isinstance(op, arith.Scalar)
            or op.fn.name != "add"
            or op.operands[0] is not value
            or value.type != INDEX
        ):
            return None
        distance = integer(op.operands[1])
        if distance is None or self._fits_extents(op):
            return distance
        (least, most), (low, high) = INDEX.limits, self.of(value)
        return distance if least <= low + distance and high + distance <= most else None

    # -- arguments of blocks -------------------------------------------------------------------

    def _argument(self, value: Value) -> Interval | None:
        loop = value.block.parent
        if isinstance(loop, control.For) and value.index == 0:
            return self._induction(loop)
        match incoming(value):
            case [init, following]:
                return self._carried(value, init, following)
            case [given] if isinstance(loop, control.While):
                return self._where(loop.before.terminator.operands[0], True, given, self.of(given))
            case _:
                return None

    def _induction(self, op: control.For) -> Interval:
        (lo, last_lo), (first_hi, hi), (least, most) = (self.of(v) for v in (op.lo, op.hi, op.step))
        if least > 0:
            return lo, max(lo, hi - 1)
        if most < 0:
            return min(last_lo, first_hi + 1), last_lo
        return min(lo, first_hi + 1), max(last_lo, hi - 1)

    def _carried(self, value: Value, init: Value, following: Value) -> Interval | None:
        guess = self.of(init)
        for attempt in range(GUESSES):
            outer, self.known = self.known, {**self.known, value: guess}
            found = self.of(following)
            self.known = outer
            wider = hull(guess, found)
            if wider == guess:
                return guess
            guess = wider if attempt < 2 else self._widened(guess, wider)
        return None

    def _widened(self, old: Interval, new: Interval) -> Interval:
        """`new`, where it goes beyond `old` up to the next number that a comparison of the kernel names."""
        if not self._stops:
            self._stops = self._compared()
        low, high = new
        if low < old[0]:
            low = self._stops[max(0, bisect_right(self._stops, low) - 1)]
        if high > old[1]:
            high = self._stops[min(len(self._stops) - 1, bisect_left(self._stops, high))]
        return min(low, new[0]), max(high, new[1])

    def _compared(self) -> list[int]:
        stops = {*INDEX.limits, -(1 << 31), (1 << 31) - 1, INDEX32_LIMIT - 1, 0}
        for op in self.kernel.walk():
            if isinstance(op, arith.Scalar) and op.fn.name in OPPOSITE:
                number = integer(op.operands[1])
                stops |= set() if number is None else {number, number - 1}
        return sorted(stops)


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def _dtype(value: Value) -> DType:
    type_ = value.type.dtype if isinstance(value.type, FragmentType) else value.type
    assert isinstance(type_, DType)
    return type_

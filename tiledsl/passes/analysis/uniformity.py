"""Uniformity: for each value, the widest group of threads that is sure to agree on it.

The lattice, from most to least uniform: "grid" (all threads of the launch), "cta" (all of a block), "warpgroup" (of
each four warps from a multiple of four on), "warp" (of each warp), "thread" (they may differ). A value is as uniform
as the least uniform thing it depends on: operands, and the conditions that decide which definition of it is reached.
Loops run to a fixpoint from the optimistic end. How an op's results depend on its operands it declares itself
(`ir.facts.Varies`).

A load from a uniform address is uniform where nothing in the kernel may write that memory meanwhile (`written`).
Otherwise a fast thread may write what a slow one is about to read.

Special rules: positions, by the shape of the block; votes and shuffles of a warp; what lanes hold of a matrix; and the
common ``tx // 32``, ``tx < 32``, ``warp_id() >= 4`` on numbers of threads and warps, which are the same for a whole
warp or warpgroup.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tiledsl.arch import WARP, WARPGROUP
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, gpu
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.written import WrittenMemory

__all__ = ["LEVELS", "Level", "Uniformity", "least_uniform"]

Level = Literal["grid", "cta", "warpgroup", "warp", "thread"]
LEVELS: tuple[Level, ...] = ("grid", "cta", "warpgroup", "warp", "thread")

_RANK: dict[Level, int] = {level: rank for rank, level in enumerate(LEVELS)}


def least_uniform(*levels: Level) -> Level:
    """The join of the lattice; "grid" for none."""
    return LEVELS[max((_RANK[level] for level in levels), default=0)]


class Uniformity:
    """Runs over the kernel once, at construction. Works at both levels.

    `of(value)` is a level; `cause(value)` the op that makes it no more uniform than it is.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._threads = kernel, kernel.threads
        self._levels: dict[Value, Level] = {}
        self._why: dict[Value, Value | Op] = {}
        self._changed = False
        self._block(kernel.body)

    def of(self, value: Value) -> Level:
        return self._levels.get(value, "grid")

    def cause(self, value: Value) -> Op | None:
        """Follow the least uniform dependence back to where it began; None for a uniform value."""
        seen: set[Value] = set()
        while value not in seen:
            seen.add(value)
            why = self._why.get(value)
            if not isinstance(why, Value):
                return why
            value = why
        return None

    def _raise(self, value: Value, level: Level, why: Value | Op) -> None:
        """Note what reaches `value`; it only ever gets less uniform."""
        if _RANK[level] > _RANK[self.of(value)]:
            self._levels[value] = level
            self._why[value] = why
            self._changed = True

    def _join(self, target: Value, *sources: Value) -> None:
        for source in sources:
            self._raise(target, self.of(source), source)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case control.If():
                    self._if(op)
                case control.For():
                    self._for(op)
                case control.While():
                    self._while(op)
                case _:
                    self._op(op)

    # -- control flow --------------------------------------------------------------------------

    def _if(self, op: control.If) -> None:
        for block in op.blocks:
            self._block(block)
        pairs = zip(op.then.terminator.operands, op.orelse.terminator.operands, strict=True)
        for result, (x, y) in zip(op.results, pairs, strict=True):
            self._join(result, x, y)
            if x is not y:
                self._join(result, op.condition)

    def _for(self, op: control.For) -> None:
        self._join(op.body.args[0], op.lo, op.step)
        for arg, init in zip(op.body.args[1:], op.inits, strict=True):
            self._join(arg, init)
        self._until_stable(op, op.body.args[1:])
        for result, arg in zip(op.results, op.body.args[1:], strict=True):
            self._join(result, arg, op.lo, op.hi, op.step)  # threads leave after different trips

    def _while(self, op: control.While) -> None:
        for arg, init in zip(op.before.args, op.operands, strict=True):
            self._join(arg, init)
        self._until_stable(op, op.before.args)
        go_on = op.before.terminator.operands[0]
        for result, value in zip(op.results, op.before.terminator.operands[1:], strict=True):
            self._join(result, value, go_on)

    def _until_stable(self, op: Op, args: list[Value]) -> None:
        while True:
            outer, self._changed = self._changed, False
            for block in op.blocks:
                self._block(block)
                if isinstance(block.terminator, control.Condition):
                    for arg, value in zip(op.blocks[1].args, block.terminator.operands[1:], strict=True):
                        self._join(arg, value)
            for arg, value in zip(args, op.blocks[-1].terminator.operands, strict=True):
                self._join(arg, value)
            again, self._changed = self._changed, self._changed or outer
            if not again:
                return

    # -- ops -----------------------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        own = self._own(op) if op.results else None
        for result in op.results:
            if own is None:
                self._join(result, *op.operands)
            else:
                self._raise(result, own, op.operands[0] if op.varies == "numbers" else op)

    def _own(self, op: Op) -> Level | None:
        """What the op itself says; None where the operands decide."""
        match op.varies:
            case "operands":
                return None
            case "numbers":
                return self._by_threads(op)
            case "memory":
                return self._read(op)
            case "position":
                return self._position(op)
            case "vote":
                return "warp" if any(self.of(v) == "thread" for v in op.operands) else None
            case "control":
                raise AssertionError(f"uniformity knows no {op.name}")
            case level:
                return level

    def _read(self, op: Op) -> Level | None:
        if any(self.of(v) == "thread" for v in op.operands):
            return None
        alike = self._written.read_alike(op)
        return None if alike == "cta" else alike

    @cached_property
    def _written(self) -> WrittenMemory:
        return WrittenMemory(self._kernel)

    def _position(self, op: Op) -> Level:
        count = 1
        for extent in self._threads:
            count *= extent
        match op:
            case gpu.ThreadId(axis=axis):
                return self._thread_id(axis)
            case gpu.WarpId():
                return "grid" if count <= WARP else "warp"
            case _:
                return "grid" if count == 1 else "thread"

    def _thread_id(self, axis: int) -> Level:
        """The index along y or z is a warp's own where whole warps fit into one step of it."""
        extent = self._threads[axis] if axis < len(self._threads) else 1
        below = 1
        for lower in self._threads[:axis]:
            below *= lower
        if extent == 1:
            return "grid"
        return "warp" if below % WARP == 0 else "thread"

    def _by_threads(self, op: Op) -> Level | None:
        """``tx // 32``, ``tx < 32``, ``(warp_id() - 4) // 4 == 1`` and their kind, where warps lie along x: the widest
        group within which the result cannot change. None where the operands decide."""
        assert isinstance(op, arith.Scalar)
        name = op.fn.name
        if name in ("floordiv", "shr"):
            steps = self._steps(op.result)
            return None if steps is None else steps.group(steps.size, steps.first)
        number = integer(op.operands[-1])
        steps = self._steps(op.operands[0]) if name in _CHANGES and number is not None else None
        if steps is None or number is None:
            return None
        return steps.group(*(steps.first + (number + behind) * steps.size for behind in _CHANGES[name]))

    def _steps(self, value: Value) -> _Steps | None:
        """How a value goes by the thread's number; None if it does not, or not so."""
        op = value.op
        match op:
            case arith.Cast() if op.to.bits >= 32 and op.to.is_integer and op.src.dtype.is_integer:
                return self._steps(op.src)
            case gpu.ThreadId(axis=0):
                return self._along_x()
            case gpu.WarpId():
                return _Steps(WARP, 0, WARPGROUP)
            case arith.Scalar() if op.fn.name in ("add", "sub", "floordiv", "shr") and op.operands[0].dtype.is_integer:
                number, steps = integer(op.operands[1]), self._steps(op.operands[0])
            case _:
                return None
        if number is None or steps is None or (number < 0 and op.fn.name not in ("add", "sub")):
            return None
        size, first = steps.size, steps.first
        match op.fn.name:
            case "add":
                return replace(steps, first=first - number * size)
            case "sub":
                return replace(steps, first=first + number * size)
            case "shr":
                return replace(steps, size=size << min(number, 31))
            case _:
                return replace(steps, size=size * number) if number else None

    def _along_x(self) -> _Steps | None:
        """The index along x: of a thread of a block that is one row, or whose rows are whole warps or warpgroups."""
        row = 0 if all(n == 1 for n in self._threads[1:]) else self._threads[0]
        unit = next((unit for unit in (WARPGROUP, WARP) if row % unit == 0), None)
        return None if unit is None else _Steps(1, 0, unit)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The value ``(thread - first) // size``. unit: threads of the widest group that one row of the block has whole."""

    size: int
    first: int
    unit: int

    def group(self, *changes: int) -> Level | None:
        """The group within which nothing changes that changes at these threads, or at multiples of them, alone."""
        if any(thread % WARP for thread in changes):
            return None
        return "warpgroup" if self.unit == WARPGROUP and all(t % WARPGROUP == 0 for t in changes) else "warp"


_CHANGES = {"lt": (0,), "ge": (0,), "le": (1,), "gt": (1,), "eq": (0, 1), "ne": (0, 1)}
"""Of a comparison with n, how far behind n the first operand is where the result changes."""

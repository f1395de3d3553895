"""Uniformity: for each value, the widest group of threads that is sure to agree on it.

The lattice, from most to least uniform: "grid" (all threads of the launch), "cta" (all of a block),
"warp" (all of each warp), "thread" (they may differ). A value is as uniform as the least uniform thing
it depends on: operands, and the conditions that decide which definition of it is reached. Loops run
to a fixpoint from the optimistic end. A load from a uniform address counts as uniform.

Special rules: positions, by the shape of the block; votes and shuffles of a warp; what lanes hold of a matrix; and the
common ``tx // 32``, ``tx < 32`` on thread indices, which are the same for a whole warp.
"""

from __future__ import annotations

from typing import Literal

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, gpu, matrix, mem, ptx, tile, warp
from tiledsl.layout.banks import WARP
from tiledsl.passes.constants import integer

__all__ = ["LEVELS", "Level", "Uniformity", "least_uniform"]

Level = Literal["grid", "cta", "warp", "thread"]
LEVELS: tuple[Level, ...] = ("grid", "cta", "warp", "thread")
_RANK: dict[Level, int] = {level: rank for rank, level in enumerate(LEVELS)}


def least_uniform(*levels: Level) -> Level:
    """The join of the lattice; "grid" for none."""
    return LEVELS[max((_RANK[level] for level in levels), default=0)]


class Uniformity:
    """Runs over the kernel once, at construction. Works at both levels.

    `of(value)` is a level; `cause(value)` the op that makes it no more uniform than it is.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._threads = kernel.threads
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
        own = self._own(op)
        for result in op.results:
            if own is None:
                self._join(result, *op.operands)
            else:
                self._raise(result, own, op)

    def _own(self, op: Op) -> Level | None:
        """What the op itself says; None where the operands decide."""
        match op:
            case gpu.Position():
                return self._position(op)
            case tile.AtomicAdd() | mem.AtomicAdd() | ptx.Inline():
                return "thread"
            case matrix.Load() | matrix.LdMatrix() | mem.LdMatrix() | matrix.Coordinates():
                return "thread"  # each lane holds elements of its own
            case matrix.Mma() | ptx.MmaSync():
                return "thread"
            case warp.Vote(mode="ballot"):
                return "warp"  # warps may differ in how many lanes they have
            case warp.Vote():
                return "warp" if self.of(op.predicate) == "thread" else None
            case arith.Scalar() if self._by_warp(op):
                return "warp"
            case _:
                return None

    def _position(self, op: gpu.Position) -> Level:
        count = 1
        for extent in self._threads:
            count *= extent
        match op:
            case gpu.BlockId():
                return "cta"
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

    def _by_warp(self, op: arith.Scalar) -> bool:
        """``tx // 32``, ``tx >> 5``, ``tx < 32`` and their kind, where warps lie along x."""
        name = op.fn.name
        if name not in ("floordiv", "shr", "lt", "ge", "gt", "le") or not self._is_thread_x(op.operands[0]):
            return False
        number = integer(op.operands[1])
        if number is None or number < 0:
            return False
        match name:
            case "shr":
                return number >= 5
            case "gt" | "le":
                return (number + 1) % WARP == 0
            case _:
                return number % WARP == 0

    def _is_thread_x(self, value: Value) -> bool:
        """The index along x, or a cast of it, in a block whose rows are whole warps (or that is one row)."""
        op = value.op
        if isinstance(op, arith.Cast) and op.to.bits >= 32 and op.to.is_integer:
            return self._is_thread_x(op.src)
        rows_are_warps = self._threads[0] % WARP == 0 or all(n == 1 for n in self._threads[1:])
        return isinstance(op, gpu.ThreadId) and op.axis == 0 and rows_are_warps

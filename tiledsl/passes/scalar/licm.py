"""Loop-invariant code motion: pure ops whose operands come from outside a loop move in front of it.

Every scalar op is total (division by zero has a value), so running one that the loop might not have
reached is safe. Ops with effects stay, loads included. Ops inside an `if` of the loop stay as well:
what `expand` needs before a branch it already puts before the branch. A constant offset stays too: as
the immediate of its load it is free, in front of the loop it would hold a register.
"""

from __future__ import annotations

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, mem
from tiledsl.passes.analysis.constants import integer

__all__ = ["move_loop_invariants"]


def move_loop_invariants(kernel: Kernel) -> None:
    _Mover().block(kernel.body, 0)


class _Mover:
    """`depth`: nesting of the block where a value lives; ops inside a loop are deeper than its bounds."""

    def __init__(self) -> None:
        self.depth: dict[Value, int] = {}

    def block(self, block: Block, depth: int) -> None:
        """Visit `block`, hoisting out of the loops in it, innermost first."""
        for arg in block.args:
            self.depth[arg] = depth
        ops: list[Op] = []
        for op in block.ops:
            for inner in op.blocks:
                self.block(inner, depth + 1)
            if isinstance(op, (control.For, control.While)):
                for moved in self.hoisted(op, depth + 1):
                    moved.parent = block
                    ops.append(moved)
                    self.set(moved, depth)
            ops.append(op)
            self.set(op, depth)
        block.ops = ops

    def set(self, op: Op, depth: int) -> None:
        for result in op.results:
            self.depth[result] = depth

    def hoisted(self, loop: Op, depth: int) -> list[Op]:
        """Take the invariant ops out of the blocks of `loop`, whose values live at `depth` or deeper."""
        moved: list[Op] = []
        for block in loop.blocks:
            kept: list[Op] = []
            for op in block.ops:
                if _movable(op) and all(self.depth[v] < depth for v in op.operands):
                    self.set(op, depth - 1)
                    moved.append(op)
                else:
                    kept.append(op)
            block.ops = kept
        return moved


def _movable(op: Op) -> bool:
    if op.blocks or op.terminator or op.effects:
        return False
    return not isinstance(op, mem.Offset) or integer(op.index) is None

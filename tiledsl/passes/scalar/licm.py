"""Loop-invariant code motion: pure ops whose operands come from outside a loop move in front of it.

Every scalar op is total (division by zero has a value), so running one that the loop might not have
reached is safe. Ops with effects stay, loads included. Ops inside an `if` of the loop stay as well:
what `expand` needs before a branch it already puts before the branch. A constant offset stays too: as
the immediate of its load it is free, in front of the loop it would hold a register.
"""

from __future__ import annotations

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import control, mem
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.structure import rewrite


def move_loop_invariants(kernel: Kernel) -> None:
    rewrite(kernel.body, lambda op: [*_invariants(op), op] if isinstance(op, (control.For, control.While)) else None)


def _invariants(loop: Op) -> list[Op]:
    """Take the invariant ops out of the blocks of `loop`."""
    changing = {value for block in loop.blocks for value in block.args}
    changing.update(result for block in loop.blocks for op in block.ops for result in op.results)
    moved: list[Op] = []
    for block in loop.blocks:
        kept: list[Op] = []
        for op in block.ops:
            if _movable(op) and changing.isdisjoint(op.operands):
                changing.difference_update(op.results)
                moved.append(op)
            else:
                kept.append(op)
        block.ops = kept
    return moved


def _movable(op: Op) -> bool:
    if op.blocks or op.terminator or op.effects:
        return False
    return not isinstance(op, mem.Offset) or integer(op.index) is None

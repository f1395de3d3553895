"""Check that a kernel which is launched early touches no global memory before it waits for the grid before it.

Until then, that grid may not have written what is read, nor read what is overwritten. It shows on a GPU only, and
seldom there, since the emulator runs launches one after the other. (PTX ISA: griddepcontrol. What inline PTX does is
not known here.)
"""

from __future__ import annotations

from tiledsl.errors import CompileError
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.ops import barriers, control
from tiledsl.ir.types import GlobalType
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.checks.checker import of_each
from tiledsl.passes.pipelining.body import memories


def check_early(kernel: Kernel) -> None:
    """At tile level, on control flow as it was written."""
    if any(_waits(op) for op in kernel.walk()):
        early: list[Op] = []
        _walk(kernel.body, False, early)
        of_each(early, _refuse)


def _waits(op: Op) -> bool:
    return isinstance(op, barriers.GridDependency) and op.wait


def _walk(block: Block, waited: bool, early: list[Op]) -> bool:
    """Appends ops that may come before a wait. Gives whether all threads that reach the end of the block have waited;
    waited: the same for its start."""
    for op in block.ops:
        if _waits(op):
            waited = True
        elif not waited and any(isinstance(memory.type, GlobalType) for memory, _ in memories(op)):
            early.append(op)
        if isinstance(op, control.If):
            ends = [_walk(inner, waited, early) for inner in op.blocks]
            waited = all(ends)
        elif isinstance(op, control.While):
            waited = _walk(op.before, waited, early)
            _walk(op.after, waited, early)
        else:
            for inner in op.blocks:
                _walk(inner, waited, early)
    return waited


def _refuse(op: Op) -> None:
    names = " and ".join(name_of(memory) for memory, _ in memories(op) if isinstance(memory.type, GlobalType))
    raise CompileError(
        f"{names} is accessed before ptx.griddepcontrol_wait(): the grid before may still write or read it",
        fix="wait first, outside of conditions and loops",
        code="C412",
    )

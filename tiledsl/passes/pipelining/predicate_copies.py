"""Predicate copies: asynchronous copies under a condition get it as their predicate, in place of a branch around them.

A branch would divide the code: ptxas moves nothing across it, and what follows waits for all that stands in front.
Predicated, the copies and the arithmetic of their addresses spread among the other instructions. The arithmetic is then
done in any case; it is pure, and an address that no copy uses harms nobody. Done where the op asks for it
(`control.If.predicated`), and only if nothing but copies, pure ops and checks of bounds is under the condition.
"""

from __future__ import annotations

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import control, mem
from tiledsl.passes.analysis.structure import replace_op, rewrite


def predicate_copies(kernel: Kernel) -> None:
    """After `expand`: no op asks to be `predicated` that can be."""
    rewrite(kernel.body, lambda op: _flat(op) if isinstance(op, control.If) and op.predicated else None)


def _flat(op: control.If) -> list[Op]:
    """What is under the condition, its copies predicated by it. What the emulator checks stays under it. The op as it
    is where there is anything else."""
    *ops, end = op.then.ops
    pure = [inner for inner in ops if inner.is_pure]
    copies = [inner for inner in ops if isinstance(inner, mem.CpAsync) and inner.condition is None]
    checks = [inner for inner in ops if isinstance(inner, mem.Within)]
    if len(op.orelse.ops) > 1 or len(pure) + len(copies) + len(checks) < len(ops):
        return [op]
    for copy in copies:
        copy.set_operands([*copy.operands, op.condition])
    op.then.ops = [*checks, end] if checks else []
    if checks:
        op.attrs["predicated"] = False
        return [*pure, op, *copies]
    replace_op(op, [])
    return ops

"""Accumulators in flight are used exactly once on every path, and waited for in the end."""

from __future__ import annotations

from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import is_pending
from tiledsl.frontend.frame import Unit
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import wgmma
from tiledsl.ir.single_use import uses_of


def check_pending(unit: Unit) -> None:
    """Report accumulators that are dropped, used twice, or taken by a loop that does not carry them."""
    for op in unit.kernel.walk():
        arguments = [arg for block in op.blocks for arg in block.args] if op.blocks else ()
        for value in (*op.results, *arguments):
            if is_pending(value):
                _check_used_once(unit, value, op)


def _check_used_once(unit: Unit, value: Value, made: Op) -> None:
    uses = uses_of(value)
    if not uses and isinstance(made, wgmma.Begin):
        message = "nothing is added to this accumulator, and nobody waits for it"
        unit.report(CompileError(message, made.loc, "remove it", code="C504"))
    elif not uses:
        message = "these products are never waited for: the accumulator is dropped"
        unit.report(CompileError(message, made.loc, "x = acc.wait() gives its elements", code="C504"))
    for number, use in enumerate(uses):
        if use.in_loop:
            fix = "give the result the name of what goes in: acc = wgmma(a, b, acc)"
            unit.report(
                CompileError("a loop takes the same accumulator in every iteration", use.op.loc, fix, code="C504")
            )
        for other in uses[:number]:
            if not use.excludes(other):
                first, second = sorted((use.op.loc, other.op.loc), key=lambda loc: loc.line)
                message = f"this accumulator was used before, in line {first.line}"
                message += ": its sum is in flight under another name"
                unit.report(
                    CompileError(
                        message, second, "continue with the result of that: acc = wgmma(a, b, acc)", code="C504"
                    )
                )

"""Makes the NaNs of f64 arithmetic canonical where their bits can be seen.

The hardware canonicalises NaN results of f32, f16 and bf16, but f64 instructions hand on the payload of
an operand or make 0xfff8000000000000 (measured on an H200). Arithmetic itself cannot tell NaNs apart,
so it is enough to settle a value on its way to a store, a shuffle, a bit cast, a print or inline PTX,
and where it meets a value whose payload counts, such as a loaded one. Accumulators of a loop cost nothing.
"""

from __future__ import annotations

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, debug, mem, warp
from tiledsl.ir.ops.ptx import Inline
from tiledsl.ir.types import F64

__all__ = ["settle_f64_nans"]

SETTLE = "{.reg .pred p; setp.nan.f64 p, $1, $1; selp.f64 $0, 0d7FFFFFFFFFFFFFFF, $1, p;}"
SEEN_BY = (mem.Store, warp.Shuffle, arith.Bitcast, debug.Print, Inline)


def settle_f64_nans(kernel: Kernel) -> Kernel:
    """`kernel`, or a copy of it with the settling instructions if it has f64 arithmetic."""
    if not any(_computes(result) for op in kernel.walk() for result in op.results):
        return kernel
    kernel = kernel.clone()
    sources = _merges(kernel)
    computed = _computed(kernel, sources)
    for op in list(kernel.walk()):
        if isinstance(op, SEEN_BY):
            _settle(op, range(len(op.operands)), computed)
    for merged, inputs in sources.items():
        if merged not in computed:
            for op, position in inputs:
                _settle(op, [position], computed)
    return kernel


def _computes(value: Value) -> bool:
    """True for a result of f64 arithmetic, whose NaNs are to be canonical."""
    return value.type == F64 and isinstance(value.op, (arith.Scalar, arith.Cast))


Inputs = dict[Value, list[tuple[Op, int]]]
"""For each f64 value that control flow or a select makes: the operands that it may be."""


def _merges(kernel: Kernel) -> Inputs:
    found: Inputs = {}

    def note(values: list[Value], op: Op, first: int) -> None:
        for offset, value in enumerate(values):
            if value.type == F64:
                found.setdefault(value, []).append((op, first + offset))

    for op in kernel.walk():
        match op:
            case arith.Select():
                note(op.results, op, 1)
                note(op.results, op, 2)
            case control.If():
                for block in op.blocks:
                    note(op.results, block.terminator, 0)
            case control.For():
                for carried in (op.body.args[1:], op.results):
                    note(carried, op, 3)
                    note(carried, op.body.terminator, 0)
            case control.While():
                note(op.before.args, op, 0)
                note(op.before.args, op.after.terminator, 0)
                for passed in (op.after.args, op.results):
                    note(passed, op.before.terminator, 1)
            case _:
                pass
    return found


def _computed(kernel: Kernel, sources: Inputs) -> set[Value]:
    """Values that are arithmetic results or constants on every path: none has a payload to keep."""
    computed = {r for op in kernel.walk() for r in op.results if _computes(r)} | sources.keys()
    constants = {r for op in kernel.walk() for r in op.results if isinstance(op, arith.Constant)}
    changed = True
    while changed:
        changed = False
        for merged, inputs in sources.items():
            if merged in computed and any(
                op.operands[position] not in computed and op.operands[position] not in constants
                for op, position in inputs
            ):
                computed.remove(merged)
                changed = True
    return computed


def _settle(op: Op, positions: range | list[int], computed: set[Value]) -> None:
    block = op.parent
    assert isinstance(block, Block)
    for position in positions:
        value = op.operands[position]
        if value in computed:
            settled = Inline(value, text=SETTLE, outputs=(F64,), loc=op.loc)
            block.insert_before(op, settled)
            op.set_operand(position, settled.result)

"""Asynchronous copies. (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group; st.async.)"""

from __future__ import annotations

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I32, VOID, integer
from tiledsl.backends.ptx.vectors import numbered
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith, async_copy, mem
from tiledsl.passes.analysis.constants import integer as integer_of


@lowers(mem.CpAsync)
def lower_cp_async(lw: Lowering, op: mem.CpAsync) -> None:
    """16 bytes pass L1 by (.cg), where they would only push others out; fewer cannot.

    A number of bytes that is all of them or none is given as its condition: ptxas makes the zero fill's predicate of
    it if it sees the selp in front.
    """
    what = f"cp.async.{'cg' if op.bytes == 16 else 'ca'}.shared.global [$0], [$1], {op.bytes}"
    operands, before, when = list(op.operands[:2]), "", ""
    condition = _all_or_none(op)
    if condition is not None:
        before, what = f".reg .b32 n; selp.b32 n, {op.bytes}, 0, $2; ", f"{what}, n"
        operands.append(condition)
    elif op.src_bytes is not None:
        what = f"{what}, $2"
        operands.append(op.src_bytes)
    if op.condition is not None:
        when = f"@${len(operands)} "
        operands.append(op.condition)
    lw.asm(f"{{ {before}{when}{what}; }}", *lw.operands(operands))


def _all_or_none(op: mem.CpAsync) -> Value | None:
    """The condition of a number of bytes that is all of them or none."""
    made = None if op.src_bytes is None else op.src_bytes.op
    if not isinstance(made, arith.Select) or (integer_of(made.a), integer_of(made.b)) != (op.bytes, 0):
        return None
    return made.condition


@lowers(async_copy.CommitGroup)
def lower_commit_group(lw: Lowering, op: async_copy.CommitGroup) -> None:
    lw.intrinsic("llvm.nvvm.cp.async.commit.group", VOID)


@lowers(async_copy.WaitGroup)
def lower_wait_group(lw: Lowering, op: async_copy.WaitGroup) -> None:
    lw.intrinsic("llvm.nvvm.cp.async.wait.group", VOID, integer(op.pending, I32))


@lowers(mem.Send)
def lower_send(lw: Lowering, op: mem.Send) -> None:
    """`mapa` finds both places in the other block."""
    bits = 8 * mem.pointer(op).dtype.bytes
    value = numbered(3, 3 + op.vec) if op.vec > 1 else "$3"
    there = "mapa.shared::cluster.u32 there, $0, $2; mapa.shared::cluster.u32 counts, $1, $2;"
    what = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{f'.v{op.vec}' * (op.vec > 1)}.b{bits}"
    text = f"{{ .reg .b32 there, counts; {there} {what} [there], {value}, [counts]; }}"
    lw.asm(text, *lw.operands(op.operands))

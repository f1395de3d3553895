"""Asynchronous copies. (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I32, VOID, integer
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith, async_copy, mem
from tiledsl.passes.analysis.constants import integer as integer_of

__all__ = ["all_or_none", "lower_commit_group", "lower_cp_async", "lower_wait_group"]


@lowers(mem.CpAsync)
def lower_cp_async(lw: Lowering, op: mem.CpAsync) -> Sequence[Any]:
    """16 bytes pass L1 by (.cg), where they would only push others out; fewer cannot.

    A number of bytes that is all of them or none is given as its condition: ptxas makes the zero fill's predicate of
    it if it sees the selp in front.
    """
    what = f"cp.async.{'cg' if op.bytes == 16 else 'ca'}.shared.global [$0], [$1], {op.bytes}"
    kinds, operands, before, count = "r,l", list(op.operands[:2]), "", ""
    condition = all_or_none(op)
    if condition is not None:
        kinds, before, count = f"{kinds},b", f".reg .b32 n; selp.b32 n, {op.bytes}, 0, $2; ", ", n"
        operands.append(condition)
    elif op.src_bytes is not None:
        kinds, count = f"{kinds},r", ", $2"
        operands.append(op.src_bytes)
    when = ""
    if op.condition is not None:
        kinds, when = f"{kinds},b", f"@${len(operands)} "
        operands.append(op.condition)
    text = f"{{ {before}{when}{what}{count}; }}"
    lw.asm(text, f"{kinds},~{{memory}}", VOID, *lw.operands(operands), side_effect=True)
    return []


def all_or_none(op: mem.CpAsync) -> Value | None:
    """The condition of a number of bytes that is all of them or none."""
    made = None if op.src_bytes is None else op.src_bytes.op
    if not isinstance(made, arith.Select) or (integer_of(made.a), integer_of(made.b)) != (op.bytes, 0):
        return None
    return made.condition


@lowers(async_copy.CommitGroup)
def lower_commit_group(lw: Lowering, op: async_copy.CommitGroup) -> Sequence[Any]:
    lw.intrinsic("llvm.nvvm.cp.async.commit.group", VOID)
    return []


@lowers(async_copy.WaitGroup)
def lower_wait_group(lw: Lowering, op: async_copy.WaitGroup) -> Sequence[Any]:
    lw.intrinsic("llvm.nvvm.cp.async.wait.group", VOID, integer(op.pending, I32))
    return []

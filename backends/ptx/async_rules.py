"""Asynchronous copies. (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.types import I32, VOID, integer
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import arith, async_copy, mem
from tiledsl.passes.constants import integer as integer_of

__all__ = ["all_or_none", "lower_commit_group", "lower_cp_async", "lower_wait_group"]

KEEP_BRANCH = "pmevent 0;"
"""Marks an event for a profiler, and is the cheapest instruction that ptxas gives no predicate. Without it the branch
that `expand` puts around copies of part of the bytes becomes predicates: their code takes its time in every launch."""


@lowers(mem.CpAsync)
def lower_cp_async(lw: Lowering, op: mem.CpAsync) -> Sequence[Any]:
    """16 bytes pass L1 by (.cg), where they would only push others out; fewer cannot."""
    what = f"{'cg' if op.bytes == 16 else 'ca'}.shared.global"
    to, at, *count = lw.operands(op.operands)
    condition = all_or_none(op)
    if condition is not None:
        text = f"{{ .reg .b32 n; selp.b32 n, {op.bytes}, 0, $2; cp.async.{what} [$0], [$1], {op.bytes}, n; }}"
        lw.asm(text, "r,l,b,~{memory}", VOID, to, at, lw.value(condition), side_effect=True)
        return []
    if count and op is _first_in_part(op.parent):
        lw.asm(KEEP_BRANCH, "", VOID, side_effect=True)
    lw.intrinsic(f"llvm.nvvm.cp.async.{what}.{op.bytes}{'.s' if count else ''}", VOID, to, at, *count)
    return []


def _first_in_part(block: Block | None) -> Op | None:
    copies = (op for op in block.ops if isinstance(op, mem.CpAsync)) if block is not None else ()
    return next((op for op in copies if op.src_bytes is not None and all_or_none(op) is None), None)


def all_or_none(op: mem.CpAsync) -> Value | None:
    """The condition of a number of bytes that is all of them or none.

    ptxas makes the copy's predicate of it if it sees the selp in front. An intrinsic would not do: LLVM merges it with
    a copy of part of the bytes on the other side of a branch, and the number is then anything.
    """
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

"""The products by NCCL, which sends parts of the operands while others are multiplied."""

from __future__ import annotations

from typing import Any

from tiledsl.distributed.memory import Ranks, dist
from tiledsl.gemm import gemm
from tiledsl.lang import cdiv

PARTS = 4


def gathered(ranks: Ranks, A: Any, B: Any, C: Any, bias: Any, epilogue: Any, rows_to: Any) -> None:
    """A part of the rows of all ranks is one batch."""
    begun: list[Any] = []
    m: int = A.shape[0]
    k: int = A.shape[1]
    results, every = C.view(ranks.count, m, C.shape[1]), None if rows_to is None else rows_to.view(ranks.count, m, k)
    for first in range(0, m, _part(m)):
        part = A[first : first + _part(m)].contiguous()
        rows = A.new_empty(ranks.count, *part.shape)
        begun.append((first, rows, dist.all_gather_into_tensor(rows, part, group=ranks.group, async_op=True)))
    for first, rows, work in begun:
        work.wait()
        these = slice(first, first + rows.shape[1])
        gemm(rows, B, results[:, these], 1.0, 0.0, bias, epilogue)
        if every is not None:
            every[:, these].copy_(rows)


def _part(rows: int) -> int:
    return max(cdiv(rows, PARTS), 1)


def scattered(ranks: Ranks, A: Any, B: Any, C: Any, bias: Any, epilogue: Any) -> None:
    """A part of the rows of all shards is multiplied while the sums of the one before are sent. Then the sums, rounded,
    get their bias and epilogue."""
    begun: list[Any] = []
    m: int = C.shape[0]
    shards = A.reshape(ranks.count, m, A.shape[1])
    for first in range(0, m, _part(m)):
        these = slice(first, min(first + _part(m), m))
        sums = gemm(shards[:, these], B)
        begun.append((sums, dist.reduce_scatter_tensor(C[these], sums, group=ranks.group, async_op=True)))
    for each in begun:
        each[1].wait()
    if bias is not None or epilogue is not None:
        gemm(A[:m], B, C, 0.0, 1.0, bias, epilogue)

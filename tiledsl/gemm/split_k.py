"""The reduction of the partial sums of a product whose k is split."""

from __future__ import annotations

from typing import TypeVar

from tiledsl import (
    Const,
    Float,
    Global,
    assert_,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    i32,
    index,
    minimum,
    shared,
    threads,
    tile_kernel,
    unroll,
    where,
)
from tiledsl.dims import J, L, M, N
from tiledsl.gemm.epilogue import Epilogue, plain

__all__ = ["QUAD", "add_up", "split"]

E = TypeVar("E", bound=Float)

QUAD = 4
"""Columns of a lane; rows of partial sums are whole quads."""


@tile_kernel(arch="sm_90a")
def add_up(
    P: Global[f32, L, M, J],
    C: Global[E, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    WARPS: const = 8,
    DEEP: const = 8,
    PIECES: const = 1,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha * (the sum of P along its first axis) + beta * C); rows of P are aligned, whole vectors.

    A lane has 4 columns. Each of WARPS warps loads up to DEEP parts at once and adds them; the first warp adds the
    others' sums. So the order of additions depends on the shape alone. A block has PIECES such groups of warps.
    """
    assert WARPS > 0 and DEEP > 0 and PIECES > 0, "WARPS, DEEP and PIECES are counts: 1 or more"
    block = grid(cdiv(M * J, PIECES * 32 * QUAD))
    # At its highest level, ptxas moves additions in between the loads, whose latencies then add up.
    lane, warp, piece = threads(32, WARPS, PIECES, assembler_level=1)
    assert_(L <= WARPS * DEEP, "each of WARPS warps adds up DEEP parts, and there are more: take more of either")
    sums = shared((PIECES, WARPS, 32 * QUAD), f32)
    at = (block * PIECES + piece) * 32 + lane
    row, column = at // (J // QUAD), at % (J // QUAD) * QUAD
    parts = [P.load(minimum(warp + i * WARPS, L - 1), minimum(row, M - 1), column) for i in range(DEEP)]
    x = fragment((QUAD,), f32)
    for i in unroll(DEEP):
        x = x + where(warp + i * WARPS < L, parts[i], 0)
    sums.store(piece, warp, lane * QUAD, x)
    barrier()
    if warp == 0:
        for i in unroll(1, WARPS):
            x = x + sums.load(piece, i, lane * QUAD)
        x = alpha * x
        columns = fragment((QUAD,), i32)
        for i in unroll(QUAD):
            columns[i] = i
        columns = columns.to(index) + column
        if ADD_C:
            x = beta * C.get(row, columns).to(f32) + x
        x = EPILOGUE(x, bias, columns).to(C.dtype)
        if C.unit == 1 and C.align >= QUAD * C.dtype.bytes:
            C.put(row, column, x)
        else:
            C.put(row, columns, x)


def split(parts: int) -> dict[str, int]:
    """The consts of `add_up` for `parts` parts: 8 parts a warp and 256 threads a block where possible."""
    warps = next(w for w in (1, 2, 4, 8, 16) if 8 * w >= parts or w == 16)
    return {"WARPS": warps, "DEEP": cdiv(parts, warps), "PIECES": max(8 // warps, 1)}

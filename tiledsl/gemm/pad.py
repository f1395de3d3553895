"""Copies of operands that TMA cannot take, with rows that it can."""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Dim,
    Global,
    Memory,
    Scalar,
    SharedTile,
    cdiv,
    grid,
    index,
    lane_id,
    ptx,
    shared,
    syncwarp,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import J, K, L, M

__all__ = ["VEC", "pad", "pad_both"]

D = TypeVar("D", bound=Scalar)

VEC = 8
"""Elements of a vector of 16 bytes; padded rows are whole vectors."""


class M2(Dim):
    """Rows of a second operand."""


class K2(Dim):
    """Columns of a second operand."""


class J2(Dim):
    """Columns of a second operand's copy."""


@tile_function
def pad_rows(X: Memory[D], Y: Global[D, Any, Any, Any], lines: SharedTile[D], batch: index, m: index, k: index):
    """Y[batch, m, k : k + 256] = X there, by one warp through its row of `lines`; reads and writes are coalesced."""
    lane, warp = lane_id(), warp_id()
    found = [X.get(batch, m, k + i * 32 + lane, other=0) for i in range(VEC)]
    for i in unroll(VEC):
        lines[warp, i * 32 + lane] = found[i]
    syncwarp()
    if m < Y.shape[1] and k + lane * VEC < Y.shape[2]:
        Y.store(batch, m, k + lane * VEC, lines.load(warp, lane * VEC))


@tile_kernel(arch="sm_90a")
def pad(X: Global[D, L, M, K], Y: Global[D, L, M, J], *, EARLY: Const[bool] = False):
    """Y[:, :, :K] = X; rows of Y are aligned and whole vectors long."""
    row, part = grid(cdiv(M, 8) * L, cdiv(J, 32 * VEC))
    warp = threads(32, 8)[1]
    lines = shared((8, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    pad_rows(X, Y, lines, row // cdiv(M, 8), row % cdiv(M, 8) * 8 + warp, part * 32 * VEC)


@tile_kernel(arch="sm_90a")
def pad_both(
    X: Global[D, L, M, K],
    Y: Global[D, L, M, J],
    Z: Global[D, L, M2, K2],
    W: Global[D, L, M2, J2],
    *,
    EARLY: Const[bool] = False,
):
    """`pad` of two operands in one launch: X to Y and Z to W."""
    row, part = grid(cdiv(max(M, M2), 8) * 2 * L, cdiv(max(J, J2), 32 * VEC))
    z, m = row // cdiv(max(M, M2), 8), row % cdiv(max(M, M2), 8) * 8
    warp = threads(32, 8)[1]
    lines = shared((8, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if z < L:
        pad_rows(X, Y, lines, z, m + warp, part * 32 * VEC)
    else:
        pad_rows(Z, W, lines, z - L, m + warp, part * 32 * VEC)

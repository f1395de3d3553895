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
    const,
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

__all__ = ["VEC", "pad", "pad_both", "width"]

D = TypeVar("D", bound=Scalar)

VEC = 8
"""Elements of a vector of 16 bytes; padded rows are whole vectors."""


class M2(Dim):
    """Rows of a second operand."""


class K2(Dim):
    """Columns of a second operand."""


class J2(Dim):
    """Columns of a second operand's copy."""


WARPS = 8
"""Of a block; each copies a vector a lane: of several rows where these are short."""
WIDTHS = (32, 64, 128, 256)
"""Elements of a row that a warp copies at most."""


def width(columns: int) -> int:
    """The const WIDE for a copy whose rows have so many elements."""
    return next((wide for wide in WIDTHS if wide >= columns), WIDTHS[-1])


@tile_function
def blocks(Y: Global[D, Any, Any, Any], wide: int) -> index:
    """How many copy a matrix of Y."""
    return cdiv(Y.shape[1], WARPS * 32 * VEC // wide) * (cdiv(Y.shape[2], wide) if wide == WIDTHS[-1] else index(1))


@tile_function
def pad_part(X: Memory[D], Y: Global[D, Any, Any, Any], lines: SharedTile[D], wide: int, number: index):
    """What block `number` copies of X to Y, each warp through its row of `lines`: reads and writes are coalesced."""
    lane, warp, each = lane_id(), warp_id(), 32 * VEC // wide
    count = blocks(Y, wide)
    batch, part = number // count, number % count
    across = cdiv(Y.shape[2], wide) if wide == WIDTHS[-1] else index(1)
    m, k = (part // across * WARPS + warp) * each, part % across * wide
    found = [X.get(batch, m + i * 32 // wide, k + i * 32 % wide + lane, other=0) for i in range(VEC)]
    for i in unroll(VEC):
        lines[warp, i * 32 + lane] = found[i]
    syncwarp()
    m, k = m + lane * VEC // wide, k + lane * VEC % wide
    if m < Y.shape[1] and k < Y.shape[2]:
        Y.store(batch, m, k, lines.load(warp, lane * VEC))


@tile_kernel(arch="sm_90a")
def pad(X: Global[D, L, M, K], Y: Global[D, L, M, J], *, WIDE: const = 256, EARLY: Const[bool] = False):
    """Y[:, :, :K] = X and 0 behind; rows of Y are aligned and whole vectors long, at most WIDE unless it is 256."""
    number = grid(blocks(Y, WIDE) * L)
    threads(32, WARPS)
    lines = shared((WARPS, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    pad_part(X, Y, lines, WIDE, number)


@tile_kernel(arch="sm_90a")
def pad_both(
    X: Global[D, L, M, K],
    Y: Global[D, L, M, J],
    Z: Global[D, L, M2, K2],
    W: Global[D, L, M2, J2],
    *,
    WIDE: const = 256,
    WIDE2: const = 256,
    EARLY: Const[bool] = False,
):
    """`pad` of two operands in one launch: X to Y and Z to W."""
    first = blocks(Y, WIDE) * L
    number = grid(first + blocks(W, WIDE2) * L)
    threads(32, WARPS)
    lines = shared((WARPS, 32 * VEC), X.dtype)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number < first:
        pad_part(X, Y, lines, WIDE, number)
    else:
        pad_part(Z, W, lines, WIDE2, number - first)

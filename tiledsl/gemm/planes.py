"""f32 split into planes of a 16-bit dtype, which tensor cores multiply in pairs.

x = x0 + x1 + x2 in bf16: each plane is the rounding, to nearest even, of what the planes before it leave; the three
have all 24 bits. Two planes of f16 have 23 or 24 of them, but f16 has few exponents. So each row of A and each column
of B is divided by a power of two first: its largest element becomes 2^14 or more, but less than 2^15.

The planes of `depth` elements of k follow each other: element k of plane p is in column

    (k // depth * planes + p) * depth + k % depth

of a row of the workspace. So a step along k is a whole row of a tile in shared memory, and the operand is an ordinary
16-bit matrix for everything else. It is contiguous along k, whatever order it had before.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    Scalar,
    SharedTile,
    barrier,
    bf16,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    i32,
    index,
    lane_id,
    maximum,
    minimum,
    ptx,
    shared,
    shuffle_xor,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import J, K, L, M
from tiledsl.gemm.formats import Split
from tiledsl.gemm.pad import J2, K2, M2

__all__ = ["planes_width", "scales_of_both", "split_both"]

D = TypeVar("D", bound=Scalar)

WARPS = 8
"""Of a block."""
ROWS, STEP = 64, 64
"""Rows, and elements of k, that a block splits."""
VEC = 4
"""Neighbours along k that a thread splits at once."""
AT_ONCE = 16
"""Elements that a thread loads before it compares them."""
LARGEST = 2.0**128 - 2.0**120
"""Of bf16. What rounds to an infinity would leave one of the other sign."""
TOP = 14
"""Exponent of a row's largest element when it has been scaled: its square, and sums of it, are far from overflow."""


def planes_width(k: int, split: Split) -> int:
    """Columns that the planes of k elements have."""
    return cdiv(k, split.depth) * split.depth * split.planes


@tile_function
def by_columns(X: Memory[f32]) -> bool:
    """Whether the columns of X are contiguous, so that lanes read neighbouring rows."""
    return X.unit == X.rank - 2


@tile_function
def line_of(X: Memory[f32], batch: index, row: index, k: index) -> Fragment[f32]:
    """VEC neighbours of a row, or of a column if these are contiguous; 0 past the edge."""
    across = by_columns(X)
    if X.unit >= X.rank - 2 and X.align == VEC * 4:
        return X.get(batch, row, k, vec=VEC * 4)
    line = fragment((VEC,), f32)
    for i in unroll(VEC):
        line[i] = X.get(batch, row + i, k, other=0) if across else X.get(batch, row, k + i, other=0)
    return line


# -- planes --------------------------------------------------------------------------------------------------


@tile_function
def blocks(X: Global[f32, Any, Any, Any]) -> index:
    """How many split a matrix of X."""
    return cdiv(X.shape[1], ROWS) * cdiv(X.shape[2], STEP)


@tile_function
def split_part(
    X: Global[f32, Any, Any, Any],
    Y: Global[D, Any, Any, Any],
    scale: Global[f32, Any, Any] | None,
    room: SharedTile[f32] | None,
    number: index,
    planes: int,
    depth: int,
):
    """What block `number` splits of X, through `room` if the columns of X are contiguous."""
    count, along, size = blocks(X), cdiv(X.shape[2], STEP), 32 * WARPS
    batch, part, thread = number // count, number % count, warp_id() * 32 + lane_id()
    m, k = part // along * ROWS, part % along * STEP
    places = [(i * size + thread) * VEC for i in range(ROWS * STEP // (size * VEC))]
    rows, columns = [i // STEP for i in places], [i % STEP for i in places]
    if room is not None:
        found = [line_of(X, batch, m + i % ROWS, k + i // ROWS) for i in places]
        for i in unroll(len(places)):
            room.store(places[i] // ROWS, places[i] % ROWS, found[i])
        barrier()
        lines = [fragment((VEC,), f32) for _ in places]
        for i in unroll(len(places)):
            for j in unroll(VEC):
                lines[i][j] = room[columns[i] + j, rows[i]]
    else:
        lines = [line_of(X, batch, m + rows[i], k + columns[i]) for i in range(len(places))]
    for i in unroll(len(places)):
        row, column, rest = m + rows[i], k + columns[i], lines[i]
        if row < Y.shape[1] and column // depth * depth * planes < Y.shape[2]:
            if scale is not None:
                rest = rest * inverse(scale[batch, row])
            for p in unroll(planes):
                x = maximum(minimum(rest, LARGEST), -LARGEST) if p == 0 and Y.dtype == bf16 else rest
                plane = x.to(Y.dtype)
                rest = rest - plane.to(f32)
                Y.store(batch, row, (column // depth * planes + p) * depth + column % depth, plane)


@tile_kernel(arch="sm_90a")
def split_both(
    X: Global[f32, L, M, K],
    Y: Global[D, L, M, J],
    Z: Global[f32, L, M2, K2],
    W: Global[D, L, M2, J2],
    scale_x: Global[f32, L, M] | None = None,
    scale_z: Global[f32, L, M2] | None = None,
    *,
    PLANES: const = 3,
    DEPTH: const = 32,
    EARLY: Const[bool] = False,
):
    """Planes of X to Y, and of Z to W, 0 behind the last column. scale_x, scale_z: of `scales_of_both`."""
    first = blocks(X) * L
    number = grid(first + blocks(Z) * L)
    threads(32, WARPS)
    room = shared((STEP, ROWS), f32) if by_columns(X) or by_columns(Z) else None
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number < first:
        split_part(X, Y, scale_x, room if by_columns(X) else None, number, PLANES, DEPTH)
    else:
        split_part(Z, W, scale_z, room if by_columns(Z) else None, number - first, PLANES, DEPTH)


# -- scales --------------------------------------------------------------------------------------------------


@tile_function
def inverse(scale: f32) -> f32:
    """Of a power of two."""
    return (i32(254 << 23) - scale.bitcast(i32)).bitcast(f32)


@tile_function
def scale_of(largest: f32) -> f32:
    """By which a row is to be divided, whose largest element this is: a power of two that has an inverse."""
    exponent = largest.bitcast(i32) >> 23
    return (maximum(exponent - TOP, 1) << 23).bitcast(f32)


@tile_function
def groups(X: Global[f32, Any, Any, Any]) -> index:
    """How many blocks a matrix of X has: each reads WARPS rows."""
    return cdiv(X.shape[1], WARPS)


@tile_function
def scale_rows(X: Global[f32, Any, Any, Any], S: Global[f32, Any, Any], room: SharedTile[f32] | None, number: index):
    """What block `number` has of the scales of X: a row for each warp, or, through `room`, for each WARPS-th lane."""
    batch, part, lane, warp = number // groups(X), number % groups(X), lane_id(), warp_id()
    largest, row = f32(0), part * WARPS + (lane % WARPS if room is not None else warp)
    for k in range(0, X.shape[2], 32 * AT_ONCE):
        if room is not None:
            at = k + warp * (32 // WARPS) + lane // WARPS
            found = [X.get(batch, row, at + i * 32, other=0) for i in range(AT_ONCE)]
        else:
            lines = [line_of(X, batch, row, k + (i * 32 + lane) * VEC) for i in range(AT_ONCE // VEC)]
            found = [lines[i // VEC][i % VEC] for i in range(AT_ONCE)]
        for i in unroll(AT_ONCE):
            largest = maximum(largest, abs(found[i]))
    for i in unroll(3 if room is not None else 0, 5):
        largest = maximum(largest, shuffle_xor(largest, 1 << i))
    if room is not None:
        if lane < WARPS:
            room[warp, lane] = largest
        barrier()
        for i in unroll(WARPS):
            largest = maximum(largest, room[i, lane % WARPS])
    if (room is None and lane == 0) or (room is not None and lane < WARPS and warp == 0):
        S.put(batch, row, scale_of(largest))


@tile_kernel(arch="sm_90a")
def scales_of_both(
    X: Global[f32, L, M, K],
    S: Global[f32, L, M],
    Z: Global[f32, L, M2, K2],
    R: Global[f32, L, M2],
    *,
    EARLY: Const[bool] = False,
):
    """The scales of the rows of X and Z."""
    first = groups(X) * L
    number = grid(first + groups(Z) * L)
    threads(32, WARPS)
    room = shared((WARPS, WARPS), f32) if by_columns(X) or by_columns(Z) else None
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number < first:
        scale_rows(X, S, room if by_columns(X) else None, number)
    else:
        scale_rows(Z, R, room if by_columns(Z) else None, number - first)

"""Copies of operands that TMA cannot take, or wgmma not in their order, with rows that they can."""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Dim,
    Global,
    Memory,
    Scalar,
    SharedTile,
    barrier,
    cdiv,
    const,
    fragment,
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

__all__ = ["J2", "K2", "M2", "pad", "pad_both", "padded", "widest", "width"]

D = TypeVar("D", bound=Scalar)

VECTOR = 16
"""Bytes of a vector; padded rows are whole vectors."""


class M2(Dim):
    """Rows of a second operand."""


class K2(Dim):
    """Columns of a second operand."""


class J2(Dim):
    """Columns of a second operand's copy."""


WARPS = 8
"""Of a block; each copies a vector a lane: of several rows where these are short."""
TALL, DEEP = 64, 128
"""Rows of a block that transposes, and bytes of each."""


def widest(size: int) -> int:
    """Elements of a row that a warp copies at most, of `size` bytes: a vector a lane."""
    return 32 * VECTOR // size


def width(columns: int, size: int = 2) -> int:
    """The const WIDE for a copy whose rows have so many elements of `size` bytes."""
    wide = 32
    while wide < min(columns, widest(size)):
        wide *= 2
    return wide


def padded(columns: int, size: int = 2) -> int:
    """Elements of `size` bytes of a copy's row."""
    return cdiv(columns * size, VECTOR) * VECTOR // size


@tile_function
def blocks(X: Memory[D], Y: Global[D, Any, Any, Any], wide: int) -> index:
    """How many copy a matrix of X to Y."""
    if X.unit == X.rank - 2:
        return cdiv(Y.shape[1], TALL) * cdiv(Y.shape[2], DEEP // X.dtype.bytes)
    most = widest(X.dtype.bytes)
    return cdiv(Y.shape[1], WARPS * most // wide) * (cdiv(Y.shape[2], wide) if wide == most else index(1))


@tile_function
def space(X: Memory[D]) -> SharedTile[D]:
    """What a block that copies X needs: a row of vectors for each warp, or the part that it transposes."""
    if X.unit == X.rank - 2:
        return shared((TALL, DEEP + 4) if by_quads(X) else (DEEP // X.dtype.bytes, TALL), X.dtype)
    return shared((WARPS, widest(X.dtype.bytes)), X.dtype)


@tile_function
def pad_part(X: Memory[D], Y: Global[D, Any, Any, Any], lines: SharedTile[D], wide: int, number: index):
    """What block `number` copies of X to Y, each warp through its row of `lines`: reads and writes are coalesced."""
    most, vec = widest(X.dtype.bytes), VECTOR // X.dtype.bytes
    lane, warp, each = lane_id(), warp_id(), most // wide
    count = blocks(X, Y, wide)
    batch, part = number // count, number % count
    across = cdiv(Y.shape[2], wide) if wide == most else index(1)
    m, k = (part // across * WARPS + warp) * each, part % across * wide
    found = [X.get(batch, m + i * 32 // wide, k + i * 32 % wide + lane, other=0) for i in range(vec)]
    for i in unroll(vec):
        lines[warp, i * 32 + lane] = found[i]
    syncwarp()
    m, k = m + lane * vec // wide, k + lane * vec % wide
    if m < Y.shape[1] and k < Y.shape[2]:
        Y.store(batch, m, k, lines.load(warp, lane * vec))


@tile_function
def by_quads(X: Memory[D]) -> bool:
    """Whether X, whose columns are contiguous, is read and transposed by 4 x 4 bytes."""
    return X.dtype.bytes == 1 and X.align >= 4


@tile_function
def transpose_part(X: Global[D, Any, Any, Any], Y: Global[D, Any, Any, Any], room: SharedTile[D], number: index):
    """What block `number` copies of X, whose columns are contiguous, to Y, whose rows are: through `room`, which has
    columns of X, or rows of Y if these are made of quads. 8 lanes write a row of it, a vector each."""
    vec, deep, thread = VECTOR // X.dtype.bytes, DEEP // X.dtype.bytes, warp_id() * 32 + lane_id()
    count, along = blocks(X, Y, 0), cdiv(Y.shape[2], deep)
    batch, part = number // count, number % count
    m, k = part // along * TALL, part % along * deep
    inside = m + TALL <= X.shape[1] and k + deep <= X.shape[2]
    if inside or (X.shape[2] % vec == 0 and X.shape[1] % (4 if by_quads(X) else 1) == 0):
        take(X, room, batch, m, k, True)
    else:
        take(X, room, batch, m, k, False)
    barrier()
    for i in unroll(TALL * deep // (32 * WARPS * vec)):
        place = i * 32 * WARPS + thread
        row, first = place // 8, place % 8 * vec
        line = fragment((vec,), X.dtype)
        if by_quads(X):
            for j in unroll(4):
                line[4 * j : 4 * j + 4] = room.load(row, first + 4 * j, vec=4)
        else:
            for j in unroll(vec):
                line[j] = room[first + j, row]
        if m + row < Y.shape[1] and k + first < Y.shape[2]:
            Y.store(batch, m + row, k + first, line)


@tile_function
def take(X: Global[D, Any, Any, Any], room: SharedTile[D], batch: index, m: index, k: index, whole: bool):
    """Loads the part of X from row m and column k on into `room`. whole: no vector that is stored has anything from
    outside of X. What lies there is loaded from X's last row or column then: a guard of each load would be a branch,
    and loads would wait for each other."""
    if by_quads(X):
        take_quads(X, room, batch, m, k, whole)
    else:
        thread = warp_id() * 32 + lane_id()
        at = [i * 32 * WARPS + thread for i in range(TALL * DEEP // X.dtype.bytes // (32 * WARPS))]
        places = [(m + i % TALL, k + i // TALL) for i in at]
        if whole:
            found = [X[batch, min(row, X.shape[1] - 1), min(column, X.shape[2] - 1)] for row, column in places]
        else:
            found = [X.get(batch, row, column, other=0) for row, column in places]
        for i in unroll(len(at)):
            room[at[i] // TALL, at[i] % TALL] = found[i]


@tile_function
def take_quads(X: Global[D, Any, Any, Any], room: SharedTile[D], batch: index, m: index, k: index, whole: bool):
    """As `take`, transposed. A warp has 8 x 4 quads at a time, which are in different banks, since rows of `room` are 4
    bytes longer than a part."""
    lane, across = lane_id(), TALL // 32
    groups = [i * WARPS + warp_id() for i in range(TALL * DEEP // (16 * 32 * WARPS))]
    places = [(i % across * 32 + lane % 8 * 4, i // across * 16 + lane // 8 * 4) for i in groups]
    if whole:
        rows = [min((m + row) // 4, X.shape[1] // 4 - 1) * 4 for row, _ in places]
        columns = [[min(k + column + j, X.shape[2] - 1) for j in range(4)] for _, column in places]
        quads = [[X.load(batch, rows[i], columns[i][j], vec=4) for j in range(4)] for i in range(len(places))]
    else:
        quads = [[X.get(batch, m + row, k + column + j, vec=4) for j in range(4)] for row, column in places]
    for i in unroll(len(places)):
        for r in unroll(4):
            line = fragment((4,), X.dtype)
            for j in unroll(4):
                line[j] = quads[i][j][r]
            room.store(places[i][0] + r, places[i][1], line)


@tile_function
def copy_part(X: Global[D, Any, Any, Any], Y: Global[D, Any, Any, Any], room: SharedTile[D], wide: int, number: index):
    """What block `number` copies of X to Y."""
    if X.unit == X.rank - 2:
        transpose_part(X, Y, room, number)
    else:
        pad_part(X, Y, room, wide, number)


@tile_kernel(arch="sm_90a")
def pad(X: Global[D, L, M, K], Y: Global[D, L, M, J], *, WIDE: const = 256, EARLY: Const[bool] = False):
    """Y[:, :, :K] = X and 0 behind; rows of Y are aligned and whole vectors long, at most WIDE unless it is `widest`.
    X of contiguous columns is transposed, whatever WIDE is."""
    number = grid(blocks(X, Y, WIDE) * L)
    threads(32, WARPS)
    room = space(X)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    copy_part(X, Y, room, WIDE, number)


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
    first = blocks(X, Y, WIDE) * L
    number = grid(first + blocks(Z, W, WIDE2) * L)
    threads(32, WARPS)
    room = space(X)
    same = X.unit != X.rank - 2 and Z.unit != Z.rank - 2
    other = room if same else space(Z)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number < first:
        copy_part(X, Y, room, WIDE, number)
    else:
        copy_part(Z, W, other, WIDE2, number - first)

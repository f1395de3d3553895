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
    f64,
    fragment,
    grid,
    i32,
    i64,
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
    where,
)
from tiledsl.dims import J, K, L, M
from tiledsl.gemm.formats import Split
from tiledsl.gemm.pad import J2, K2, M2

__all__ = ["planes_width", "scales_of_both", "split_both"]

D = TypeVar("D", bound=Scalar)
T = TypeVar("T", bound=Scalar)

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
BITS = 15
"""Elements of a row are scaled to less than 2^BITS in f16: their squares, and sums of them, are far from overflow."""


def planes_width(k: int, split: Split) -> int:
    """Columns that the planes of k elements have."""
    return cdiv(k, split.depth) * split.depth * split.planes


@tile_function
def by_columns(X: Memory[T]) -> bool:
    """Whether the columns of X are contiguous, so that lanes read neighbouring rows."""
    return X.unit == X.rank - 2


@tile_function
def line_of(X: Memory[T], batch: index, row: index, k: index) -> Fragment[T]:
    """VEC neighbours of a row, or of a column if these are contiguous; 0 past the edge."""
    across = by_columns(X)
    if X.unit >= X.rank - 2 and X.align == 16 and X.dtype is f32:
        return X.get(batch, row, k, vec=16)
    line = fragment((VEC,), X.dtype)
    if X.unit >= X.rank - 2 and X.align == 16:
        for i in unroll(0, VEC, 2):
            two = X.get(batch, row + i if across else row, k if across else k + i, vec=16)
            line[i], line[i + 1] = two[0], two[1]
        return line
    for i in unroll(VEC):
        line[i] = X.get(batch, row + i, k, other=0) if across else X.get(batch, row, k + i, other=0)
    return line


# -- planes --------------------------------------------------------------------------------------------------


@tile_function
def blocks(X: Global[T, Any, Any, Any]) -> index:
    """How many split a matrix of X."""
    return cdiv(X.shape[1], ROWS) * cdiv(X.shape[2], STEP)


@tile_function
def places_of(X: Global[T, Any, Any, Any], number: index) -> tuple[index, list[index], list[index]]:
    """The matrix that block `number` is at, and the row and first column of each line that a thread has there."""
    part, along = number % blocks(X), cdiv(X.shape[2], STEP)
    places = _in_block()
    rows = [part // along * ROWS + i // STEP for i in places]
    return number // blocks(X), rows, [part % along * STEP + i % STEP for i in places]


@tile_function
def _in_block() -> list[index]:
    """Numbers of the first elements of a thread's lines, by rows."""
    size, thread = 32 * WARPS, warp_id() * 32 + lane_id()
    return [(i * size + thread) * VEC for i in range(ROWS * STEP // (size * VEC))]


@tile_function
def lines_of(X: Global[T, Any, Any, Any], room: SharedTile[T] | None, number: index) -> list[Fragment[T]]:
    """The lines at `places_of`: VEC neighbours along k each, through `room` if the columns of X are contiguous."""
    batch, rows, columns = places_of(X, number)
    if room is None:
        return [line_of(X, batch, rows[i], columns[i]) for i in range(len(rows))]
    places, part, along, vec = _in_block(), number % blocks(X), cdiv(X.shape[2], STEP), 16 // X.dtype.bytes
    m, k = part // along * ROWS, part % along * STEP
    found = [line_of(X, batch, m + i % ROWS, k + i // ROWS) for i in places]
    for i in unroll(len(places)):
        for j in unroll(0, VEC, vec):
            room.store(places[i] // ROWS, places[i] % ROWS + j, found[i][j : j + vec])
    barrier()
    lines = [fragment((VEC,), X.dtype) for _ in places]
    for i in unroll(len(places)):
        for j in unroll(VEC):
            lines[i][j] = room[columns[i] - k + j, rows[i] - m]
    return lines


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
    batch, rows, columns = places_of(X, number)
    lines = lines_of(X, room, number)
    for i in unroll(len(lines)):
        row, column, rest = rows[i], columns[i], lines[i]
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
def inverse(scale: Any) -> Any:
    """Of a power of two."""
    if scale.dtype is f32:
        return (i32(254 << 23) - scale.bitcast(i32)).bitcast(f32)
    return (i64(2046 << 52) - scale.bitcast(i64)).bitcast(f64)


@tile_function
def scale_of(largest: Any, dtype: Any, bits: Any) -> Any:
    """By which a row is to be divided, so that its elements are less than 2^bits: a power of two that has an inverse;
    NaN if one of them is infinite or NaN. largest: the bits of the largest one, without its sign."""
    kinds: Any = (i32, 23, 255) if dtype is f32 else (i64, 52, 2047)
    word, fraction, top = kinds
    exponent = largest >> fraction
    scale = maximum(exponent + word(1 - bits), 1)
    return where(exponent == top, word((top << 1 | 1) << (fraction - 1)), scale << fraction).bitcast(dtype)


@tile_function
def groups(X: Global[T, Any, Any, Any]) -> index:
    """How many blocks a matrix of X has: each reads WARPS rows."""
    return cdiv(X.shape[1], WARPS)


@tile_function
def scale_rows(
    X: Global[T, Any, Any, Any], S: Global[T, Any, Any], room: SharedTile[Any] | None, number: index, bits: Any
):
    """What block `number` has of the scales of X: a row for each warp, or, through `room`, for each WARPS-th lane."""
    batch, part, lane, warp = number // groups(X), number % groups(X), lane_id(), warp_id()
    word: Any = i32 if X.dtype is f32 else i64
    largest, row = word(0), part * WARPS + (lane % WARPS if room is not None else warp)
    for k in range(0, X.shape[2], 32 * AT_ONCE):
        if room is not None:
            at = k + warp * (32 // WARPS) + lane // WARPS
            found: Any = [X.get(batch, row, at + i * 32, other=0) for i in range(AT_ONCE)]
        else:
            lines: Any = [line_of(X, batch, row, k + (i * 32 + lane) * VEC) for i in range(AT_ONCE // VEC)]
            found = [lines[i // VEC][i % VEC] for i in range(AT_ONCE)]
        for i in unroll(AT_ONCE):
            largest = maximum(largest, abs(found[i]).bitcast(word))
    for i in unroll(3 if room is not None else 0, 5):
        largest = maximum(largest, shuffle_xor(largest, 1 << i))
    if room is not None:
        if lane < WARPS:
            room[warp, lane] = largest
        barrier()
        for i in unroll(WARPS):
            largest = maximum(largest, room[i, lane % WARPS])
    if (room is None and lane == 0) or (room is not None and lane < WARPS and warp == 0):
        S.put(batch, row, scale_of(largest, X.dtype, bits))


@tile_kernel(arch="sm_90a")
def scales_of_both(
    X: Global[T, L, M, K],
    S: Global[T, L, M],
    Z: Global[T, L, M2, K2],
    R: Global[T, L, M2],
    bits: i32 | int = BITS,
    *,
    EARLY: Const[bool] = False,
):
    """The scales of the rows of X and Z. Divided by them, elements are less than 2^bits."""
    first = groups(X) * L
    number = grid(first + groups(Z) * L)
    threads(32, WARPS)
    room = shared((WARPS, WARPS), i32 if X.dtype is f32 else i64) if by_columns(X) or by_columns(Z) else None
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    if number < first:
        scale_rows(X, S, room if by_columns(X) else None, number, bits)
    else:
        scale_rows(Z, R, room if by_columns(Z) else None, number - first, bits)

"""Tile functions for operands whose lines are not aligned: TMA loads every 2nd, 4th or 8th, and warps put them in
order.
"""

from __future__ import annotations

from math import gcd
from typing import Any, TypeVar

from tiledsl import (
    Fragment,
    Global,
    Memory,
    Range,
    Scalar,
    SharedTile,
    cdiv,
    fragment,
    index,
    lane_id,
    row_major,
    shared,
    tile,
    tile_function,
    tma_load,
    unroll,
    warp_id,
)

__all__ = ["in_order", "load_apart", "parts_of", "staging_apart"]

D = TypeVar("D", bound=Scalar)

CHUNK = 8
"""Elements of 16 bytes."""
ORDERING = 128
"""Threads of the role that puts lines in order."""
AT_ONCE = 16
"""Pairs of elements that such a thread loads before it stores them."""


@tile_function
def parts_of(X: Memory[D]) -> int:
    """In how many parts TMA loads a tile of X. Where lines of X (rows, or columns if those are contiguous) begin at
    multiples of fewer than 16 bytes, every 2nd, 4th or 8th does so at multiples of 16: a part has every so many-th."""
    return 16 // X.align


@tile_function
def staging_apart(X: Memory[D], rows: int, columns: int) -> SharedTile[D]:
    """A shared tile for rows x columns of X: the lines of one part after those of the other, each from the multiple of
    16 bytes on that is before it. Lines are so long that each part begins at a multiple of 128 bytes."""
    lines, along = (columns, rows) if X.unit == X.rank - 2 else (rows, columns)
    unit = max(CHUNK, 64 // gcd(lines // parts_of(X), 64))
    return shared((lines, cdiv(along + CHUNK, unit) * unit), X.dtype, layout=row_major)


@tile_function
def load_apart(X: Memory[D], batch: index, rows: Range, columns: Range, to: SharedTile[D]):
    """Loads a tile of X in its parts, to one of `staging_apart`; in one part to one of `staging`."""
    across, parts = X.unit == X.rank - 2, parts_of(X)
    down, along = (columns, rows) if across else (rows, columns)
    lines, width = to.shape
    some, wide = tile(down.start // lines, lines // parts), tile(0, width) + along.start
    for i in unroll(parts):
        part = X[batch, wide, some].T if across else X[batch, some, wide]
        tma_load(part, to[tile(i, lines // parts), :], every=parts, first=i)


@tile_function
def in_order(apart: SharedTile[D], to: SharedTile[D], X: Global[D, Any, Any, Any]):
    """Copies a tile of `staging_apart` to one of `staging`, by ORDERING threads: line i of the tile is line i // parts
    of part i % parts, and begins as many elements later as its address in X is past a multiple of 16 bytes."""
    parts, stride = parts_of(X), X.strides[X.rank - 1 if X.unit == X.rank - 2 else X.rank - 2]
    (lines, columns), warps = to.shape, ORDERING // 32
    assert columns % 64 == 0, f"a warp orders 64 elements of a line at once, and the lines have {columns}"
    warp, column, each = warp_id() % warps, lane_id() * 2, gcd(lines // warps, max(1, AT_ONCE * 64 // columns))
    for first in range(0, lines, each * warps):
        line = [first + i * warps + warp for i in range(each)]
        begin = [i % parts * stride % CHUNK + column for i in line]
        place = [i % parts * (lines // parts) + i // parts for i in line]
        for more in unroll(columns // 64):
            pairs = [pair_of(apart, place[i], begin[i] + more * 64) for i in range(each)]
            for i in unroll(each):
                to.store(line[i], column + more * 64, pairs[i])


@tile_function
def pair_of(S: SharedTile[D], row: index, column: index) -> Fragment[D]:
    """Two neighbours, which no vector need fit."""
    pair = fragment((2,), S.dtype)
    pair[0], pair[1] = S[row, column], S[row, column + 1]
    return pair

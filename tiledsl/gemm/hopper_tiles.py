"""Tile functions of the Hopper kernels: operands staged in shared memory in their global order, and seen as matrices.

TMA copies boxes whose rows run along the axis of stride 1. wgmma reads 16-bit operands in either order (K-major or
MN-major), so an operand keeps in shared memory the order that it has in global memory.
"""

from __future__ import annotations

from math import gcd
from typing import TypeVar

from tiledsl import (
    Memory,
    Scalar,
    SharedTile,
    View,
    cdiv,
    shared,
    swizzle_32b,
    swizzle_64b,
    swizzle_128b,
    tile_function,
)

__all__ = ["as_stored", "chunks", "matrix", "span", "staged_width", "staging"]

D = TypeVar("D", bound=Scalar)

PANEL = 64
"""Columns of a panel of `swizzle_128b`, of 16-bit elements."""


def staged_width(columns: int, along_k: bool) -> int:
    """How many columns of B are staged for a tile of `columns`, or rows of A: whole panels where it is not contiguous
    along k."""
    return columns if along_k else cdiv(columns, PANEL) * PANEL


def span(row: int, accumulators: int = 0) -> int:
    """Bytes of a row that a piece of a result has: the span of the widest swizzle that divides it, or of the narrowest
    one where a thread's accumulators leave few registers for a piece."""
    return gcd(row, 128) if accumulators <= 176 else 32


@tile_function
def staging(X: Memory[D], rows: int, columns: int, stages: int = 0) -> SharedTile[D]:
    """A shared tile for rows x columns of X in the order of X in memory, or for `stages` of them."""
    dims = (columns, rows) if X.unit == X.rank - 2 else (rows, columns)
    return shared((stages, dims[0], dims[1]) if stages else dims, X.dtype, layout=swizzle_128b)


@tile_function
def as_stored(part: View[D]) -> View[D]:
    """A part of an operand with its axes in memory order."""
    return part if part.unit == 1 else part.T


@tile_function
def matrix(tile: Memory[D], X: Memory[D]) -> Memory[D]:
    """A tile made by `staging` for X, seen as rows x columns."""
    return tile.T if X.unit == X.rank - 2 else tile


@tile_function
def chunks(X: Memory[D], buffers: int, rows: int, columns: int, accumulators: int = 0) -> SharedTile[D]:
    """Buffers for a result of this size, in the order of X in memory: `buffers` of rows x 128 bytes or, where 128 bytes
    do not divide `columns`, and beside many accumulators of a thread, narrower ones."""
    size = X.dtype.bytes
    assert columns * size % 32 == 0, f"a result is stored in pieces of 32 bytes or more: {columns} columns do not fit"
    width = span(columns * size, accumulators)
    if X.unit == X.rank - 2:
        return shared((buffers, width // size, rows), X.dtype, layout=swizzle_128b)
    layout = swizzle_128b if width == 128 else swizzle_64b if width == 64 else swizzle_32b
    return shared((buffers, rows, width // size), X.dtype, layout=layout)

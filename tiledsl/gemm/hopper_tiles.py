"""Tile functions of the Hopper kernels: operands staged in shared memory in their global order, and seen as matrices.

TMA copies boxes whose rows run along the axis of stride 1. wgmma reads 16-bit operands in either order (K-major or
MN-major), so an operand keeps in shared memory the order that it has in global memory.
"""

from __future__ import annotations

from typing import TypeVar

from tiledsl import Memory, Scalar, SharedTile, View, shared, swizzle_32b, swizzle_64b, swizzle_128b, tile_function

__all__ = ["as_stored", "chunks", "matrix", "staging"]

D = TypeVar("D", bound=Scalar)


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
def chunks(X: Memory[D], buffers: int, rows: int, columns: int) -> SharedTile[D]:
    """Buffers for the result: `buffers` of rows x 128 bytes, or narrower where 128 bytes do not divide `columns`. Those
    for TMA are panels, others as wide as possible and of any layout."""
    size = X.dtype.bytes
    assert columns * size % 32 == 0, f"a result is stored in pieces of 32 bytes or more: {columns} columns do not fit"
    if X.unit != X.rank - 1 or X.align < 16:
        widths = [n for n in range(8, 128 // size + 1, 8) if columns % n == 0]
        return shared((buffers, rows, widths[-1]), X.dtype)
    span = 128 if columns * size % 128 == 0 else 64 if columns * size % 64 == 0 else 32
    layout = swizzle_128b if span == 128 else swizzle_64b if span == 64 else swizzle_32b
    return shared((buffers, rows, span // size), X.dtype, layout=layout)

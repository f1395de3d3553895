"""Tile functions of the Hopper kernels: operands staged in shared memory in their global order, and seen as matrices.

TMA copies boxes whose rows run along the axis of stride 1. wgmma reads 16-bit operands in either order (K-major or
MN-major), so an operand keeps in shared memory the order that it has in global memory. Operands of other dtypes must be
contiguous along k.
"""

from __future__ import annotations

from math import gcd
from typing import Any, TypeVar

from tiledsl import (
    Memory,
    Scalar,
    SharedTile,
    View,
    cdiv,
    i8,
    i32,
    shared,
    swizzle_32b,
    swizzle_64b,
    swizzle_128b,
    tile_function,
    u8,
)

__all__ = [
    "SUMS",
    "as_stored",
    "chunks",
    "matrix",
    "panels",
    "piece_width",
    "staged_width",
    "staging",
    "stored_by_tma",
]

D = TypeVar("D", bound=Scalar)

SUMS: dict[Any, Any] = {i8: i32, u8: i32}
"""The accumulators' dtype for A of this dtype; for others f32."""

PANEL = 64
"""Columns of a panel of `swizzle_128b`, of 16-bit elements."""


def staged_width(columns: int, along_k: bool) -> int:
    """How many columns of B are staged for a tile of `columns`, or rows of A: whole panels where it is not contiguous
    along k."""
    return columns if along_k else cdiv(columns, PANEL) * PANEL


def piece_width(columns: int, size: int) -> int:
    """Columns of a piece of a result, whose elements have `size` bytes: the widest span of a swizzle that divides
    `columns`, up to 64 of them."""
    return gcd(columns * size, 128, 64 * size) // size


@tile_function
def stored_by_tma(X: Memory[Any]) -> bool:
    """Whether TMA can store X: along one axis the stride is 1 and rows end at a multiple of 16 bytes; the address and
    other strides are multiples, too."""
    return X.unit >= X.rank - 2 and X.align == 16 and X.whole


@tile_function
def staging(X: Memory[Any], rows: int, columns: int, stages: int = 0) -> SharedTile[Any]:
    """A shared tile for rows x columns of X in the order of X in memory, or for `stages` of them."""
    dims = (columns, rows) if X.unit == X.rank - 2 else (rows, columns)
    layout = swizzle_64b if dims[1] * X.dtype.bytes % 128 == 64 else swizzle_128b
    return shared((stages, dims[0], dims[1]) if stages else dims, X.dtype, layout=layout)


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
    """Buffers for a result of this size that TMA stores: of rows x 128 bytes or, where 128 bytes do not divide
    `columns`, narrower ones, in the order of X in memory."""
    return panels(X, buffers, rows, piece_width(columns, X.dtype.bytes))


@tile_function
def panels(X: Memory[D], buffers: int, rows: int, columns: int) -> SharedTile[D]:
    """Shared memory for so many pieces of X that TMA stores, in the order of X in memory."""
    dims = (columns, rows) if X.unit == X.rank - 2 else (rows, columns)
    panel = gcd(dims[1] * X.dtype.bytes, 128)
    assert panel >= 32, f"a result is stored in pieces of 32 bytes or more: {columns} columns do not fit"
    layout = swizzle_128b if panel == 128 else swizzle_64b if panel == 64 else swizzle_32b
    return shared((buffers, dims[0], dims[1]), X.dtype, layout=layout)

"""Tile functions of the mma.sync kernels: operands staged in shared memory, their copies, and the scaled result.

An operand keeps in shared memory the order that it has in global memory, so that vector copies can move it. Its inner
axis is its axis of stride 1; views show it as rows x columns. Matrix loads transpose it on the way into registers.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Fragment,
    Memory,
    Number,
    Scalar,
    SharedTile,
    Token,
    barrier,
    bf16,
    copy,
    copy_async,
    e4m3,
    e5m2,
    f16,
    f32,
    f64,
    i8,
    i32,
    index,
    load_fragment,
    mma,
    shared,
    tf32,
    tile_function,
    u8,
)

__all__ = ["PRODUCTS", "fetch", "pair", "scaled", "slot", "staging", "widest"]

D = TypeVar("D", bound=Scalar)
S = TypeVar("S", bound=Number)

PRODUCTS: dict[Any, tuple[Any, Any]] = {
    f16: (mma.m16n8k16, f32),
    bf16: (mma.m16n8k16, f32),
    f32: (mma.m16n8k8, f32),
    tf32: (mma.m16n8k8, f32),
    e4m3: (mma.m16n8k32, f32),
    e5m2: (mma.m16n8k32, f32),
    i8: (mma.m16n8k32, i32),
    u8: (mma.m16n8k32, i32),
    f64: (mma.m16n8k8, f64),
}
"""For each dtype of operands: the instruction and the accumulator's dtype. f32 is multiplied as tf32."""


@tile_function
def staging(
    X: Memory[D], rows: int, columns: int, buffers: int = 1, over: tuple[SharedTile[Any], ...] = ()
) -> SharedTile[D]:
    """A shared tile for `buffers` tiles of rows x columns of X, each in the order of X in memory."""
    return shared((buffers, columns, rows) if X.unit == 0 else (buffers, rows, columns), X.dtype, over=over)


@tile_function
def slot(S: SharedTile[D], X: Memory[D], i: index | int) -> Memory[D]:
    """Tile number i of those made by `staging` for X, seen as rows x columns."""
    return S[i, :, :].T if X.unit == 0 else S[i, :, :]


@tile_function
def widest(X: Memory[D]) -> int:
    """The most bytes that one access of X can move: up to 16, as its alignment permits, at least one element."""
    return max(min(16, X.align), X.dtype.bytes) if X.unit >= 0 else X.dtype.bytes


@tile_function
def fetch(src: Memory[D], dst: Memory[D], vec: int) -> tuple[Token, ...]:
    """Copies a tile, by cp.async where its rows are aligned to 4 bytes. Gives the tokens of asynchronous copies."""
    if vec >= 4:
        return (copy_async(src, dst, vec=vec),)
    copy(src, dst, vec=vec)
    return ()


@tile_function
def pair(X: Memory[D]) -> int:
    """Bytes of one access of X by a lane of an accumulator: those of its two neighbouring elements, or of one."""
    return 2 * X.dtype.bytes if X.unit == 1 and X.align >= 2 * X.dtype.bytes else X.dtype.bytes


@tile_function
def scaled(
    acc: Fragment[S], C: Memory[Any], tile: Memory[Any], vec: int, alpha: S | float, beta: S | float
) -> Fragment[S]:
    """alpha * acc + beta * C, where C is the tile of acc's shape; with beta == 0, C is not read.

    C is read through `tile` in shared memory, in accesses of `vec` bytes, since the elements of a lane are scattered.
    """
    out = alpha * acc
    if beta != 0:
        barrier()
        copy(C, tile, vec=vec)
        barrier()
        two = (2 if tile.unit == 1 else 1) * tile.dtype.bytes
        out = beta * load_fragment(tile, acc.layout, vec=two).to(acc.dtype) + out
    return out

"""What the tensor-core steps share: operands in shared memory, how they get there, and the scaled result.

An operand keeps in shared memory the order that it has in global memory, so that vectors can move it: its inner axis is
its axis of stride 1, and it is seen as rows x columns all the same. Matrix loads transpose on the way into registers.
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
    e4m3: (mma.m16n8k32, f32),
    e5m2: (mma.m16n8k32, f32),
    i8: (mma.m16n8k32, i32),
    u8: (mma.m16n8k32, i32),
    f64: (mma.m16n8k8, f64),
}
"""By the operands' dtype: the instruction, and what it accumulates in. f32 is multiplied as tf32."""


@tile_function
def staging(
    X: Memory[D], rows: int, columns: int, buffers: int = 1, over: tuple[SharedTile[Any], ...] = ()
) -> SharedTile[D]:
    """Room for `buffers` tiles of rows x columns of X, each as X lies in memory."""
    return shared((buffers, columns, rows) if X.unit == 0 else (buffers, rows, columns), X.dtype, over=over)


@tile_function
def slot(S: SharedTile[D], X: Memory[D], i: index | int) -> Memory[D]:
    """Tile number i of those that `staging` has made for X, as rows x columns."""
    return S[i, :, :].T if X.unit == 0 else S[i, :, :]


@tile_function
def widest(X: Memory[D]) -> int:
    """The most bytes that one access of X moves: 16, or what its alignment permits, or one element."""
    return max(min(16, X.align), X.dtype.bytes) if X.unit >= 0 else X.dtype.bytes


@tile_function
def fetch(src: Memory[D], dst: Memory[D], vec: int) -> tuple[Token, ...]:
    """Copy a tile, asynchronously where its rows are aligned to the 4 bytes that this takes; the tokens of it."""
    if vec >= 4:
        return (copy_async(src, dst, vec=vec),)
    copy(src, dst, vec=vec)
    return ()


@tile_function
def pair(X: Memory[D]) -> int:
    """Bytes of one access of X by a lane of an accumulator, which holds two neighbours of a row: both, or one."""
    return 2 * X.dtype.bytes if X.unit == 1 and X.align >= 2 * X.dtype.bytes else X.dtype.bytes


@tile_function
def scaled(
    acc: Fragment[S], C: Memory[Any], tile: Memory[Any], vec: int, alpha: S | float, beta: S | float
) -> Fragment[S]:
    """alpha * acc + beta * C, C being the part of acc's shape; with beta == 0 nothing of it is read.

    It comes by way of `tile` in shared memory, in accesses of `vec` bytes: a lane's own elements lie scattered.
    """
    out = alpha * acc
    if beta != 0:
        barrier()
        copy(C, tile, vec=vec)
        barrier()
        two = (2 if tile.unit == 1 else 1) * tile.dtype.bytes
        out = beta * load_fragment(tile, acc.layout, vec=two).to(acc.dtype) + out
    return out

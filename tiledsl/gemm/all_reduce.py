"""The sum of one vector of each rank, in all of them, at once: every rank sends its vector to all others.

Each adds up the vectors in the order of the ranks, so that all have the same bits. Calls count themselves, in `epochs`,
and use two halves of the memory in turn, so that a captured graph may be launched again: who sends for call e + 2 has
seen all others in call e + 1, which they began when they had read what was sent for call e.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from tiledsl import (
    Const,
    Global,
    Scalar,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    index,
    minimum,
    ptx,
    threads,
    tile_kernel,
    u32,
    unroll,
)
from tiledsl.dims import L, N, Q, R
from tiledsl.gemm.peers import BYTES, wait_for

__all__ = ["BLOCKS", "all_reduce"]

E = TypeVar("E", bound=Scalar)
BLOCKS = 64
"""Of every call, whatever its size, since each block counts its calls. All of them run at the same time."""


@tile_kernel
def all_reduce(
    X: Global[E, N],
    sent: Global[E, L, Literal[2], Q],
    received: Global[E, Literal[2], L, Q],
    signals: Global[u32, L, Literal[2], R],
    arrived: Global[u32, Literal[2], L, R],
    epochs: Global[u32, R],
    of_call: Global[u32, Literal[3]],
    *,
    RANKS: const,
    T: const = 256,
    EARLY: Const[bool] = False,
):
    """X becomes the sum of the X of all ranks; its extent is a multiple of 16 bytes.

    received, arrived: what the others send to this rank, and their flags, [half, rank, ...]. sent, signals: where this
    rank sends to, [rank, half, ...]: its place in `received` and `arrived` of each rank. epochs: how many calls there
    were, for each block. of_call: the rank, nothing, and how often flags are asked for, as of `hopper_fastest`.
    """
    b, t = grid(BLOCKS), threads(T)
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()  # the call before, too, counts in `epochs`
    own, epoch = index(minimum(of_call[0], RANKS - 1)), epochs[b] + 1
    half, wide = index(epoch % 2), BYTES // X.dtype.bytes
    vectors = N // wide
    each = cdiv(vectors, BLOCKS)
    end = minimum(b * each + each, vectors)
    for v in range(b * each + t, end, T):
        x = X.load(v * wide, vec=BYTES)
        for i in unroll(1, RANKS):
            sent.store((own + i) % RANKS, half, v * wide, x)
    barrier()
    if t < RANKS and t != own:
        signals.atomic_store(t, half, b, epoch, order="release", scope="sys")
        wait_for(arrived[half, :, :], t, b, (own, RANKS, epoch, of_call[2]))
    barrier()
    for v in range(b * each + t, end, T):
        mine, total = X.load(v * wide, vec=BYTES).to(f32), fragment((wide,), f32)
        for rank in unroll(RANKS):
            if own == rank:
                total = total + mine
            else:
                total = total + received.load(half, rank, v * wide, vec=BYTES).to(f32)
        X.store(v * wide, total.to(X.dtype))
    if t == 0:
        epochs[b] = epoch

"""The sum of one vector of each rank, in all of them, at once: every rank sends its vector to all others.

Each adds up the vectors in the order of the ranks, so that all have the same bits. Calls count themselves, in `epochs`,
and use two halves of the memory in turn, so that a captured graph may be launched again: who sends for call e + 2 has
seen all others in call e + 1, which they began when they had read what was sent for call e.

Vectors of many bytes are sent as they are, with a flag behind them for each block. Of few, each word of 4 bytes travels
with the number of the call, in one store of 8 bytes: who reads that number has the word, without flag, fence or
barrier. What was sent for an older call has another number, so nothing else may be written there.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from tiledsl import (
    Const,
    Fragment,
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
    tile_function,
    tile_kernel,
    u16,
    u32,
    u64,
    unroll,
)
from tiledsl.dims import L, N, Q, R
from tiledsl.gemm.peers import BYTES, require_came, wait_for

__all__ = ["BLOCKS", "all_reduce", "all_reduce_words"]

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
    own, epoch, half = begin_call(epochs, b, of_call, RANKS, EARLY)
    wide = BYTES // X.dtype.bytes
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


@tile_kernel
def all_reduce_words(
    X: Global[E, N],
    sent: Global[u64, L, Literal[2], Q],
    received: Global[u64, Literal[2], L, Q],
    epochs: Global[u32, R],
    of_call: Global[u32, Literal[3]],
    *,
    RANKS: const,
    T: const = 256,
    EARLY: Const[bool] = False,
):
    """As `all_reduce`, for 16-bit elements. sent, received: a word of X, and the number of the call above it."""
    b, t = grid(BLOCKS), threads(T)
    own, epoch, half = begin_call(epochs, b, of_call, RANKS, EARLY)
    for w in range(b * T + t, N // 2, BLOCKS * T):
        message = u64(word_of(X.load(2 * w, vec=4))) | u64(epoch) << 32
        for i in unroll(1, RANKS):
            sent.atomic_store((own + i) % RANKS, half, w, message, scope="sys")
    for w in range(b * T + t, N // 2, BLOCKS * T):
        mine, total = X.load(2 * w, vec=4).to(f32), fragment((2,), f32)
        for rank in unroll(RANKS):
            if own == rank:
                total = total + mine
            else:
                word = await_word(received, half, rank, w, epoch, of_call[2])
                for i in unroll(2):
                    total[i] = total[i] + f32(u16(word >> 16 * i & 0xFFFF).bitcast(X.dtype))
        X.store(2 * w, total.to(X.dtype))
    barrier()
    if t == 0:
        epochs[b] = epoch


@tile_function
def begin_call(epochs: Any, b: index, of_call: Any, ranks: int, early: bool) -> tuple[index, u32, index]:
    """The rank, the number of the call, and the half that it uses."""
    if early:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()  # the call before, too, counts in `epochs`
    own, epoch = index(minimum(of_call[0], ranks - 1)), epochs[b] + 1
    return own, epoch, index(epoch % 2)


@tile_function
def word_of(x: Fragment[E]) -> u32:
    bits = x.bitcast(u16)
    return u32(bits[0]) | u32(bits[1]) << 16


@tile_function
def await_word(received: Any, half: index, rank: int, w: Any, epoch: u32, patience: u32) -> u32:
    """A word that `rank` has sent."""
    asked, found = u32(0), received.atomic_load(half, rank, w, scope="sys")
    while u32(found >> 32) != epoch and asked < patience:
        asked = asked + u32(1)
        found = received.atomic_load(half, rank, w, scope="sys")
    require_came(asked == patience, rank)
    return u32(found & 0xFFFFFFFF)

"""Kernels outside the gallery whose threads hand values to each other by every other means of the language.

Each computes C from A alone, or from A and counters that begin as zero; `REFERENCES` says what C becomes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl import (
    Global,
    ballot,
    barrier,
    bf16,
    f32,
    fence,
    grid,
    i32,
    index,
    popc,
    ptx,
    shared,
    shuffle_xor,
    store_tma,
    swizzle_128b,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tma_commit,
    tma_load,
    tma_wait,
    u32,
    u64,
    warp_id,
)
from tiledsl.dims import B, K, M, N

__all__ = ["REFERENCES", "SCRATCH"]

Array = Any


@tile_kernel
def last_block(A: Global[f32, M, N], C: Global[f32, B, N], parts: Global[f32, M, N], done: Global[i32, K]):
    """The last block to count adds up what all have left; each of its threads adds a column."""
    b, t = grid(M), threads(64)
    last = shared((1,), i32)
    parts[b, t] = A[b, t] * 2
    barrier()
    if t == 0:
        last[0] = done.atomic_add(0, 1, order="acq_rel", scope="gpu")
    barrier()
    if last[0] == i32(M) - 1:
        total = f32(0)
        for i in range(M):
            total += parts[i, t]
        C[0, t] = total


@tile_kernel
def handed_on(A: Global[f32, M, N], C: Global[f32, M, N], sums: Global[f32, M, N], ready: Global[i32, K]):
    """Each block adds its row to the sum that the block before it has left: relaxed operations with fences."""
    b, t = grid(M), threads(64)
    old = f32(0)
    if b > 0:
        if t == 0:
            while ready.atomic_load(b - 1) == 0:
                pass
            fence("gpu")
        barrier()
        old = sums[b - 1, t]
    new = old + A[b, t]
    sums[b, t] = new
    C[b, t] = new
    barrier()
    if t == 0:
        fence("gpu")
        ready.atomic_store(b, 1)


@tile_kernel
def released_on(A: Global[f32, M, N], C: Global[f32, M, N], sums: Global[f32, M, N], ready: Global[i32, K]):
    """Each block adds its row to the sum that the block before it has left: a release and an acquire."""
    b, t = grid(M), threads(64)
    old = f32(0)
    if b > 0:
        if t == 0:
            while ready.atomic_load(b - 1, order="acquire") == 0:
                pass
        barrier()
        old = sums[b - 1, t]
    new = old + A[b, t]
    sums[b, t] = new
    C[b, t] = new
    barrier()
    if t == 0:
        ready.atomic_store(b, 1, order="release")


@tile_kernel
def locked(A: Global[f32, M, N], C: Global[f32, B, N], held: Global[i32, K]):
    """Blocks add to one row under a lock; the row is zero at first."""
    b, t = grid(M), threads(64)
    a = A[b, t]
    if t == 0:
        while held.atomic_cas(0, 0, 1, order="acquire") != 0:
            pass
    barrier()
    C[0, t] = C[0, t] + a
    barrier()
    if t == 0:
        held.atomic_exchange(0, 0, order="release")


@tile_kernel(arch="sm_90a")
def sent(A: Global[f32, M, N], C: Global[f32, M, N]):
    """Two blocks of a cluster send each other rows in rounds by st.async: row b * 4 + i of C is that of the other."""
    b = grid(M // 4, cluster=(2,))
    t = threads(64)
    full, free, place = shared((2,), u64), shared((2,), u64), shared((2, 256), f32)
    other = ptx.cluster_rank() ^ 1
    if t == 0:
        for s in range(2):
            ptx.mbarrier_init(full, s, count=1)
            ptx.mbarrier_init(free, s, count=64)
        ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    for i in range(4):
        s = i % 2
        if i > 1:
            ptx.mbarrier_wait(free, s, parity=u32(i // 2 + 1) % 2)
        if t == 0:
            ptx.mbarrier_expect_tx(full, s, bytes=1024)
        x = A.load(b * 4 + i, t * 4, vec=16)
        ptx.st_async(place, s, t * 4, x, mbarrier=(full, s), rank=other)
        ptx.mbarrier_wait(full, s, parity=u32(i // 2) % 2)
        C.store(b * 4 + i, t * 4, place.load(s, t * 4, vec=16))
        ptx.mbarrier_arrive(free, s, rank=other)
    ptx.cluster_arrive()
    ptx.cluster_wait()


@tile_kernel
def copied_by_warps(A: Global[f32, M, N], C: Global[f32, M, N]):
    """Each warp copies its part of a row ahead by cp.async, in two stages, and reverses it; zeros follow the row."""
    b, t = grid(2), threads(64)
    S = shared((2, 64), f32)
    lane, w = t % 32, t // 32
    rows = M // 2
    ptx.cp_async(S, (0, t), A, (b * rows, t), bytes=4)
    ptx.commit_group()
    for i in range(rows):
        if i + 1 < rows:
            ptx.cp_async(S, ((i + 1) % 2, t), A, (b * rows + i + 1, t), bytes=4)
        ptx.commit_group()
        ptx.wait_group(1)
        syncwarp()
        if t < N:
            C[b * rows + i, t] = S[i % 2, w * 32 + 31 - lane]
        syncwarp()


@tile_kernel
def two_halves(A: Global[f32, M, N], C: Global[f32, M, N]):
    """Two warps fill two buffers for two others, which give them back, all by named barriers."""
    b, t = grid(2), threads(128)
    S = shared((2, 64), f32)
    rows = M // 2
    if t < 64:
        for i in range(rows):
            if i % 2 == 0:
                if i > 1:
                    ptx.named_barrier(3, threads=128)
                S[0, t] = A[b * rows + i, t]
                ptx.named_barrier(1, threads=128, wait=False)
            else:
                if i > 1:
                    ptx.named_barrier(4, threads=128)
                S[1, t] = A[b * rows + i, t]
                ptx.named_barrier(2, threads=128, wait=False)
    else:
        for i in range(rows):
            if i % 2 == 0:
                ptx.named_barrier(1, threads=128)
                C[b * rows + i, t - 64] = S[0, 127 - t]
                if i + 2 < rows:
                    ptx.named_barrier(3, threads=128, wait=False)
            else:
                ptx.named_barrier(2, threads=128)
                C[b * rows + i, t - 64] = S[1, 127 - t]
                if i + 2 < rows:
                    ptx.named_barrier(4, threads=128, wait=False)


@tile_kernel(arch="sm_90a")
def by_hand(A: Global[f32, M, N], C: Global[f32, M, N]):
    """A ring of three stages between two warps that store and two that load, with mbarriers of all threads."""
    b, t = grid(2), threads(128)
    S, full, free = shared((3, 64), f32), shared((3,), u64), shared((3,), u64)
    rows = M // 2
    if t == 0:
        for s in range(3):
            ptx.mbarrier_init(full, s, count=64)
            ptx.mbarrier_init(free, s, count=64)
    barrier()
    if t < 64:
        for i in range(rows):
            s = i % 3
            if i >= 3:
                ptx.mbarrier_wait(free, s, parity=u32(i // 3 + 1) % 2)
            S[s, t] = A[b * rows + i, t]
            ptx.mbarrier_arrive(full, s)
    else:
        for i in range(rows):
            s = i % 3
            ptx.mbarrier_wait(full, s, parity=u32(i // 3) % 2)
            C[b * rows + i, t - 64] = S[s, 127 - t]
            ptx.mbarrier_arrive(free, s)


@tile_kernel(arch="sm_90a")
def turned(A: Global[bf16, M, N], C: Global[bf16, M, N]):
    """TMA loads a swizzled tile, threads reverse its rows into another one, TMA stores that: two buffers of each."""
    b = grid(2)
    t = threads(64)
    S = shared((16, 64), bf16, layout=swizzle_128b)
    T = shared((16, 64), bf16, layout=swizzle_128b)
    full = shared((2,), u64)
    steps = M // 16
    if t == 0:
        for s in range(2):
            ptx.mbarrier_init(full, s, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=1024)
        tma_load(A[tile(b * steps, 8), tile(0, 64)], S[tile(0, 8), tile(0, 64)], mbarrier=(full, 0))
    for i in range(steps):
        s = i % 2
        if t == 0 and i + 1 < steps:
            ptx.mbarrier_expect_tx(full, 1 - s, bytes=1024)
            tma_load(A[tile(b * steps + i + 1, 8), tile(0, 64)], S[tile(1 - s, 8), tile(0, 64)], mbarrier=(full, 1 - s))
        if t == 0:
            tma_wait(1, read=True)
        barrier()
        ptx.mbarrier_wait(full, s, parity=u32(i // 2) % 2)
        for r in range(8):
            T[s * 8 + r, t] = S[s * 8 + 7 - r, t]
        ptx.fence_proxy_async()
        barrier()
        if t == 0:
            store_tma(T[tile(s, 8), tile(0, 64)], C[tile(b * steps + i, 8), tile(0, 64)])
            tma_commit()
    if t == 0:
        tma_wait(0, read=True)


@tile_kernel
def voted(A: Global[f32, M, N], C: Global[f32, M, N]):
    """Each warp moves the positive elements of its part of a row to the front, and adds elements 16 columns away."""
    b, t = grid(M), threads(64)
    S = shared((64,), f32)
    lane = t % 32
    a = A[b, t]
    mask = ballot(a > 0)
    before = popc(mask & ((u32(1) << u32(lane)) - 1))
    S[t] = f32(-lane)
    syncwarp()
    if a > 0:
        S[warp_id() * 32 + index(before)] = a
    syncwarp()
    C[b, t] = S[t] + shuffle_xor(a, 16)


# -- what they compute -----------------------------------------------------------------------------


def _reversed_parts(A: Array, part: int) -> Array:
    """Return the rows with each part of `part` columns in the opposite order."""
    return A.reshape(*A.shape[:-1], -1, part)[..., ::-1].reshape(A.shape)


def _reversed_halves(A: Array) -> Array:
    """Return rows of at most 64 columns, whose halves are reversed after zeros have filled them."""
    filled = np.pad(A, ((0, 0), (0, 64 - A.shape[1])))
    return _reversed_parts(filled, 32)[:, : A.shape[1]]


def _exchanged(A: Array) -> Array:
    blocks = A.reshape(-1, 2, 4, A.shape[-1])
    return blocks[:, ::-1].reshape(A.shape)


def _turned(A: Array) -> Array:
    return A.reshape(-1, 8, A.shape[-1])[:, ::-1].reshape(A.shape)


def _voted(A: Array) -> Array:
    parts = A.reshape(-1, 32)
    C = np.tile(-np.arange(32.0), (len(parts), 1))
    for part, out in zip(parts, C, strict=True):
        positive = part[part > 0]
        out[: len(positive)] = positive
    return (C + np.roll(parts, 16, axis=1)).reshape(A.shape)


REFERENCES: dict[str, Callable[[Array], Array]] = {
    "last_block": lambda A: 2 * A.sum(axis=0, keepdims=True),
    "handed_on": lambda A: A.cumsum(axis=0),
    "released_on": lambda A: A.cumsum(axis=0),
    "locked": lambda A: A.sum(axis=0, keepdims=True),
    "sent": _exchanged,
    "copied_by_warps": _reversed_halves,
    "two_halves": lambda A: _reversed_parts(A, 64),
    "by_hand": lambda A: _reversed_parts(A, 64),
    "turned": _turned,
    "voted": _voted,
}
"""The functions that compute the expected C from A, by kernel."""
SCRATCH: dict[str, dict[str, str]] = {
    "last_block": {"parts": "rows", "done": "counter"},
    "handed_on": {"sums": "rows", "ready": "counters"},
    "released_on": {"sums": "rows", "ready": "counters"},
    "locked": {"held": "counter"},
}
"""Arrays that a kernel writes besides C: as many rows as A has, of NaN, or i32 that are zero."""

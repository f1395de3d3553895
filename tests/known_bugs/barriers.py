"""Shipped bugs of barriers: counts, participants, phases, roles that wait for each other, and clusters."""

from __future__ import annotations

import numpy as np

from known_bugs.case import Case, ones
from tiledsl import (
    Const,
    Global,
    barrier,
    const,
    f32,
    grid,
    i32,
    index,
    ptx,
    role,
    shared,
    shuffle_xor,
    threads,
    tile_kernel,
    u32,
    u64,
)
from tiledsl.dims import N

__all__ = ["CASES"]


@tile_kernel(arch="sm_90a")
def named_barrier_of_all_threads(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """One warp of two meets at a named barrier that counts the threads of both."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    if t < 32:
        ptx.named_barrier(1, threads=32 if SAFE else 64)  # found: T401
        Y[t] = S[31 - t]


@tile_kernel(arch="sm_90a")
def arrival_in_place_of_a_wait(X: Global[f32, N], Y: Global[f32, N], *, ROUNDS: const = 3, SAFE: Const[bool] = True):
    """A warp without work only arrives where the other waits, and is at the next round before this one is over."""
    grid(1)
    t = threads(64)
    if t < 32:
        for _ in range(ROUNDS):
            ptx.named_barrier(1, threads=64)
            Y[t] = X[t]
            ptx.named_barrier(2, threads=64)
    else:
        for _ in range(ROUNDS):
            ptx.named_barrier(1, threads=64, wait=False)  # found: T418
            ptx.named_barrier(2, threads=64, wait=SAFE)  # found: T414


@tile_kernel(arch="sm_90a")
def nothing_to_load(X: Global[f32, N], Y: Global[f32, N], *, SPLITS: const = 4, SAFE: Const[bool] = True):
    """A part of split K has no tiles: its loading role loads nothing, and the other waits for the first tile."""
    part = grid(SPLITS)
    S, full = shared((32,), f32), shared((1,), u64)
    t = threads(256)
    size = (N // 32 + SPLITS - 1) // SPLITS
    first = part * size
    last = first + size if first + size < N // 32 else index(N // 32)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32)
    barrier()
    with role("load"):
        if t < 32:
            for k in range(first, last):
                if k == first:
                    S[t] = X[k * 32 + t]
                    ptx.mbarrier_arrive(full, 0)
    with role("math"):
        if not SAFE or first < last:
            ptx.mbarrier_wait(full, 0, parity=0)  # found: T401
            if t < 160:
                Y[part * 32 + t - 128] = S[t - 128]


@tile_kernel(arch="sm_90a")
def roles_in_a_circle(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A role frees a slot behind a barrier that the role which waits for the slot has still to reach."""
    grid(1)
    t = threads(64)
    S, full, free = shared((32,), f32), shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32)
        ptx.mbarrier_init(free, 0, count=32)
    barrier()
    if t < 32:
        for k in range(2):
            if k > 0:
                ptx.mbarrier_wait(free, 0, parity=u32(k + 1) % 2)  # found: T401
            S[t] = X[k * 32 + t]
            ptx.mbarrier_arrive(full, 0)
        ptx.named_barrier(1, threads=64)
    else:
        for k in range(2):
            ptx.mbarrier_wait(full, 0, parity=u32(k) % 2)
            Y[k * 32 + t - 32] = S[63 - t]
            if not SAFE and k == 0:
                ptx.named_barrier(1, threads=64)
            ptx.mbarrier_arrive(free, 0)
        if SAFE:
            ptx.named_barrier(1, threads=64)


@tile_kernel(arch="sm_90a")
def phase_of_an_empty_tile(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A waiting role goes on to the next phase at a tile without work, for which nobody has arrived."""
    grid(1)
    t = threads(64)
    S, full, free = shared((32,), f32), shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32)
        ptx.mbarrier_init(free, 0, count=32)
    barrier()
    if t < 32:
        phase = u32(1)
        for k in range(4):
            if k != 1:
                if k > 0:
                    ptx.mbarrier_wait(free, 0, parity=phase)  # found: T401, T421
                phase = phase ^ 1
                S[t] = X[k * 32 + t]  # found: T101
                ptx.mbarrier_arrive(full, 0)
    else:
        phase = u32(0)
        for k in range(4):
            if k != 1:
                ptx.mbarrier_wait(full, 0, parity=phase)  # found: T421
                Y[k * 32 + t - 32] = S[63 - t]
                ptx.mbarrier_arrive(free, 0)
                phase = phase ^ 1
            elif not SAFE:
                phase = phase ^ 1


@tile_kernel(arch="sm_90a")
def path_without_an_arrival(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """One of two paths to an mbarrier does its work, and leaves out the arrival."""
    grid(1)
    t = threads(64)
    S, full = shared((64,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=64)
    barrier()
    S[t] = X[t]
    if SAFE or t < 32:
        ptx.mbarrier_arrive(full, 0)
    ptx.mbarrier_wait(full, 0, parity=0)  # found: T401
    Y[t] = S[63 - t]


@tile_kernel
def barrier_of_some_threads(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A barrier inside a branch that only every other thread takes."""
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    S[t] = X[t]
    if SAFE:
        barrier()
    if t % 2 == 0:
        x = S[t]
        if not SAFE:
            barrier()  # refused
        Y[t ^ 1] = x


@tile_kernel
def return_before_the_barrier(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """Threads past the end return before a barrier that the others of their warp still execute."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    if not SAFE and t >= N:
        return
    S[t] = X.get(t)
    barrier()  # refused
    Y.put(t, S[t ^ 1])


@tile_kernel
def shuffle_of_some_lanes(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """Lanes past the end leave the loop, and the others shuffle with all 32."""
    grid(1)
    t = threads(32)
    if SAFE:
        x = X.get(t)
        total = x + shuffle_xor(x, 16)
        Y.put(t, total)
    elif t < N:
        x = X[t]
        total = x + shuffle_xor(x, 16)  # refused
        Y[t] = total


# -- clusters ------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def no_barrier_at_the_end(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):  # found: T417
    """A block arrives in another one of its cluster, which may have ended."""
    b = grid(2, cluster=(2,))
    t = threads(32)
    arrived = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    Y[b * 32 + t] = X[b * 32 + t]
    if t == 0 and b == 0:
        ptx.mbarrier_arrive(arrived, 0, rank=1)
    if SAFE:
        ptx.cluster_arrive()
        ptx.cluster_wait()


@tile_kernel(arch="sm_90a")
def mbarrier_of_another_block(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A block arrives at an mbarrier of another one, which may not have initialised it yet."""
    b = grid(2, cluster=(2,))
    t = threads(32)
    arrived = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=2)
        ptx.fence_mbarrier_init()
    if SAFE:
        ptx.cluster_arrive()
        ptx.cluster_wait()
    else:
        barrier()
    if t < 2:
        ptx.mbarrier_arrive(arrived, 0, rank=i32(t))  # found: T407
    ptx.mbarrier_wait(arrived, 0, parity=0)
    Y[b * 32 + t] = X[b * 32 + t]
    ptx.cluster_arrive()
    ptx.cluster_wait()


@tile_kernel(arch="sm_90a")
def stored_before_it_was_entered(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A block stores into the memory of another one, which is still writing there itself."""
    b = grid(2, cluster=(2,))
    t = threads(32)
    S, full = shared((128,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=512)
    if not SAFE:
        ptx.cluster_arrive()
        ptx.cluster_wait()
    S.store(t * 4, X.load(t * 4, vec=16))
    if SAFE:
        ptx.cluster_arrive()
        ptx.cluster_wait()
    other = ptx.cluster_rank() ^ 1
    ptx.st_async(S, t * 4, X.load(b * 128 + t * 4, vec=16), mbarrier=(full, 0), rank=other)  # found: T101
    ptx.mbarrier_wait(full, 0, parity=0, scope="cta")
    Y.store(b * 128 + t * 4, S.load(t * 4, vec=16))


@tile_kernel(arch="sm_90a")
def handed_over_by_the_block(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """Blocks of a cluster hand over data by arrivals and waits whose scope is the block."""
    b = grid(2, cluster=(2,))
    t = threads(32)
    arrived = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=32)
        ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    X[b * 32 + t] = f32(b)
    other = ptx.cluster_rank() ^ 1
    if SAFE:
        ptx.mbarrier_arrive(arrived, 0, rank=other)
        ptx.mbarrier_wait(arrived, 0, parity=0)
    else:
        ptx.mbarrier_arrive(arrived, 0, rank=other, scope="cta")
        ptx.mbarrier_wait(arrived, 0, parity=0, scope="cta")
    Y[b * 32 + t] = X[(b ^ 1) * 32 + t]  # found: T102
    ptx.cluster_arrive()
    ptx.cluster_wait()


def vectors(n: int) -> dict[str, np.ndarray]:
    return {"X": ones(n), "Y": ones(n)}


CASES = [
    Case(named_barrier_of_all_threads, "deepseek-ai/FlashMLA#57", vectors(64)),
    Case(arrival_in_place_of_a_wait, "vllm-project/vllm#26026", vectors(64)),
    Case(nothing_to_load, "facebookexperimental/triton#1141", vectors(32 * 9)),
    Case(roles_in_a_circle, "tile-ai/tilelang#2567", vectors(64)),
    Case(phase_of_an_empty_tile, "Dao-AILab/flash-attention#2258", vectors(128)),
    Case(path_without_an_arrival, "tile-ai/tilelang#2566", vectors(64)),
    Case(barrier_of_some_threads, "tile-ai/tilelang#1026", vectors(32)),
    Case(return_before_the_barrier, "pytorch/FBGEMM#5857", vectors(48)),
    Case(shuffle_of_some_lanes, "NVIDIA/cccl#854", vectors(24)),
    Case(no_barrier_at_the_end, "triton-lang/triton#10656", vectors(64)),
    Case(mbarrier_of_another_block, "facebookexperimental/triton#652", vectors(64)),
    Case(stored_before_it_was_entered, "facebookexperimental/triton#2292", vectors(256)),
    Case(handed_over_by_the_block, "NVIDIA/cutlass#3324", vectors(64)),
]

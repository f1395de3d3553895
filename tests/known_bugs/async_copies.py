"""Shipped bugs of copies by TMA: proxy fences, waits, slots used again, and the mbarriers that count the bytes."""

from __future__ import annotations

from known_bugs.case import Case, ones
from tiledsl import (
    Const,
    Global,
    barrier,
    const,
    f32,
    grid,
    ptx,
    row_major,
    shared,
    store_tma,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tma_commit,
    tma_load,
    tma_wait,
    u32,
    u64,
)
from tiledsl.dims import M, N

__all__ = ["CASES"]


@tile_kernel(arch="sm_90a")
def stored_without_a_proxy_fence(Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Threads write a tile, a barrier follows, and TMA stores it: no proxy fence.

    A state that is zeroed before a loop of no iterations, whose fence would have been inside.
    """
    grid(1)
    t = threads(32)
    S = shared((8, 32), f32, layout=row_major)
    for i in range(8):
        S[i, t] = f32(0)
    if SAFE:
        ptx.fence_proxy_async()
    barrier()
    if t == 0:
        store_tma(S, Y[tile(0, 8), tile(0, 32)])  # found: T104
        tma_commit()
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def mbarrier_without_a_fence(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """TMA counts bytes at an mbarrier whose initialisation has no fence."""
    grid(1)
    t = threads(32)
    S, full = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        if SAFE:
            ptx.fence_mbarrier_init()
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(full, 0, bytes=1024)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(full, 0))  # found: T408
    ptx.mbarrier_wait(full, 0, parity=0)
    for i in range(8):
        Y[i, t] = S[i, t]


@tile_kernel(arch="sm_90a")
def loaded_over_what_is_read(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """TMA loads the next stage over what threads have read, behind a barrier alone: no proxy fence."""
    grid(1)
    t = threads(32)
    S, full = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    for k in range(2):
        if t == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=1024)
            tma_load(X[tile(k, 8), tile(0, 32)], S, mbarrier=(full, 0))  # found: T104
        ptx.mbarrier_wait(full, 0, parity=u32(k))
        for i in range(8):
            Y[k * 8 + i, t] = S[i, t]
        if SAFE:
            ptx.fence_proxy_async()
        barrier()


@tile_kernel(arch="sm_90a")
def slot_loaded_while_stored(
    X: Global[f32, M, N], Y: Global[f32, M, N], *, STAGES: const = 2, SAFE: Const[bool] = True
):
    """A copy through two slots loads into one whose store may still read it: the wait leaves that store out."""
    grid(1)
    t = threads(32)
    S, full = shared((STAGES, 8, 32), f32, layout=row_major), shared((STAGES,), u64)
    steps = M // 8
    if t == 0:
        for s in range(STAGES):
            ptx.mbarrier_init(full, s, count=1)
        ptx.fence_mbarrier_init()
        for s in range(STAGES):
            ptx.mbarrier_expect_tx(full, s, bytes=1024)
            tma_load(X[tile(s, 8), tile(0, 32)], S[s, :, :], mbarrier=(full, s))
        for k in range(steps):
            s = k % STAGES
            ptx.mbarrier_wait(full, s, parity=u32(k // STAGES % 2))
            store_tma(S[s, :, :], Y[tile(k, 8), tile(0, 32)])
            tma_commit()
            if k + STAGES < steps:
                if SAFE:
                    tma_wait(0, read=True)
                else:
                    tma_wait(STAGES - 1, read=True)
                ptx.mbarrier_expect_tx(full, s, bytes=1024)
                tma_load(X[tile(k + STAGES, 8), tile(0, 32)], S[s, :, :], mbarrier=(full, s))  # found: T107
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def mbarrier_not_known(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Threads use an mbarrier, and no barrier lies between that and its initialisation."""
    grid(1)
    t = threads(64)
    arrived = shared((1,), u64)
    S = shared((64,), f32)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=64)
    if SAFE:
        barrier()
    S[t] = X[0, t]
    ptx.mbarrier_arrive(arrived, 0)  # found: T407
    ptx.mbarrier_wait(arrived, 0, parity=0)
    Y[0, t] = S[63 - t]


@tile_kernel(arch="sm_90a")
def stored_from_in_a_loop(Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """A loop writes a tile and stores it by TMA; the stores are waited for behind the loop only."""
    grid(1)
    t = threads(32)
    S = shared((8, 32), f32, layout=row_major)
    for k in range(M // 8):
        for i in range(8):
            S[i, t] = f32(k)  # found: T107
        ptx.fence_proxy_async()
        barrier()
        if t == 0:
            store_tma(S, Y[tile(k, 8), tile(0, 32)])
            tma_commit()
            if SAFE:
                tma_wait(0, read=True)
        if SAFE:
            barrier()
    if t == 0:
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def parity_of_another_ring(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Each step ends a phase of one mbarrier, and the wait takes its parity from a ring of several: it ends at once."""
    grid(1)
    t = threads(32)
    S, full = shared((2, 8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    for k in range(2):
        if t == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=1024)
            tma_load(X[tile(k, 8), tile(0, 32)], S[k, :, :], mbarrier=(full, 0))
        if SAFE:
            ptx.mbarrier_wait(full, 0, parity=u32(k % 2))
        else:
            ptx.mbarrier_wait(full, 0, parity=u32(k // 2 % 2))
        for i in range(8):
            Y[k * 8 + i, t] = S[k, i, t]  # found: T106
        barrier()


@tile_kernel(arch="sm_90a")
def arrival_of_a_whole_warp(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """An mbarrier of one arrival, at which all lanes of a warp arrive."""
    grid(1)
    t = threads(64)
    S, full = shared((64,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
    barrier()
    if t < 32:
        S[t], S[t + 32] = X[0, t], X[0, t + 32]
        syncwarp()
        if not SAFE or t == 0:
            ptx.mbarrier_arrive(full, 0)  # found: T404
    ptx.mbarrier_wait(full, 0, parity=0)
    Y[0, t] = S[63 - t]


@tile_kernel(arch="sm_90a")
def bytes_of_a_smaller_box(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """An mbarrier expects the bytes of the rows in use, and TMA brings those of the whole box."""
    grid(1)
    t = threads(32)
    S, full = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=1024 if SAFE else 512)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(full, 0))
    barrier()
    ptx.mbarrier_wait(full, 0, parity=0)  # found: T401
    for i in range(4):
        Y[i, t] = S[i, t]


@tile_kernel(arch="sm_90a")
def published_by_one_lane(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """One lane arrives for its warp, which has not joined: the other lanes' writes are not published."""
    grid(1)
    t = threads(64)
    S, full = shared((32,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
    barrier()
    if t < 32:
        S[t] = X[0, t]
        if SAFE:
            syncwarp()
        if t == 0:
            ptx.mbarrier_arrive(full, 0)
    else:
        ptx.mbarrier_wait(full, 0, parity=0)
        Y[0, t - 32] = S[63 - t]  # found: T101


@tile_kernel(arch="sm_90a")
def released_by_one_lane(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """One lane releases a slot for its warp, whose other lanes may still read it when TMA loads the next."""
    grid(1)
    t = threads(64)
    S, full, free = shared((8, 32), f32, layout=row_major), shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=32 if SAFE else 1)
        ptx.fence_mbarrier_init()
    barrier()
    if t == 32:
        for k in range(M // 8):
            if k > 0:
                ptx.mbarrier_wait(free, 0, parity=u32((k + 1) % 2))
            ptx.mbarrier_expect_tx(full, 0, bytes=1024)
            tma_load(X[tile(k, 8), tile(0, 32)], S, mbarrier=(full, 0))  # found: T101
    elif t < 32:
        for k in range(M // 8):
            ptx.mbarrier_wait(full, 0, parity=u32(k % 2))
            for i in range(8):
                Y[k * 8 + i, t] = S[i, t]
            ptx.fence_proxy_async()
            if SAFE or t == 0:
                ptx.mbarrier_arrive(free, 0)


@tile_kernel(arch="sm_90a")
def input_over_output(X: Global[f32, M, N], Y: Global[f32, M, N], *, STEPS: const = 3, SAFE: Const[bool] = True):
    """A tile is an input, then the output; the wait for its store is at a step that not every task has."""
    grid(1)
    t = threads(32)
    S, full = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    for task in range(M // 8):
        if t == 0:
            if SAFE or STEPS % 2 == 0:
                tma_wait(0, read=True)
            ptx.mbarrier_expect_tx(full, 0, bytes=1024)
            tma_load(X[tile(task, 8), tile(0, 32)], S, mbarrier=(full, 0))  # found: T107
        ptx.mbarrier_wait(full, 0, parity=u32(task % 2))
        for i in range(8):
            S[i, t] = S[i, t] + 1
        ptx.fence_proxy_async()
        barrier()
        if t == 0:
            store_tma(S, Y[tile(task, 8), tile(0, 32)])
            tma_commit()
    if t == 0:
        tma_wait(0)


@tile_kernel
def copies_of_others(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Each thread waits for its own cp.async behind the barrier, and reads what another thread has copied."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    ptx.cp_async(S, t, X, (0, t), bytes=4)
    ptx.commit_group()
    if SAFE:
        ptx.wait_group(0)
        barrier()
    else:
        barrier()
        ptx.wait_group(0)
    Y[0, t] = S[63 - t]  # found: T101


COPIED = {"X": ones(16, 32), "Y": ones(16, 32)}
ROW = {"X": ones(1, 64), "Y": ones(1, 64)}

CASES = [
    Case(stored_without_a_proxy_fence, "MoonshotAI/FlashKDA#24", {"Y": ones(8, 32)}),
    Case(mbarrier_without_a_fence, "MoonshotAI/FlashKDA#25", {"X": ones(8, 32), "Y": ones(8, 32)}),
    Case(loaded_over_what_is_read, "NVIDIA/TransformerEngine#2695", COPIED),
    Case(slot_loaded_while_stored, "deepseek-ai/DeepEP#657", {"X": ones(32, 32), "Y": ones(32, 32)}),
    Case(mbarrier_not_known, "NVIDIA/Fuser#1552", ROW),
    Case(stored_from_in_a_loop, "NVIDIA/Fuser#5448", {"Y": ones(24, 32)}),
    Case(parity_of_another_ring, "tile-ai/tilelang#3087", COPIED),
    Case(arrival_of_a_whole_warp, "deepseek-ai/DeepEP#293", ROW),
    Case(bytes_of_a_smaller_box, "mirage-project/mirage#705", {"X": ones(8, 32), "Y": ones(8, 32)}),
    Case(published_by_one_lane, "mlc-ai/TIRx-kernels#202", {"X": ones(1, 32), "Y": ones(1, 32)}),
    Case(released_by_one_lane, "NVIDIA/cudnn-frontend#993", COPIED),
    Case(input_over_output, "uccl-project/mKernel#18", {"X": ones(24, 32), "Y": ones(24, 32)}),
    Case(copies_of_others, "NVIDIA/Fuser#3428", ROW),
]

"""One lane arrives at an mbarrier for its warp, and others have made accesses since all have met."""

from __future__ import annotations

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    grid,
    ptx,
    row_major,
    shared,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.dims import M, N

TILE_BYTES = 8 * 32 * 4


@tile_kernel(arch="sm_90a")
def handed_over(X: Global[f32, N], Y: Global[f32, N], *, READS: Const[str] = "own", SYNC: Const[bool] = False):
    """Lane 3 fills the mailbox and arrives; all lanes have written S before. READS: the mailbox, or S."""
    grid(1)
    t = threads(64)
    S, mailbox, full = shared((32,), f32), shared((1,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
    barrier()
    if t < 32:
        S[t] = X[t]
        if SYNC:
            syncwarp()
        if t == 3:
            mailbox[0] = f32(1)
            ptx.mbarrier_arrive(full, 0)
    else:
        ptx.mbarrier_wait(full, 0, parity=0)
        if READS == "own":
            Y[t] = mailbox[0] + S[3]
        else:
            Y[t] = mailbox[0] + S[4]


@tile_kernel(arch="sm_90a")
def in_global_memory(X: Global[f32, N], Y: Global[f32, N], *, LANES: Const[str] = "one", ALL: Const[bool] = False):
    """Lanes leave values in X, and one of them, or all, arrive; the other warp reads those of some."""
    grid(1)
    t = threads(64)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32 if ALL else 1)
    barrier()
    if t < 32:
        X[t] = f32(2)
        if ALL or t == 5:
            ptx.mbarrier_arrive(full, 0)
    else:
        ptx.mbarrier_wait(full, 0, parity=0)
        Y[t] = X[5] if LANES == "one" else X[t - 32]


@tile_kernel(arch="sm_90a")
def waited_for(X: Global[f32, N], Y: Global[f32, N], *, WAITS: Const[str] = "even", READS: Const[str] = "shared"):
    """The second warp reads what the first has written. WAITS: its even lanes, these and then all, all, or each half.
    READS: shared or global memory."""
    grid(1)
    t = threads(64)
    S, full = shared((32,), f32), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32)
    barrier()
    if t < 32:
        S[t] = X[t]
        X[t] = f32(2)
        ptx.mbarrier_arrive(full, 0)
    else:
        if t % 2 == 0 or WAITS == "all":
            ptx.mbarrier_wait(full, 0, parity=0)
        if t % 2 == 1 and WAITS == "halves":
            ptx.mbarrier_wait(full, 0, parity=0)
        if WAITS == "even, sync":
            syncwarp()
        if WAITS == "even, all":
            ptx.mbarrier_wait(full, 0, parity=0)
        if WAITS != "even reads" or t % 2 == 0:
            Y[t] = S[t - 32] if READS == "shared" else X[t - 32]


@tile_kernel(arch="sm_90a")
def exchanged(X: Global[f32, N], Y: Global[f32, N], *, AT: Const[str] = "arrival"):
    """Lanes of a warp read what others have written. AT: after an arrival at a named barrier, a syncwarp() too, or a
    wait; after an arrival at the barrier of the cluster, or the wait."""
    b = grid(2, cluster=(2,))
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[b * 64 + t]
    if AT == "cluster arrival" or AT == "cluster":
        ptx.cluster_arrive()
        if AT == "cluster arrival":
            Y[b * 64 + t] = S[t ^ 1]
        ptx.cluster_wait()
        Y[b * 64 + t] = S[t ^ 1]
    elif t < 32:
        ptx.named_barrier(1, threads=64, wait=AT == "wait")
        if AT == "arrival, sync":
            syncwarp()
        Y[b * 64 + t] = S[t ^ 1]
    else:
        ptx.named_barrier(1, threads=64)


@tile_kernel(arch="sm_90a")
def released(X: Global[f32, M, N], Y: Global[f32, M, N], *, ORDER: Const[str] = "fence, sync"):
    """Lanes read a slot, and one of them lets TMA load the next. ORDER: what comes before its arrival."""
    grid(1)
    t = threads(64)
    S, full, free = shared((8, 32), f32, layout=row_major), shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    if t < 32:
        for k in range(M // 8):
            ptx.mbarrier_wait(full, 0, parity=u32(k % 2))
            for i in range(8):
                Y[k * 8 + i, t] = S[i, t]
            if ORDER == "fence, sync":
                ptx.fence_proxy_async()
                syncwarp()
            elif ORDER == "sync, fence":
                syncwarp()
                ptx.fence_proxy_async()
            elif ORDER == "fence":
                ptx.fence_proxy_async()
            if t == 0:
                ptx.mbarrier_arrive(free, 0)
    elif t == 32:
        for k in range(M // 8):
            if k > 0:
                ptx.mbarrier_wait(free, 0, parity=u32((k + 1) % 2))
            ptx.mbarrier_expect_tx(full, 0, bytes=TILE_BYTES)
            tma_load(X[tile(k, 8), tile(0, 32)], S, mbarrier=(full, 0))


@tile_kernel(arch="sm_90a")
def alone(X: Global[f32, M, N], Y: Global[f32, M, N]):
    """One lane reads all of the slot, fences and arrives. The others read something else."""
    grid(1)
    t = threads(64)
    S, full, free = shared((8, 32), f32, layout=row_major), shared((1,), u64), shared((1,), u64)
    other = shared((32,), f32)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=1)
        ptx.fence_mbarrier_init()
    if t < 32:
        other[t] = f32(0)
    barrier()
    if t == 32:
        for k in range(M // 8):
            if k > 0:
                ptx.mbarrier_wait(free, 0, parity=u32((k + 1) % 2))
            ptx.mbarrier_expect_tx(full, 0, bytes=TILE_BYTES)
            tma_load(X[tile(k, 8), tile(0, 32)], S, mbarrier=(full, 0))
    elif t < 32:
        for k in range(M // 8):
            ptx.mbarrier_wait(full, 0, parity=u32(k % 2))
            Y[k * 8, t] = other[t]
            if t == 7:
                Y[k * 8, 7] = S[3, 7]
                ptx.fence_proxy_async()
                ptx.mbarrier_arrive(free, 0)

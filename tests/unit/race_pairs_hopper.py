"""Kernels with races on global memory between the blocks of a cluster, and with TMA: see `race_pairs`."""

from __future__ import annotations

from race_pairs import NO_ACQUIRE, NO_BARRIER, Pair

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    grid,
    i32,
    ptx,
    row_major,
    shared,
    store_tma,
    threads,
    tile,
    tile_kernel,
    tiles,
    tma_commit,
    tma_load,
    tma_wait,
    u64,
)
from tiledsl.dims import M, N

__all__ = ["HOPPER_PAIRS"]


# -- clusters ------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def in_a_cluster(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Blocks of a cluster read each other's elements behind a barrier of the cluster, or of the block."""
    b = grid(4, cluster=(2,))
    t = threads(64)
    X[b * 64 + t] = f32(1)
    if RIGHT:
        ptx.cluster_arrive()
        ptx.cluster_wait()
    else:
        barrier()
    Y[b * 64 + t] = X[(b ^ 1) * 64 + t]


@tile_kernel(arch="sm_90a")
def across_clusters(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """A barrier of the cluster orders nothing between clusters."""
    b = grid(4, cluster=(2,))
    t = threads(64)
    X[b * 64 + t] = f32(1)
    ptx.cluster_arrive()
    ptx.cluster_wait()
    Y[b * 64 + t] = X[(b ^ (1 if RIGHT else 2)) * 64 + t]


@tile_kernel(arch="sm_90a")
def by_mbarriers(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """One thread of each block arrives at both blocks' mbarriers, behind a barrier of its block."""
    b = grid(2, cluster=(2,))
    t = threads(64)
    arrived = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=2)
        ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    X[b * 64 + t] = f32(1)
    if RIGHT:
        barrier()
    if t < 2:
        ptx.mbarrier_arrive(arrived, 0, rank=i32(t))
    ptx.mbarrier_wait(arrived, 0, parity=0)
    Y[b * 64 + t] = X[(b ^ 1) * 64 + t]
    ptx.cluster_arrive()
    ptx.cluster_wait()


# -- TMA -----------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def stored_by_tma(C: Global[f32, M, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """A block reads what it has stored by TMA: it waits for the end of the store, or for its source alone."""
    grid(1)
    t = threads(32)
    S = shared((8, 32), f32, layout=row_major)
    for i in range(8):
        S[i, t] = f32(i)
    ptx.fence_proxy_async()
    barrier()
    if t == 0:
        store_tma(S, C[tile(0, 8), tile(0, 32)])
        tma_commit()
        if RIGHT:
            tma_wait(0)
        else:
            tma_wait(0, read=True)
    barrier()
    Y[t] = C[3, t]


@tile_kernel(arch="sm_90a")
def stores_that_overlap(C: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """Two blocks store tiles of eight rows by TMA, four rows apart."""
    b, t = grid(2), threads(32)
    S = shared((8, 32), f32, layout=row_major)
    for i in range(8):
        S[i, t] = f32(b)
    ptx.fence_proxy_async()
    barrier()
    if t == 0:
        first = b * (8 if RIGHT else 4)
        for m in tiles(first + 8, 8, start=first):
            store_tma(S, C[m, tile(0, 32)])
        tma_commit()
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def written_then_loaded(X: Global[f32, M, N], Y: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """TMA loads what threads have written, with no proxy fence for global memory."""
    grid(1)
    t = threads(32)
    S, arrived = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    for i in range(8):
        if RIGHT:
            Y[i, t] = f32(i)
        else:
            X[i, t] = f32(i)
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(arrived, 0, bytes=8 * 32 * 4)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(arrived, 0))
    ptx.mbarrier_wait(arrived, 0, parity=0)
    Y[0, t] = S[0, t]


@tile_kernel(arch="sm_90a")
def fenced_by_others(X: Global[f32, M, N], Y: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """The same, with a fence by half of the threads that wrote; one of another warp, which knows of all, is enough."""
    grid(1)
    t = threads(64)
    S, arrived = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    if t < 32:
        for i in range(8):
            X[i, t] = f32(i)
    if t % 2 == 0:
        ptx.fence_proxy_async("global")
    barrier()
    if RIGHT:
        if t == 32:
            ptx.fence_proxy_async("global")
        barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(arrived, 0, bytes=8 * 32 * 4)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(arrived, 0))
    ptx.mbarrier_wait(arrived, 0, parity=0)
    if t < 32:
        Y[0, t] = S[0, t]


@tile_kernel(arch="sm_90a")
def loaded_then_written(X: Global[f32, M, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Threads overwrite what TMA may still load: the wait is behind the write."""
    grid(1)
    t = threads(32)
    S, arrived = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(arrived, 0, bytes=8 * 32 * 4)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(arrived, 0))
    barrier()
    if RIGHT:
        ptx.mbarrier_wait(arrived, 0, parity=0)
    X[0, t] = f32(2)
    if not RIGHT:
        ptx.mbarrier_wait(arrived, 0, parity=0)
    Y[t] = S[0, t]


NO_CLUSTER = "with no barrier of the cluster between the two"

HOPPER_PAIRS = [
    Pair(in_a_cluster, {"X": (256,), "Y": (256,)}, rf"reads X\[64\] at .*, {NO_CLUSTER}"),
    Pair(across_clusters, {"X": (256,), "Y": (256,)}, rf"reads X\[128\] at .*, {NO_ACQUIRE}"),
    Pair(by_mbarriers, {"X": (128,), "Y": (128,)}, rf"reads X\[\d+\] at .*, {NO_CLUSTER}"),
    Pair(stored_by_tma, {"C": (8, 32), "Y": (32,)}, r"reads C\[3, 0\] at .*, and no wait for that store orders"),
    Pair(stores_that_overlap, {"C": (16, 32)}, r"lets TMA write C\[4, 0\] at .*, and no wait for that store orders"),
    Pair(written_then_loaded, {"X": (8, 32), "Y": (8, 32)}, r"lets TMA read X\[0, 0\] at .* proxy fence"),
    Pair(fenced_by_others, {"X": (8, 32), "Y": (8, 32)}, r"lets TMA read X\[0, 1\] at .* proxy fence"),
    Pair(
        loaded_then_written, {"X": (8, 32), "Y": (32,)},
        rf"writes X\[0, 0\] .* a copy to block \(0, 0, 0\) read at .*{NO_BARRIER}",
    ),
]  # fmt: skip

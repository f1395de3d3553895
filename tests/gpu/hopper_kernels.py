"""Kernels of TMA, wgmma, rings and clusters that the GPU tests run: each small, with one thing to look at."""

from __future__ import annotations

from typing import TypeVar

from tiledsl import (
    Cluster,
    Const,
    Global,
    Layout,
    Ring,
    Scalar,
    assert_,
    barrier,
    bf16,
    cdiv,
    const,
    copy,
    f32,
    fragment,
    grid,
    i32,
    index,
    lane_id,
    load_matrix,
    mma,
    persistent,
    ptx,
    role,
    shared,
    store,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_commit,
    tma_load,
    tma_prefetch,
    tma_wait,
    u64,
    unroll,
    wgmma,
)
from tiledsl.dims import K, L, M, N, P, Q

D = TypeVar("D", bound=Scalar)


@tile_kernel(arch="sm_90a")
def boxes(
    A: Global[D, M, N],
    C: Global[D, M, N],
    Padded: Global[D, P, Q],
    *,
    BM: const = 64,
    BN: const = 64,
    BYTES: const = 2,
    LAYOUT: Const[Layout] = swizzle_128b,
):
    """A by TMA to C, and, with what stands past the edge, by plain stores to Padded, whose extents are whole tiles."""
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    S = shared((BM, BN), A.dtype, layout=LAYOUT)
    full = shared((1,), u64)
    if t == 0:
        tma_prefetch(A)
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(full, 0, bytes=BM * BN * BYTES)
        tma_load(A[m, n], S, mbarrier=(full, 0))
    ptx.mbarrier_wait(full, 0, parity=0)
    if t == 0:
        store_tma(S, C[m, n])
        tma_commit()
    copy(S, Padded[m, n])
    if t == 0:
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def batches(A: Global[bf16, L, M, N], C: Global[bf16, L, M, N], *, BM: const = 64, BN: const = 64):
    """A batch is an axis of its own: an edge tile does not reach into the next matrix."""
    bx, by, b = grid(cdiv(N, BN), cdiv(M, BM), L)
    t = threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    S = shared((BM, BN), bf16, layout=swizzle_128b)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(full, 0, bytes=BM * BN * 2)
        tma_load(A[b, m, n], S, mbarrier=(full, 0))
        ptx.mbarrier_wait(full, 0, parity=0)
        store_tma(S, C[b, m, n])
        tma_commit()
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def ring_gemm(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 64,
    STAGES: const = 3,
    GROUP: const = 8,
    CM: const = 1,
    CN: const = 1,
):
    """Persistent, a producer and two consumers; blocks of a cluster load what they share once."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), group=GROUP), cluster=Cluster(m=CM, n=CN))
    ring = Ring(STAGES, a=shared((BM, BK), bf16, layout=swizzle_128b), b=shared((BN, BK), bf16, layout=swizzle_128b))
    out = shared((BM, 64), bf16, layout=swizzle_128b)
    with role("load", warpgroups=1, registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="n" if CN > 1 else "")
                    tma_load(B[t.n, k], s.b, multicast="m" if CM > 1 else "")
    with role("math", warpgroups=2, registers=232):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                with ring.use(in_flight=1) as s:
                    acc = wgmma(s.a, s.b.T, acc)
            store_tma(acc.wait().to(bf16), C[t.m, t.n], via=out)


@tile_kernel(arch="sm_90a")
def ring_mma(
    A: Global[bf16, M, K],
    B: Global[bf16, K, N],
    C: Global[bf16, M, N],
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    GROUP: const = 8,
    CM: const = 1,
    CN: const = 1,
):
    """The same by ldmatrix and mma.sync: TMA overwrites what threads have read themselves."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), group=GROUP), cluster=Cluster(m=CM, n=CN))
    ring = Ring(STAGES, a=shared((BM, BK), bf16, layout=swizzle_128b), b=shared((BK, BN), bf16, layout=swizzle_128b))
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="n" if CN > 1 else "")
                    tma_load(B[k, t.n], s.b, multicast="m" if CM > 1 else "")
    with role("math", warpgroups=2, registers=240):
        for t in work:
            acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 4)))
            for _ in t.k:
                with ring.use() as s:
                    for kk in unroll(tiles(BK, 16)):
                        acc = mma(load_matrix(s.a[:, kk], acc.a), load_matrix(s.b[kk, :], acc.b), acc)
            store(acc.to(bf16), C[t.m, t.n], vec=4)


@tile_kernel(arch="sm_90a")
def produces(X: Global[f32, N], value: f32):
    """Lets the next grid begin before it has written anything."""
    b = grid(cdiv(N, 128))
    t = threads(128)
    ptx.griddepcontrol_launch()
    X.put(b * 128 + t, value)


@tile_kernel(arch="sm_90a")
def consumes(X: Global[f32, N], Y: Global[f32, N]):
    """Begins early, and waits for the grid before it."""
    b = grid(cdiv(N, 128))
    t = threads(128)
    ptx.griddepcontrol_wait()
    Y.put(b * 128 + t, X.get(b * 128 + t) + 1)


@tile_kernel(arch="sm_90a")
def asserting(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[f32, M, N], end: i32):
    """A product by a ring, whose math role checks each step."""
    by, bx = grid(cdiv(M, 64), cdiv(N, 64))
    m, n = tile(by, 64), tile(bx, 64)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for k in tiles(K, 64):
            with ring.fill() as s:
                tma_load(A[m, k], s.a)
                tma_load(B[n, k], s.b)
    with role("math"):
        acc = wgmma.accumulator((64, 64), f32)
        for k in tiles(K, 64):
            assert_(k.start < index(end), "k is below the end")
            with ring.use(in_flight=1) as s:
                acc = wgmma(s.a, s.b.T, acc)
        store(acc.wait(), C[m, n])


@tile_kernel(arch="sm_90a")
def printing(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[f32, M, N]):
    """A product by a ring, with a print() wherever one may stand."""
    by, bx = grid(cdiv(M, 64), cdiv(N, 64))
    print("block", by, bx)
    m, n = tile(by, 64), tile(bx, 64)
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for k in tiles(K, 64):
            with ring.fill() as s:
                print("block", by, bx, "loads", k.start)
                tma_load(A[m, k], s.a)
                tma_load(B[n, k], s.b)
    with role("math"):
        acc = wgmma.accumulator((64, 64), f32)
        for k in tiles(K, 64):
            with ring.use(in_flight=1) as s:
                acc = wgmma(s.a, s.b.T, acc)
                print("block", by, bx, "multiplies", k.start, f32(k.start) / 3, lane_id() > 3)
        x = acc.wait()
        print("block", by, bx, "is done", lane_id())
        store(x, C[m, n])


@tile_kernel(arch="sm_90a")
def sums_of_a_cluster(X: Global[f32, M, N], Y: Global[f32, M, N], out: Global[f32, M, N], *, BLOCKS: const = 8):
    """Each block of a cluster copies a row, and adds up the rows that all of them have copied: an mbarrier of another
    block orders accesses to global memory, too."""
    block = grid(M, cluster=(BLOCKS,))
    t = threads(128)
    copied = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(copied, 0, count=BLOCKS)
        ptx.fence_mbarrier_init()
    ptx.cluster_arrive()
    ptx.cluster_wait()
    for i in range(t, N, 128):
        Y[block, i] = X[block, i]
    barrier()
    if t < BLOCKS:
        ptx.mbarrier_arrive(copied, 0, rank=i32(t))
    ptx.mbarrier_wait(copied, 0, parity=0)
    for i in range(t, N, 128):
        total = f32(0)
        for row in unroll(BLOCKS):
            total += Y[block // BLOCKS * BLOCKS + row, (i + 128 * block) % N]
        out[block, (i + 128 * block) % N] = total

"""Products of matrices for sm_90a, from one tile a block with raw barriers to roles, clusters and turns.

All compute C = A B^T of bf16, or of what their consts say, with edges.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Cluster,
    Const,
    Global,
    Ring,
    barrier,
    bf16,
    cdiv,
    const,
    coordinates,
    f16,
    f32,
    grid,
    grid_size,
    index,
    load_matrix,
    persistent,
    processors,
    ptx,
    role,
    shared,
    store_matrix,
    store_tma,
    swizzle_64b,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_commit,
    tma_load,
    tma_prefetch,
    tma_wait,
    u32,
    u64,
    wgmma,
)
from tiledsl.dims import B as Batch
from tiledsl.dims import K, M, N


@tile_kernel(arch="sm_90a")
def one_tile(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
) -> None:
    """One tile a block, one stage; every barrier is written out."""
    by, bx = grid(cdiv(M, BM), cdiv(N, BN))
    tid = threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    a, b = shared((BM, BK), bf16, layout=swizzle_128b), shared((BN, BK), bf16, layout=swizzle_128b)
    arrived = shared((1,), u64)
    if tid == 0:
        tma_prefetch(A)
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    phase = u32(0)
    acc = wgmma.accumulator((BM, BN), f32)
    for k in tiles(K, BK):
        if tid == 0:
            ptx.mbarrier_expect_tx(arrived, 0, bytes=(BM + BN) * BK * 2)
            tma_load(A[m, k], a, mbarrier=(arrived, 0))
            tma_load(B[n, k], b, hint="evict_last", mbarrier=(arrived, 0))
        ptx.mbarrier_wait(arrived, 0, parity=phase)
        phase = phase ^ 1
        ptx.wgmma_fence()
        acc = wgmma(a, b.T, acc)
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        barrier()
    store_tma(acc.wait().to(bf16), C[m, n], via=shared((BM, BN), bf16, layout=swizzle_128b))


@tile_kernel(arch="sm_90a")
def stages_by_hand(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f16, M, N],
    *,
    BM: const = 64,
    BN: const = 32,
    BK: const = 32,
    STAGES: const = 3,
) -> None:
    """The loads of the next tiles are on their way while one is multiplied: a ring without the language's help, and
    blocks that go through several tiles."""
    b0 = grid(min(cdiv(M, BM) * cdiv(N, BN), processors))
    tid = threads(128)
    a, b = shared((STAGES, BM, BK), f16, layout=swizzle_64b), shared((STAGES, BN, BK), f16, layout=swizzle_64b)
    out = shared((BM, BN), f16, layout=swizzle_64b)
    arrived = shared((STAGES,), u64)
    if tid == 0:
        for s in range(STAGES):
            ptx.mbarrier_init(arrived, s, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    steps = cdiv(K, BK)
    done = index(0)
    for t in range(b0, cdiv(M, BM) * cdiv(N, BN), grid_size()):
        m, n = tile(t // cdiv(N, BN), BM), tile(t % cdiv(N, BN), BN)
        acc = wgmma.accumulator((BM, BN), f32)
        for i in range(1 - STAGES, steps):
            ahead = i + STAGES - 1
            if tid == 0 and ahead < steps:
                slot = (done + ahead) % STAGES
                ptx.mbarrier_expect_tx(arrived, slot, bytes=(BM + BN) * BK * 2)
                tma_load(A[m, tile(ahead, BK)], a[slot, :, :], mbarrier=(arrived, slot))
                tma_load(B[n, tile(ahead, BK)], b[slot, :, :], mbarrier=(arrived, slot))
            if i >= 0:
                slot = (done + i) % STAGES
                ptx.mbarrier_wait(arrived, slot, parity=u32((done + i) // STAGES % 2))
                ptx.wgmma_fence()
                acc = wgmma(a[slot, :, :], b[slot, :, :].T, acc)
                ptx.wgmma_commit()
                ptx.wgmma_wait(0)
                barrier()
        done += steps
        x = acc.wait().to(f16)
        if tid == 0:
            tma_wait(0, read=True)
        barrier()
        store_matrix(x, out)
        ptx.fence_proxy_async()
        barrier()
        if tid == 0:
            store_tma(out, C[m, n])
            tma_commit()
    if tid == 0:
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def producer_consumers(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 128,
    BN: const = 64,
    BK: const = 64,
    STAGES: const = 4,
    GROUP: const = 8,
    CM: const = 1,
    CN: const = 1,
    WIDTH: const = 64,
    BUFFERS: const = 2,
    IN_FLIGHT: const = 1,
    ALONG: Const[Any] = "m",
) -> None:
    """One role loads, another multiplies and stores; blocks of a cluster share what they load."""
    cluster = Cluster(m=CM, n=CN)
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), group=GROUP, along=ALONG), cluster=cluster)
    a, b = shared((BM, BK), bf16, layout=swizzle_128b), shared((BN, BK), bf16, layout=swizzle_128b)
    ring = Ring(STAGES, a=a, b=b)
    out = shared((BUFFERS, BM, WIDTH), bf16, layout=swizzle_128b)
    with role("load", registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="n")
                    tma_load(B[t.n, k], s.b, multicast="m")
    with role("math", warpgroups=2, registers=232):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                with ring.use(in_flight=IN_FLIGHT) as s:
                    acc = wgmma(s.a, s.b.T, acc)
            store_tma(acc.wait().to(bf16), C[t.m, t.n], via=out)


@tile_kernel(arch="sm_90a")
def in_turns(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    STAGES: const = 3,
    INSTANCES: const = 2,
) -> None:
    """Two instances of the role that multiplies, each with tiles of its own: one stores while the other multiplies."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK)))
    a, b = shared((BM, BK), bf16, layout=swizzle_128b), shared((BN, BK), bf16, layout=swizzle_128b)
    ring = Ring(STAGES, a=a, b=b)
    out = shared((INSTANCES, BM, BN), bf16, layout=swizzle_128b)
    with role("load", registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b)
    with role("math", instances=INSTANCES, registers=208) as math:
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            with math.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        acc = wgmma(s.a, s.b.T, acc)
            x = acc.wait().to(bf16)
            with math.turn("store"):
                store_tma(x, C[t.m, t.n], via=out[math.index, :, :])


@tile_function
def multiply(ring: Any, acc: Any) -> Any:
    """A step of a product; the ring's slot goes on in the caller."""
    with ring.use() as s:
        acc = wgmma(load_matrix(s.a, acc.a), s.b, acc)
    return acc


@tile_kernel(arch="sm_90a")
def from_registers(
    A: Global[f16, Batch, M, K],
    B: Global[f16, Batch, K, N],
    C: Global[f32, Batch, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    STAGES: const = 2,
) -> None:
    """Batches, B with n contiguous, A by way of registers, an f32 result, one tile a block, a step in a function."""
    work = tile_schedule(M, N, K, tile=(BM, BN, BK), along="n", batches=Batch)
    a, b = shared((BM, BK), f16, layout=swizzle_128b), shared((BK, BN), f16, layout=swizzle_128b)
    ring = Ring(STAGES, a=a, b=b)
    out = shared((BM, 32), f32, layout=swizzle_128b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.batch, t.m, k], s.a)
                    tma_load(B[t.batch, k, t.n], s.b)
    with role("math"):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                acc = multiply(ring, acc)
            store_tma(acc.wait(), C[t.batch, t.m, t.n], via=out)


@tile_kernel(arch="sm_90a")
def split_along_k(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    SPLITS: const = 3,
) -> None:
    """Several blocks compute parts of one tile's sum, and add them where the result is."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), splits=SPLITS))
    a, b = shared((BM, BK), f16, layout=swizzle_128b), shared((BN, BK), f16, layout=swizzle_128b)
    ring = Ring(3, a=a, b=b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b)
    with role("math"):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                with ring.use(in_flight=1) as s:
                    acc = wgmma(s.a, s.b.T, acc)
            x = acc.wait()
            rows, columns = coordinates(x)
            whole = t.m.start + BM <= M and t.n.start + BN <= N
            if whole:
                C.atomic_add(t.m.start + rows, t.n.start + columns, x)


@tile_kernel(arch="sm_90a")
def two_rings(
    A: Global[f16, M, K],
    B: Global[f16, N, K],
    C: Global[f32, M, N],
    *,
    IN_FLIGHT: const = 1,
    EVERY: const = 0,
) -> None:
    """Each operand has a ring of its own; EVERY=1: sums of single steps are added up by the threads."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 32, 64)))
    left = Ring(3, a=shared((64, 64), f16, layout=swizzle_128b))
    right = Ring(2, b=shared((32, 64), f16, layout=swizzle_128b))
    out = shared((64, 32), f32, layout=swizzle_128b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with left.fill() as s:
                    tma_load(A[t.m, k], s.a)
                with right.fill() as s:
                    tma_load(B[t.n, k], s.b)
    with role("math"):
        for t in work:
            acc = wgmma.accumulator((64, 32), f32)
            if EVERY:
                total = acc.wait()
                for _ in t.k:
                    with left.use(in_flight=IN_FLIGHT) as x, right.use(in_flight=IN_FLIGHT) as y:
                        part = wgmma(x.a, y.b.T, wgmma.accumulator((64, 32), f32))
                        total += part.wait()
                store_tma(total, C[t.m, t.n], via=out)
            else:
                for _ in t.k:
                    with left.use(in_flight=IN_FLIGHT) as x, right.use(in_flight=IN_FLIGHT) as y:
                        acc = wgmma(x.a, y.b.T, acc)
                store_tma(acc.wait(), C[t.m, t.n], via=out)

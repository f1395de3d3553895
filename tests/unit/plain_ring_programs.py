"""Kernels for sm_90a whose threads read the tiles of a ring themselves: by ldmatrix, as fragments, element by element,
alone or besides products of wgmma."""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Cluster,
    Const,
    Global,
    Ring,
    bf16,
    const,
    f32,
    fragment,
    lane_id,
    load_fragment,
    load_matrix,
    mma,
    persistent,
    role,
    shared,
    store,
    store_tma,
    swizzle_128b,
    tile_function,
    tile_kernel,
    tile_schedule,
    tiles,
    tma_load,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import K, M, N


@tile_kernel(arch="sm_90a")
def by_mma_sync(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 64,
    STAGES: const = 2,
    CM: const = 1,
    CN: const = 1,
    WARPGROUPS: const = 2,
    INSTANCES: const = 1,
    IN_FLIGHT: const = 0,
) -> None:
    """C = A B^T by ldmatrix and mma.sync out of a ring."""
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK)), cluster=Cluster(m=CM, n=CN))
    ring = Ring(STAGES, a=shared((BM, BK), bf16, layout=swizzle_128b), b=shared((BN, BK), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, multicast="n")
                    tma_load(B[t.n, k], s.b, multicast="m")
    with role("math", warpgroups=WARPGROUPS, instances=INSTANCES) as math:
        for t in work:
            acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2 * WARPGROUPS)))
            with math.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=IN_FLIGHT) as s:
                        for kk in unroll(tiles(BK, 16)):
                            acc = mma(load_matrix(s.a[:, kk], acc.a), load_matrix(s.b.T[kk, :], acc.b), acc)
            store(acc.to(bf16), C[t.m, t.n])


@tile_function
def row_of_thread() -> Any:
    """Of 128 threads of a warpgroup, two have one row of 64."""
    return (warp_id() % 4 * 32 + lane_id()) % 64


@tile_function
def is_first_of_row() -> Any:
    """Of these two, one stores: two writes of one element race."""
    return warp_id() % 4 < 2


@tile_kernel(arch="sm_90a")
def sums(A: Global[f32, M, K], C: Global[f32, M, N], *, STAGES: const = 3, WAY: Const[Any] = "fragment") -> None:
    """C[m, n] is the sum of A[m, n + 32 i], n < 32; WAY "elements": of A[m, k], for all n."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 32, 32)))
    ring = Ring(STAGES, a=shared((64, 32), f32, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
    with role("math"):
        for t in work:
            if WAY == "fragment":
                acc = fragment((64, 32), f32, mma.m16n8k16.acc(warps=(2, 2)))
                for _ in t.k:
                    with ring.use() as s:
                        acc += load_fragment(s.a, acc.layout)
                store(acc, C[t.m, t.n])
            else:
                row, total = row_of_thread(), f32(0)
                for _ in t.k:
                    with ring.use() as s:
                        for i in unroll(32):
                            total += s.a[row, i]
                if is_first_of_row():
                    for i in unroll(32):
                        C.put(t.m.start + row, t.n.start + i, total)


@tile_kernel(arch="sm_90a")
def mixed_uses(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[f32, M, N],
    S: Global[f32, M],
    *,
    IN_FLIGHT: const = 0,
    FIRST: Const[bool] = False,
    GROUPS: const = 1,
) -> None:
    """C = A B^T in every other slot; S, the sums of A's rows, out of the others, whose contents are the same."""
    BM = 64 * GROUPS
    work = persistent(tile_schedule(M, N, K, tile=(BM, 64, 64)))
    ring = Ring(3, a=shared((BM, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    out = shared((BM, 32), f32, layout=swizzle_128b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                for _ in range(2):
                    with ring.fill() as s:
                        tma_load(A[t.m, k], s.a)
                        tma_load(B[t.n, k], s.b)
    with role("math", warpgroups=GROUPS):
        for t in work:
            acc, total = wgmma.accumulator((BM, 64), f32), f32(0)
            row = (warp_id() - 4) // 4 * 64 + row_of_thread()
            for _ in t.k:
                if FIRST:
                    total += sum_of_row(ring, row, IN_FLIGHT)
                with ring.use(in_flight=IN_FLIGHT) as s:
                    acc = wgmma(s.a, s.b.T, acc)
                if not FIRST:
                    total += sum_of_row(ring, row, IN_FLIGHT)
            store_tma(acc.wait(), C[t.m, t.n], via=out)
            if is_first_of_row():
                S.put(t.m.start + row, total)


@tile_function
def sum_of_row(ring: Any, row: Any, in_flight: int) -> Any:
    total = f32(0)
    with ring.use(in_flight=in_flight) as s:
        for i in unroll(64):
            total += s.a[row, i].to(f32)
    return total


@tile_kernel(arch="sm_90a")
def read_besides(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[f32, M, N],
    S: Global[f32, M],
    *,
    IN_FLIGHT: const = 0,
) -> None:
    """C = A B^T, and S, the sums of A's rows, out of the same slots."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)))
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    out = shared((64, 32), f32, layout=swizzle_128b)
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b)
    with role("math"):
        for t in work:
            acc, total, row = wgmma.accumulator((64, 64), f32), f32(0), row_of_thread()
            for _ in t.k:
                with ring.use(in_flight=IN_FLIGHT) as s:
                    acc = wgmma(s.a, s.b.T, acc)
                    for i in unroll(64):
                        total += s.a[row, i].to(f32)
            store_tma(acc.wait(), C[t.m, t.n], via=out)
            if is_first_of_row():
                S.put(t.m.start + row, total)


@tile_kernel(arch="sm_90a")
def loads_ahead(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    STAGES: const = 2,
    CM: const = 1,
    FREES: Const[str] = "last",
) -> None:
    """C = A B^T; operands are loaded before the products of those before them, also out of the next slot.

    FREES: "last", each slot when all of it has been read; "next" or "early", wrongly.
    """
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)), cluster=Cluster(m=CM))
    ring = Ring(STAGES, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b, multicast="m")
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)
            tma_load(B[0:64, 0:64], s.b, multicast="m")
    with role("math"):
        acc = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 2)))
        now = ring.take()
        a, b = load_matrix(ring.slot(now).a[:, 0:16], acc.a), load_matrix(ring.slot(now).b.T[0:16, :], acc.b)
        for t in work:
            acc = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 2)))
            for _ in t.k:
                s = ring.slot(now)
                if FREES == "early":
                    ring.free(now)
                for k in unroll(tiles(48, 16)):
                    next_a, next_b = load_matrix(s.a[:, k + 16], acc.a), load_matrix(s.b.T[k + 16, :], acc.b)
                    acc = mma(a, b, acc)
                    a, b = next_a, next_b
                then = ring.take()
                next_a = load_matrix(ring.slot(then).a[:, 0:16], acc.a)
                next_b = load_matrix(ring.slot(then).b.T[0:16, :], acc.b)
                if FREES != "early":
                    ring.free(now if FREES == "last" else then)
                acc = mma(a, b, acc)
                now, a, b = then, next_a, next_b
            store(acc.to(bf16), C[t.m, t.n])

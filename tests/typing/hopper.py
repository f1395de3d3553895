# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Kernels with TMA, rings, roles and wgmma for type checkers: as in kernels.py, pyright must accept all of it but the
lines with an ignore comment, and tests/unit/test_lang_typing.py compiles them."""

from __future__ import annotations

from typing import TypeVar, assert_type

from tiledsl import (
    Cluster,
    Const,
    Fragment,
    FragmentLayout,
    Global,
    Layout,
    Pending,
    Place,
    Range,
    Ring,
    Role,
    Scalar,
    Schedule,
    SharedTile,
    Slot,
    View,
    WorkItem,
    bf16,
    boolean,
    cdiv,
    const,
    f16,
    f32,
    grid,
    grid_size,
    i32,
    index,
    load_matrix,
    persistent,
    processors,
    ptx,
    role,
    shared,
    store_tma,
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
    u64,
    wgmma,
)
from tiledsl.dims import K, M, N

D = TypeVar("D", bound=Scalar)


@tile_function
def step(ring: Ring[D], acc: Pending[f32]) -> Pending[f32]:
    with ring.use(in_flight=1) as s:
        acc = wgmma(s.a, s.b.T, acc)
    return acc


@tile_kernel(arch="sm_90a")
def with_roles(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 64,
    STAGES: const = 4,
    CLUSTER: const = 2,
    layout: Const[Layout] = swizzle_128b,
) -> None:
    work = persistent(tile_schedule(M, N, K, tile=(BM, BN, BK), group=8), cluster=Cluster(m=CLUSTER))
    a, b = shared((BM, BK), bf16, layout=layout), shared((BN, BK), bf16, layout=layout)
    ring = Ring(STAGES, a=a, b=b)
    out = shared((2, BM, 64), bf16, layout=swizzle_128b)
    with role("load", registers=40, threads=1):
        tma_prefetch(A)
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a, hint="evict_first")
                    tma_load(B[t.n, k], s.b, multicast="m")
    with role("math", warpgroups=2, registers=232):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                acc = step(ring, acc)
            x = acc.wait()
            store_tma(x.to(bf16), C[t.m, t.n], via=out)


@tile_kernel(arch="sm_90a")
def by_hand(A: Global[f16, M, K], C: Global[f32, M, M], *, T: const = 64) -> None:
    b = grid(min(cdiv(M, T), processors))
    tid = threads(128)
    S, bars = shared((T, T), f16, layout=swizzle_128b), shared((1,), u64)
    out = shared((T, 32), f32, layout=swizzle_128b)
    if tid == 0:
        ptx.mbarrier_init(bars, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(bars, 0, bytes=T * T * 2)
        tma_load(A[0:T, 0:T], S, mbarrier=(bars, 0))
    ptx.named_barrier(1, threads=128)
    ptx.mbarrier_wait(bars, 0, parity=0)
    acc = wgmma.accumulator((T, T), f32)
    ptx.wgmma_fence()
    acc = wgmma(load_matrix(S, acc.a), S.T, acc)
    ptx.wgmma_commit()
    for i in range(b, cdiv(M, T), grid_size()):
        C.put(i, 0, f32(ptx.cluster_rank()))
    store_tma(acc.wait(), C[0:T, 0:T], via=out)
    tma_commit()
    tma_wait(0, read=True)


@tile_function
def rows_count(place: Place, rows: index, size: int) -> index:
    return cdiv(rows, size * place.m)


@tile_function
def rows_item(i: index, place: Place, rows: index, size: int) -> WorkItem:
    row = i * place.m + place.at_m
    return WorkItem(m=tile(row, size), k=tiles(rows, size), last=row == cdiv(rows, size) - 1)


@tile_kernel(arch="sm_90a")
def with_a_schedule(A: Global[bf16, M, K], C: Global[f32, M], *, BM: const = 64) -> None:
    work = persistent(Schedule(rows_count, rows_item, M, BM), cluster=Cluster(m=2))
    threads(128)
    for t in work:
        if t.last:
            C.put(t.m.start, 1)


@tile_function
def types(ring: Ring[f16], acc: Pending[f32], S: SharedTile[f16], work: Schedule, place: Place) -> None:
    """The types that checkers infer; never compiled."""
    assert_type(Ring(2, a=S), Ring[f16])
    with ring.use() as used, ring.fill() as filled:
        assert_type(used, Slot[f16])
        assert_type(filled.a, View[f16])
    with role("math") as math, math.turn("mma"):
        assert_type(math, Role)
        assert_type(math.index, index)
    for t in work:
        assert_type(t.m, Range)
        assert_type(t.index, index)
        assert_type(t, WorkItem)
        for k in t.k:
            assert_type(k, Range)
    assert_type(place.n, int)
    assert_type(place.at_n, index)
    assert_type(Schedule(rows_count, rows_item, 5, 6), Schedule)
    assert_type(WorkItem(m=tile(0, 8)), WorkItem)
    assert_type(wgmma.accumulator((64, 64), f32), Pending[f32])
    assert_type(acc.wait(), Fragment[f32])
    assert_type(acc.a, FragmentLayout)
    assert_type(wgmma(S, S.T, acc), Pending[f32])
    assert_type(persistent(work), Schedule)
    assert_type(min(cdiv(M, 2), processors), index)
    assert_type(grid_size(), index)
    assert_type(ptx.elect(), boolean)
    assert_type(ptx.cluster_rank(), i32)


@tile_function
def refused(S: SharedTile[f16], A: Global[f32, M, K], x: Fragment[f32], acc: Pending[f32], ring: Ring[f16]) -> None:
    """Every line is an error for a type checker, as it is for the compiler."""
    acc + 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    acc.to(f16)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    wgmma(S, S, x)  # pyright: ignore[reportArgumentType]
    wgmma(S, x, acc)  # pyright: ignore[reportArgumentType]
    wgmma.accumulator(64, f32)  # pyright: ignore[reportArgumentType]
    tma_load(A, S)  # pyright: ignore[reportArgumentType]
    tma_load(S, S, hint="hot")  # pyright: ignore[reportArgumentType]
    tma_load(S, S, mbarrier=S)  # pyright: ignore[reportArgumentType]
    store_tma(x, S)  # pyright: ignore[reportArgumentType]
    tma_prefetch(S)  # pyright: ignore[reportArgumentType]
    Ring(2, a=A)  # pyright: ignore[reportArgumentType]
    role("load", 1)  # pyright: ignore[reportCallIssue]
    persistent(S)  # pyright: ignore[reportArgumentType]
    Schedule(rows_count)  # pyright: ignore[reportCallIssue]
    Schedule(1, rows_item)  # pyright: ignore[reportArgumentType]
    WorkItem(tile(0, 8))  # pyright: ignore[reportCallIssue]
    tile_schedule(M, N, K, tile=(64, 64))  # pyright: ignore[reportArgumentType]
    tile_schedule(M, N, K, tile=(64, 64, 64), along="k")  # pyright: ignore[reportArgumentType]
    with ring.use() as s:
        s.a + 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]

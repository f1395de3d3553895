"""Kernels for sm_90a with rings that threads fill, and rings that one thread uses."""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Cluster,
    Const,
    Global,
    Pending,
    Ring,
    bf16,
    cdiv,
    const,
    f32,
    grid,
    index,
    lane_id,
    load_fragment,
    mma,
    persistent,
    role,
    shared,
    store,
    store_matrix,
    store_tma,
    swizzle_64b,
    swizzle_128b,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tma_commit,
    tma_load,
    tma_wait,
    unroll,
    warp_id,
    wgmma,
)
from tiledsl.dims import K, M, N


@tile_kernel(arch="sm_90a")
def totals(A: Global[f32, M, K], S: Global[f32, M], *, STAGES: const = 2, WAY: Const[str] = "use") -> None:
    """S[8 i] is the sum of 8 rows of A, added up by one thread out of a ring. WAY: "use", or "take" and free."""
    work = persistent(tile_schedule(M, 32, K, tile=(8, 32, 32)))
    ring = Ring(STAGES, a=shared((8, 32), f32, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
    with role("sum", threads=1):
        for t in work:
            total = f32(0)
            for _ in t.k:
                if WAY == "use":
                    with ring.use() as s:
                        total += sum_of_tile(s.a)
                else:
                    i = ring.take()
                    total += sum_of_tile(ring.slot(i).a)
                    ring.free(i)
            S[t.m.start] = total


@tile_function
def sum_of_tile(a: Any) -> Any:
    total = f32(0)
    for i in range(8):
        for j in unroll(32):
            total += a[i, j]
    return total


@tile_kernel(arch="sm_90a")
def converted(
    A: Global[f32, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    WAY: Const[str] = "matrix",
    IN_FLIGHT: const = 1,
    GROUPS: const = 1,
    CM: const = 1,
    INSTANCES: const = 1,
) -> None:
    """C = A B^T. A comes as f32, by TMA; a role of threads converts it for the products of another one.

    WAY: how they write it: "matrix" (stmatrix), "fragment" (store), "elements". GROUPS: warpgroups that convert.
    CM: blocks of a cluster along m, INSTANCES: of the role that multiplies.
    """
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 32)), cluster=Cluster(m=CM))
    raw = Ring(2, a=shared((64, 32), f32, layout=swizzle_128b))
    left = Ring(3, a=shared((64, 32), bf16, layout=swizzle_64b))
    right = Ring(3, b=shared((64, 32), bf16, layout=swizzle_64b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with raw.fill() as s:
                    tma_load(A[t.m, k], s.a)
                with right.fill() as s:
                    tma_load(B[t.n, k], s.b, multicast="m")
    with role("convert", warpgroups=GROUPS):
        for t in work:
            for _ in t.k:
                with raw.use() as r, left.fill() as s:
                    convert(r.a, s.a, WAY, GROUPS)
    with role("math", instances=INSTANCES) as math:
        for t in work:
            acc = wgmma.accumulator((64, 64), f32)
            with math.turn("multiply"):
                for _ in t.k:
                    acc = multiply(left, right, acc, IN_FLIGHT)
            store(acc.wait().to(bf16), C[t.m, t.n])


@tile_function
def convert(src: Any, dst: Any, way: Any, groups: Any) -> Any:
    if way == "elements":
        for i in range((warp_id() - 4) % (4 * groups), 64, 4 * groups):
            dst[i, lane_id()] = src[i, lane_id()].to(bf16)
    else:
        x = load_fragment(src, mma.m16n8k16.acc(warps=(4, groups))).to(bf16)
        if way == "matrix":
            store_matrix(x, dst)
        else:
            store(x, dst)


@tile_function
def multiply(left: Ring[bf16], right: Ring[bf16], acc: Pending[f32], in_flight: int) -> Pending[f32]:
    with left.use(in_flight=in_flight) as x, right.use(in_flight=in_flight) as y:
        acc = wgmma(x.a, y.b.T, acc)
    return acc


@tile_kernel(arch="sm_90a")
def relayed(A: Global[f32, M, K], C: Global[f32, M, K], *, ONE: Const[str] = "") -> None:
    """C is A, row by row through a ring of threads alone. ONE: "fills" or "uses", what one thread does, if any."""
    first = grid(cdiv(M, 64))
    ring = Ring(2, row=shared((128,), f32))
    rows = tile(first, 64)
    if ONE == "fills":
        with role("from", threads=1):
            for i in range(rows.start, min(M, rows.start + 64)):
                with ring.fill() as s:
                    for j in range(128):
                        s.row[j] = A.get(i, j)
    else:
        with role("from"):
            for i in range(rows.start, min(M, rows.start + 64)):
                with ring.fill() as s:
                    s.row[thread()] = A.get(i, thread())
    if ONE == "uses":
        with role("to", threads=1):
            for i in range(rows.start, min(M, rows.start + 64)):
                with ring.use() as s:
                    for j in range(min(K, 128)):
                        C[i, j] = s.row[j]
    else:
        with role("to"):
            for i in range(rows.start, min(M, rows.start + 64)):
                with ring.use() as s:
                    C.put(i, thread(), s.row[thread()])


@tile_function
def thread() -> index:
    """Number of this thread in its warpgroup."""
    return warp_id() % 4 * 32 + lane_id()


@tile_kernel(arch="sm_90a")
def stored_by_one(A: Global[bf16, M, K], B: Global[bf16, N, K], C: Global[bf16, M, N]) -> None:
    """C = A B^T. Results go through a ring, too: one thread stores them by TMA, while the next product begins."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)))
    ring = Ring(3, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    out = Ring(2, c=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b)
    with role("math"):
        for t in work:
            acc = wgmma.accumulator((64, 64), f32)
            for _ in t.k:
                with ring.use(in_flight=1) as s:
                    acc = wgmma(s.a, s.b.T, acc)
            x = acc.wait().to(bf16)
            with out.fill() as s:
                store_matrix(x, s.c)
    with role("store", threads=1):
        for t in work:
            with out.use() as s:
                store_tma(s.c, C[t.m, t.n])
                tma_commit()
                tma_wait(0, read=True)


@tile_kernel(arch="sm_90a")
def exchanged(A: Global[bf16, M, K], C: Global[bf16, M, N]) -> None:
    """Two roles, each of which fills a ring that the other one uses."""
    grid(1)
    tiles, words = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b)), Ring(2, w=shared((64,), bf16))
    with role("load", threads=1), tiles.fill() as s, words.use() as u:
        tma_load(A[0:64, 0:64], s.a)
        C[0, 0] = u.w[0]
    with role("math"):
        with words.fill() as s:
            if thread() == 0:
                s.w[0] = bf16(3)
        with tiles.use() as s:
            if thread() == 0:
                C[1, 0] = s.a[1, 0]

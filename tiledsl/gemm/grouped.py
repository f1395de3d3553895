"""Products of groups of rows, each with a matrix of its own, whose sizes are in device memory.

`hopper_grouped` is the Hopper kernel (`hopper.py`) under another schedule. Grouped: A [M, K] has the rows of all groups,
one group after the other, and group g has the rows bounds[g] to bounds[g + 1]. Masked: A [L, M, K] has room for M rows
of each group, and bounds[g] says how many there are. B [L, K, N] has a matrix for each group.

At the start each block counts the tiles of every group, in parallel, and keeps in shared memory how many there are up
to each group's end. A work item is found there by binary search. A tile begins at a row of its group, wherever that
is; rows that it reads behind the group's end belong to others and are not stored. Groups without rows have no tiles.

For few rows of a group the operands are exchanged (EXCHANGED): the columns of B are the rows of wgmma's product, which
are 64 for each warpgroup, and the rows of A its columns, of which a tile may have as few as 8.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Float,
    Fragment,
    Global,
    Integer,
    Memory,
    Place,
    Ring,
    Schedule,
    SharedTile,
    View,
    WorkItem,
    assert_,
    barrier,
    cdiv,
    const,
    coordinates,
    f32,
    i32,
    index,
    lane_id,
    persistent,
    ptx,
    role,
    shared,
    shuffle_up,
    store,
    store_matrix,
    store_tma,
    swizzle_128b,
    tile,
    tile_function,
    tile_kernel,
    tma_commit,
    tma_load,
    tma_wait,
    unroll,
    warp_id,
    wgmma,
    where,
)
from tiledsl.dims import J, K, L, M, N, P
from tiledsl.gemm.epilogue import Epilogue, plain
from tiledsl.gemm.hopper_tiles import as_stored, chunks, matrix, staging
from tiledsl.lang.schedules import _unwrapped, tile_item

__all__ = ["hopper_grouped"]

D = TypeVar("D", bound=Float)
I = TypeVar("I", bound=Integer)

WARPS = 12
"""Of a block: a warpgroup that loads, two that multiply."""
VECTOR = 8
"""Elements of 16 bytes."""
TALL = 32
"""Rows of the result that are stored at once where operands are exchanged, unless a tile has fewer."""


# -- the schedule ----------------------------------------------------------------------------------


@_unwrapped
def group_rows(bounds: Memory[I], group: index, rows: index, masked: bool) -> tuple[index, index]:
    """The first row of a group and the row behind its last one, inside of A whatever `bounds` says."""
    begin = index(0) if masked else min(max(index(bounds[group]), 0), rows)
    return begin, min(max(index(bounds[group if masked else group + 1]), begin), rows)


@tile_function
def count_tiles(
    ends: SharedTile[i32], bounds: Memory[I], groups: index, rows: index, size: int, masked: bool, check: bool
):
    """ends[g] = how many tiles of `size` rows the groups 0 to g have, computed by all threads of the block."""
    assert ends.shape[0] % 32 == 0, "GROUPS is a multiple of 32"
    totals = shared((WARPS,), i32)
    warp, lane = warp_id(), lane_id()
    before = i32(0)
    for first in range(0, groups, 32 * WARPS):
        group, count = first + warp * 32 + lane, i32(0)
        if group < groups:
            begin, end = group_rows(bounds, group, rows, masked)
            if check:
                expected = "counts are 0 to max_m" if masked else "offsets do not decrease, from 0 on, up to the rows of A"
                low, high = (0 if masked else index(bounds[group])), index(bounds[group if masked else group + 1])
                assert_((begin == low) & (end == high), expected)
            count = i32(cdiv(end - begin, size))
        for step in (1, 2, 4, 8, 16):
            lower = shuffle_up(count, step)
            count += where(lane >= step, lower, 0)
        if lane == 31:
            totals[warp] = count
        barrier()
        all_ = before
        for w in unroll(WARPS):
            total = totals[w]
            before += where(w < warp, total, 0)
            all_ += total
        if group < groups:
            ends[group] = before + count
        before = all_
        barrier()


@_unwrapped
def group_count(place: Place, ends: Any, bounds: Any, groups: Any, m: Any, n: Any, k: Any, sizes: Any, band: Any) -> Any:
    """Tiles of all groups."""
    return index(ends[groups - 1]) * cdiv(n, sizes[1])


@_unwrapped
def group_item(
    i: Any, place: Place, ends: Any, bounds: Any, groups: Any, m: Any, n: Any, k: Any, sizes: Any, band: Any
) -> Any:
    """Tile number `i`. rest: how many rows its group has from its first row on, more than it has itself or fewer."""
    size, masked = band
    columns = cdiv(n, sizes[1])
    row, low, high = i32(i // columns), i32(0), i32(groups) - 1
    while low < high:  # the first group that ends behind this row of tiles
        middle = (low + high) // 2
        if ends[index(middle)] > row:
            high = middle
        else:
            low = middle + 1
    group, before = index(low), i32(0)
    if low > 0:
        before = ends[group - 1]
    first, last = group_rows(bounds, group, m, masked)
    t = tile_item(i - index(before) * columns, place, last - first, n, k, sizes, (size, True), None, None)
    return WorkItem(
        m=t.m + first, n=t.n, k=t.k, group=group, batch=group if masked else 0, rest=last - first - t.m.start
    )


# -- the kernel ------------------------------------------------------------------------------------


@tile_function
def store_rows(via: View[D], C: Global[D, P, M, N], t: Any, first: int, column: index, thread: index, threads: int):
    """Stores what `via` has of rows `first` and on of a tile, as far as they belong to the tile's group."""
    rows, columns = via.shape
    vectors = rows * (columns // VECTOR)
    for i in unroll(cdiv(vectors, threads)):
        at = i * threads + thread
        row, along = at // (columns // VECTOR), at % (columns // VECTOR) * VECTOR
        if (vectors % threads == 0 or at < vectors) and first + row < t.rest:
            C.put(t.batch, t.m.start + first + row, column + along, via.load(row, along))


@tile_function
def store_part(
    y: Fragment[D],
    via: View[D],
    to: View[D],
    C: Global[D, P, M, N],
    t: Any,
    first: int,
    column: index,
    pending: int,
    thread: index,
    threads: int,
):
    """Stores a part of a tile, of which `via` has the shape, by TMA where all of its rows belong to the group."""
    if thread == 0:
        tma_wait(pending, read=True)
    barrier()
    store_matrix(y, via.T if y.shape != via.shape else via)
    ptx.fence_proxy_async()
    barrier()
    if first + via.shape[0] <= t.rest:
        if thread == 0:
            store_tma(via, to)
            tma_commit()
    else:
        store_rows(via, C, t, first, column, thread, threads)


@tile_kernel(arch="sm_90a")
def hopper_grouped(
    A: Global[D, P, M, K],
    B: Global[D, L, K, N],
    C: Global[D, P, M, N],
    bounds: Global[I, J],
    alpha: f32 | float = 1.0,
    bias: Global[f32, L, N] | None = None,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    GROUP: const = 8,
    GROUPS: const = 256,
    INSTANCES: const = 1,
    MASKED: Const[bool] = False,
    EXCHANGED: Const[bool] = False,
    EARLY: Const[bool] = False,
    CHECK: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha A B) for the rows of each group, by tiles of BM rows and BN columns.

    GROUPS: the least multiple of 32 with room for all groups. CHECK: assert that the bounds are in order and in range;
    without it nothing outside the arrays is touched, whatever they are.
    """
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    ends = shared((GROUPS,), i32)
    count_tiles(ends, bounds, L, M, BM, MASKED, CHECK)
    sizes, band = (BM, BN, BK), (GROUP, MASKED)
    work = persistent(Schedule(group_count, group_item, ends, bounds, L, M, N, K, sizes, band))
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, BN))
    tall = min(BM, TALL)
    out = shared((2 * INSTANCES, tall, BN), C.dtype, layout=swizzle_128b) if EXCHANGED else chunks(C, 2 * INSTANCES, BM, BN)
    wide = out.shape[2]
    size = 256 // INSTANCES
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.batch, t.m, k]), s.a)
                    tma_load(as_stored(B[t.group, k, t.n]), s.b)
    with role("math", warpgroups=2 // INSTANCES, registers=240, instances=INSTANCES) as r:
        thread = (warp_id() % (size // 32)) * 32 + lane_id()
        for t in work:
            acc = wgmma.accumulator((BN, BM) if EXCHANGED else (BM, BN), f32)
            with r.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        if EXCHANGED:
                            acc = wgmma(matrix(s.b, B).T, matrix(s.a, A).T, acc)
                        else:
                            acc = wgmma(matrix(s.a, A), matrix(s.b, B), acc)
            with r.turn("store"):
                x = acc.wait()
                own = bias[t.group, :] if bias is not None else None
                for i in unroll(BM // tall if EXCHANGED else BN // wide):
                    first, column = (i * tall, t.n.start) if EXCHANGED else (0, t.n.start + i * wide)
                    y = alpha * x.columns(first, tall) if EXCHANGED else alpha * x.columns(i * wide, wide)
                    at = coordinates(y)[0 if EXCHANGED else 1]
                    y = EPILOGUE(y, own, column + at).to(C.dtype)
                    m = tile(0, out.shape[1]) + (t.m.start + first)
                    n = tile(column // wide, wide)
                    via = out[r.index * 2 + i % 2, :, :]
                    if first < t.rest:
                        store_part(y, via, C[t.batch, m, n], C, t, first, column, min(i, 1), thread, size)
        if thread == 0:
            tma_wait(0)

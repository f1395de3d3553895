"""Products of groups of rows, each with a matrix of its own, whose sizes are in device memory.

`hopper_grouped` is the Hopper kernel (`hopper.py`) under another schedule. Grouped: A [1, M, K] has the rows of
all groups, one group after the other, and group g has the rows bounds[g] to bounds[g + 1]. Masked: A [L, M, K] has room
for M rows of each group, and bounds[g] says how many there are. B [L, K, N] has a matrix for each group.

At the start each block reads all bounds, in parallel, and keeps in shared memory how many tiles there are up to the end
of each group. A work item is found there by binary search. A tile begins at a row of its group, wherever that is; rows
that it reads behind the group's end belong to others and are not stored. Groups without rows have no tiles.

8-bit floats are multiplied as they are, contiguous along k. With SCALED, A has a factor for each row and 128 of k, and
B one for each 128 of k and 128 columns of a matrix (`promoted.py`); operands are then not exchanged.

For few rows of a group the operands are exchanged (EXCHANGED): the columns of B are the rows of wgmma's product, which
are 64 for each warpgroup, and the rows of A its columns, of which a tile may have as few as 8.
"""

from __future__ import annotations

from math import gcd
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
    minimum,
    persistent,
    ptx,
    role,
    shared,
    shuffle_up,
    store_matrix,
    store_tma,
    swizzle_128b,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    tma_commit,
    tma_load,
    tma_wait,
    u32,
    unroll,
    warp_id,
    wgmma,
    where,
)
from tiledsl.dims import J, K, L, M, N, P
from tiledsl.gemm.epilogue import Epilogue, add_bias, applied
from tiledsl.gemm.hopper_tiles import as_stored, chunks, matrix, staged_width, staging, stored_by_tma
from tiledsl.gemm.promoted import KBlocks, NBlocks, promoted, room_of_scales
from tiledsl.lang.schedules import cdiv_any, unwrapped

__all__ = ["TALL", "hopper_grouped"]

D = TypeVar("D", bound=Float)
F = TypeVar("F", bound=Float)
E = TypeVar("E", bound=Float)
Bound = TypeVar("Bound", bound=Integer)

WARPS = 12
"""Of a block: a warpgroup that loads, two that multiply."""
VECTOR = 8
"""Elements of 16 bytes."""
TALL = 32
"""Rows of the result that are stored at once where operands are exchanged, or fewer, so that they divide a tile's."""


# -- the schedule ----------------------------------------------------------------------------------


@tile_function
def read_groups(
    ends: SharedTile[i32],
    starts: SharedTile[i32],
    bounds: Memory[Bound],
    groups: Any,
    rows: Any,
    size: int,
    masked: bool,
    check: bool,
):
    """Reads the bounds and counts tiles of `size` rows, by all threads of the block: 32 groups a warp at once.

    ends[g] is the number of tiles of groups 0 to g, along their rows. starts[g] is the row where group g begins and
    group g - 1 ends; of masked products, how many rows group g has.
    """
    assert ends.shape[0] % 32 == 0, "GROUPS is a multiple of 32"
    sums = shared((WARPS,), i32)
    warp, lane = warp_id(), lane_id()
    before = i32(0)
    for first in range(0, groups, 32 * WARPS):
        group, count = first + warp * 32 + lane, i32(0)
        if group < groups:
            low = 0 if masked else index(bounds[group])
            high = index(bounds[group if masked else group + 1])
            if check:
                expected = (
                    "counts are from 0 to max_m" if masked else "offsets do not decrease, from 0 to the rows of A"
                )
                assert_((low >= 0) & (low <= high) & (high <= rows), expected)
            low, high = min(max(low, 0), rows), min(max(high, 0), rows)
            if masked:
                starts[group] = i32(high)
            else:
                starts[group] = i32(low)
                if group == groups - 1:
                    starts[groups] = i32(high)
            count = i32(cdiv(max(high - low, 0), size))
        for step in (1, 2, 4, 8, 16):
            lower = shuffle_up(count, step)
            count += where(lane >= step, lower, 0)
        if lane == 31:
            sums[warp] = count
        barrier()
        after = before
        for w in unroll(WARPS):
            before += where(w < warp, sums[w], 0)
            after += sums[w]
        if group < groups:
            ends[group] = before + count
        before = after
        barrier()


@unwrapped
def group_count(place: Place, ends: Any, starts: Any, groups: Any, n: Any, k: Any, sizes: Any, options: Any) -> Any:
    """Tiles of all groups."""
    return index(ends[groups - 1]) * cdiv_any(n, sizes[1])


@unwrapped
def group_item(
    i: Any, place: Place, ends: Any, starts: Any, groups: Any, n: Any, k: Any, sizes: Any, options: Any
) -> Any:
    """Tile number `i`. rest: how many rows its group has from the tile's first one on: more than a tile has, or fewer.

    options: how many tiles a band has, and whether products are masked.
    """
    band, masked = options
    columns = u32(cdiv_any(n, sizes[1]))
    line, low, high = u32(i) // columns, u32(0), u32(groups) - 1
    while low < high:  # the first group that ends behind this row of tiles
        middle = (low + high) // 2
        if u32(ends[index(i32(middle))]) > line:
            high = middle
        else:
            low = middle + 1
    group, before = index(i32(low)), u32(0)
    if low > 0:
        before = u32(ends[group - 1])
    begin = 0 if masked else index(starts[group])
    rows = index(starts[group]) if masked else index(starts[group + 1]) - begin
    # Bands of tiles along the rows, as those of `tile_schedule`.
    rest = u32(i) - before * columns
    first = rest // (columns * band) * band
    within, size = rest - first * columns, minimum(u32(ends[group]) - before - first, band)
    column = within // size
    m, n = tile(index(i32(first + within - column * size)), sizes[0]), tile(index(i32(column)), sizes[1])
    batch, along_k = group if masked else 0, tiles(k, sizes[2])
    return WorkItem(m=m + begin, n=n, k=along_k, first=0, group=group, batch=batch, rest=rows - m.start)


# -- the kernel ------------------------------------------------------------------------------------


@tile_function
def store_part(
    y: Fragment[D],
    via: View[D],
    C: Global[D, P, M, N],
    t: Any,
    first: int,
    column: index,
    pending: int,
    thread: index,
    threads: int,
):
    """Stores rows `first` and on of a tile, and columns `column` and on, as many as `via` has, through `via`.

    By TMA where all these rows belong to the tile's group, else by vectors of those rows that do; and element by
    element where TMA cannot store C. pending: how many TMA stores from other buffers may still be reading. thread: this
    one's number of `threads`, of which the first one uses TMA.
    """
    rows, columns = via.shape
    if thread == 0:
        tma_wait(pending, read=True)
    barrier()
    store_matrix(y, via if y.shape == via.shape else via.T)
    ptx.fence_proxy_async()
    barrier()
    count = minimum(rows, t.rest - first)
    if C.unit != 2 or not stored_by_tma(C):
        for at in range(thread, count * columns, threads):
            row, along = (at % count, at // count) if C.unit == 1 else (at // columns, at % columns)
            C.put(t.batch, t.m.start + first + row, column + along, via[row, along])
    elif count == rows:
        if thread == 0:
            m, n = tile(0, rows) + (t.m.start + first), tile(column // columns, columns)
            store_tma(via, C[t.batch, m, n])
            tma_commit()
    else:
        for at in range(thread, count * (columns // VECTOR), threads):
            row, along = at // (columns // VECTOR), at % (columns // VECTOR) * VECTOR
            C.put(t.batch, t.m.start + first + row, column + along, via.load(row, along))


@tile_kernel(arch="sm_90a")
def hopper_grouped(
    A: Global[D, P, M, K],
    B: Global[F, L, K, N],
    C: Global[E, P, M, N],
    bounds: Global[Bound, J],
    alpha: f32 | float = 1.0,
    bias: Global[f32, L, N] | None = None,
    scale_a: Global[f32, P, M, KBlocks] | None = None,
    scale_b: Global[f32, L, KBlocks, NBlocks] | None = None,
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
    SCALED: Const[bool] = False,
    HALVES: Const[bool] = False,
    EARLY: Const[bool] = False,
    CHECK: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    """C = epilogue(alpha A B) for the rows of each group, by tiles of BM rows and BN columns.

    GROUPS: room for so many groups, a multiple of 32. CHECK: assert that the bounds are in order and in range; without
    it no access leaves the arrays, whatever they are.
    """
    assert not (SCALED and EXCHANGED), "scales are of rows of A: leave out EXCHANGED"
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    ends, starts = shared((GROUPS,), i32), shared((GROUPS + 32,), i32)
    read_groups(ends, starts, bounds, L, M, BM, MASKED, CHECK)
    work = persistent(Schedule(group_count, group_item, ends, starts, L, N, K, (BM, BN, BK), (GROUP, MASKED)))
    height = staged_width(BM, A.unit == 2)
    width = BN // 2 if HALVES else BN
    ring = Ring(STAGES, a=staging(A, height, BK), b=staging(B, BK, width))
    behind: Any = Ring(STAGES, b=staging(B, BK, width)) if HALVES else None
    if EXCHANGED:
        out = shared((2 * INSTANCES, gcd(BM, TALL), BN), C.dtype, layout=swizzle_128b)
    else:
        out = chunks(C, 2 * INSTANCES, BM, BN)
    piece = out.shape[1 if EXCHANGED else 2]
    scales: Any = (scale_a, scale_b, room_of_scales()) if SCALED else None
    with role("load", registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.batch, tile(0, height) + t.m.start, k]), s.a)
                    tma_load(as_stored(B[t.group, k, tile(0, width) + t.n.start]), s.b)
                if HALVES:
                    with behind.fill() as s:
                        tma_load(as_stored(B[t.group, k, tile(1, width) + t.n.start]), s.b)
    with role("math", warpgroups=2 // INSTANCES, registers=232, instances=INSTANCES) as r:
        threads = 256 // INSTANCES
        thread = (warp_id() % (threads // 32)) * 32 + lane_id()
        for t in work:
            acc: Any = None if SCALED else wgmma.accumulator((BN, BM) if EXCHANGED else (BM, BN), f32)
            with r.turn("multiply"):
                if SCALED:
                    acc = promoted(ring, t, A, B, (BM, BN), scales, t.group, behind)
                else:
                    for _ in t.k:
                        with ring.use(in_flight=1) as s:
                            a, b = matrix(s.a, A)[:BM, :], matrix(s.b, B)
                            acc = wgmma(b.T, a.T, acc) if EXCHANGED else wgmma(a, b, acc)
            with r.turn("store"):
                sums, own = acc if SCALED else acc.wait(), bias[t.group, :] if bias is not None else None
                for i in unroll((BM if EXCHANGED else BN) // piece):
                    first, column = (i * piece, t.n.start) if EXCHANGED else (0, t.n.start + i * piece)
                    if first < t.rest:
                        y = alpha * sums.columns(i * piece, piece)
                        y = applied(EPILOGUE, y, own, column + coordinates(y)[0 if EXCHANGED else 1]).to(C.dtype)
                        via = out[r.index * 2 + i % 2, :, :]
                        store_part(y, via, C, t, first, column, min(i, 1), thread, threads)
        if thread == 0:
            tma_wait(0)

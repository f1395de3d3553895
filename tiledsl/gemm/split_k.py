"""Products whose k is split: which work item has which part of k, and the reduction of the partial sums.

SPLIT CTAs of a cluster share a tile of the result, each with a part of k; where that is not enough, `groups` clusters
share it. A part is a whole number of tiles along k, so parts differ by one tile at most. Each CTA stores its sums in a
workspace. Each CTA of the cluster adds up one slice of the tile, over the parts in their order. Of several clusters,
the last one to have a slice adds it up over the clusters, in their order, too. So the bits of a result depend on the
shapes and the consts alone, and nobody waits for a CTA that may not have started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from tiledsl import (
    Const,
    Float,
    Fragment,
    Global,
    Memory,
    Place,
    SharedTile,
    WorkItem,
    assert_,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    i32,
    index,
    lane_id,
    minimum,
    ptx,
    shared,
    store,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    u32,
    u64,
    unroll,
    warp_id,
    where,
)
from tiledsl.dims import H, J, L, M, N, P, R
from tiledsl.gemm.epilogue import Epilogue, plain
from tiledsl.lang.schedules import _unwrapped, in_bands

__all__ = ["QUAD", "add_up", "begin", "part_count", "part_item", "reduce_parts", "split"]

E = TypeVar("E", bound=Float)

GPCS = 8
"""Of an H200."""

LOADS = 16
"""Vectors that a thread loads at once."""

QUAD = 4
"""Columns of a lane; rows of partial sums are whole quads."""


@tile_kernel(arch="sm_90a")
def add_up(
    P: Global[f32, L, M, J],
    C: Global[E, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    *,
    WARPS: const = 8,
    DEEP: const = 8,
    PIECES: const = 1,
    ADD_C: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = plain,
):
    """C = epilogue(alpha * (the sum of P along its first axis) + beta * C); rows of P are aligned, whole vectors.

    A lane has 4 columns. Each of WARPS warps loads up to DEEP parts at once and adds them; the first warp adds the
    others' sums. So the order of additions depends on the shape alone. A block has PIECES such groups of warps.
    """
    assert WARPS > 0 and DEEP > 0 and PIECES > 0, "WARPS, DEEP and PIECES are counts: 1 or more"
    block = grid(cdiv(M * J, PIECES * 32 * QUAD))
    # At its highest level, ptxas moves additions in between the loads, whose latencies then add up.
    lane, warp, piece = threads(32, WARPS, PIECES, assembler_level=1)
    assert_(L <= WARPS * DEEP, "each of WARPS warps adds up DEEP parts, and there are more: take more of either")
    sums = shared((PIECES, WARPS, 32 * QUAD), f32)
    at = (block * PIECES + piece) * 32 + lane
    row, column = at // (J // QUAD), at % (J // QUAD) * QUAD
    parts = [P.load(minimum(warp + i * WARPS, L - 1), minimum(row, M - 1), column) for i in range(DEEP)]
    x = fragment((QUAD,), f32)
    for i in unroll(DEEP):
        x = x + where(warp + i * WARPS < L, parts[i], 0)
    sums.store(piece, warp, lane * QUAD, x)
    barrier()
    if warp == 0:
        for i in unroll(1, WARPS):
            x = x + sums.load(piece, i, lane * QUAD)
        x = alpha * x
        columns = fragment((QUAD,), i32)
        for i in unroll(QUAD):
            columns[i] = i
        columns = columns.to(index) + column
        if ADD_C:
            x = beta * C.get(row, columns).to(f32) + x
        x = EPILOGUE(x, bias, columns).to(C.dtype)
        if C.unit == 1 and C.align >= QUAD * C.dtype.bytes:
            C.put(row, column, x)
        else:
            C.put(row, columns, x)


def split(parts: int) -> dict[str, int]:
    """The consts of `add_up` for `parts` parts: 8 parts a warp and 256 threads a block where possible."""
    warps = next(w for w in (1, 2, 4, 8, 16) if 8 * w >= parts or w == 16)
    return {"WARPS": warps, "DEEP": cdiv(parts, warps), "PIECES": max(8 // warps, 1)}


# -- in one launch ---------------------------------------------------------------------------------


@_unwrapped
def part_count(place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, groups: Any) -> Any:
    """Work items of a product: one for each of a cluster's tiles and each of the clusters that have a part of it."""
    return cdiv(m, sizes[0] * place.m) * cdiv(n, sizes[1]) * batches * groups


@_unwrapped
def part_item(
    i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, groups: Any
) -> Any:
    """A tile's part of k. CTAs of one GPC that read the same at the same time read it once, so they have neighbouring
    tiles, and the same part of k.

    number, count: of the tile, and how many there are. group: of the cluster among those that share the tile. part: of
    the CTA in the cluster. at_m, along_m: which of the cluster's tiles along m this is, and how many there are.
    """
    rows, columns = cdiv(m, sizes[0] * place.m), cdiv(n, sizes[1])
    count = rows * columns * batches
    if place.m * place.n > 1:
        i = _of_gpc(i, count * groups)
    at, group = i % count, i // count
    steps, parts, part = cdiv(k, sizes[2]), groups * place.n, group * place.n + place.at_n
    first, end = part * steps // parts * sizes[2], (part + 1) * steps // parts * sizes[2]
    row, column = in_bands(at % (rows * columns), rows, columns, max(1, band // place.m))
    return WorkItem(
        m=tile(row * place.m + place.at_m, sizes[0]),
        n=tile(column, sizes[1]),
        k=tiles(min(k, end), sizes[2], start=first),
        batch=at // (rows * columns),
        number=at * place.m + place.at_m,
        count=count * place.m,
        group=group,
        part=place.at_n,
        at_m=place.at_m,
        along_m=place.m,
    )


@_unwrapped
def _of_gpc(i: Any, count: Any) -> Any:
    """A permutation of `count` items for which those of clusters in one GPC are neighbours: the clusters of a grid are
    dealt out to the GPCs in turn."""
    gpc, size, more = i % GPCS, count // GPCS, count % GPCS
    return gpc * size + min(gpc, more) + i // GPCS


@tile_function
def begin(arrived: SharedTile[u64], count: int):
    """Initialises mbarriers at which every CTA of a cluster arrives. A `Ring` that is made next lets all know it."""
    if warp_id() == 0 and lane_id() == 0:
        for i in unroll(arrived.shape[0]):
            ptx.mbarrier_init(arrived, i, count=count)
        ptx.fence_mbarrier_init()


@dataclass(frozen=True)
class Reduction:
    """parts: of k in a cluster. threads: that have a tile. add_c, epilogue, exchanged: the consts of the kernel."""

    parts: int
    threads: int
    add_c: bool
    epilogue: Epilogue
    exchanged: bool


@tile_function
def reduce_parts(
    x: Fragment[f32],
    t: Any,
    how: Reduction,
    groups: index,
    sums: Global[f32, P, H, J],
    done: Global[u32, R],
    arrived: Memory[u64],
    found: Memory[u32],
    parity: u32,
    C: Global[E, L, M, N],
    alpha: f32 | float,
    beta: f32 | float,
    bias: Any,
):
    """C = epilogue(alpha * (the sum of all parts' x) + beta * C) for one tile.

    sums: a tile for each part, with rows along the axis of C that is not contiguous. done: a zero for each slice of
    each tile; it is zero again at the end. arrived: an mbarrier, whose phase has this parity; found: room for a number.
    """
    rows, columns = x.shape
    parts, threads = how.parts, how.threads
    across = C.unit == 1  # contiguous along m
    inner = rows if across else columns
    slice = rows * columns // parts // QUAD
    each = cdiv(slice, threads)
    assert slice % threads == 0 or each == 1, f"{threads} threads cannot share {slice} vectors evenly"
    thread = warp_id() % (threads // 32) * 32 + lane_id()
    number = t.number * parts + t.part
    first = (t.group * t.count + t.number) * parts
    mine = sums[first + t.part, tile(0, columns if across else rows), tile(0, inner)]
    store(x, mine.T if across else mine, vec=4 if across else 8)
    barrier()
    if parts > 1:
        if thread < parts:
            ptx.mbarrier_arrive(arrived, 0, rank=i32(t.at_m + t.along_m * thread))
        ptx.mbarrier_wait(arrived, 0, parity=parity)
    begin = t.part * slice + (thread if slice >= threads else minimum(thread, slice - 1))
    total = fragment((QUAD * each,), f32)
    last = groups == 1
    if parts > 1 or groups == 1:
        for p in unroll(parts):
            total = total + load_slice(sums, first + p, begin, threads, inner, each)
    if groups > 1:
        if parts > 1 and (slice >= threads or thread < slice):
            for i in unroll(each):
                at = (begin + i * threads) * QUAD
                sums.store(first + t.part, at // inner, at % inner, total[QUAD * i : QUAD * i + QUAD])
        barrier()
        if thread == 0:
            found[0] = done.atomic_add(number, 1, order="acq_rel")
        barrier()
        last = index(found[0]) == groups - 1
        if last:
            total = fragment(total.shape, f32)
            deep = max(1, LOADS // each)
            for group in range(0, groups, deep):
                at = [minimum(group + i, groups - 1) * t.count * parts + number for i in range(deep)]
                more = [load_slice(sums, at[i], begin, threads, inner, each) for i in range(deep)]
                for i in unroll(deep):
                    total = total + where(group + i < groups, more[i], 0)
            if thread == 0:
                done.atomic_store(number, 0)
    if last and (slice >= threads or thread < slice):
        for i in unroll(each):
            at = (begin + i * threads) * QUAD
            finish(total[QUAD * i : QUAD * i + QUAD], t, at // inner, at % inner, C, alpha, beta, bias, how)


@tile_function
def load_slice(
    sums: Global[f32, P, H, J], number: index, begin: index, threads: int, inner: int, each: int
) -> Fragment[f32]:
    """This thread's vectors of tile `number`: `begin`, begin + threads and so on, `each` of them."""
    x = fragment((QUAD * each,), f32)
    for i in unroll(each):
        at = (begin + i * threads) * QUAD
        x[QUAD * i : QUAD * i + QUAD] = sums.load(number, at // inner, at % inner)
    return x


@tile_function
def finish(
    x: Fragment[f32],
    t: Any,
    outer: index,
    inner: index,
    C: Global[E, L, M, N],
    alpha: f32 | float,
    beta: f32 | float,
    bias: Any,
    how: Reduction,
):
    """Stores four elements of a tile's result that are neighbours in memory, or would be, were C contiguous along n."""
    along = fragment((QUAD,), i32)
    for i in unroll(QUAD):
        along[i] = i
    here = along.to(index)
    across = C.unit == 1
    m, n = t.m.start + (inner if across else outer), t.n.start + (outer if across else inner)
    rows, columns = (here + m, here * 0 + n) if across else (here * 0 + m, here + n)
    x = alpha * x
    if how.add_c:
        x = beta * C.get(t.batch, rows, columns).to(f32) + x
    y = how.epilogue(x, bias, rows if how.exchanged else columns).to(C.dtype)
    if C.unit > 0 and C.align >= QUAD * C.dtype.bytes:
        C.put(t.batch, m, n, y)
    else:
        C.put(t.batch, rows, columns, y)

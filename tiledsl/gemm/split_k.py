"""Which tiles a CTA has, and which part of their k, and the reduction of the partial sums.

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
    Float,
    Fragment,
    Global,
    Place,
    SharedTile,
    WorkItem,
    barrier,
    cdiv,
    f32,
    fragment,
    grid_size,
    i32,
    index,
    lane_id,
    minimum,
    ptx,
    shared,
    store,
    tile,
    tile_function,
    tiles,
    u32,
    u64,
    unroll,
    warp_id,
    where,
)
from tiledsl.dims import H, J, L, M, N, P, R
from tiledsl.gemm.epilogue import Epilogue
from tiledsl.lang.schedules import cdiv_any, in_bands, unwrapped

__all__ = ["QUAD", "Reduction", "meeting", "part_count", "part_item", "reduce_parts"]

E = TypeVar("E", bound=Float)

GPCS = 8
"""Of an H200."""

LOADS = 16
"""Vectors that a thread loads at once."""

QUAD = 4
"""Elements of a vector."""


@unwrapped
def part_count(
    place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any
) -> Any:
    """Work items of a product: one for each of a cluster's tiles and each of the clusters that have a part of it."""
    return cdiv_any(m, sizes[0] * place.m) * cdiv_any(n, sizes[1] * (1 if parts else place.n)) * batches * groups


@unwrapped
def part_item(
    i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any
) -> Any:
    """A tile, or with `parts` its part of k. A GPC reads once what several of its CTAs read at the same time, so these
    have neighbouring tiles, and the same part of k.

    number, count: of the tile, and how many there are. group: of the cluster among those that share the tile. part: of
    the CTA in the cluster. at_m, along_m: which of the cluster's tiles along m this is, and how many there are.
    """
    across = 1 if parts else place.n
    rows, columns = cdiv_any(m, sizes[0] * place.m), cdiv_any(n, sizes[1] * across)
    each = rows * columns
    if place.m * place.n > 1:
        i = _of_gpc(i, each * batches * groups, grid_size() // (place.m * place.n))
    group, along_k = 0, tiles(k, sizes[2])
    count = each * batches
    if parts:
        i, group = i % count, i // count
        steps, all_parts, part = cdiv_any(k, sizes[2]), groups * place.n, group * place.n + place.at_n
        first, end = part * steps // all_parts * sizes[2], (part + 1) * steps // all_parts * sizes[2]
        along_k = tiles(min(k, end), sizes[2], start=first)
    row, column = in_bands(i % each, rows, columns, max(1, band // place.m))
    row = row * place.m + place.at_m
    if across > 1:
        column = column * across + place.at_n
    return WorkItem(
        m=tile(row, sizes[0]),
        n=tile(column, sizes[1]),
        k=along_k,
        batch=i // each,
        number=i * place.m + place.at_m,
        count=count * place.m,
        group=group,
        part=place.at_n,
        at_m=place.at_m,
        along_m=place.m,
    )


@unwrapped
def _of_gpc(i: Any, count: Any, wave: Any) -> Any:
    """A permutation of each `wave` of `count` items for which those of clusters in one GPC are neighbours: the clusters
    of a grid are dealt out to the GPCs in turn."""
    first = i // wave * wave
    within, items = i - first, min(wave, count - first)
    gpc, size, more = within % GPCS, items // GPCS, items % GPCS
    return first + gpc * size + min(gpc, more) + within // GPCS


@tile_function
def meeting(parts: int, instances: int) -> tuple[SharedTile[u64], SharedTile[u32]]:
    """For each instance of a role, an mbarrier at which `parts` CTAs of a cluster arrive, and room for a number. A
    `Ring` that is made next lets all CTAs know that the mbarriers are initialised."""
    arrived, found = shared((instances,), u64), shared((instances,), u32)
    if warp_id() == 0 and lane_id() == 0:
        for i in unroll(instances):
            ptx.mbarrier_init(arrived, i, count=parts)
        ptx.fence_mbarrier_init()
    return arrived, found


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
    sums: Global[f32, P, H, J] | None,
    done: Global[u32, R] | None,
    room: tuple[SharedTile[u64], SharedTile[u32]],
    instance: index,
    parity: u32,
    C: Global[E, L, M, N],
    alpha: f32 | float,
    beta: f32 | float,
    bias: Any,
):
    """C = epilogue(alpha * (the sum of all parts' x) + beta * C) for one tile.

    sums: a tile for each part, with rows along the axis of C that is not contiguous. done: a zero for each slice of
    each tile; it is zero again at the end. room: of `meeting`, where the mbarrier's phase has this parity.
    """
    assert sums is not None and done is not None, "SPLIT needs its workspace: pass sums and done"
    arrived, found = room
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
            ptx.mbarrier_arrive(arrived, instance, rank=i32(t.at_m + t.along_m * thread))
        ptx.mbarrier_wait(arrived, instance, parity=parity)
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
            found[instance] = done.atomic_add(number, 1, order="acq_rel")
        barrier()
        last = index(found[instance]) == groups - 1
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
    batch: index = t.batch
    m: index = t.m.start + (inner if across else outer)
    n: index = t.n.start + (outer if across else inner)
    rows, columns = (here + m, here * 0 + n) if across else (here * 0 + m, here + n)
    x = alpha * x
    if how.add_c:
        x = beta * C.get(batch, rows, columns).to(f32) + x
    y = how.epilogue(x, bias, rows if how.exchanged else columns).to(C.dtype)
    if C.unit > 0 and C.align >= QUAD * C.dtype.bytes:
        C.put(batch, m, n, y)
    else:
        C.put(batch, rows, columns, y)

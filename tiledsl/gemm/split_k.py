"""Which tiles a CTA has, and which part of their k, and the reduction of the partial sums.

SPLIT CTAs of a cluster share a tile of the result, each with a part of k; where that is not enough, `groups` clusters
share it. A part is a whole number of tiles along k, so parts differ by one tile at most. Each CTA of the cluster adds
up one slice of the tile: to its own part it adds those of the next CTAs in turn, which these have stored in a
workspace. Of several clusters, the last one to have a slice adds it up over the clusters, in their order. So the bits
of a result depend on the shapes and the consts alone, and nobody waits for a CTA that may not have started.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Float,
    Fragment,
    Global,
    Place,
    SharedTile,
    WorkItem,
    barrier,
    boolean,
    f32,
    fragment,
    grid_size,
    i32,
    index,
    lane_id,
    minimum,
    ptx,
    shared,
    tile,
    tile_function,
    tiles,
    u32,
    u64,
    unroll,
    warp_id,
    where,
)
from tiledsl.dims import H, J, P, R
from tiledsl.lang.schedules import cdiv_any, in_bands, unwrapped

__all__ = ["QUAD", "meeting", "part_count", "part_item", "reduce_parts", "slice_width"]

E = TypeVar("E", bound=Float)

GPCS = 8
"""Of an H200."""

LOADS = 16
"""Vectors that a thread loads at once."""

QUAD = 4
"""Elements of a vector."""

LEAST = 16
"""Columns of a slice, at least, and 32 bytes: TMA stores as many or more of each row."""


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


def slice_width(parts: int, columns: int, size: int = 2) -> int:
    """Columns of a tile that one CTA of the cluster adds up, of a result whose elements have `size` bytes: a multiple
    of `LEAST`. If there are fewer slices than CTAs, the last CTAs have none."""
    least = max(LEAST, 32 // size)
    return min(w for w in range(least, columns + 1, least) if columns % w == 0 and w * parts >= columns)


@tile_function
def reduce_parts(
    x: Fragment[Any],
    t: Any,
    parts: int,
    wide: int,
    groups: index,
    sums: Global[f32, P, H, J] | None,
    done: Global[u32, R] | None,
    room: tuple[SharedTile[u64], SharedTile[u32]],
    instance: index,
    parity: u32,
) -> tuple[Fragment[Any], boolean]:
    """The sum of all parts' x, for the slice of this CTA, number t.part; and whether this CTA is to store it.

    wide: columns of a slice. sums: for each part what its threads hold, in rows of QUAD elements of each. done: a zero
    for each part of each tile; it is zero again at the end. room: of `meeting`, where the mbarrier's phase has this
    parity.
    """
    assert sums is not None and done is not None, "SPLIT needs its workspace: pass sums and done"
    arrived, found = room
    count = x.shape[1] // wide
    thread = warp_id() % (x.layout.threads // 32) * 32 + lane_id()
    first = (t.group * t.count + t.number) * parts
    own = x.columns(0, wide).registers()
    mine = t.part < count
    if parts > 1:
        for p in unroll(count):
            y = x.columns(p * wide, wide).registers()
            if t.part == p:
                own = y
            else:
                store_slice(y, sums, first + t.part, p, thread)
        barrier()
        if thread < parts:
            ptx.mbarrier_arrive(arrived, instance, rank=i32(t.at_m + t.along_m * thread))
        ptx.mbarrier_wait(arrived, instance, parity=parity)
        if mine:
            for p in unroll(1, parts):
                own = own + load_slice(sums, first + (t.part + p) % parts, t.part, thread, own)
    if groups > 1:
        if mine:
            store_slice(own, sums, first + t.part, t.part, thread)
        barrier()
        number = t.number * parts + t.part
        if thread == 0 and mine:
            found[instance] = done.atomic_add(number, 1, order="acq_rel")
        barrier()
        mine = mine and index(found[instance]) == groups - 1
        if mine:
            own = fragment(own.shape, own.dtype)
            deep = max(1, LOADS * QUAD // own.shape[0])
            for group in range(0, groups, deep):
                at = [minimum(group + i, groups - 1) * t.count * parts + number for i in range(deep)]
                more = [load_slice(sums, at[i], t.part, thread, own) for i in range(deep)]
                for i in unroll(deep):
                    own = own + where(group + i < groups, more[i], 0)
            if thread == 0:
                done.atomic_store(number, 0)
    return fragment((x.shape[0], wide), x.dtype, x.layout, init=own), mine


@tile_function
def store_slice(x: Fragment[Any], sums: Global[f32, P, H, J], number: index, slice: index | int, thread: index):
    """Stores what this thread holds of a slice of part `number`: f32, or the bits of an i32 in one."""
    rows = x.shape[0] // QUAD
    for i in unroll(rows):
        quad = x[QUAD * i : QUAD * i + QUAD]
        sums.store(number, slice * rows + i, thread * QUAD, quad if x.dtype is f32 else quad.bitcast(f32))


@tile_function
def load_slice(
    sums: Global[f32, P, H, J], number: index, slice: index, thread: index, like: Fragment[Any]
) -> Fragment[Any]:
    """What `store_slice` stored of a fragment like this one."""
    x = fragment(like.shape, like.dtype)
    rows = like.shape[0] // QUAD
    for i in unroll(rows):
        quad = sums.load(number, slice * rows + i, thread * QUAD)
        x[QUAD * i : QUAD * i + QUAD] = quad if like.dtype is f32 else quad.bitcast(like.dtype)
    return x

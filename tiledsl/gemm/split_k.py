"""Which tiles a CTA has, and which part of their k, and the reduction of the partial sums.

SPLIT CTAs of a cluster share a tile of the result, each with a part of k; besides or instead, `groups` clusters share
it. A part is a whole number of tiles along k, so parts differ by one tile at most. Each CTA of the cluster adds
up one slice of the tile: to its own part it adds those of the next CTAs in turn, which these have stored in its shared
memory. Several clusters meet to add up their slices (`parts.py`). So the bits of a result depend on the shapes and the
consts alone.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Fragment,
    Place,
    SharedTile,
    View,
    WorkItem,
    barrier,
    boolean,
    f32,
    fragment,
    grid_size,
    i32,
    index,
    lane_id,
    ptx,
    row_major,
    shared,
    tile,
    tile_function,
    tiles,
    u32,
    u64,
    unroll,
    warp_id,
)
from tiledsl.gemm.parts import QUAD, as_quads, meet, of_quads, store_part, sum_of_parts, vectors_of_piece
from tiledsl.lang.schedules import cdiv_any, in_bands, unwrapped

__all__ = [
    "NARROW",
    "PIECE_WIDTH",
    "add_up",
    "bring_slice",
    "gathered_width",
    "meeting",
    "part_count",
    "part_item",
    "reduce_parts",
    "slice_width",
    "thread_of",
]

Meeting = tuple[SharedTile[u64], SharedTile[u64], SharedTile[f32] | None]

GPCS = 8
"""Of an H200."""

PIECE_WIDTH = 16
"""Columns of a piece of a slice: TMA stores 32 bytes or more of each row."""

NARROW = 8
"""Columns of the narrowest piece of a slice: a thread has QUAD sums of it, or as often as that for more rows."""


@unwrapped
def part_count(
    place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any
) -> Any:
    """Work items of a product: one for each of a cluster's tiles and each of the clusters that have a part of it."""
    across = 1 if parts else place.n
    tiles = cdiv_any(m, sizes[0] * place.m) * cdiv_any(n, sizes[1] * across) * batches
    return tiles if groups is None else tiles * groups


@unwrapped
def part_item(
    i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any
) -> Any:
    """A tile, or its part of k: of the `parts` of a cluster along n, and of `groups` clusters. A GPC reads once what
    several of its CTAs read at the same time, so these have neighbouring tiles, and the same part of k.

    first: of k. number: of the slice. group: of the cluster among those that share it. part: of the CTA in the cluster.
    at_m, along_m: which of the cluster's tiles along m this is, and how many there are.
    """
    across, within = (1, place.n) if parts else (place.n, 1)
    rows, columns = cdiv_any(m, sizes[0] * place.m), cdiv_any(n, sizes[1] * across)
    each = rows * columns
    count, clusters = each * batches, 1 if groups is None else groups
    if place.m * place.n > 1:
        i = _of_gpc(i, count * clusters, grid_size() // (place.m * place.n))
    group, first, along_k = 0, 0, tiles(k, sizes[2])
    if parts or groups is not None:
        i, group = i % count, i // count
        steps, all_parts, part = cdiv_any(k, sizes[2]), clusters * within, group * within + (place.at_n if parts else 0)
        first, end = part * steps // all_parts * sizes[2], (part + 1) * steps // all_parts * sizes[2]
        along_k = tiles(min(k, end), sizes[2], start=first)
    row, column = in_bands(i % each, rows, columns, max(1, band // place.m))
    row, column = row * place.m + place.at_m, column * across
    if across > 1:
        column = column + place.at_n
    return WorkItem(
        m=tile(row, sizes[0]),
        n=tile(column, sizes[1]),
        k=along_k,
        first=first,
        batch=i // each,
        number=(i * place.m + place.at_m) * place.n + place.at_n,
        group=group,
        part=place.at_n,
        at_m=place.at_m,
        along_m=place.m,
    )


@unwrapped
def _of_gpc(i: Any, count: Any, wave: Any) -> Any:
    """A permutation of each `wave` of `count` items for which those of clusters in one GPC are neighbours: the clusters
    of a grid are distributed to the GPCs in turn."""
    first = i // wave * wave
    within, items = i - first, min(wave, count - first)
    gpc, size, more = within % GPCS, items // GPCS, items % GPCS
    return first + gpc * size + min(gpc, more) + within // GPCS


@tile_function
def meeting(parts: int, rows: int, columns: int, threads: int) -> Meeting:
    """Where the CTAs of a cluster meet that share a tile of rows x columns, that so many threads of each hold: room for
    what the others have of a CTA's slice, an mbarrier that counts its bytes, and one at which they arrive that are done
    with their own room. A `Ring` that is made next lets all CTAs know that the mbarriers are initialised."""
    full, free = shared((1,), u64), shared((1,), u64)
    quads = rows * slice_width(parts, columns) // (threads * QUAD)
    room = shared((parts - 1, quads, threads * QUAD), f32, layout=row_major) if parts > 1 else None
    if warp_id() == 0 and lane_id() == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=parts)
        ptx.fence_mbarrier_init()
    return full, free, room


def slice_width(parts: int, columns: int) -> int:
    """Columns of a tile that one CTA of the cluster adds up: whole pieces. If there are fewer slices than CTAs, the
    last CTAs have none."""
    return min(w for w in range(PIECE_WIDTH, columns + 1, PIECE_WIDTH) if columns % w == 0 and w * parts >= columns)


@tile_function
def reduce_parts(x: Fragment[Any], t: Any, parts: int, met: Meeting, turn: u32) -> tuple[Fragment[Any], boolean]:
    """The sum of x over the CTAs of the cluster, for the slice of this one, number t.part; and whether it has a slice.

    Each CTA stores the slices of the others in their shared memory. turn: how many items of this CTA came before.
    """
    wide = slice_width(parts, x.shape[1])
    count = x.shape[1] // wide
    thread = thread_of(x)
    full, free, room = met
    own = x.columns(0, wide).registers()
    mine = t.part < count
    if parts > 1 and room is not None:
        if turn > 0:  # what has come for the item before may still be read
            barrier()
            if thread < parts:
                ptx.mbarrier_arrive(free, 0, rank=i32(t.at_m + t.along_m * thread), scope="cta")
            ptx.mbarrier_wait(free, 0, parity=(turn + 1) % 2, scope="cta")
        if mine and thread == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=(parts - 1) * x.shape[0] * wide * 4)
        for p in unroll(count):
            y = x.columns(p * wide, wide).registers()
            if t.part == p:
                own = y
            else:
                quads, slot = as_quads(y), (t.part + (parts - 1 - p)) % parts
                for i in unroll(len(quads)):
                    ptx.st_async(
                        room, slot, i, thread * QUAD, quads[i], mbarrier=(full, 0), rank=i32(t.at_m + t.along_m * p)
                    )
        if mine:
            ptx.mbarrier_wait(full, 0, parity=turn % 2, scope="cta")
            # From the next part on, in turn: part t.part + 1 + i is in slot i of the CTA.
            for slot in unroll(parts - 1):
                quads = [room.load(slot, i, thread * QUAD, vec=QUAD * 4) for i in range(room.shape[1])]
                own = own + of_quads(quads, own)
    return fragment((x.shape[0], wide), x.dtype, x.layout, init=own), mine


@tile_function
def bring_slice(x: Fragment[Any], t: Any, groups: index, sums: Any, done: Any, found: View[u32]):
    """Stores the slice of this CTA, as far as its cluster has it, and meets those of the other groups (`parts.meet`).

    sums: for each group and slice what the threads hold. done: the words, one for each slice.
    """
    assert sums is not None and done is not None, "GATHER needs its workspace: pass sums and done"
    thread = thread_of(x)
    store_part(x.registers(), sums, t.group, t.number, thread, x.layout.threads)
    meet(done, t.number, groups, x.shape[1] // NARROW, found, thread)


@tile_function
def thread_of(x: Fragment[Any]) -> index:
    """The number of this thread among those that hold x."""
    return warp_id() % (x.layout.threads // 32) * 32 + lane_id()


def gathered_width(columns: int, gather: int) -> int:
    """Columns of a piece of a slice of so many."""
    return NARROW * vectors_of_piece(columns // NARROW, gather)


@tile_function
def add_up(x: Fragment[Any], t: Any, gather: int, sums: Any, piece: index) -> Fragment[Any]:
    """A piece of a slice like x: its sum over the groups."""
    shape = x.shape[0], gathered_width(x.shape[1], gather)
    like = fragment(shape, x.dtype, x.layout).registers()
    vectors = like.shape[0] // QUAD
    total = sum_of_parts(sums, t.number, gather, piece * vectors, thread_of(x), x.layout.threads, like)
    return fragment(shape, x.dtype, x.layout, init=total)

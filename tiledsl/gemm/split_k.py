"""Which tiles a CTA has, and which part of their k, and the reduction of the partial sums.

SPLIT CTAs of a cluster share a tile of the result, each with a part of k; where that is not enough, `groups` clusters
share it. A part is a whole number of tiles along k, so parts differ by one tile at most. Each CTA of the cluster adds
up one slice of the tile: to its own part it adds those of the next CTAs in turn, which these have stored in its shared
memory. Several clusters store their slices in a workspace; the last ones to come wait for all, and each adds up some
pieces of the slice over the clusters, in their order. So the bits of a result depend on the
shapes and the consts alone. Nobody waits long for a CTA that may not have started: the last one to come does the work
of those that are gone.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Float,
    Fragment,
    Global,
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
    where,
)
from tiledsl.dims import H, J, P
from tiledsl.lang.schedules import cdiv_any, in_bands, unwrapped

__all__ = [
    "PIECE_WIDTH",
    "QUAD",
    "add_up",
    "bring_slice",
    "is_own",
    "leave_slice",
    "meeting",
    "part_count",
    "part_item",
    "reduce_parts",
    "slice_width",
]

E = TypeVar("E", bound=Float)
Meeting = tuple[SharedTile[u64], SharedTile[u64], SharedTile[f32] | None]

GPCS = 8
"""Of an H200."""

LOADED = 64
"""Elements that a thread loads at once."""

QUAD = 4
"""Elements of a vector."""

PIECE_WIDTH = 16
"""Columns of a piece of a slice: TMA stores 32 bytes or more of each row."""

ASKS = 8
"""How often a CTA asks whether all parts of its slice have come, which takes some 0.7 us each time, before it goes."""
GONE, LEFT = 1 << 8, 1 << 24
"""What is added to the word of a slice in `done`: 1 when a CTA comes, GONE << its rank when it goes without waiting for
all, LEFT when it needs the word no more."""
NOBODY = 255
"""No rank."""


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

    first: of k. number, count: of the tile, and how many there are. group: of the cluster among those that share the
    tile. part: of the CTA in the cluster. at_m, along_m: which of the cluster's tiles along m this is, and how many
    there are.
    """
    across = 1 if parts else place.n
    rows, columns = cdiv_any(m, sizes[0] * place.m), cdiv_any(n, sizes[1] * across)
    each = rows * columns
    if place.m * place.n > 1:
        i = _of_gpc(i, each * batches * groups, grid_size() // (place.m * place.n))
    group, first, along_k = 0, 0, tiles(k, sizes[2])
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
        first=first,
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
    of a grid are distributed to the GPCs in turn."""
    first = i // wave * wave
    within, items = i - first, min(wave, count - first)
    gpc, size, more = within % GPCS, items // GPCS, items % GPCS
    return first + gpc * size + min(gpc, more) + within // GPCS


@tile_function
def meeting(parts: int, rows: int, columns: int, instances: int) -> Meeting:
    """Where the CTAs of a cluster meet that share a tile of rows x columns: room for what the others have of a CTA's
    slice, an mbarrier that counts its bytes, and one at which they arrive that are done with their own room. A `Ring`
    that is made next lets all CTAs know that the mbarriers are initialised."""
    full, free = shared((1,), u64), shared((1,), u64)
    threads = 256 // instances
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
    thread = warp_id() % (x.layout.threads // 32) * 32 + lane_id()
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
def as_quads(x: Fragment[Any]) -> list[Fragment[f32]]:
    """What a thread holds, in vectors of f32, or of the bits of i32 in such."""
    quads = [x[i : i + QUAD] for i in range(0, x.shape[0], QUAD)]
    return quads if x.dtype is f32 else [quad.bitcast(f32) for quad in quads]


@tile_function
def of_quads(quads: list[Fragment[f32]], like: Fragment[Any]) -> Fragment[Any]:
    """The inverse of `as_quads`, for a fragment of this dtype."""
    x = fragment(like.shape, like.dtype)
    for i in unroll(len(quads)):
        x[QUAD * i : QUAD * i + QUAD] = quads[i] if like.dtype is f32 else quads[i].bitcast(like.dtype)
    return x


@tile_function
def bring_slice(
    x: Fragment[Any],
    t: Any,
    parts: int,
    groups: index,
    sums: Global[f32, P, H, J] | None,
    done: Any,
    found: View[u32],
):
    """Stores the slice of this CTA, as far as its cluster has it, and waits for those of the others if pieces of it are
    this CTA's.

    sums: for each part what its threads hold, in rows of QUAD elements of each. done: the words, a zero for each part
    of each tile. found: gets the rank of the CTA among the groups, or NOBODY if it has no pieces or is gone, and the
    word of the slice.
    """
    assert sums is not None and done is not None, "GATHER needs its workspace: pass sums and done"
    thread = warp_id() % (x.layout.threads // 32) * 32 + lane_id()
    number = t.number * parts + t.part
    quads = as_quads(x.registers())
    for i in unroll(len(quads)):
        sums.store(t.group * t.count * parts + number, i, thread * QUAD, quads[i])
    barrier()
    if thread == 0:
        word = done.atomic_add(number, 1, order="acq_rel") + 1
        rank, asked = u32(groups) - word % GONE, index(0)
        stays = rank < x.shape[1] // PIECE_WIDTH
        while stays and index(word % GONE) < groups:
            if asked < ASKS:
                word, asked = done.atomic_load(number, order="acquire"), asked + 1
            else:  # unless the last one has come meanwhile
                old = done.atomic_cas(number, word, word + (GONE << rank), order="acquire")
                stays, word = old != word, old
        found[0], found[1] = where(stays, rank, NOBODY), word
    barrier()


@tile_function
def is_own(piece: index | int, found: View[u32], groups: index) -> boolean:
    """Whether a piece is this CTA's: pieces are distributed to the groups, the last to come first; that one
    also has those of CTAs that are gone. found: of `bring_slice`."""
    owner, rank, word = u32(piece % groups), found[0], found[1]
    return owner == rank or (rank == 0 and (word // GONE >> owner) % 2 == 1)


@tile_function
def add_up(
    x: Fragment[Any], t: Any, parts: int, groups: index, sums: Global[f32, P, H, J] | None, piece: index | int
) -> Fragment[Any]:
    """A piece of a slice like x: its sum over the groups."""
    assert sums is not None
    thread, pieces = warp_id() % (x.layout.threads // 32) * 32 + lane_id(), x.shape[1] // PIECE_WIDTH
    number = t.number * parts + t.part
    own = fragment((x.registers().shape[0] // pieces,), x.dtype)
    deep, rows = LOADED // own.shape[0], own.shape[0] // QUAD
    for group in range(0, groups, deep):
        at = [where(group + i < groups, (group + i) * t.count * parts + number, sums.shape[0]) for i in range(deep)]
        more = [  # of a group that is not there, zeros
            of_quads([sums.get(each, piece * rows + i, thread * QUAD, vec=QUAD * 4) for i in range(rows)], own)
            for each in at
        ]
        for i in unroll(deep):
            own = own + more[i]
    return fragment((x.shape[0], PIECE_WIDTH), x.dtype, x.layout, init=own)


@tile_function
def leave_slice(x: Fragment[Any], t: Any, parts: int, groups: index, done: Any, found: View[u32]):
    """A CTA that has added up its pieces of x; of the last one, the word of the slice is zero again."""
    assert done is not None
    if warp_id() % (x.layout.threads // 32) == 0 and lane_id() == 0 and found[0] != NOBODY:
        number, staying = t.number * parts + t.part, u32(0)
        for rank in unroll(x.shape[1] // PIECE_WIDTH):
            staying = staying + u32(index(rank) < groups and (found[1] // GONE >> rank) % 2 == 0)
        if done.atomic_add(number, LEFT) // LEFT + 1 == staying:
            done.atomic_store(number, 0)

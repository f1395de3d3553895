"""A product of several ranks (GPUs of one process group): rows of A that others send, or sums that belong to others.

A, C and what is sent are batches of one matrix a rank, its *shard*. Each rank begins with the shard that it need not
wait for. A flag is a word that its sender sets to the number of the call, the *epoch*, behind what it has sent; flags
of a call are no others' before every rank has come to the next one.

- Rows are gathered: a rank begins with its own shard of A, which is an argument of its own, and waits for the rows of
  each other one before it loads them.
- Sums are scattered: a rank begins with the shard of C that belongs to the next rank. The sums of few tiles its threads
  store in the memory of that rank; those of many in its own, and when all tiles of a part of the shard are there, a
  copy engine sends it. Its own shard comes last: to its sums it adds those of the others, from the next rank on in
  turn. All ranks have sent before they wait, so none waits for ever, and the bits do not depend on who comes when.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Fragment,
    Place,
    WorkItem,
    assert_,
    barrier,
    cdiv,
    f32,
    fragment,
    i32,
    index,
    minimum,
    ptx,
    tile,
    tile_function,
    tma_load,
    u32,
    unroll,
)
from tiledsl.gemm.hopper_tiles import as_stored
from tiledsl.gemm.split_k import part_count, part_item, thread_of
from tiledsl.lang.schedules import unwrapped

__all__ = [
    "BYTES",
    "add_sums",
    "in_first_matrix",
    "load_gathered",
    "of_ranks",
    "require_came",
    "send_sums",
    "shard_count",
    "shard_item",
    "wait_for",
]

BYTES = 16
"""Of a vector of a thread."""
AT_ONCE = 16
"""Vectors that a thread loads before it adds the first."""


@unwrapped
def shard_count(
    place: Place, m: Any, n: Any, k: Any, sizes: Any, band: Any, batches: Any, parts: int, groups: Any, first: Any
) -> Any:
    """As `part_count`."""
    return part_count(place, m, n, k, sizes, band, batches, parts, groups)


@unwrapped
def shard_item(
    i: Any,
    place: Place,
    m: Any,
    n: Any,
    k: Any,
    sizes: Any,
    band: Any,
    batches: Any,
    parts: int,
    groups: Any,
    first: Any,
) -> Any:
    """As `part_item`, but the shards come from number `first` on in turn.

    slot: as `number`, within its shard.
    """
    each = part_count(place, m, n, k, sizes, band, 1, parts, groups)
    shard, number = i // each, i % each
    t = part_item(number, place, m, n, k, sizes, band, 1, parts, groups)
    return WorkItem(
        m=t.m,
        n=t.n,
        k=t.k,
        batch=(shard + first) % batches,
        slot=t.number,
        first=t.first,
        part=t.part,
        at_m=t.at_m,
        along_m=t.along_m,
    )


@tile_function
def in_first_matrix(t: Any) -> Any:
    """The item, as that of a result which is the rank's own shard alone."""
    return WorkItem(m=t.m, n=t.n, k=t.k, batch=0)


@tile_function
def wait_for(arrived: Any, rank: index, place: index, call: Any) -> None:
    """One thread waits until `rank` has set its flag number `place`.

    call: the rank of this GPU, the number of ranks, the epoch, and how often a flag is asked for before the rank counts
    as dead.
    """
    _, _, epoch, patience = call
    ranks: int = call[1]
    asked = u32(0)
    while arrived.atomic_load(rank, place, order="acquire", scope="sys") != epoch and asked < patience:
        asked = asked + u32(1)
    for other in unroll(ranks):
        require_came((asked == patience) & (rank == other), other)


@tile_function
def require_came(late: Any, rank: int) -> None:
    """Ends the kernel with an error that names the rank, if it is late."""
    assert_(not late, f"rank {rank} of the group did not come to this product in time: has its process ended?")


@tile_function
def of_ranks(of_call: Any, ranks: int) -> Any:
    """What functions here get as `call`: the rank, how many there are, the number of the call, and how often a flag is
    asked for before a rank counts as dead."""
    if not ranks or of_call is None:
        return None
    return index(minimum(of_call[0], ranks - 1)), ranks, of_call[1], of_call[2]


@tile_function
def load_steps(ring: Any, t: Any, rows: Any, B: Any, width: int) -> None:
    """Loads an item's operands, of these rows of A."""
    for k in t.k:
        with ring.fill() as s:
            tma_load(as_stored(rows[t.m, k]), s.a, multicast="n")
            tma_load(as_stored(B[t.batch, k, tile(0, width) + t.n.start]), s.b, multicast="m")


@tile_function
def load_gathered(ring: Any, t: Any, operands: Any, width: int, arrived: Any, call: Any, last: i32) -> i32:
    """Loads an item's operands, when its rows have come. operands: A, with the rows of the other ranks, those of this
    rank, and B, of whose columns `width` are staged. last, and what is given: as of `await_rows`."""
    A, own_rows, B = operands
    place = await_rows(t, A.shape[1], arrived, call, last)
    if t.batch == call[0]:
        load_steps(ring, t, own_rows, B, width)
    else:
        load_steps(ring, t, A[t.batch, :, :], B, width)
    return place


@tile_function
def await_rows(t: Any, rows: index, arrived: Any, call: Any, last: i32) -> i32:
    """Waits, if the item's rows of A are of another rank, until these have come. Gives the place of their flag.

    rows: of a shard. arrived: flags of parts of the rows of each shard, [ranks, parts]. last: the place before.
    """
    own, _, _, _ = call
    parts = arrived.shape[1]
    part = (minimum(t.m.start + t.m.size, rows) - 1) // cdiv(rows, parts)
    place = i32(t.batch * parts + part)
    if t.batch != own and place != last:
        wait_for(arrived, t.batch, part, call)
        ptx.fence_proxy_async("global")
    return place


@tile_function
def send_sums(x: Fragment[Any], t: Any, sent: Any, signals: Any, counts: Any, call: Any) -> None:
    """Stores the sums of another rank's item in `sent`, each thread in vectors, from where `add_sums` takes them.

    Without counts, `sent` is in the memory of that rank, which is told of each item. With them, it is in that of this
    rank, and whoever has stored the last item of a part signals that the part may be copied.
    """
    thread, threads, held = thread_of(x), x.layout.threads, x.registers()
    wide: int = BYTES // sent.dtype.bytes
    for i in unroll(held.shape[0] // wide):
        sent.store(t.batch, t.slot, (i * threads + thread) * wide, held[i * wide : i * wide + wide].to(sent.dtype))
    if counts is None:
        signal(signals, t.batch, t.slot, thread, call)
    else:
        count_in_part(signals, counts, t, sent.shape[1], thread, call)


@tile_function
def count_in_part(signals: Any, counts: Any, t: Any, slots: index, thread: index, call: Any) -> None:
    """Counts an item whose sums all threads have stored, among those of its part, which are `slots` / parts."""
    each: index = cdiv(slots, counts.shape[1])
    part: index = t.slot // each
    barrier()
    if thread == 0:
        before = counts.atomic_add(t.batch, part, 1, order="acq_rel")
        if before + 1 == u32(minimum(each, slots - part * each)):
            counts[t.batch, part] = 0  # for the next call
            signals.atomic_store(t.batch, part, call[2], order="release", scope="sys")


@tile_function
def signal(signals: Any, rank: index, slot: index, thread: index, call: Any) -> None:
    """Lets a rank know that what all threads have stored for one of its tiles is there."""
    barrier()
    if thread == 0:
        signals.atomic_store(rank, slot, call[2], order="release", scope="sys")


@tile_function
def add_sums(x: Fragment[Any], received: Any, arrived: Any, t: Any, call: Any) -> Fragment[Any]:
    """x, and what the other ranks have sent for this item, from the next rank on in turn.

    received, arrived: what the others have sent, and flags of its parts, [ranks, parts].
    """
    own: index = call[0]
    ranks: int = call[1]
    thread, threads, total = thread_of(x), x.layout.threads, x.registers()
    wide = BYTES // received.dtype.bytes
    if thread < ranks - 1:
        slots: index = received.shape[1]
        part: index = t.slot // cdiv(slots, arrived.shape[1])
        wait_for(arrived, (own + 1 + thread) % ranks, part, call)
    barrier()
    count = total.shape[0] // wide
    each = max(n for n in range(1, AT_ONCE + 1) if count % n == 0)
    for i in range(1, ranks):
        rank = (own + i) % ranks
        for first in unroll(0, count, each):
            places = [((first + j) * threads + thread) * wide for j in range(each)]
            found = [received.load(rank, t.slot, at, vec=BYTES) for at in places]
            for j in unroll(each):
                at = (first + j) * wide
                total[at : at + wide] = total[at : at + wide] + found[j].to(f32)
    return fragment(x.shape, x.dtype, x.layout, init=total)

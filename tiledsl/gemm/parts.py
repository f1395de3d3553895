"""CTAs that have parts of the same sums: how they meet, and add these up.

Each stores its part in a workspace and comes to a meeting, whose place is a word in memory. The last ones to come wait
for all, and each of them adds up a share, over the parts in their order: so the bits do not depend on who comes when.
Nobody waits long for a CTA that may not have started: the last one to come does the work of those that are gone.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Fragment,
    View,
    barrier,
    boolean,
    f32,
    fragment,
    index,
    minimum,
    tile_function,
    u32,
    unroll,
    where,
)

__all__ = [
    "MOST_PARTS",
    "QUAD",
    "SHARES",
    "as_quads",
    "is_own",
    "leave",
    "meet",
    "of_quads",
    "shares",
    "store_part",
    "sum_of_parts",
    "vectors_of_piece",
]

QUAD = 4
"""Elements of a vector."""
AT_ONCE = 32
"""Vectors that a thread loads before it adds the first."""
ASKS = 8
"""How often a CTA asks whether all have come, which takes some 0.7 us each time, before it goes."""
GONE, MOST_PARTS = 1 << 10, 1023
"""What is added to the word of a meeting: 1 when a CTA comes, GONE << its rank when it goes without waiting for all.
The last one to come makes it zero in the end."""
SHARES = 22
"""As many as GONE << rank has bits for."""
NOBODY = MOST_PARTS
"""No rank."""


def vectors_of_piece(vectors: int, parts: int) -> int:
    """Of so many vectors of a thread: as many as can be if each of the parts gets a piece, and a thread loads those of
    all parts at once."""
    most = max(1, min(vectors, AT_ONCE) // parts)
    return max(n for n in range(1, most + 1) if vectors % n == 0)


@tile_function
def shares(parts: index, pieces: int) -> index:
    """How many of the CTAs add up pieces."""
    return minimum(parts, min(pieces, SHARES))


@tile_function
def store_part(x: Fragment[Any], sums: Any, part: index, number: index, thread: index, threads: int) -> None:
    """Stores what a thread has of the sums.

    x: whole vectors. sums: workspace of f32, [parts, meetings, elements]. number: of the meeting. threads: that have
    some each, of which this is number `thread`.
    """
    quads = as_quads(x)
    for i in unroll(len(quads)):
        sums.store(part, number, (i * threads + thread) * QUAD, quads[i])


@tile_function
def meet(done: Any, number: index, parts: index, pieces: int, found: View[u32], thread: index) -> None:
    """When all threads have stored their sums: comes, and waits for the others if there is a share for this CTA.

    done: words that are zero before and after, one for each meeting. number: of this meeting. parts: CTAs that come,
    MOST_PARTS at most. pieces: of the sums. found: two words, for `is_own` and `leave`: the rank of this CTA, 0 for
    the last to come, or NOBODY if it has no share or is gone; and the word of the meeting. thread: of those that meet.
    """
    barrier()
    if thread == 0:
        word = done.atomic_add(number, 1, order="acq_rel") + 1
        order, asked = word % GONE, index(0)
        rank = u32(parts) - order
        stays = index(rank) < shares(parts, pieces)
        # When all have come, the last one makes the word zero.
        while stays and word % GONE >= order and index(word % GONE) < parts:
            if asked < ASKS:
                word, asked = done.atomic_load(number, order="acquire"), asked + 1
            else:  # unless the last one has come meanwhile
                old = done.atomic_cas(number, word, word + (GONE << rank), order="acquire")
                stays, word = old != word, old
        found[0], found[1] = where(stays, rank, NOBODY), word
    barrier()


@tile_function
def is_own(share: index | int, found: View[u32]) -> boolean:
    """Whether the share of this rank is for this CTA: its own, or as the last one to come that of a CTA that is
    gone."""
    rank, word = found[0], found[1]
    return u32(share) == rank or (rank == 0 and (word // GONE >> u32(share)) % 2 == 1)


@tile_function
def leave(done: Any, number: index, found: View[u32], thread: index) -> None:
    """Ends a meeting. Others that ask for the word see by the zero that all have come."""
    if thread == 0 and found[0] == 0:
        done.atomic_store(number, 0, order="release")


@tile_function
def sum_of_parts(
    sums: Any, number: index, gather: int, first: index, thread: index, threads: int, like: Fragment[Any]
) -> Fragment[Any]:
    """The sum over the parts of what a thread stored from vector `first` on, a fragment like `like`.

    gather: how many parts are loaded before the first is added, if a thread has registers; best a divisor of their
    number, or all of them. Others as of `store_part`.
    """
    parts, total = sums.shape[0], fragment(like.shape, like.dtype)
    at_once = max(1, min(gather, AT_ONCE // (like.shape[0] // QUAD)))
    # Without conditions: ptxas would wait for each load before it begins the next, to choose between it and zero.
    rest = parts % at_once
    for part in range(0, parts - rest, at_once):
        more = [_load(sums, part + i, number, first, thread, threads, like) for i in range(at_once)]
        for i in unroll(at_once):
            total = total + more[i]
    for part in range(parts - rest, parts):
        total = total + _load(sums, part, number, first, thread, threads, like)
    return total


@tile_function
def _load(
    sums: Any, part: index | int, number: index, first: index, thread: index, threads: int, like: Fragment[Any]
) -> Fragment[Any]:
    at = [((first + i) * threads + thread) * QUAD for i in range(like.shape[0] // QUAD)]
    return of_quads([sums.load(part, number, each, vec=QUAD * 4) for each in at], like)


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

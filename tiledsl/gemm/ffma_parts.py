"""Products whose k is split within one launch, for kernels whose threads hold their sums in registers.

The first `whole` tiles of the result have one CTA each, the others `parts` CTAs, each with a part of k: so the last
wave of a large product is shared by all SMs, and a product of few tiles has enough CTAs. Parts are whole numbers of BK
that differ by one at most. Each CTA of such a tile stores its sums in a workspace and waits a while for the others.
When all have come, those that are still there take pieces of the tile in turn, and add each up over the parts, in their
order. So the bits depend on the shapes and the arguments alone. Nobody waits long for a CTA that may not have started:
the last one to come takes what is left.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Fragment,
    barrier,
    boolean,
    f32,
    fragment,
    index,
    minimum,
    tile_function,
    unroll,
    where,
)
from tiledsl.lang.schedules import cdiv_any, unwrapped

__all__ = ["blocks", "leave", "meet", "part_of", "placed", "sum_of_parts", "take"]

QUAD = 4
"""Elements of a vector of 16 bytes."""
IN_FLIGHT = 16
"""Vectors that a thread loads before it adds the first."""
ASKS = 8
"""How often a CTA asks whether all parts of its tile have come, which takes some 0.7 us, before it goes on."""
TAKEN, LEFT = 1 << 10, 1 << 20
"""What is added to the word of a tile in `done` when a CTA takes a piece, and when it leaves; when it comes, 1."""


@unwrapped
def blocks(count: Any, whole: Any, parts: Any) -> Any:
    """CTAs of `count` tiles."""
    return min(whole, count) + max(count - whole, 0) * parts


@unwrapped
def placed(block: Any, count: Any, whole: Any, parts: Any) -> Any:
    """The tile of a CTA, and its part of k. Those of one tile are neighbours, so that they run at the same time."""
    rest = max(block - whole, 0)
    return min(min(block, whole) + rest // parts, count - 1), rest % parts


@unwrapped
def part_of(depth: Any, bk: int, part: Any, parts: Any) -> Any:
    """Where part number `part` of k begins and ends."""
    steps = cdiv_any(depth, bk)
    # The first minimum says no more than the interval analysis needs: a part begins inside k.
    return min(part * steps // parts, depth // bk) * bk, min((part + 1) * steps // parts * bk, depth)


@tile_function
def meet(
    x: Fragment[f32],
    sums: Any,
    done: Any,
    found: Any,
    number: index,
    part: index,
    parts: index,
    t: index,
    size: int,
) -> boolean:
    """Stores the sums x of this part, and waits a while for those of the others. Whether all have come.

    x: whole vectors. sums: a row for each part of each tile. done: a zero for each tile. found: room for a number.
    number: of the tile among those with parts. t: this thread; the first `size` have a part of the tile.
    """
    if t < size:
        for v in unroll(x.shape[0] // QUAD):
            sums.store(number * parts + part, (t + v * size) * QUAD, x[QUAD * v : QUAD * v + QUAD])
    barrier()
    if t == 0:
        came = done.atomic_add(number, 1, order="acq_rel") % TAKEN + 1
        asked = index(0)
        while index(came) < parts and asked < ASKS:
            came = done.atomic_load(number, order="acquire") % TAKEN
            asked = asked + 1
        found[0] = came
    barrier()
    return index(found[0]) == parts


@tile_function
def take(done: Any, found: Any, number: index, t: index) -> index:
    """The next piece of a tile that nobody has taken."""
    barrier()
    if t == 0:
        found[0] = done.atomic_add(number, TAKEN, order="acquire")
    barrier()
    return index(found[0] % LEFT // TAKEN)  # here, so that it is seen to fit in 32 bits


@tile_function
def leave(done: Any, number: index, parts: index, t: index) -> None:
    """What a CTA does last; with the last one of a tile, its word is zero again."""
    if t == 0:
        old = done.atomic_add(number, LEFT, order="acq_rel")
        if index(old // LEFT) == parts - 1:
            done.atomic_store(number, 0)


@tile_function
def sum_of_parts(sums: Any, number: index, parts: index, v: index, count: int, t: index, size: int) -> Fragment[f32]:
    """Vectors v to v + count - 1 of thread t of tile `number`: the sum of all that `meet` stored."""
    total, ahead = fragment((QUAD * count,), f32), max(IN_FLIGHT // count, 1)
    for p in range(0, parts, ahead):
        rows = [number * parts + minimum(p + i, parts - 1) for i in range(ahead)]
        got = [load(sums, r, v, count, t, size) for r in rows]
        for i in unroll(ahead):
            total = total + where(p + i < parts, got[i], 0)
    return total


@tile_function
def load(sums: Any, row: index, v: index, count: int, t: index, size: int) -> Fragment[f32]:
    """Vectors v to v + count - 1 of what `meet` stored."""
    got = fragment((QUAD * count,), f32)
    for i in unroll(count):
        got[QUAD * i : QUAD * i + QUAD] = sums.load(row, (t + (v + i) * size) * QUAD, vec=16)
    return got

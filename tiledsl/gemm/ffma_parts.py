"""Products whose k is split within one launch, for kernels whose threads hold their sums in registers.

`parts` CTAs share a tile of the result, each with a part of k. Parts are whole numbers of BK that differ by one at
most. Each CTA stores its sums in a workspace; the last one of `fold` neighbouring parts adds them up in order, and
the last of those CTAs adds up their sums in order. So the bits depend on the shapes and the arguments alone, and nobody
waits for a CTA that may not have started.
"""

from __future__ import annotations

from typing import Any

from tiledsl import (
    Fragment,
    Global,
    SharedTile,
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
from tiledsl.dims import H, J, P
from tiledsl.lang.schedules import cdiv_any, unwrapped

__all__ = ["add_parts", "part_of"]

QUAD = 4
"""Elements of a vector of 16 bytes."""
IN_FLIGHT = 16
"""Vectors that a thread loads before it adds the first."""
FEW = 4
"""Vectors of the result that a thread adds up at a time, so that registers suffice for those in flight."""


@unwrapped
def part_of(depth: Any, bk: int, part: Any, parts: Any) -> Any:
    """Where part number `part` of k begins and ends."""
    steps = cdiv_any(depth, bk)
    # The first minimum says no more than the interval analysis needs: a part begins inside k.
    return min(part * steps // parts, depth // bk) * bk, min((part + 1) * steps // parts * bk, depth)


@tile_function
def add_parts(
    x: Fragment[f32],
    sums: Any,
    done: Any,
    found: Any,
    number: index,
    part: index,
    parts: index,
    fold: index,
    t: index,
    size: int,
) -> tuple[Fragment[f32], boolean]:
    """The sum of all parts' x, and whether this CTA has it: the last one to arrive.

    x: whole vectors. sums: a row for each part of each tile. done: cdiv(parts, fold) + 1 zeros for each tile, which are
    zero again at the end. found: room for a number. number: of the tile. t: this thread; the first `size` have a part
    of the tile.
    """
    own, first, ahead, groups, members, counters = rows_of(number, part, parts, fold)
    if t < size:
        save(x, sums, own, t, size)
    last = arrive(done, found, counters + part // fold, members, t)
    if last:
        if t < size:
            x = add_up(x, sums, ahead, 1, members, t, size)
            if groups > 1:
                save(x, sums, ahead, t, size)
        if groups > 1:
            last = arrive(done, found, counters + groups, groups, t)
            if last and t < size:
                x = add_up(x, sums, first, fold, groups, t, size)
    return x, last


@unwrapped
def rows_of(number: Any, part: Any, parts: Any, fold: Any) -> Any:
    """Of tile `number`: the row of this part, of the first part, and of the first one of this part's group; how many
    groups there are, how many parts this one has; the first counter."""
    groups, begin = cdiv_any(parts, fold), part // fold * fold
    first = number * parts
    return first + part, first, first + begin, groups, max(min(fold, parts - begin), 0), number * (groups + 1)


@tile_function
def arrive(done: Global[u32, H], found: SharedTile[u32], at: index, count: index, t: index) -> boolean:
    """Whether this CTA is the last of `count` to arrive at counter `at`. Then it sees what the others have stored."""
    barrier()
    if t == 0:
        before = done.atomic_add(at, 1, order="acq_rel")
        if index(before) == count - 1:
            done.atomic_store(at, 0)
        found[0] = before
    barrier()
    return index(found[0]) == count - 1


@tile_function
def save(x: Fragment[f32], sums: Global[f32, P, J], row: index, t: index, size: int) -> None:
    """Neighbouring threads store neighbouring vectors."""
    for v in unroll(x.shape[0] // QUAD):
        sums.store(row, (t + v * size) * QUAD, x[QUAD * v : QUAD * v + QUAD])


@tile_function
def add_up(
    x: Fragment[f32], sums: Global[f32, P, J], row: index, step: index | int, count: index, t: index, size: int
) -> Fragment[f32]:
    """The sum of `count` rows that `save` stored, of x's shape: row, row + step and so on."""
    total, few = fragment(x.shape, f32), min(x.shape[0], QUAD * FEW)
    ahead = max(IN_FLIGHT * QUAD // few, 1)
    for v in unroll(0, x.shape[0], few):
        some = fragment((few,), f32)
        for p in range(0, count, ahead):
            rows = [row + minimum(p + i, count - 1) * step for i in range(ahead)]
            got = [load(some, sums, r, t + v // QUAD * size, size) for r in rows]
            for i in unroll(ahead):
                some = some + where(p + i < count, got[i], 0)
        total[v : v + few] = some
    return total


@tile_function
def load(x: Fragment[f32], sums: Global[f32, P, J], row: index, t: index, size: int) -> Fragment[f32]:
    """What `save` stored."""
    got = fragment(x.shape, f32)
    for v in unroll(x.shape[0] // QUAD):
        got[QUAD * v : QUAD * v + QUAD] = sums.load(row, (t + v * size) * QUAD, vec=16)
    return got

"""Sums in f32 of what tensor cores add up for a step of k: scaled by blocks or not, or of planes of f32.

Block scales: A has an f32 factor for each row and each 128 of k, B one for each 128 of k and each 128 columns. wgmma
adds up the products of a block of k, from zero, and for each element

    sum = fma(partial, scale of A * scale of B, sum),

one block after the other, from zero; both operations round to nearest even in f32. So what is not finite does what the
arithmetic says: 0 times infinity is NaN.

Each warp of the accumulators copies the scales of its rows of A to shared memory of its own, by cp.async, AHEAD blocks
before they are due, in whatever order they are in memory. Loads to registers would be no earlier than in the same step:
ptxas moves them there. By TMA, each thread would need a proxy fence in each step before the next copy. Of B, whose few
scales stay in L1, such loads are early enough.

Sums and products of a tile of 128 x 256 have 256 registers a thread. Such a tile is multiplied one half of its columns
after the other, so that only half of the products are there at once; the second half of B has a ring of its own, whose
slots are free as soon as they can be. With scales, a warpgroup adds about as long as it multiplies half a tile: one of
the two starts half a step late, at every tile, so that they take turns.

Planes (`planes.py`): of a step, wgmma adds up the products of those pairs of planes that count, from zero, the smallest
first; so each of the few truncations of the sum of the large ones is of a sum over one step only. Scales of rows and
columns are powers of two, and their product may overflow where the result does not: the smaller one comes first.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from tiledsl import (
    Dim,
    Fragment,
    Global,
    Memory,
    SharedTile,
    WorkItem,
    coordinates,
    f32,
    fragment,
    index,
    lane_id,
    maximum,
    minimum,
    ptx,
    row_major,
    shared,
    syncwarp,
    tile_function,
    unroll,
    vote_all,
    warp_id,
    wgmma,
    where,
)
from tiledsl.dims import L, M
from tiledsl.gemm.formats import BLOCK
from tiledsl.gemm.hopper_tiles import matrix

__all__ = ["ROOM_OF_SCALES", "KBlocks", "NBlocks", "blocks_across", "of_planes", "promoted", "room_of_scales"]


class KBlocks(Dim):
    """Blocks along k."""


class NBlocks(Dim):
    """Blocks of columns of B."""


AHEAD = 3
"""Blocks of k. A copy from memory takes about as long as two."""
SLOTS = (AHEAD + 1, 8, 32)
"""Of scales of A in shared memory: by block, warp of the accumulators and lane, of which each copies one. A warp has 16
rows, and copies those of 32: a branch between products and the wait for them makes ptxas issue one more, an empty one.
"""
ROOM_OF_SCALES = 4 * prod(SLOTS)
"""Bytes of that."""
SKEWED = 15
"""The named barrier at which the lower warpgroup waits for the upper one. Roles take theirs from 1 on."""
PANEL = 8
"""Columns of an accumulator of which a thread has two in each of its rows, and the next eight behind them."""


def blocks_across(columns: int) -> int:
    """Into how many blocks of B's columns a tile of so many may reach, which begins at a multiple of its width."""
    return (BLOCK - gcd(columns, BLOCK) + columns - 1) // BLOCK + 1


@tile_function
def promoted(
    ring: Any,
    t: WorkItem,
    A: Memory[Any],
    B: Memory[Any],
    shape: tuple[int, int],
    scales: Any,
    group: index,
    right: Any = None,
) -> Fragment[f32]:
    """The product of the tiles of item t in a ring: those of a step are multiplied by wgmma, and the products added in
    f32. One warpgroup adds while others multiply. scales: None, or of A, of B, and `room_of_scales`. group: the matrix
    of B. right: None, or a ring of the right half of B's columns, which are multiplied once those of the left half are
    added: sums and products of so many columns do not fit into the registers together.

    With scales, two halves and two warpgroups, the lower one starts when the upper one has added its first half. From
    then on one multiplies while the other adds; without that both would wait for the tensor cores at the same time.
    """
    total = wgmma.accumulator(shape, f32).wait()
    assert right is None or total.layout.threads == 256, (
        f"two halves of columns are for two warpgroups that share a tile: make INSTANCES 1, and BM 128, not {shape[0]}"
    )
    width: int = shape[1] if right is None else shape[1] // 2
    sums: list[Any] = [total if right is None else total.columns(i, width) for i in range(0, shape[1], width)]
    given: Any = scales if scales is not None else (None, None, None)
    scale_a, scale_b, room = given
    row: Any = first_row(total) + t.m.start if scales is not None else 0
    lower: Any = None
    if scales is not None:
        assert scale_a is not None and scale_b is not None, "SCALED needs what it scales by: pass scale_a and scale_b"
        syncwarp()  # the item before has been scaled
        for i in unroll(AHEAD):
            copy_scales(scale_a, room, t, row, index(t.first) // BLOCK + i)
        if right is not None:
            # The lanes of a warp agree anyhow; by the vote, the condition of the barriers is known to be uniform.
            lower = vote_all(row >= t.m.start + shape[0] // 2)
            if lower and scale_a.shape[2] > 0:  # in the loop it costs 4%: ptxas then moves what belongs to the products
                ptx.named_barrier(SKEWED, threads=256)
    for k in t.k:
        assert scales is None or k.size % BLOCK == 0, (
            f"a scale is of {BLOCK} elements of k, and a step has {k.size}: make BK {BLOCK}"
        )
        count: int = 1 if scales is None else k.size // BLOCK
        assert right is None or count == 1, f"two halves are of one block of k, and a step has {count}: make BK {BLOCK}"
        depth: int = k.size // count
        block = k.start // BLOCK
        products: list[Any] = []
        factors: list[Any] = [None for _ in range(count * len(sums))]
        with ring.use() as s:
            for i in unroll(count):
                a, b = matrix(s.a, A)[:, i * depth : (i + 1) * depth], matrix(s.b, B)[i * depth : (i + 1) * depth, :]
                products.append(wgmma(a, b[:, :width], wgmma.accumulator((shape[0], width), f32)))
            if scales is not None:
                for i in unroll(count):
                    ptx.wait_group(AHEAD - 1)
                    syncwarp()  # they have arrived for all lanes, and those of the block before have been read
                    copy_scales(scale_a, room, t, row, block + i + AHEAD)
                    for j in unroll(len(sums)):
                        at = i * len(sums) + j
                        factors[at] = of_elements(sums[j], room, scale_b, t, group, block + i, j * width)
            if right is not None:
                sums[0] = before_the_next(added(sums[0], products[0].wait(), factors[0]))
                if scales is not None and block == 0 and not lower:
                    ptx.named_barrier(SKEWED, threads=256, wait=False)
                with right.use() as to:
                    products[0] = wgmma(matrix(s.a, A), matrix(to.b, B), wgmma.accumulator((shape[0], width), f32))
        for i in unroll(count):
            partial = products[i].wait()
            if i == 0 or block + i < scale_a.shape[2]:  # not 0 times a scale that is not there
                sums[-1] = added(sums[-1], partial, factors[(i + 1) * len(sums) - 1])
    if scales is not None:
        ptx.wait_group(0)
    return sums[0] if right is None else beside(sums[0], sums[1])


@tile_function
def added(total: Fragment[f32], product: Fragment[f32], factor: Any) -> Fragment[f32]:
    return total + product if factor is None else product * factor + total


def _same(x: Any) -> Any:
    return x


@tile_function
def before_the_next(x: Fragment[f32]) -> Fragment[f32]:
    """x, computed before the next product begins: ptxas would put it off, and both products would need registers."""
    made = x.registers()
    for i in unroll(made.shape[0]):
        made[i] = ptx.inline(
            "mov.b32 $0, $1;", f32, made[i], volatile=True, memory="nothing", uniform="operands", emulate=_same
        )
    return fragment(x.shape, f32, x.layout, init=made)


@tile_function
def beside(left: Fragment[f32], right: Fragment[f32]) -> Fragment[f32]:
    """The columns of both, of as many rows, as one accumulator."""
    count: int = left.registers().shape[0]
    made = fragment((2 * count,), f32)
    made[:count], made[count:] = left.registers(), right.registers()
    return fragment((left.shape[0], 2 * left.shape[1]), f32, left.layout, init=made)


@tile_function
def of_planes(
    ring: Any,
    t: WorkItem,
    A: Memory[Any],
    B: Memory[Any],
    shape: tuple[int, int],
    planes: int,
    exchanged: bool,
    scales: Any,
) -> Fragment[f32]:
    """The same of f32 in so many planes, with the same bits if A and B are exchanged. scales: (None, None), or those of
    the rows of A and of the columns of B."""
    total = wgmma.accumulator(shape, f32).wait()
    for k in t.k:
        product: Any = wgmma.accumulator(shape, f32)
        with ring.use() as s:
            a, b, depth = matrix(s.a, A), matrix(s.b, B), k.size // planes
            for size in unroll(planes):
                for of_a in unroll(planes - size):
                    of_b = planes - 1 - size - of_a
                    i, j = (of_b, of_a) if exchanged else (of_a, of_b)
                    x, y = a[:, i * depth : (i + 1) * depth], b[j * depth : (j + 1) * depth, : shape[1]]
                    product = wgmma(x, y, product)
        total = total + product.wait()
    scale_a, scale_b = scales
    if scale_a is None:
        return total
    row, column = coordinates(total)
    x, y = scale_a.get(t.batch, t.m.start + row, 0), scale_b.get(t.batch, 0, t.n.start + column)
    return total * minimum(x, y) * maximum(x, y)


@tile_function
def room_of_scales() -> SharedTile[f32]:
    return shared(SLOTS, f32, layout=row_major)


@tile_function
def first_row(x: Fragment[f32]) -> index:
    """Of the rows of this warp, in the tile."""
    rows = coordinates(x.columns(0, PANEL))[0].registers()
    assert rows.shape[0] == 4, f"a warp has {4 * rows.shape[0]} rows: tiles are of 128 for two warpgroups, 64 for one"
    return rows[0] - lane_id() // 4


@tile_function
def copy_scales(scale_a: Global[f32, L, M, KBlocks], room: SharedTile[f32], t: WorkItem, row: index, block: index):
    """Starts to copy the scales of a block of k, a group of copies. Past the edge there are zeros."""
    at = block % SLOTS[0], warp_id() % SLOTS[1], lane_id()
    ptx.cp_async(room, at, scale_a, (t.batch, row + lane_id(), block), bytes=4)
    ptx.commit_group()


@tile_function
def of_elements(
    x: Fragment[f32],
    room: SharedTile[f32],
    scale_b: Global[f32, L, KBlocks, NBlocks],
    t: WorkItem,
    group: index,
    block: index,
    begin: int = 0,
) -> Fragment[f32]:
    """What each element of x is scaled by in this block of k. begin: the tile's column where x begins."""
    columns, first, last = x.shape[1], t.n.start + begin, scale_b.shape[2] - 1
    step, own = gcd(columns, BLOCK), (block % SLOTS[0], warp_id() % SLOTS[1], lane_id() // 4)
    of_a = [room[own], room[own[0], own[1], own[2] + 8]]
    block = minimum(block, scale_b.shape[1] - 1)
    of_b = [scale_b[group, block, minimum(first // BLOCK + i, last)] for i in range(blocks_across(columns))]
    made = fragment(x.registers().shape, f32)
    for column in unroll(0, columns, step):
        if columns % BLOCK == 0:
            factor = of_b[column // BLOCK]
        else:
            factor = of_b[0]
            for i in unroll(1, len(of_b)):
                factor = where(first % BLOCK + column >= i * BLOCK, of_b[i], factor)
        for panel in unroll(column // PANEL, (column + step) // PANEL):
            for i in unroll(4):
                made[4 * panel + i] = of_a[i // 2] * factor
    return fragment(x.shape, f32, x.layout, init=made)

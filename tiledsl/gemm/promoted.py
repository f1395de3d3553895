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
LATE, LOWER = 15, 2
"""A named barrier; and the warpgroup that waits for it, which has the lower rows of a tile."""
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
    behind: Any = None,
) -> Fragment[f32]:
    """The product of the tiles of item t in a ring: those of a step are multiplied by wgmma, and the products added in
    f32. One warpgroup adds while others multiply. scales: None, or of A, of B, and `room_of_scales`. group: the matrix
    of B. behind: None, or a ring of the right half of B's columns."""
    if behind is not None:
        return in_halves(ring, behind, t, A, B, shape, scales, group)
    total = wgmma.accumulator(shape, f32).wait()
    if scales is None:
        for _ in t.k:
            with ring.use() as s:
                product = wgmma(matrix(s.a, A), matrix(s.b, B)[:, : shape[1]], wgmma.accumulator(shape, f32))
            total = total + product.wait()
        return total
    scale_a, scale_b, room = scales
    row = first_row(total) + t.m.start
    begin_scales(scales, t, row)
    for k in t.k:
        assert k.size % BLOCK == 0, f"a scale is of {BLOCK} elements of k, and a step has {k.size}: make BK {BLOCK}"
        block = k.start // BLOCK
        products: list[Any] = []
        factors: list[Any] = []
        with ring.use() as s:
            for i in unroll(k.size // BLOCK):
                a, b = matrix(s.a, A)[:, i * BLOCK : (i + 1) * BLOCK], matrix(s.b, B)[i * BLOCK : (i + 1) * BLOCK, :]
                products.append(wgmma(a, b[:, : shape[1]], wgmma.accumulator(shape, f32)))
            for i in unroll(k.size // BLOCK):
                next_scales(scales, t, row, block + i)
                factors.append(of_elements(total, room, scale_b, t, group, block + i))
        for i in unroll(k.size // BLOCK):
            partial = products[i].wait()
            if i == 0 or block + i < scale_a.shape[2]:  # not 0 times a scale that is not there
                total = partial * factors[i] + total
    ptx.wait_group(0)
    return total


@tile_function
def in_halves(
    ring: Any,
    behind: Any,
    t: WorkItem,
    A: Memory[Any],
    B: Memory[Any],
    shape: tuple[int, int],
    scales: Any,
    group: index,
) -> Fragment[f32]:
    """What `promoted` returns, of a tile whose sums and products do not fit into the registers together. B's columns
    are multiplied one half after the other, the second one from the ring `behind`. With scales the warpgroup of the
    lower rows begins a product late, so that one warpgroup adds while the other one multiplies.

    Apart from `promoted`: with one loop for both, ptxas orders the loop so that products with scales are 5% slower."""
    half: int = shape[1] // 2
    total = wgmma.accumulator(shape, f32).wait()
    assert total.layout.threads == 256, (
        f"two halves of columns are for two warpgroups that share a tile: make INSTANCES 1, and BM 128, not {shape[0]}"
    )
    sums = [total.columns(0, half), total.columns(half, half)]
    given: Any = scales if scales is not None else (None, None, None)
    scale_a, scale_b, room = given
    row = first_row(total) + t.m.start
    late = warp_id() // 4 == LOWER
    if scales is not None:
        begin_scales(scales, t, row)
        # In the loop it costs 4%.
        if late and scale_a.shape[2] > 0:
            ptx.named_barrier(LATE, threads=256)
    for k in t.k:
        block = k.start // BLOCK
        factors: list[Any] = [None, None]
        with ring.use() as s:
            a = matrix(s.a, A)
            product = wgmma(a, matrix(s.b, B), wgmma.accumulator((shape[0], half), f32))
            if scales is not None:
                assert k.size == BLOCK, (
                    f"two halves are of {BLOCK} elements of k, and a step has {k.size}: make BK {BLOCK}"
                )
                next_scales(scales, t, row, block)
                factors = [of_elements(sums[j], room, scale_b, t, group, block, j * half) for j in range(2)]
            sums[0] = before_the_next(added(product.wait(), factors[0], sums[0]))
            if scales is not None and block == 0 and not late:
                ptx.named_barrier(LATE, threads=256, wait=False)
            with behind.use() as to:
                product = wgmma(a, matrix(to.b, B), wgmma.accumulator((shape[0], half), f32))
        sums[1] = added(product.wait(), factors[1], sums[1])
    if scales is not None:
        ptx.wait_group(0)
    registers = fragment(total.registers().shape, f32)
    each: int = half // 2
    for j in unroll(2):
        own = sums[j].registers()
        for i in unroll(each):
            registers[j * each + i] = own[i]
    return fragment(shape, f32, total.layout, init=registers)


@tile_function
def added(product: Any, factor: Any, total: Any) -> Any:
    return total + product if factor is None else product * factor + total


def _same(x: Any) -> Any:
    return x


@tile_function
def before_the_next(x: Any) -> Any:
    """x, computed before the next product begins: ptxas would put it off, and both products would need registers."""
    made, own = fragment(x.registers().shape, f32), x.registers()
    for i in unroll(made.shape[0]):
        made[i] = ptx.inline(
            "mov.b32 $0, $1;", f32, own[i], volatile=True, memory="nothing", uniform="operands", emulate=_same
        )
    return fragment(x.shape, f32, x.layout, init=made)


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
def begin_scales(scales: Any, t: WorkItem, row: index):
    """Starts to copy the scales of the first blocks of an item."""
    scale_a, scale_b, room = scales
    assert scale_a is not None and scale_b is not None, "SCALED needs what it scales by: pass scale_a and scale_b"
    syncwarp()  # the item before has been scaled
    for i in unroll(AHEAD):
        copy_scales(scale_a, room, t, row, index(t.first) // BLOCK + i)


@tile_function
def next_scales(scales: Any, t: WorkItem, row: index, block: index):
    """Waits for the scales of this block, and starts to copy those that are AHEAD of it."""
    scale_a, _, room = scales
    ptx.wait_group(AHEAD - 1)
    syncwarp()  # they have arrived for all lanes, and those of the block before have been read
    copy_scales(scale_a, room, t, row, block + AHEAD)


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

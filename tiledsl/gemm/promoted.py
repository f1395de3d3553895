"""Sums in f32 of what tensor cores add up for 128 of k, scaled by blocks or not.

Block scales: A has an f32 factor for each row and each 128 of k, B one for each 128 of k and each 128 columns. wgmma
adds up the products of a block of k, from zero, and for each element

    sum = fma(partial, scale of A * scale of B, sum),

one block after the other, from zero; both operations round to nearest even in f32. So what is not finite does what the
arithmetic says: 0 times infinity is NaN.

A thread of the accumulators needs the scales of its two rows in each 64, and one of B for each 128 columns. It reads
them itself, in whatever order they are in memory, AHEAD steps before they are due. In shared memory they would cost
each thread a fence, and warps a barrier, in each step, before TMA may overwrite them.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from tiledsl import (
    Dim,
    Fragment,
    Global,
    Memory,
    WorkItem,
    coordinates,
    f32,
    fragment,
    index,
    minimum,
    tile_function,
    unroll,
    wgmma,
    where,
)
from tiledsl.dims import L, M
from tiledsl.gemm.formats import BLOCK
from tiledsl.gemm.hopper_tiles import matrix

__all__ = ["KBlocks", "NBlocks", "blocks_across", "promoted"]


class KBlocks(Dim):
    """Blocks along k."""


class NBlocks(Dim):
    """Blocks of columns of B."""


AHEAD = 2
"""Two steps take longer than a load from memory. The loop is unrolled by as many: then scales are loaded to the
registers where they are due, and no move waits for them."""
PANEL = 8
"""Columns of an accumulator of which a thread has two in each of its rows, and the next eight behind them."""


def blocks_across(columns: int) -> int:
    """Into how many blocks of B's columns a tile of so many may reach, which begins at a multiple of its width."""
    return (BLOCK - gcd(columns, BLOCK) + columns - 1) // BLOCK + 1


@tile_function
def promoted(
    ring: Any, t: WorkItem, A: Memory[Any], B: Memory[Any], shape: tuple[int, int], scales: Any
) -> Fragment[f32]:
    """The product of the tiles of item t in a ring: those of a step are multiplied by wgmma, and the products added in
    f32. One warpgroup adds while others multiply. scales: None, or those of A and of B."""
    total = wgmma.accumulator(shape, f32).wait()
    if scales is None:
        for _ in t.k:
            with ring.use() as s:
                product = wgmma(matrix(s.a, A), matrix(s.b, B)[:, : shape[1]], wgmma.accumulator(shape, f32))
            total = total + product.wait()
        return total
    assert scales[0] is not None and scales[1] is not None, "SCALED needs what it scales by: pass scale_a and scale_b"
    rows, first = rows_of(total, t.m.start, scales[0].shape[1]), index(t.first) // BLOCK
    found = scales_of(scales, t, rows, shape[1], first)
    for k in t.k:
        assert k.size == BLOCK, f"a scale is of {BLOCK} elements of k, and a step has {k.size}: make BK {BLOCK}"
        with ring.use() as s:
            product = wgmma(matrix(s.a, A), matrix(s.b, B)[:, : shape[1]], wgmma.accumulator(shape, f32))
        partial = product.wait()
        factors = of_elements(found, total, t.n.start, len(rows))
        found = scales_of(scales, t, rows, shape[1], k.start // BLOCK + 1)
        total = partial * factors + total
    return total


@tile_function
def rows_of(x: Fragment[f32], first: index, extent: index) -> list[index]:
    """The rows of a thread's elements. Instead of one past the edge, the last one."""
    each = coordinates(x.columns(0, PANEL))[0].registers()
    return [minimum(first + each[2 * i], extent - 1) for i in range(each.shape[0] // 2)]


@tile_function
def scales_of(
    scales: tuple[Global[f32, L, M, KBlocks], Global[f32, L, KBlocks, NBlocks]],
    t: WorkItem,
    rows: list[index],
    columns: int,
    block: index,
) -> Fragment[f32]:
    """Of a block of k, or instead of one past the edge the last one: the scales of these rows, and behind them those of
    the blocks of columns."""
    scale_a, scale_b = scales
    across, block = blocks_across(columns), minimum(block, scale_a.shape[2] - 1)
    found = fragment((len(rows) + across,), f32)
    for i in unroll(len(rows)):
        found[i] = scale_a[t.batch, rows[i], block]
    for i in unroll(across):
        found[len(rows) + i] = scale_b[t.batch, block, minimum(t.n.start // BLOCK + i, scale_b.shape[2] - 1)]
    return found


@tile_function
def of_elements(scales: Fragment[f32], x: Fragment[f32], first: index, rows: int) -> Fragment[f32]:
    """The factor of each element of x. scales: of `scales_of`, the first so many of rows. first: column of the tile."""
    columns, across = x.shape[1], scales.shape[0] - rows
    step = gcd(columns, BLOCK)
    made = fragment(x.registers().shape, f32)
    for column in unroll(0, columns, step):
        if columns % BLOCK == 0:
            of_b = scales[rows + column // BLOCK]
        else:
            of_b = scales[rows]
            for i in unroll(1, across):
                of_b = where(first % BLOCK + column >= i * BLOCK, scales[rows + i], of_b)
        for row in unroll(rows):
            factor = scales[row] * of_b
            for panel in unroll(column // PANEL, (column + step) // PANEL):
                at = (row // 2 * (columns // PANEL) + panel) * 4 + row % 2 * 2
                made[at], made[at + 1] = factor, factor
    return fragment(x.shape, f32, x.layout, init=made)

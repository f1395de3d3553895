"""The fp32 kernel's loop for tiles from 4 x 32 elements a warp: operands by cp.async, each in its own order.

Several warps share a tile of the result, each with its slice of every BK. A tile of an operand keeps in shared memory
the order that it has in global memory, so that cp.async can move it in vectors, with several tiles in flight and no
register to hold them. A thread reads four k at once: an operand that is contiguous along k in vectors of four k of one
row or column; the other one in vectors of four rows or columns, once for each k. Either way a vector is 16 bytes, and
all of it is used.

After the loop the sums go through shared memory, where they change from the lanes' order to that of C, and where the
slices of one element are added, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiledsl import (
    Fragment,
    Memory,
    Range,
    SharedTile,
    barrier,
    copy_async,
    f32,
    fma,
    fragment,
    index,
    lane_id,
    minimum,
    outer_fma,
    padded,
    pipelined,
    row_major,
    shared,
    tile_function,
    tiles,
    unroll,
    warp_id,
)

__all__ = ["Sharing", "add_slices", "element", "lane_in", "multiply_staged", "operand_tile", "sharing", "sums_tile"]

QUAD = 4
"""Elements of a vector of 16 bytes; also how many k are multiplied between two loads."""
PADDING = 8
"""Words added to a row of sums, about."""


@dataclass(frozen=True)
class Sharing:
    """How the threads of a CTA share its tile, bm x bn by bk: warps of `rows` x `columns`, and for each such part
    `slices` of them, each with its slice of bk.

    lanes: of a warp along M, and along N. A lane has every lanes[0]-th row (or, if A is not contiguous along k, run of
    four rows), and the columns likewise.
    """

    bm: int
    bn: int
    bk: int
    rows: int
    columns: int
    slices: int

    @property
    def lanes(self) -> tuple[int, int]:
        """The arrangement with the fewest loads: a thread's part of the tile is as square as possible."""
        along_m = (1, 2, 4, 8, 16)
        possible = [m for m in along_m if self.rows % (QUAD * m) == 0 and self.columns % (QUAD * 32 // m) == 0]
        m = min(possible, key=lambda m: self.rows / m + self.columns * m / 32, default=1)
        return m, 32 // m

    @property
    def part(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        return self.rows // self.lanes[0], self.columns // self.lanes[1]

    @property
    def runs(self) -> tuple[range, range]:
        """Where a thread's runs of four rows begin, from its first row on, and those of four columns."""
        return range(0, self.rows, QUAD * self.lanes[0]), range(0, self.columns, QUAD * self.lanes[1])

    @property
    def warps(self) -> int:
        """Warps of one slice."""
        return self.bm // self.rows * (self.bn // self.columns)

    @property
    def threads(self) -> int:
        return 32 * self.warps * self.slices

    @property
    def steps(self) -> int:
        """k of one slice."""
        return self.bk // self.slices

    def rounds(self, stages: int) -> int:
        """In how many parts the sums of all slices go through shared memory, so that they need no more of it than the
        operands do."""
        room = stages * self.bk * (self.bm + self.bn)
        sums = self.slices * self.bm * (self.bn + PADDING)
        most = self.part[0] // QUAD
        return next((r for r in (1, 2, 4) if most % r == 0 and (sums <= r * room or r == most)), most)

    def vectors(self, rounds: int) -> int:
        """Vectors of the result that a thread has in one round."""
        return max(self.bm * self.bn // (rounds * QUAD * self.threads), 1)

    def threads_in_use(self, rounds: int) -> int:
        """How many threads have vectors of the result."""
        return min(self.threads, self.bm * self.bn // (rounds * QUAD))


@tile_function
def sharing(bm: int, bn: int, bk: int, tile: tuple[int, int], slices: int) -> Sharing:
    """`Sharing` for these consts, if they fit each other."""
    assert min(bm, bn, bk, tile[0], tile[1], slices) > 0, (
        f"tiles and slices are positive, got BM={bm}, BN={bn}, BK={bk}, WARP_TILE={tile}, SLICES={slices}"
    )
    assert bm % tile[0] == bn % tile[1] == 0, (
        f"a CTA's tile consists of whole tiles of warps: BM={bm}, BN={bn} do not fit WARP_TILE={tile}"
    )
    assert bk % (QUAD * slices) == 0, f"each slice of BK is a multiple of {QUAD}: got BK={bk} for SLICES={slices}"
    how = Sharing(bm, bn, bk, tile[0], tile[1], slices)
    m, n = how.lanes
    assert tile[0] % (QUAD * m) == tile[1] % (QUAD * n) == 0, (
        f"each of 32 lanes has a multiple of {QUAD} rows and of {QUAD} columns: WARP_TILE={tile} does not fit"
    )
    return how


@tile_function
def operand_tile(along_k: bool, width: int, depth: int) -> SharedTile[f32]:
    """A shared tile for `width` rows or columns of an operand. Rows of an odd number of vectors start in 8 different
    groups of banks."""
    if along_k:
        return shared((width, depth), f32, layout=padded(depth + QUAD))
    return shared((depth, width), f32, layout=row_major)


@tile_function
def sums_tile(
    how: Sharing, rounds: int, along_k: tuple[bool, bool], over: tuple[SharedTile[f32], SharedTile[f32]]
) -> SharedTile[f32]:
    """A shared tile for the sums of all slices, one round.

    Lanes that write at once are in two rows or four, which are neighbours or (A not contiguous along k) four rows
    apart, and write vectors or (B contiguous along k) single elements. Rows are padded so that they hit other banks.
    """
    shape, padding = (how.slices, how.bm // rounds, how.bn), PADDING if along_k[1] else 2 * PADDING
    return shared(shape, f32, over=over, layout=padded(how.bn + (padding if along_k[0] else QUAD)))


@tile_function
def lane_in(lanes: tuple[int, int]) -> tuple[index, index]:
    """This lane's row and column in the grid of lanes. Neighbours form squares, so that the lanes that shared memory
    serves at once read few different vectors of both operands."""
    t, (m, n) = lane_id(), lanes
    if m == 1 or n == 1:
        return t // n, t % n
    return t >> 1 & 1 | t // (2 * n) << 1, t & 1 | (t >> 2) % (n // 2) << 1


@tile_function
def four_k(S: SharedTile[f32], along_k: bool, k: index, w: index, lane: index, lanes: int, count: int) -> Fragment[f32]:
    """This lane's `count` rows or columns, from w on, of an operand's tile: 4 x count, for k, k + 1, k + 2, k + 3."""
    got = fragment((QUAD, count), f32)
    if along_k:
        for i in unroll(count):
            four = S.load(w + lane + lanes * i, k, vec=16)
            for x in unroll(QUAD):
                got[x, i] = four[x]
    else:
        for x in unroll(QUAD):
            for i in unroll(0, count, QUAD):
                got[x, i : i + QUAD] = S.load(k + x, w + QUAD * lane + lanes * i, vec=16)
    return got


@tile_function
def multiply_four(
    acc: Fragment[f32],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    along_k: tuple[bool, bool],
    k: index,
    top: index,
    left: index,
    down: index,
    across: index,
    lanes: tuple[int, int],
    one_row: bool,
) -> Fragment[f32]:
    """acc plus this thread's products for k, k + 1, k + 2, k + 3."""
    rows, columns = acc.shape
    if one_row:
        b = four_k(Bs, along_k[1], k, left, across, lanes[1], columns)
        for i in unroll(rows):
            a = As.load(top + down + lanes[0] * i, k, vec=16)
            for x in unroll(QUAD):
                for j in unroll(columns):
                    acc[i, j] = fma(a[x], b[x, j], acc[i, j])
    else:
        a = four_k(As, along_k[0], k, top, down, lanes[0], rows)
        b = four_k(Bs, along_k[1], k, left, across, lanes[1], columns)
        for x in unroll(QUAD):
            acc = outer_fma(acc, a[x, :], b[x, :], "serpentine")
    return acc


@tile_function
def multiply_staged(
    A: Memory[f32],
    B: Memory[f32],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    m: Range,
    n: Range,
    first: Any,
    end: Any,
    along_k: tuple[bool, bool],
    vec: tuple[int, ...],
    how: Sharing,
    stages: int,
) -> Fragment[f32]:
    """This thread's part of A[m, first:end] B[first:end, n], of its slices of k. vec: bytes of a copy of A, of B."""
    acc = fragment(how.part, f32)
    a_along, b_along = along_k
    # One row of A at a time needs fewer registers. It was 6% faster with such tiles, and 2 to 16% slower with others.
    one_row = a_along and not b_along and min(how.part) >= 8 and how.steps >= 16
    warp, slice = warp_id() % how.warps, warp_id() // how.warps
    down, across = lane_in(how.lanes)
    top, left = warp % (how.bm // how.rows) * how.rows, warp // (how.bm // how.rows) * how.columns
    for k in pipelined(tiles(end, how.bk, start=first), stages=stages):
        copy_async(A[m, k], As if a_along else As.T, vec=vec[0])
        copy_async(B[k, n], Bs.T if b_along else Bs, vec=vec[1])
        for q in unroll(0, how.steps, QUAD):
            at = slice * how.steps + q
            acc = multiply_four(acc, As, Bs, along_k, at, top, left, down, across, how.lanes, one_row)
    return acc


@tile_function
def add_slices(
    acc: Fragment[f32],
    out: SharedTile[f32],
    along_k: tuple[bool, bool],
    t: index,
    how: Sharing,
    rounds: int,
    across: bool,
) -> Fragment[f32]:
    """The sums of all slices, in the order of the result: vectors of four elements, whose places `element` tells."""
    (rows, columns), (of_m, of_n) = how.part, how.lanes
    warp, slice = warp_id() % how.warps, warp_id() // how.warps
    down, right = lane_in(how.lanes)
    height, each = how.rows // rounds, how.vectors(rounds)
    top, left = warp % (how.bm // how.rows) * height, warp // (how.bm // how.rows) * how.columns
    total = fragment((QUAD * each * rounds,), f32)
    for r in unroll(rounds):
        barrier()
        for i in unroll(rows // rounds):
            row = top + (down + of_m * i if along_k[0] else QUAD * down + of_m * (i // QUAD * QUAD) + i % QUAD)
            line = acc[rows // rounds * r + i, :]
            if along_k[1]:
                for j in unroll(columns):
                    out[slice, row, left + right + of_n * j] = line[j]
            else:
                for j in unroll(0, columns, QUAD):
                    out.store(slice, row, left + QUAD * right + of_n * j, line[j : j + QUAD])
        barrier()
        for v in unroll(each):
            row, column = staged_element(t, v, how, rounds, across)
            four = fragment((QUAD,), f32)
            for s in unroll(how.slices):
                if across:
                    for x in unroll(QUAD):
                        four[x] = four[x] + out[s, row + x, column]
                else:
                    four = four + out.load(s, row, column, vec=16)
            at = QUAD * (each * r + v)
            total[at : at + QUAD] = four
    return total


@tile_function
def staged_element(t: index, v: index | int, how: Sharing, rounds: int, across: bool) -> tuple[index, index]:
    """Row and column in the staged sums of the first element of this thread's vector number v of a round. across: the
    vector goes along the column. Threads without a vector of their own repeat the last one."""
    height = how.bm // rounds
    at = minimum(t + v * how.threads, height * how.bn // QUAD - 1)
    if across:
        return at % (height // QUAD) * QUAD, at // (height // QUAD)
    return at // (how.bn // QUAD), at % (how.bn // QUAD) * QUAD


@tile_function
def element(t: index, v: index | int, how: Sharing, rounds: int, across: bool) -> tuple[index, index]:
    """Row and column in the CTA's tile of the first element of this thread's vector number v of `add_slices`."""
    height, each = how.rows // rounds, how.vectors(rounds)
    row, column = staged_element(t, v % each, how, rounds, across)
    return row // height * how.rows + v // each * height + row % height, column

"""How `hopper_fastest` computes a product: which tile, which parts of k, and whether the operands are exchanged.

`_time` estimates what each variant takes on an H200, and the shortest is chosen. Times are in ns, rates in bytes per ns.
Apart from MACS, they were fitted to the measured times of 5800 variants on 434 random shapes, operands not in L2. What
is chosen is 2.2% slower than the best variant measured, in the mean, and 2.5% on a family of shapes that the fit did
not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil, gcd
from typing import Any, NamedTuple

from tiledsl.gemm.hopper_tiles import staged_width, widest_piece
from tiledsl.gemm.split_k import QUAD
from tiledsl.lang import cdiv

__all__ = ["Variant", "best", "choose"]

SHARED = 225 << 10
"""Bytes of shared memory for the ring and the staging of results."""
TOGETHER = {1: 1.0, 2: 1.0, 4: 10 / 11, 8: 10 / 11}
"""Share of the SMs that clusters of so many CTAs can use: each is within a GPC, and few GPCs have a multiple of 4."""

Tile = tuple[int, int, int]
"""Rows, columns, and instances of the role that multiplies."""
FLAT: tuple[Tile, ...] = tuple((64, columns, 2) for columns in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256))
WHOLE: tuple[Tile, ...] = (
    *FLAT,
    *((128, columns, 1) for columns in (16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)),
    *((128, columns, 2) for columns in (64, 96, 112, 128, 144, 160, 176, 192)),
)
PARTED: tuple[Tile, ...] = (*FLAT, (128, 64, 1), (128, 96, 1), (128, 128, 1), (128, 192, 1), (128, 256, 1))
ACCUMULATORS = (192, 128, 96)
"""By the number of extra epilogue steps: registers of a thread that leave enough for them, with pingpong. One instance
always has enough."""
BK, MANY = 64, 16
"""Elements of k of a step. Steps of twice as many are 1 to 3% faster for small tiles that have MANY steps; for others
they are no faster, and k is rounded up to them."""
MACS, ALONE = 3700, 1.23
"""Multiplications of an SM's tensor cores per ns, at 1.755 GHz. A pingpong instance of 128 rows is slower if the other
one is idle."""
SM_INTAKE, TPC_INTAKE, MISSING = 127, 225, 283
"""Of what TMA stages for an SM; of what it loads for a TPC, which is two SMs; of how much longer that takes for what is
not in L2."""
READ, WRITE = 10860, 6567
"""From memory; to memory."""
UNALIGNED_LOAD = 2.36
"""How much more loads cost if rows in memory do not begin at multiples of 32 bytes, which are L2's sectors."""
UNALIGNED_STORE = 0.739
"""The same of stores, as a share for tiles of 128 columns: neighbouring tiles write parts of the same sectors."""
WITHIN_LINE = 1.5
"""How much more columns of B in row order cost to load if a tile's width is an odd multiple of 32: every other tile
begins in the middle of a line of 128 bytes, and has two lines for each row of a panel."""
ACROSS = 7.89
"""How much more writing costs by columns."""
PIECE = 1.49
"""A tile's result takes so long for each row of each piece of up to 128 bytes."""
FIRST, TILE = 3.59, 241
"""A CTA's first step takes longer, for each row and column of the tile; each further tile costs TILE."""
CLUSTERED, IN_STEP = 529, 1.09
"""CTAs of a cluster along m share loads of B, but start later, and wait for each other."""
OVERLAP = 1.14
"""How an SM's work and memory overlap: they add up as lengths of this norm do. 1: not at all."""
LAUNCH = 1544
PARTS, REDUCED = 1269, 1385
"""What parts of k cost: in any case, and the rate of the partial sums."""
GROUPS, GATHERED = 1040, 58
"""If several clusters share a tile: in any case, and the rate at which the last one reads the sums."""


class Variant(NamedTuple):
    """parts: CTAs of a cluster that share a tile's k; 0: k is not split. along_m: tiles of a cluster along m. groups:
    clusters that share a tile. by_rows: the kernel's B is in row order, so that it is staged in whole panels."""

    tile: Tile
    exchanged: bool = False
    parts: int = 0
    along_m: int = 1
    groups: int = 1
    by_rows: bool = False

    def consts(self, k: int = 0) -> dict[str, Any]:
        """Of `hopper_fastest`, with as many stages as fit, up to 16."""
        rows, columns, instances = self.tile
        small = rows * columns <= 64 * 64
        bk = 2 * BK if small and cdiv(k, BK) >= MANY * max(self.parts, 1) * self.groups else BK
        staged = 0 if self.parts else 2 * instances * rows * widest_piece(self.registers)
        stages = min(16, (SHARED - staged) // (2 * bk * (rows + self.loaded)))
        of_tile = {"BM": rows, "BN": columns, "BK": bk, "STAGES": stages, "INSTANCES": instances}
        return {**of_tile, "CLUSTER": (self.along_m, 1), "SPLIT": self.parts}

    @property
    def loaded(self) -> int:
        """Columns of B that are staged for a tile."""
        return staged_width(self.tile[1], not self.by_rows)

    @property
    def registers(self) -> int:
        """Of accumulators, in each thread."""
        rows, columns, instances = self.tile
        return rows * columns * instances // 256

    def has_registers(self, behind: int) -> bool:
        """For the accumulators, and for `behind` extra epilogue steps."""
        return self.tile[2] == 1 or self.registers <= ACCUMULATORS[behind]

    def tiles(self, m: int, n: int) -> int:
        """Of a result of m x n. Those past the edge that a cluster has are counted, too."""
        rows, columns, _ = self.tile
        if self.exchanged:
            m, n = n, m
        return cdiv(m, rows * self.along_m) * self.along_m * cdiv(n, columns)


@cache
def best(
    batch: int,
    m: int,
    n: int,
    k: int,
    along_k: tuple[bool, bool],
    behind: int = 0,
    processors: int = 132,
    parted: bool = True,
) -> Variant:
    """The variant with the least estimated time. along_k: whether A and B are contiguous along k. behind: as of
    `choose`. parted: k may be split."""
    variants = list(_whole(m, n, along_k))
    if parted:
        variants += _parted(batch, m, n, k, along_k, processors)
    fitting = (v for v in variants if v.has_registers(behind))
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, along_k, processors))


@cache
def choose(
    m: int,
    n: int,
    k: int,
    format: str = "bf16",
    processors: int = 132,
    along_k: bool = False,
    behind: int = 0,
    batch: int = 1,
) -> dict[str, Any]:
    """The consts of `hopper_fastest` for `batch` products of m x n x k, each in one piece and as they are.

    along_k: B is contiguous along k, so that a tile may be any multiple of 16 wide; else a multiple of 64. behind: the
    number of extra epilogue steps (beta * C, an epilogue function: 0 to 2); pingpong has registers for them with
    small tiles only.
    """
    fitting = (v for v in _whole(m, n, (True, along_k)) if not v.exchanged and v.has_registers(behind))
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, (True, along_k), processors)).consts(k)


def _fits(tile: Tile, along_m: int, m: int, n: int, fine: bool) -> bool:
    """Whether a tile makes sense. fine: of any width; else of multiples of 32, as B is in row order: tiles of others
    begin at most places of a line of 128 bytes, and are slower to load than what they save."""
    rows, columns, _ = tile
    shared = along_m == 1 or (columns % (8 * along_m) == 0 and m > rows)
    least = 16 if fine else 32
    much = columns > least and columns >= 2 * n
    return shared and not much and (fine or columns % 32 == 0) and (rows == 64 or m > 64)


def _whole(m: int, n: int, along_k: tuple[bool, bool]) -> Iterator[Variant]:
    for exchanged, height, width, fine in ((False, m, n, along_k[1]), (True, n, m, along_k[0])):
        for along_m in (1, 2, 4):
            tiles = (tile for tile in WHOLE if _fits(tile, along_m, height, width, fine))
            yield from (Variant(tile, exchanged, 0, along_m, by_rows=not fine) for tile in tiles)


def _parted(batch: int, m: int, n: int, k: int, along_k: tuple[bool, bool], processors: int) -> Iterator[Variant]:
    steps = cdiv(k, 64)
    if steps < 8 or batch > 1:
        return
    for whole in _whole(m, n, along_k):
        tile, along_m, tiles = whole.tile, whole.along_m, whole.tiles(m, n)
        if tile not in PARTED or tiles > 3 * processors or (along_m > 1 and tile[1] < 64):
            continue
        for parts in (1, 2, 4, 8):
            if parts * along_m <= 8 and _shares_evenly(tile, parts):
                groups = _groups(tiles * parts, steps // (2 * parts), processors, parts * along_m)
                yield from (whole._replace(parts=parts, groups=g) for g in groups if parts * g > 1)


def _shares_evenly(tile: Tile, parts: int) -> bool:
    """Whether the threads of a tile can share a slice of it, in vectors of QUAD."""
    rows, columns, instances = tile
    slice, threads = rows * columns // parts // QUAD, 256 // instances
    return slice % threads == 0 or slice < threads


def _groups(ctas: int, most: int, processors: int, cluster: int) -> Iterator[int]:
    """Numbers of clusters a tile that leave few SMs idle at the end."""
    usable = int(processors * TOGETHER[cluster])
    for groups in range(1, min(most, 16) + 1):
        waves = ctas * groups / usable
        full = waves > 0.85 * ceil(waves) or (waves < 1 and ctas * (groups + 1) > usable)
        if (full or groups == 1) and waves <= 8:
            yield groups


def _time(v: Variant, batch: int, m: int, n: int, k: int, along_k: tuple[bool, bool], processors: int) -> float:
    """In ns, of a launch between others."""
    rows, columns, instances = v.tile
    area, shared_out = rows * columns, max(v.parts, 1) * v.groups
    items = max(1, v.tiles(m, n) * batch * shared_out)
    waves = ceil(items / (processors * TOGETHER[v.along_m * max(v.parts, 1)]))
    steps = ceil(cdiv(k, BK) / shared_out)

    alone = ALONE if instances == 2 and rows == 128 and waves == 1 else 1
    multiplied = steps * area * BK / MACS * alone
    staged = steps * (rows + v.loaded) * 2 * BK / SM_INTAKE
    of_a, of_b = _row_bytes(m, k, along_k[0]), _row_bytes(n, k, along_k[1])
    if v.exchanged:
        of_a, of_b = of_b, of_a
    of_b *= WITHIN_LINE if v.loaded > columns else 1
    busy = 2 if 2 * items > processors else 1
    read = 2 * batch * (m + n) * k
    loaded = (rows * of_a + v.loaded * of_b / v.along_m) / shared_out / TPC_INTAKE + read / items / MISSING
    main = max(multiplied, staged, busy * loaded)

    pieces = 0 if v.parts else area / gcd(columns, widest_piece(v.registers) // 2)
    store = PIECE * pieces
    if instances == 2:  # one stores while the other multiplies
        body = main + (waves - 1) * max(main, store) + store
    else:
        body = waves * (main + store)
    if v.along_m > 1:
        body *= IN_STEP

    written = 2 * batch * m * n / WRITE
    if n % 16:
        written *= 1 + UNALIGNED_STORE * (1 if v.exchanged else 128 / columns)
    if v.exchanged and not v.parts:
        written *= ACROSS
    memory = read / READ + written

    time = LAUNCH + FIRST * (rows + v.loaded) + TILE * (waves - 1)
    time += (body**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    if v.along_m > 1:
        time += CLUSTERED
    if v.parts:
        time += PARTS + items * area * 4 / REDUCED
    if v.groups > 1:
        time += GROUPS + v.groups * area * 4 / max(v.parts, 1) / GATHERED
    return time


def _row_bytes(extent: int, k: int, along_k: bool) -> float:
    """What TMA loads of a row or column of an operand, in pieces of 128 bytes along k, or along the `extent` of these."""
    if along_k:
        return 128 * cdiv(k, 64) * (UNALIGNED_LOAD if k % 16 else 1)
    return 2 * k * (UNALIGNED_LOAD if extent % 16 or extent < 64 else 1)

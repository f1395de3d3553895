"""How `hopper_fastest` computes a product: which tile, which parts of k, and whether the operands are exchanged.

`_time` estimates what each variant takes on an H200, and the shortest is chosen. Times are in ns, rates in bytes per
ns. MACS was measured; the other constants were fitted to the times of 5300 variants on 450 random shapes, operands not
in L2. What is chosen of those is 2.9% slower than the fastest in the mean; of the measurements that a fit did not see,
3.7%, and 8 to 10% of those of the present kernel with clusters along both axes, of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil, log2
from typing import Any, NamedTuple

from tiledsl.gemm.formats import FORMATS
from tiledsl.gemm.hopper_tiles import piece_width, staged_width
from tiledsl.gemm.split_k import slice_width
from tiledsl.ir.types import DTYPES
from tiledsl.lang import cdiv

__all__ = ["FEW_REGISTERS", "SHARED", "Variant", "best", "choose"]

SHARED = 225 << 10
"""Bytes of shared memory for the ring and the staging of results."""
TOGETHER = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}
"""CTAs that run at once in clusters of so many, on the 132 SMs of an H200 (cuOccupancyMaxActiveClusters): each cluster
is within a GPC, and few GPCs have a multiple of its size."""
CLUSTERS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4), (4, 2), (2, 4))
"""CTAs along m and n."""

Tile = tuple[int, int, int]
"""Rows, columns, and instances of the role that multiplies."""
FLAT: tuple[Tile, ...] = tuple((64, columns, 2) for columns in (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256))
WHOLE: tuple[Tile, ...] = (
    *FLAT,
    *((128, columns, 1) for columns in (16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)),
    *((128, columns, 2) for columns in (64, 96, 112, 128, 144, 160, 176, 192)),
)
PARTED: tuple[Tile, ...] = (
    *FLAT,
    *((128, columns, 1) for columns in (16, 64, 96, 112, 128, 144, 160, 192, 256)),
)
ACCUMULATORS, FEW_REGISTERS = (192, 128, 96, 96), 3
"""By the number of extra epilogue steps: registers of a thread that leave enough for them, with pingpong. One instance
always has enough, except at FEW_REGISTERS: beside a role more, or where warps store the result."""
PROMOTED = 96
"""Registers of accumulators that leave enough for as many sums in f32."""
LONG = 4096
"""Elements of k, from which on the order of tiles decides what stays in L2. Below, it decides which lines of the result
are written at the same time."""

BK, MANY = 64, 16
"""Elements of k of a step. Steps of twice as many are 1 to 3% faster for small tiles that have MANY steps; for others
they are no faster, and k is rounded up to them."""
MACS = 3700
"""Multiplications of an SM's tensor cores per ns, at 1.755 GHz, of 16-bit elements. Of others they multiply as many
bytes (e4m3 and i8 twice as many elements, tf32 half as many), and a step has as many bytes. So a product takes as long
as one of 16-bit elements whose k has as many bytes: k and BK are in units of 2 bytes here (`halves`)."""
SM_INTAKE, TPC_INTAKE, MISSING = 134, 210, 334
"""Of what TMA stages for an SM; of what it loads for a TPC, which is two SMs; of how much longer that takes for what is
not in L2."""
READ, WRITE = 13359, 8419
"""From memory; to memory."""
UNALIGNED_LOAD = 2.06
"""How much more loads cost if rows in memory do not begin at multiples of 32 bytes, which are L2's sectors."""
UNALIGNED_STORE = 0.863
"""The same of stores, as a share for tiles of 128 columns: neighbouring tiles write parts of the same sectors."""
WITHIN_LINE = 1.5
"""How much more columns of B in row order cost to load if a tile's width is an odd multiple of 32: every other tile
begins in the middle of a line of 128 bytes, and has two lines for each row of a panel."""
ACROSS = 1.24
"""How much more writing costs by columns."""
PIECE = 1.5
"""A tile's result takes so long for each row of each piece of up to 128 bytes."""
FIRST, TILE = 3.13, 219
"""A CTA's first step takes longer, for each row and column of the tile; each further tile costs TILE."""
CLUSTERED, IN_STEP = 621, {1: 1, 2: 1.21, 4: 1.02, 8: 1.28}
"""CTAs of a cluster share loads, but start later, and wait for each other, by how many there are."""
LAUNCH = 1686
PARTS, DOUBLED, REDUCED = 889, 78.7, 914
"""What parts of k cost: in any case, for each doubling of their number in a cluster, and the rate of their sums."""
GROUPS, GATHERED = 582, 86.1
"""If several clusters share a tile: in any case, and the rate at which the last one reads the sums."""


class Variant(NamedTuple):
    """parts: CTAs of a cluster that share a tile's k; 0: k is not split. along_m, along_n: tiles of a cluster along m
    and n. groups: clusters that share a tile. by_rows: the kernel's B is in row order, so that it is staged in whole
    panels. band: GROUP of the kernel."""

    tile: Tile
    exchanged: bool = False
    parts: int = 0
    along_m: int = 1
    groups: int = 1
    along_n: int = 1
    by_rows: bool = False
    band: int = 8

    def consts(self, k: int = 0, result: int = 2, by_tma: bool = True, size: int = 2) -> dict[str, Any]:
        """Of `hopper_fastest`, with as many stages as fit, up to 16. result, size: bytes of an element of C, and of A
        and B. by_tma: TMA can store C."""
        k = halves(k, size)
        rows, columns, instances = self.tile
        small = rows * columns <= 64 * 64
        bk = 2 * BK if small and cdiv(k, BK) >= MANY * max(self.parts, 1) * self.groups else BK
        width = slice_width(self.parts, columns, result) if self.parts else columns
        piece = result * piece_width(width, result, self.registers, by_tma)
        staged = (1 if self.parts else 2) * instances * rows * piece
        stages = min(16, (SHARED - staged) // (2 * bk * (rows + self.loaded)))
        of_tile = {"BM": rows, "BN": columns, "BK": 2 * bk // size, "STAGES": stages, "INSTANCES": instances}
        return {**of_tile, "GROUP": self.band, "CLUSTER": (self.along_m, self.along_n), "SPLIT": self.parts}

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
        return self.registers <= ACCUMULATORS[behind] or (self.tile[2] == 1 and behind < FEW_REGISTERS)

    def tiles(self, m: int, n: int) -> int:
        """Of a result of m x n. Those past the edge that a cluster has are counted, too."""
        rows, columns, _ = self.tile
        if self.exchanged:
            m, n = n, m
        return cdiv(m, rows * self.along_m) * self.along_m * cdiv(n, columns * self.along_n) * self.along_n


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
    apart: bool = False,
    promoted: bool = False,
    size: int = 2,
    result: int = 2,
) -> Variant:
    """The variant with the least estimated time. along_k: whether A and B are contiguous along k. behind: as of
    `choose`. parted: k may be split. apart: operands are loaded in parts (apart.py): without multicast, lines by 64.
    size, result: bytes of an element of A and B, and of C, of which 32 bytes of a row or more are stored. promoted: few
    accumulators, and both warpgroups share a tile, so that one adds while the other multiplies."""
    k, least = halves(k, size), 32 // result
    variants = list(_whole(max(m, least), max(n, least), k, along_k))
    if parted:
        variants += _parted(batch, max(m, least), max(n, least), k, along_k, processors)
    if apart:
        alone = (v for v in variants if v.along_m == v.along_n == 1)
        variants = [v for v in alone if along_k[not v.exchanged] or v.tile[1] % 64 == 0]
    if promoted:
        few = min(m, n) <= 64
        variants = [v for v in variants if v.registers <= PROMOTED and (few or v.tile[2] == 1)]
    fitting = (v for v in variants if v.has_registers(behind) and v.tile[1] * result % 32 == 0)
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, along_k, processors))


def halves(k: int, size: int) -> int:
    """Elements of `size` bytes, as a number of 16-bit ones."""
    return cdiv(k * size, 2)


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

    along_k: B is contiguous along k, so that a tile of any width is loaded from whole lines. behind: the number of
    extra epilogue steps (beta * C, an epilogue function: 0 to 2); pingpong has registers for them with small tiles
    only.
    """
    size, result = DTYPES[format].bytes, FORMATS[format, format].results[0].bytes
    wide, along_k = halves(k, size), along_k or size != 2
    fitting = (v for v in _whole(m, n, wide, (True, along_k)) if not v.exchanged and v.has_registers(behind))
    chosen = min(fitting, key=lambda v: _time(v, batch, m, n, wide, (True, along_k), processors))
    return chosen.consts(k, result, size=size)


def _fits(tile: Tile, cluster: tuple[int, int], m: int, n: int, fine: bool) -> bool:
    """Whether a tile makes sense. fine: of any width; else of multiples of 32, as B is in row order: tiles of others
    begin at most places of a line of 128 bytes, and are slower to load than what they save."""
    rows, columns, _ = tile
    along_m, along_n = cluster
    shared = (along_m == 1 or (columns % (8 * along_m) == 0 and m > rows)) and (along_n == 1 or n > columns)
    much = columns > (16 if fine else 64) and columns >= 2 * n
    return shared and not much and (fine or columns % 32 == 0) and (rows == 64 or m > 64)


def _whole(
    m: int,
    n: int,
    k: int,
    along_k: tuple[bool, bool],
    tiles: tuple[Tile, ...] = WHOLE,
    clusters: tuple[tuple[int, int], ...] = CLUSTERS,
) -> Iterator[Variant]:
    for exchanged, height, width, fine in ((False, m, n, along_k[1]), (True, n, m, along_k[0])):
        band = 8 if k >= LONG else 64 if exchanged else 4
        for cluster in clusters:
            for tile in tiles:
                if _fits(tile, cluster, height, width, fine):
                    yield Variant(tile, exchanged, 0, cluster[0], 1, cluster[1], not fine, band)


def _parted(batch: int, m: int, n: int, k: int, along_k: tuple[bool, bool], processors: int) -> Iterator[Variant]:
    steps = cdiv(k, 64)
    if steps < 8 or batch > 1:
        return
    for whole in _whole(m, n, k, along_k, PARTED, CLUSTERS[:3]):
        along_m, tiles = whole.along_m, whole.tiles(m, n)
        if tiles > 3 * processors or (along_m > 1 and whole.tile[1] < 64):
            continue
        for parts in range(1, 9):
            if parts * along_m <= 8:
                groups = _groups(tiles * parts, steps // (2 * parts), processors, parts * along_m)
                yield from (whole._replace(parts=parts, groups=g, band=8) for g in groups if parts * g > 1)


def _groups(ctas: int, most: int, processors: int, cluster: int) -> Iterator[int]:
    """Numbers of clusters a tile that leave few SMs idle at the end."""
    usable = _together(cluster, processors)
    for groups in range(1, min(most, 16) + 1):
        waves = ctas * groups / usable
        full = waves > 0.85 * ceil(waves) or (waves < 1 and ctas * (groups + 1) > usable)
        if (full or groups == 1) and waves <= 8:
            yield groups


def _together(cluster: int, processors: int) -> int:
    return TOGETHER[cluster] * processors // TOGETHER[1]


def _time(v: Variant, batch: int, m: int, n: int, k: int, along_k: tuple[bool, bool], processors: int) -> float:
    """In ns, of a launch between others."""
    rows, columns, instances = v.tile
    area, shared_out, cluster = rows * columns, max(v.parts, 1) * v.groups, v.along_m * v.along_n
    items = max(1, v.tiles(m, n) * batch * shared_out)
    waves = ceil(items / _together(cluster * max(v.parts, 1), processors))
    steps = ceil(cdiv(k, BK) / shared_out)

    multiplied = steps * area * BK / MACS
    staged = steps * (rows + v.loaded) * 2 * BK / SM_INTAKE
    of_a, of_b = _row_bytes(m, k, along_k[0]), _row_bytes(n, k, along_k[1])
    if v.exchanged:
        of_a, of_b = of_b, of_a
    of_b *= WITHIN_LINE if v.loaded > columns else 1
    busy = 2 if 2 * items > processors else 1
    read = 2 * batch * (m + n) * k
    loaded = (rows * of_a / v.along_n + v.loaded * of_b / v.along_m) / shared_out / TPC_INTAKE + read / items / MISSING
    main = max(multiplied, staged, busy * loaded)

    store = 0 if v.parts else PIECE * area / piece_width(columns, 2, v.registers)
    if instances == 2:  # one stores while the other multiplies
        body = main + (waves - 1) * max(main, store) + store
    else:
        body = waves * (main + store)
    body *= IN_STEP[cluster]

    written = 2 * batch * m * n / WRITE
    if n % 16:
        written *= 1 + UNALIGNED_STORE * (1 if v.exchanged else 128 / columns)
    if v.exchanged and not v.parts:
        written *= ACROSS
    memory = read / READ + written

    time = LAUNCH + FIRST * (rows + v.loaded) + TILE * (waves - 1) + body + memory
    if cluster > 1:
        time += CLUSTERED
    if v.parts:
        time += PARTS + DOUBLED * log2(v.parts) + items * area * 4 / REDUCED
    if v.groups > 1:
        time += GROUPS + v.groups * area * 4 / max(v.parts, 1) / GATHERED
    return time


def _row_bytes(extent: int, k: int, along_k: bool) -> float:
    """What TMA loads of a row or column of an operand, in pieces of 128 bytes along k, or along their `extent`."""
    if along_k:
        return 128 * cdiv(k, 64) * (UNALIGNED_LOAD if k % 16 else 1)
    return 2 * k * (UNALIGNED_LOAD if extent % 16 or extent < 64 else 1)

"""How `hopper_fastest` computes a product: which tile, which parts of k, and whether the operands are exchanged.

`estimate` says what each variant takes on an H200, and the shortest is chosen. Times are in ns, rates in bytes per
ns. MACS was measured; the other constants were fitted to 18,000 times on 872 random shapes, operands not in L2: bf16,
e4m3, int8 and tf32. What is chosen is 2.6% slower than the fastest measured in the mean (docs/tuning.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import gcd, log2
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tiledsl.gemm.formats import BLOCK, FORMATS, Split
from tiledsl.gemm.hopper_stores import pieces, room_bytes
from tiledsl.gemm.hopper_tiles import staged_width
from tiledsl.gemm.parts import SHARES
from tiledsl.gemm.split_k import NARROW, PIECE_WIDTH, slice_width
from tiledsl.gemm.traced import Options, slowest_of
from tiledsl.ir.types import DTYPES, F32
from tiledsl.lang import cdiv

__all__ = [
    "FEW_REGISTERS",
    "SHARED",
    "Estimate",
    "Request",
    "Table",
    "Tile",
    "Variant",
    "best",
    "best_in_time",
    "choose",
    "estimate",
    "halves",
    "ranked",
    "table_of",
    "within_sectors",
]

Numbers = Any
"""A number, or a NumPy array of one for each variant."""


where: Callable[..., Numbers] = np.where

SECTOR = 32
"""Bytes that L2 reads from memory, or writes, at once."""
SHARED, LIMIT = 225 << 10, (227 << 10) - 512
"""Bytes of shared memory for the ring and the staging of results, and with what else is large."""
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
    *((128, columns, 1) for columns in (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 256)),
)
PARTS_OF_CLUSTER, MOST_WAVES = range(2, 9), 3
"""k is split among the CTAs of a cluster, if these are at most MOST_WAVES times as many as run at once, ..."""
MOST_GROUPS = 32
"""... or among as many clusters as run at once: those that came first would wait long for later ones."""
BOTH, TINY = 8, 32
"""Both at once are faster for tiny products with a deep k alone: by clusters of so many CTAs, and tiles of at most so
many columns."""
LARGEST = MOST_WAVES * max(rows * columns for rows, columns, _ in PARTED)
"""Elements of a result, for each SM, above which it has too many tiles for either."""
ACCUMULATORS, FEW_REGISTERS = (192, 128, 96, 96), 3
"""By the number of extra epilogue steps: registers of a thread that leave enough for them, with pingpong. One instance
always has enough, except at FEW_REGISTERS: beside a role more, or where warps store the result."""
PROMOTED, SCALED = 96, 64
"""Registers of accumulators that leave enough for as many sums in f32; and for their scales: with 96 the kernel is 8%
slower at 4096 cubed, and in clusters, whose CTAs wait for each other's additions, 11% or more. Columns that do not
divide a block have several scales: a tile of 112 takes 9% longer than one of 128 (4096 x 2112 x 7168)."""
SCALING, PROMOTING = (1.36, 1.28), (1.08, 1.1)
"""How much longer products take whose sums are scaled by blocks, or added up in f32 alone: of tiles in one piece, and
in halves (4096 and 8192 cubed; and eleven products, five of them drawn)."""
NARROW_BAND, BAND, WIDE_BAND = 4, 16, 22
"""Rows of tiles of a band. The tiles that run at once best span the shorter side of the result: along n, by narrow
bands, if its columns of tiles are at most SPANNED; along m, by one band of all rows, if these are at most WIDE_BAND."""
SPANNED = 26
STAGES, STALLED = 3, 0.594
"""With fewer there is no variant; with what parts of k receive, large tiles have room for none. Loads are waited for
with few: steps take STALLED longer with two stages, a quarter of that with three, and so on."""
LOOSE, FEW_STAGES = 160 << 10, 4
"""Bytes of the ring of a CTA that shares k with others and is in no cluster, or so many stages. With more, CTAs that
read the same operand drift apart: 13 products, 61 variants were 4% slower with all stages that fit, up to 21%."""
ADDED = 80
"""Of planes, each step's sums take so long to be waited for and added."""

BK, MANY = 64, 16
"""Elements of k of a step. Steps of twice as many are 1 to 3% faster for small tiles that have MANY steps; for others
they are no faster, and k is rounded up to them."""
MACS = 3700
"""Multiplications of an SM's tensor cores per ns, at 1.755 GHz, of 16-bit elements. Of others they multiply as many
bytes (e4m3 and i8 twice as many elements, tf32 half as many), and a step has as many bytes. So k and BK are in units of
2 bytes here (`halves`)."""
SM_INTAKE, TPC_INTAKE, MISSING = 145, 233, 204
"""Of what TMA stages for an SM; of what it loads for a TPC, which is two SMs; of how much longer that takes for what is
not in L2."""
IN_STEP = {1: 1, 2: 1.24, 4: 1.01, 8: 0.864}
APART = {1: 1.07, 2: 1.43, 3: 1.66, 4: 1.24, 5: 1.51, 6: 1.86, 7: 1.5, 8: 1.2}
"""How much longer loads take: by the tiles of a cluster, whose CTAs wait for each other; and, by the parts of k in a
cluster, if CTAs are so few that each could have a TPC, than if it had one. Of others two share a TPC."""
DRAM = 5631
"""From and to memory, while the steps go on."""
UNALIGNED_LOAD = {1: 2.32, 2: 1.58, 4: 1.88, 8: 3.57}
"""How much more loads cost if rows in memory do not begin at multiples of 32 bytes, which are L2's sectors: by the
tiles of a cluster."""
UNALIGNED_STORE = 0.253
"""The same of stores, as a share for pieces of 128 elements: neighbouring pieces write parts of the same sectors."""
NARROW_STORE = 0.252
"""And for each time that pieces are half as wide as 64 elements, or a quarter, or so on."""
OUTSIDE = 1.87
"""How much more loads cost, for each byte of a line along k that lies past its end."""
PIECE = 1.58
"""A tile's result takes so long for each row of each piece of up to 128 bytes."""
FIRST, TILE = 3.06, 298
"""A CTA's first step takes longer, for each row and column of the tile; each further tile costs TILE."""
CLUSTERED, SLOWED = 1367, 1.08
"""CTAs of a cluster start later, unless they share k, which is PARTS; and multiply slower if they share loads."""
LAUNCH = 1455
BY_THREADS = 0.0878
"""A result that TMA cannot store takes so long for each vector that threads store."""
ORDERED, ORDER = 64, 4.12
"""Elements of a line that a warp puts in order at once, where operands are loaded in parts, and the time."""
COPYING, COPY = 788, 5094
"""A launch that copies operands takes COPYING, and reads and writes at the rate COPY."""
SHALLOW = 128
"""Elements of k that are not worth steps of as many, if operands are loaded in parts."""
CROWDED = 8.98
"""For each cluster that reads the same lines of A, or of B, first: they miss on them at the same time."""
PARTS, DOUBLED, REDUCED = 988, 34, 26.4
"""What parts of k in a cluster cost: in any case, for each doubling of their number, and the rate at which an SM gets
sums of the others in its shared memory."""
GROUPS, GATHERED = 2304, 55.6
"""If several clusters share a tile: in any case, and the rate at which each stores its sums, and reads those of the
pieces that it adds up."""


class Variant(NamedTuple):
    """parts: CTAs of a cluster that share a tile's k; 0: k is not split. along_m, along_n: tiles of a cluster along m
    and n. groups: clusters that share a tile. by_rows: the kernel's B is in row order, so that it is staged in whole
    panels. band: GROUP of the kernel. apart: operands that TMA cannot read as they are, but in parts, are loaded so;
    else they are copied before."""

    tile: Tile
    exchanged: bool = False
    parts: int = 0
    along_m: int = 1
    groups: int = 1
    along_n: int = 1
    by_rows: bool = False
    band: int = 8
    apart: bool = False

    def consts(
        self, k: int = 0, result: int = 2, by_tma: bool = True, size: int = 2, beside: int = 0, step: int = 0
    ) -> dict[str, Any]:
        """Of `hopper_fastest`, with as many stages as fit, up to 16. result, size: bytes of an element of C, and of A
        and B. by_tma: TMA can store C. beside: bytes of shared memory for other things. step: elements along k, 0 for
        what suits the tile."""
        k = halves(k, size)
        rows, columns, instances = self.tile
        small = rows * columns <= 64 * 64
        bk = 2 * BK if small and cdiv(k, BK) >= MANY * max(self.parts, 1) * self.groups else BK
        bk = halves(step, size) or bk
        step_bytes = 2 * bk * (rows + self.loaded)
        stages = min(16, (min(SHARED, LIMIT - beside) - self._kept(result, by_tma)) // step_bytes)
        if self.groups > 1 and self.parts * self.along_m * self.along_n == 1:
            stages = min(stages, max(FEW_STAGES, LOOSE // step_bytes))
        of_tile = {"BM": rows, "BN": columns, "BK": 2 * bk // size, "STAGES": stages, "INSTANCES": instances}
        parts = {"SPLIT": self.parts if self.parts > 1 else 0, "GATHER": self.groups if self.groups > 1 else 0}
        return {**of_tile, "GROUP": self.band, "CLUSTER": (self.along_m, self.along_n), **parts}

    def consts_apart(
        self, k: int, unaligned: tuple[bool, bool], result: int = 2, by_tma: bool = True
    ) -> dict[str, Any]:
        """As `consts`, of an `apart` variant for 16-bit operands, of which those that are `unaligned` are loaded in
        parts: with two or three stages of lines in order and as many as fit, up to 16, of lines as they are loaded.
        Where not even steps of ORDERED elements have room for two stages of both, BK is less, and the kernel refuses
        it."""
        rows, columns, _ = self.tile
        consts = self.consts(k)
        bk = ORDERED if k <= SHALLOW else consts["BK"]
        room = SHARED - self._kept(result, by_tma)
        lines = rows * unaligned[self.exchanged] + columns * unaligned[not self.exchanged]
        stage = 2 * (_elements_apart(rows, bk) + _elements_apart(columns, bk))
        if 2 * (2 * bk * lines + stage) > room:
            bk //= 2
            stage = 2 * (_elements_apart(rows, bk) + _elements_apart(columns, bk))
        ordered = 2 * bk * lines
        stages = 3 if 3 * ordered + 2 * stage <= room else 2
        return {**consts, "BK": bk, "STAGES": stages, "APART": min(16, (room - stages * ordered) // stage)}

    def _kept(self, result: int, by_tma: bool) -> int:
        """Bytes of shared memory that are not for operands: for the result on its way out, and for sums received."""
        rows, columns, instances = self.tile
        if self.groups > 1:
            return self.received
        width = slice_width(self.parts, columns) if self.parts else columns
        buffers = 1 if self.parts else 2
        return room_bytes(rows, width, result, self.registers, instances, buffers, by_tma) + self.received

    @property
    def loaded(self) -> int:
        """Columns of B that are staged for a tile."""
        return staged_width(self.tile[1], not self.by_rows)

    @property
    def received(self) -> int:
        """Bytes of shared memory for what other parts have of a CTA's slice."""
        rows, columns, _ = self.tile
        return 4 * (self.parts - 1) * rows * slice_width(self.parts, columns) if self.parts > 1 else 0

    def workspace(self, tiles: int) -> tuple[int, int, int]:
        """Shape of `sums` for so many tiles: groups, slices, elements. `done` has a word for each slice."""
        rows, columns, _ = self.tile
        return self.groups, self.parts * tiles, rows * slice_width(self.parts, columns)

    @property
    def registers(self) -> int:
        """Of accumulators, in each thread."""
        rows, columns, instances = self.tile
        return rows * columns * instances // 256

    @property
    def in_halves(self) -> bool:
        """Would a kernel that adds up in f32 what tensor cores add up in a step do so for one half of the columns after
        the other? Products and sums of this tile do not fit into the registers together."""
        return self.tile == (128, 256, 1) and not self.parts and self.along_m * self.along_n == 1

    def has_registers(self, behind: int) -> bool:
        """For the accumulators, and for `behind` extra epilogue steps."""
        return self.registers <= ACCUMULATORS[behind] or (self.tile[2] == 1 and behind < FEW_REGISTERS)

    def tiles(self, m: int, n: int) -> int:
        """Of a result of m x n. Those past the edge that a cluster has are counted, too."""
        rows, columns, _ = self.tile
        if self.exchanged:
            m, n = n, m
        return cdiv(m, rows * self.along_m) * self.along_m * cdiv(n, columns * self.along_n) * self.along_n


class Table(NamedTuple):
    """Variants by column, each an array: what `Variant` says of them, and what follows from it.

    rows, instances, area: of the tile. parts: 1 where k is not split. loaded: `Variant.loaded`. stages: for steps of
    BK. stored: rows of pieces of the result that are stored at once, if k is not split. cluster: tiles of a cluster;
    clustered: it has several. ctas: of a cluster. doublings: of the parts in a cluster. received: bytes of sums that it
    gets from the others. pieces: of NARROW columns of a slice. breaks: within lines of the result, relative to pieces
    of 128 elements. of_m, of_n: extents of the product that the tiles of a cluster cover. above_m, above_n: the variant
    makes sense for extents above these. apart: as of `Variant`.
    """

    rows: Numbers
    instances: Numbers
    exchanged: Numbers
    parts: Numbers
    along_m: Numbers
    groups: Numbers
    along_n: Numbers
    loaded: Numbers
    stages: Numbers
    stored: Numbers
    area: Numbers
    cluster: Numbers
    clustered: Numbers
    ctas: Numbers
    doublings: Numbers
    received: Numbers
    pieces: Numbers
    breaks: Numbers
    of_m: Numbers
    of_n: Numbers
    above_m: Numbers
    above_n: Numbers
    apart: Numbers

    def tiles(self, m: Numbers, n: Numbers) -> Numbers:
        """As `Variant.tiles`."""
        return np.ceil(m / self.of_m) * np.ceil(n / self.of_n) * self.cluster


def _elements_apart(extent: int, bk: int) -> int:
    """Of a stage of `hopper_apart.staging_apart`, at most: `extent` lines along k, or bk lines across it."""
    unit = max(8, 64 // gcd(extent // 8, 64))
    return max(extent * cdiv(bk + 8, unit) * unit, bk * (extent + 8))


def table_of(variants: Sequence[Variant], results: Sequence[int]) -> Table:
    """results: bytes of an element of each one's result. Flags that choose, and numbers that are indices, are of such
    dtypes; others are f64."""
    rows = [_row(*each) for each in zip(variants, results, strict=True)]
    t = Table(*np.array(rows, float).reshape(-1, len(Table._fields)).T.copy())
    indices = {name: getattr(t, name).astype(int) for name in ("instances", "parts", "cluster", "ctas")}
    return t._replace(exchanged=t.exchanged > 0, apart=t.apart > 0, **indices)


def _row(v: Variant, result: int) -> tuple[float, ...]:
    rows, columns, instances = v.tile
    # Several tiles share a load only if there are several. A tile much wider than the product makes no sense, nor one
    # of 128 rows for up to 64, the fewest that wgmma has.
    above_rows = max(rows if v.along_m > 1 else -1, 64 if rows > 64 else -1)
    above_columns = max(columns if v.along_n > 1 else -1, columns / 2 if columns > (64 if v.by_rows else 16) else -1)
    of, above = (rows * v.along_m, columns * v.along_n), (above_rows, above_columns)
    if v.exchanged:
        of, above = of[::-1], above[::-1]
    parts, cluster = max(v.parts, 1), v.along_m * v.along_n
    shape = rows, instances, v.exchanged, parts, v.along_m, v.groups, v.along_n
    wide, rest = pieces(rows * instances, columns, result, v.registers)
    more = columns % wide if v.exchanged else rest
    stored = 0 if v.parts else rows * (columns // wide + (columns % wide // more if more else 0))
    narrow = slice_width(parts, columns) // NARROW if v.parts else 0
    sums = log2(parts), v.received, narrow
    of_tile = rows * columns, cluster, cluster > 1, cluster * parts, *sums
    breaks = 128 / (rows if v.exchanged else columns if v.parts else wide)
    in_groups = v._replace(groups=max(v.groups, 2)) if v.parts == 1 else v  # how many the product decides
    stages = in_groups.consts(0, result)["STAGES"]
    return *shape, v.loaded, stages, stored, *of_tile, breaks, *of, *above, v.apart


# -- the model ---------------------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """What a launch between others takes, in ns. The first four terms add up to `total`.

    launch: with the start of each tile, and a launch before that copies operands. steps: of the main loops, which take
    as long as the slowest of what they do, and a little of the others: `products` on the tensor cores, `staging` in
    shared memory, `loads` from L2 and memory, lines put in order, and all that is read and written, of memory. stores:
    of results from an SM, as far as it multiplies nothing meanwhile. reduction: of parts of k.
    """

    launch: Numbers
    steps: Numbers
    stores: Numbers
    reduction: Numbers

    products: Numbers
    staging: Numbers
    loads: Numbers

    @property
    def total(self) -> Numbers:
        return self.launch + self.steps + self.stores + self.reduction


def estimate(
    t: Table,
    batch: Numbers,
    m: Numbers,
    n: Numbers,
    k: Numbers,
    along_k: tuple[Numbers, Numbers],
    processors: int,
    split: Split | None = None,
    longer: tuple[float, float] = (1, 1),
    size: Numbers = 2,
    result: Numbers = 2,
    whole: bool = False,
    unaligned: tuple[Numbers, Numbers] = (False, False),
    by_threads: Numbers = 0,
) -> Estimate:
    """Of each variant, for one product, or for one of its own. split: k is that of planes. longer: as `SCALING`.
    size, result: bytes of an element of A and B, and of C. whole: tiles of C begin where sectors do. unaligned: TMA
    cannot read A or B as it is. by_threads: the share of an element in a vector of C that threads store; 0: by TMA."""
    shared_out = t.parts * t.groups
    items = np.maximum(1, t.tiles(m, n) * (batch * shared_out))
    waves = np.ceil(items / _together(processors)[t.ctas])
    steps = np.ceil(-(-k // BK) / shared_out)
    edges = t.rows + t.loaded

    products = steps * t.area * (BK / MACS) * where(t.clustered, SLOWED, 1)
    if longer != (1, 1):
        products = products * where(t.area > 64 * 256, longer[1], longer[0])
    if split:
        products = products * (split.products / split.planes) + steps * (BK / split.columns * ADDED)
    staging = steps * edges * (2 * BK / SM_INTAKE)
    within = _by_size(UNALIGNED_LOAD)[t.cluster]
    of_a, of_b = _line_bytes(m, k, along_k[0], within), _line_bytes(n, k, along_k[1], within)
    of_a, of_b = where(t.exchanged, of_b, of_a), where(t.exchanged, of_a, of_b)
    read = 2 * batch * (m + n) * k
    loads = (t.rows * of_a / t.along_n + t.loaded * of_b / t.along_m) / (shared_out * TPC_INTAKE)
    together = where(2 * items > processors, 2, _by_size(APART)[t.parts]) * _by_size(IN_STEP)[t.cluster]
    loads = together * (loads + read / MISSING / items)
    slow, copies = (products, staging, loads), 0
    if np.any(unaligned):
        a, b = (1.0 * each for each in unaligned)
        lines = t.rows * where(t.exchanged, b, a) + t.area / t.rows * where(t.exchanged, a, b)
        slow = *slow, where(t.apart, ORDER * steps * lines, 0)
        copied = 2 * batch * (m * a + n * b) * k
        copies = where(t.apart, 0, COPYING * np.maximum(a, b) + 2 * copied / COPY)
    main = slowest_of(*slow) * (1 + STALLED / (t.stages - 1) ** 2)

    late = where(t.parts > 1, 0, CLUSTERED * t.clustered)
    readers = np.minimum(np.ceil(m / t.of_m) + np.ceil(n / t.of_n), processors)
    store = PIECE * t.stored
    if np.any(by_threads):
        store = where(np.greater(by_threads, 0), BY_THREADS * t.area * by_threads / shared_out, store)
    # Of two instances, one stores while the other multiplies.
    stores = (waves - 1) * np.maximum(store - (t.instances - 1) * main, 0) + store

    more = 0 if whole else where(n * result % SECTOR > 0, UNALIGNED_STORE, 0) * t.breaks
    written = result * batch * m * n * (1 + more + NARROW_STORE * np.maximum(t.breaks / 2 - 1, 0))

    within = where(t.parts > 1, PARTS, 0) + DOUBLED * t.doublings + t.received / REDUCED
    share = np.ceil(t.pieces / np.minimum(t.groups, SHARES))
    across = GROUPS + (t.pieces + t.groups * share) * t.rows * (4 * NARROW / GATHERED)
    return Estimate(
        launch=LAUNCH + FIRST * edges + TILE * (waves - 1) + late + CROWDED * readers + copies,
        steps=slowest_of(waves * main, (read + written) / DRAM),
        stores=stores,
        reduction=where(t.instances > 1, 1, waves) * (within + where(t.groups > 1, across, 0)),
        products=waves * products,
        staging=waves * staging,
        loads=waves * loads,
    )


def within_sectors(m: int, n: int, result: int) -> float:
    """How many ns longer it takes at most to store such a result, in pieces of 64 elements, since its rows begin within
    sectors."""
    return 2 * UNALIGNED_STORE * result * m * n / DRAM if n * result % SECTOR else 0


def _line_bytes(extent: Numbers, k: Numbers, along_k: Numbers, unaligned: Numbers) -> Numbers:
    """What TMA loads of a row of A or a column of B, in pieces of 128 bytes along k, or along their `extent`."""
    lines = 128 * -(-k // BK)
    along = (lines + OUTSIDE * (lines - 2 * k)) * where(k % 16 > 0, unaligned, 1)
    across = 2 * k * where((extent % 16 > 0) | (extent < 64), unaligned, 1)
    return where(along_k, along, across)


@cache
def _together(processors: int) -> Numbers:
    """CTAs that run at once, by the size of their cluster."""
    return _by_size({size: count * processors // TOGETHER[1] for size, count in TOGETHER.items()})


def _by_size(values: dict[int, Any]) -> Numbers:
    """As an array, from 0 to 8; 1 for sizes that do not exist."""
    return np.array([values.get(size, 1) for size in range(9)], float)


# -- the choice --------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """`batch` products of m x n x k, and which variants may compute them.

    along_k: whether A and B are contiguous along k. behind: as of `choose`. parted: k may be split. unaligned: TMA
    cannot read A or B as it is. apart: but in parts, without multicast, lines by 64. promoted: few accumulators, and
    both warpgroups share a tile, so that one adds while the other multiplies. size, result: bytes of an element of A
    and B, and of C, of which 32 bytes of a row or more are stored. exchange: operands may be exchanged. split: k is
    that of planes. whole, by_threads: as of `estimate`."""

    batch: int
    m: int
    n: int
    k: int
    along_k: tuple[bool, bool]
    behind: int = 0
    processors: int = 132
    parted: bool = True
    apart: bool = False
    promoted: bool = False
    size: int = 2
    result: int = 2
    exchange: bool = True
    split: Split | None = None
    whole: bool = False
    unaligned: tuple[bool, bool] = (False, False)
    by_threads: float = 0

    @property
    def least(self) -> int:
        """Divides the columns of a tile, of which 32 bytes or more of a row are stored."""
        return max(16, 32 // self.result)


@cache
def best_in_time(request: Request) -> tuple[float, Variant]:
    """The least estimated time, in ns, and the variant."""
    kinds, product = _search(request)
    time, variant, groups = min((kind.fastest(*product) for kind in kinds), key=itemgetter(0))
    return time, _of_product(variant, groups, request.m, request.n)


def best(request: Request) -> Variant:
    """The variant with the least estimated time."""
    return best_in_time(request)[1]


def halves(k: int, size: int) -> int:
    """Elements of `size` bytes, as a number of 16-bit ones."""
    return cdiv(k * size, 2)


def ranked(count: int, request: Request) -> list[tuple[Variant, Estimate]]:
    """The `count` fastest variants among which `best` chooses, with their times."""
    kinds, product = _search(request)
    possible = (each for kind in kinds for each in kind.possible(*product))
    found = [(_of_product(v, groups, request.m, request.n), times) for v, times, groups in possible]
    return sorted(found, key=lambda each: each[1].total)[:count]


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
    orders = True, along_k or size != 2
    plain = Request(batch, m, n, k, orders, behind, processors, False, size=size, result=result, exchange=False)
    return best(plain).consts(k, result, size=size)


def _search(of: Request) -> tuple[Sequence[Options], tuple[int, int, int, int]]:
    """The variants among which `best` chooses, and the product as their model has it."""
    product = of.batch, of.m, of.n, halves(of.k, of.size)
    few = of.batch <= 1 and product[3] > 7 * BK and of.least == PIECE_WIDTH and of.m * of.n <= LARGEST * of.processors
    return _kinds(of.parted and few, of[len(product) :]), product  # `_replace` takes a tenth of the time of a choice


def _of_product(v: Variant, groups: int, m: int, n: int) -> Variant:
    """With what its product decides."""
    return v._replace(groups=groups) if v.parts else v._replace(band=_band(v, m, n))


def _band(v: Variant, m: int, n: int) -> int:
    if v.exchanged:
        m, n = n, m
    rows, columns = cdiv(m, v.tile[0]), cdiv(n, v.tile[1])
    if columns <= min(SPANNED, rows - 1):
        return NARROW_BAND
    return WIDE_BAND if BAND < rows <= WIDE_BAND else BAND


@cache
def _kinds(parted: bool, rest: tuple[Any, ...]) -> list[Options]:
    """Variants of which the number of clusters that share a tile does not depend on the product, and others. rest: of a
    `Request`, without the product."""
    of = Request(0, 0, 0, 0, *rest)._replace(parted=parted)
    kinds: list[tuple[list[Variant], bool]] = []
    for variants in (_candidates(of, apart) for apart in (False, True)[: 1 + of.apart]):
        grouped = next((at for at, v in enumerate(variants) if v.parts == 1), len(variants))
        kinds += (variants[:grouped], False), (variants[grouped:], True)
    tables = [(some, table_of(some, [of.result] * len(some)), in_groups) for some, in_groups in kinds if some]
    return [Options(some, partial(_model, table, in_groups, of)) for some, table, in_groups in tables]


def _model(
    t: Table, in_groups: bool, of: Request, batch: Numbers, m: Numbers, n: Numbers, k: Numbers
) -> tuple[Estimate, Numbers]:
    """That of `Options`; with the clusters that share a tile. Each part of k has two steps or more."""
    # No result is narrower than half of a tile of the least width.
    possible = (t.above_m < np.maximum(m, of.least)) & (t.above_n < np.maximum(n, of.least))
    tiles, usable = np.maximum(t.tiles(m, n), 1) * t.parts, _together(of.processors)[t.ctas]
    steps = -(-k // BK)
    most = np.minimum(steps // 2, 256)
    possible = possible & ((t.stored > 0) | ((t.parts <= most) & (tiles <= MOST_WAVES * usable)))
    if in_groups:
        t = t._replace(groups=_groups(t.parts, tiles, usable, steps, np.minimum(most // t.parts, MOST_GROUPS)))
        possible = possible & (t.groups > 1)
    longer = (1, 1) if of.split or not of.promoted else PROMOTING if of.exchange else SCALING
    given = of.along_k, of.processors, of.split, longer, of.size, of.result, of.whole, of.unaligned, of.by_threads
    times = estimate(t, batch, m, n, k, *given)
    return times._replace(reduction=where(possible, times.reduction, np.inf)), t.groups


def _groups(parts: Numbers, tiles: Numbers, usable: Numbers, steps: Numbers, most: Numbers) -> Numbers:
    """Clusters that share a tile: as many as run at once, and no more than make the longest part shorter."""
    each = np.ceil(steps / parts)
    return np.ceil(each / np.ceil(each / np.maximum(np.minimum(usable // tiles, most), 1)))


def _candidates(of: Request, apart: bool) -> list[Variant]:
    """All variants that operands of this kind allow. Those that split k among clusters are in one group yet. apart: as
    of `Variant`; the addresses of its stores need registers, too.

    Where B is in row order, tiles have multiples of 32 columns: others begin at most places of a line of 128 bytes, and
    are slower to load than what they save.
    """
    variants = [
        Variant(tile, exchanged, parts, along_m, 1, along_n, by_rows, apart=apart)
        for parts in ((0, *PARTS_OF_CLUSTER, 1) if of.parted else (0,))
        for exchanged, by_rows in ((False, not of.along_k[1]), (True, not of.along_k[0]))[: 1 + of.exchange]
        for along_m, along_n in CLUSTERS[: 1 if apart else 3 if parts > 1 else None]
        for tile in (PARTED if parts else WHOLE)
        if (along_m == 1 or tile[1] % (8 * along_m) == 0) and not (by_rows and tile[1] % (64 if apart else 32))
    ]
    both = [v for v in variants if v.parts == BOTH and v.tile[0] == 64 and v.tile[1] <= TINY and v.along_m == 1]
    variants += both
    behind = FEW_REGISTERS if apart else of.behind
    variants = [v for v in variants if v.has_registers(behind) and v.tile[1] % of.least == 0]
    variants = [v for v in variants if v.parts * v.along_m <= 8 and (not v.parts or v.along_m == 1 or v.tile[1] >= 64)]
    if of.promoted:
        scaled = not of.exchange
        in_two = [v for v in variants if v.in_halves and not of.split]
        most = 64 if scaled else 32
        variants = [
            v
            for v in variants
            if v.registers <= PROMOTED and (v.tile[2] == 1 or (v.tile[0] == 64 and v.tile[1] <= most))
        ]
        if scaled:
            variants = [v for v in variants if v.registers <= SCALED and BLOCK % v.tile[1] == 0]
        if not of.split:  # CTAs of a cluster wait for each other's additions; with k in parts they have few
            variants = [v for v in variants if v.tile[2] > 1 or v.along_m * v.along_n == 1 or (v.parts and not scaled)]
        variants = in_two + variants
    if apart:
        given = 0, of.unaligned, of.result, not of.by_threads
        variants = [v for v in variants if v.consts_apart(*given)["BK"] == ORDERED]
    result, step = (F32.bytes, of.split.columns) if of.split else (of.result, 0)
    return [v for v in variants if v.consts(0, result, step=step)["STAGES"] >= STAGES]

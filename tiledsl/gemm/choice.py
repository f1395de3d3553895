"""How `hopper_fastest` computes a product: which tile, which parts of k, and whether the operands are exchanged.

Below `LARGE` multiplications, and with few tiles, `best` estimates the time of each variant on an H200 and takes the
shortest. Above, the tiles are large, and what counts is how full the last wave is: `_of_waves`.

Everything in the model is a time in ns, or a rate in bytes per ns. `STEP` and the constants below it were fitted to the
measured times of 2400 variants on 186 random shapes, operands not in L2. What it chooses is 3.5% slower than the best
variant measured, in the mean, and 5% on shapes that the fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from tiledsl.gemm.split_k import QUAD
from tiledsl.lang import cdiv

__all__ = ["Variant", "best", "choose", "is_large"]

SHARED = 225 << 10
"""Bytes of shared memory for the ring and the staging of results."""
TOGETHER = {1: 1.0, 2: 1.0, 4: 10 / 11, 8: 10 / 11}
"""Share of the SMs that clusters of so many CTAs can use: each is within a GPC, and few GPCs have a multiple of 4."""

Tile = tuple[int, int, int]
"""Rows, columns, and instances of the role that multiplies."""
FLAT: tuple[Tile, ...] = tuple((64, columns, 2) for columns in (16, 32, 48, 64, 96, 128, 160, 192, 256))
WHOLE: tuple[Tile, ...] = (
    *FLAT,
    *((128, columns, 1) for columns in (16, 64, 96, 112, 128, 144, 192, 224, 256)),
    *((128, columns, 2) for columns in (96, 128, 160, 176)),
)
PARTED: tuple[Tile, ...] = (*FLAT, (128, 64, 1), (128, 96, 1), (128, 128, 1), (128, 192, 1))

ACCUMULATORS = (176, 128, 96)
"""By the number of extra epilogue steps: registers of a thread that leave enough for them."""
LARGE = 1 << 33
"""Multiplications. The model knows small products: it makes too much of what tensor cores hide in large ones."""
MACS = 3700
"""Multiplications of an SM's tensor cores per ns, at 1.755 GHz."""
STEP = {64: (143, 0.34), 128: (79, 0.51)}
"""By BK: the shortest time of 64 elements of k, and what each column of the tile adds. The rest hides behind wgmma."""
L2, READ, WRITE = 8830, 4830, 3790
SHARING = 0.52
"""A load that CTAs of a cluster share costs its bytes over their number to this power."""
ACROSS, NARROW = 4.9, 1.2
"""How much more writing costs: by columns, and in pieces of 64 bytes or less."""
STORE, STORE_EACH = 265, 0.058
"""A tile's result takes STORE, and STORE_EACH for each element."""
LAUNCH, CLUSTERED = 2275, 170
PARTS, CLUSTER_PARTS, REDUCED = 824, 121, 1700
"""What parts of k cost: in any case, more if they are in one cluster, and the rate of the partial sums."""
GROUPS, GROUP, GATHERED = 715, 35, 120
"""If several clusters share a tile: in any case, for each, and the rate at which the last one reads the sums."""


class Variant(NamedTuple):
    """parts: CTAs of a cluster that share a tile's k; 0: k is not split. along_m: tiles of a cluster along m. groups:
    clusters that share a tile."""

    tile: Tile
    exchanged: bool = False
    parts: int = 0
    along_m: int = 1
    groups: int = 1

    @property
    def bk(self) -> int:
        """A deeper step where the latency of one decides, not the tensor cores."""
        return 128 if self.tile[0] * self.tile[1] <= 64 * 96 else 64

    def consts(self) -> dict[str, Any]:
        """Of `hopper_fastest`, with as many stages as fit, up to 16."""
        rows, columns, instances = self.tile
        staged = 0 if self.parts else 2 * instances * rows * 128
        stages = min(16, (SHARED - staged) // (2 * self.bk * (rows + columns)))
        of_tile = {"BM": rows, "BN": columns, "BK": self.bk, "STAGES": stages, "INSTANCES": instances}
        return {**of_tile, "CLUSTER": (self.along_m, 1), "SPLIT": self.parts}

    @property
    def registers(self) -> int:
        """Of accumulators, in each thread."""
        rows, columns, instances = self.tile
        return rows * columns * instances // 256

    def tiles(self, m: int, n: int) -> int:
        """Of a result of m x n. Those past the edge that a cluster has are counted, too."""
        rows, columns, _ = self.tile
        if self.exchanged:
            m, n = n, m
        return cdiv(m, rows * self.along_m) * self.along_m * cdiv(n, columns)


def is_large(batch: int, m: int, n: int, k: int, processors: int) -> bool:
    """Whether the product has enough work and tiles for `choose` alone, without parts of k and exchanged operands."""
    tiles = batch * cdiv(m, 128) * cdiv(n, 256)
    return batch * m * n * k >= LARGE and 5 * tiles >= 2 * processors and min(m, n) > 128


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
) -> Variant:
    """The variant with the least estimated time. along_k: whether A and B are contiguous along k. behind: as of
    `choose`. parted: k may be split. apart: operands are loaded in parts (apart.py): without multicast, lines by 64."""
    variants = list(_whole(m, n, along_k))
    if parted:
        variants += _parted(batch, m, n, k, along_k, processors)
    if apart:
        variants = [v for v in variants if v.along_m == 1 and (along_k[not v.exchanged] or v.tile[1] % 64 == 0)]
    fitting = (v for v in variants if v.registers <= ACCUMULATORS[behind])
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, processors))


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
    by_tma: bool = True,
) -> dict[str, Any]:
    """The consts of `hopper_fastest` for `batch` products of m x n x k, each in one piece and as they are.

    along_k: B is contiguous along k, so that a tile may be any multiple of 16 wide; else a multiple of 64. behind: the
    number of extra epilogue steps (beta * C, an epilogue function: 0 to 2); pingpong has registers for them with
    small tiles only. by_tma: TMA can store C; if not, a tile's stores are not hidden behind the MMAs of another.
    """
    if is_large(batch, m, n, k, processors):
        return _of_waves(m, n, k, processors, along_k, behind, batch, by_tma)
    fitting = (v for v in _whole(m, n, (True, along_k)) if not v.exchanged and v.registers <= ACCUMULATORS[behind])
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, processors)).consts()


# -- large products --------------------------------------------------------------------------------


class Waves(NamedTuple):
    """A tile for large products. speed: of the main loop, relative to the others. exposed: the time of an epilogue that
    no other tile's MMAs hide, as elements of k. least: for k below this many elements, storing decides."""

    consts: dict[str, Any]
    speed: float
    exposed: int
    least: int


SHOWN = 300
"""Elements of k that take as long as an epilogue."""

WAVES = (
    Waves({"BN": 176, "INSTANCES": 2}, 0.985, 0, 280),
    Waves({"BN": 160, "INSTANCES": 2}, 0.975, 0, 208),
    Waves({"BN": 128, "INSTANCES": 2}, 0.95, 0, 224),
    Waves({"BN": 256}, 0.97, SHOWN, 0),
    Waves({"BN": 144, "STAGES": 5}, 0.96, SHOWN, 0),
    Waves({"BN": 128, "STAGES": 6}, 0.95, SHOWN, 0),
)
"""Measured at 4096 and 8192 cubed, and at 8192 x 8192 with k from 128 to 512."""

WIDE_RESULT = 1 << 28
"""Elements of a result, from which on the operands that concurrent CTAs share do not stay in L2. There the
widest tile, which loads least, is fastest."""


def _of_waves(
    m: int, n: int, k: int, processors: int, along_k: bool, behind: int, batch: int, by_tma: bool
) -> dict[str, Any]:
    """The tile with which the busiest of `processors` SMs ends first."""

    def clocks(choice: Waves) -> float:
        width: int = choice.consts["BN"]
        waves = cdiv(batch * cdiv(m, 128) * cdiv(n, width), processors)
        exposed = choice.exposed if by_tma else SHOWN
        alone = 1.4 if waves == 1 and not choice.exposed else 1  # of two pingpong instances, one is idle
        return waves * width * (max(k, choice.least) / choice.speed * alone + exposed)

    if batch * m * n >= WIDE_RESULT:
        return {"BN": 256, "GROUP": 16}
    widest = (256, 128, 0)[behind]
    fitting = [c for c in WAVES if along_k or c.consts["BN"] % 64 == 0]
    return min((c for c in fitting if c.exposed or c.consts["BN"] <= widest), key=clocks).consts


# -- the others ------------------------------------------------------------------------------------


def _fits(tile: Tile, along_m: int, m: int, n: int, fine: bool) -> bool:
    """Whether a tile makes sense. fine: it may be any multiple of 16 wide; else of 64, as B is in row order."""
    rows, columns, _ = tile
    shared = along_m == 1 or (columns % (8 * along_m) == 0 and m > rows)
    least = 16 if fine else 64
    much = columns > least and columns >= 2 * n
    return shared and not much and (fine or columns % 64 == 0) and (rows == 64 or m > 64)


def _whole(m: int, n: int, along_k: tuple[bool, bool]) -> Iterator[Variant]:
    for exchanged, height, width, fine in ((False, m, n, along_k[1]), (True, n, m, along_k[0])):
        for along_m in (1, 2, 4):
            tiles = (tile for tile in WHOLE if _fits(tile, along_m, height, width, fine))
            yield from (Variant(tile, exchanged, 0, along_m) for tile in tiles)


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


def _time(v: Variant, batch: int, m: int, n: int, k: int, processors: int) -> float:
    rows, columns, instances = v.tile
    area, shared_out = rows * columns, max(v.parts, 1) * v.groups
    items = v.tiles(m, n) * batch * shared_out
    waves = ceil(items / (processors * TOGETHER[v.along_m * max(v.parts, 1)]))
    steps = ceil(cdiv(k, v.bk) / shared_out) * v.bk / 64
    shortest, each = STEP[v.bk]
    main = steps * max(area * 64 / MACS, shortest + each * columns)
    store = STORE + STORE_EACH * area
    if instances == 2:  # one stores while the other multiplies
        body = main + (waves - 1) * max(main, store) + store
    else:
        body = waves * (main + store)
    read = items * steps * 128 * (rows + columns / v.along_m**SHARING) / L2
    written = m * n / WRITE
    if not v.parts:
        written *= (ACROSS if v.exchanged else 1) * (NARROW if columns > 64 and columns % 64 else 1)
    memory = 2 * batch * ((m + n) * k / READ + written)
    time = LAUNCH + (body**2 + read**2 + memory**2) ** 0.5
    if v.along_m > 1:
        time += CLUSTERED
    if v.parts:
        time += PARTS + items * area * 4 / REDUCED + (CLUSTER_PARTS if v.parts > 1 else 0)
    if v.groups > 1:
        time += GROUPS + v.groups * (GROUP + area * 4 / max(v.parts, 1) / GATHERED)
    return time

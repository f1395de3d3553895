"""How `hopper_fastest` computes a product: which tile, which parts of k, and whether the operands are exchanged.

`_time` estimates what each variant takes on an H200, and the one that takes least is chosen. Everything in the model is
a time in ns, or a rate in bytes per ns. The constants from MACS on were fitted to the measured times of 5100 variants
on 319 random shapes, operands not in L2. What the model picks of those measured is 3.7% slower than the fastest in the
mean, and 5 to 6% on shapes that a fit did not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil, log2
from typing import Any, NamedTuple

from tiledsl.gemm.hopper_tiles import span, staged_width
from tiledsl.gemm.split_k import slice_width
from tiledsl.lang import cdiv

__all__ = ["Variant", "best", "choose"]

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
    *((128, columns, 2) for columns in (64, 96, 112, 128, 144, 160, 176)),
)
PARTED: tuple[Tile, ...] = (
    *FLAT,
    *((128, columns, 1) for columns in (16, 64, 96, 112, 128, 144, 160, 192, 256)),
)
NARROW = 64 * 96
"""Elements of a tile, up to which steps may be 128 deep: the latency of a step decides, not the tensor cores."""
ACCUMULATORS = (176, 128, 96)
"""By the number of extra epilogue steps: registers of a thread that leave enough for them."""
LONG = 4096
"""Elements of k, from which on the order of tiles decides what stays in L2. Below, it decides which lines of the result
are written at the same time."""

MACS, ALONE = 5610, 0.94
"""Multiplications of an SM's tensor cores per ns. A pingpong instance of 128 rows takes so much of its time if the
other one is idle."""
STEP = {64: (71, 0.29), 128: (9.8, 0.5)}
"""By BK: the shortest time of 64 elements of k, and what each row and column of the tile adds to it."""
FIRST = 0.041
"""The first step of a CTA takes longer: for each element that is loaded for it."""
INTAKE, READ, WRITE = 325, 6370, 4990
"""Into the two SMs of a TPC; from memory; to memory."""
UNALIGNED_LOAD, UNALIGNED_STORE = 3.1, 1.5
"""How much more it costs if rows in memory do not begin at multiples of 32 bytes, which are L2's sectors."""
WITHIN = 1.2
"""How much more columns of B in row order cost to load where tiles begin in the middle of a line of 128 bytes."""
ACROSS, NARROW_PIECES = 1.2, 1.3
"""How much more writing costs by columns, and in pieces of 32 bytes of a row."""
STORE, STORE_EACH, PIECE = 201, 0.0013, 0.51
"""Of a tile's result: in any case, for each element, and for each row of each piece of up to 128 bytes."""
SHARING = {1: 1, 2: 3.1, 4: 6.3}
"""What loads of a cluster's CTAs cost less if 2 or 4 of them share one: more than its bytes, since L2 is asked once."""
CLUSTERED, IN_STEP = 202, {1: 1, 2: 1.5, 4: 1.4, 8: 1.8}
"""But a cluster starts later, and its CTAs wait for each other."""
OVERLAP = 1.28
"""How computing, loading, and memory overlap: they add up as lengths of this norm do. 1: not at all."""
LAUNCH = 1690
PARTS, DOUBLED, REDUCED = 794, 74, 743
"""What parts of k cost: in any case, for each doubling of their number in a cluster, and the rate of their sums."""
GROUPS, GATHERED = 626, 105
"""If several clusters share a tile: in any case, and the rate at which the last one reads the sums."""


class Variant(NamedTuple):
    """bk: elements of k of a step. parts: CTAs of a cluster that share a tile's k; 0: k is not split. along_m, along_n:
    tiles of a cluster along m and n. groups: clusters that share a tile. by_rows: the kernel's B is in row order, so
    that it is staged in whole panels. band: GROUP of the kernel."""

    tile: Tile
    bk: int = 64
    exchanged: bool = False
    parts: int = 0
    along_m: int = 1
    groups: int = 1
    along_n: int = 1
    by_rows: bool = False
    band: int = 8

    def consts(self, result: int = 2) -> dict[str, Any]:
        """Of `hopper_fastest`, with as many stages as fit, up to 16. result: bytes of an element of C."""
        rows, columns, instances = self.tile
        width = slice_width(self.parts, columns) if self.parts else columns
        staged = (1 if self.parts else 2) * instances * rows * span(width * result)
        stages = min(16, (SHARED - staged) // (2 * self.bk * (rows + self.loaded)))
        of_tile = {"BM": rows, "BN": columns, "BK": self.bk, "STAGES": stages, "INSTANCES": instances}
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
) -> Variant:
    """The variant with the least estimated time. along_k: whether A and B are contiguous along k. behind: as of
    `choose`. parted: k may be split."""
    variants = list(_whole(m, n, k, along_k))
    if parted:
        variants += _parted(batch, m, n, k, along_k, processors)
    fitting = (v for v in variants if v.registers <= ACCUMULATORS[behind])
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

    along_k: B is contiguous along k, so that a tile of any width is loaded from whole lines. behind: the number of
    extra epilogue steps (beta * C, an epilogue function: 0 to 2); pingpong has registers for them with
    small tiles only.
    """
    fitting = (v for v in _whole(m, n, k, (True, along_k)) if not v.exchanged and v.registers <= ACCUMULATORS[behind])
    return min(fitting, key=lambda v: _time(v, batch, m, n, k, (True, along_k), processors)).consts()


def _fits(tile: Tile, cluster: tuple[int, int], m: int, n: int, fine: bool) -> bool:
    """Whether a tile makes sense. fine: of any width; else of multiples of 32, as B is in row order: tiles of others
    begin at most places of a line of 128 bytes, and are slower to load than what they save."""
    rows, columns, _ = tile
    along_m, along_n = cluster
    shared = (along_m == 1 or (columns % (8 * along_m) == 0 and m > rows)) and (along_n == 1 or n > columns)
    least = 16 if fine else 32
    much = columns > least and columns >= 2 * n
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
                    made = Variant(tile, 64, exchanged, 0, cluster[0], 1, cluster[1], not fine, band)
                    yield made
                    if k > 64 and tile[0] * tile[1] <= NARROW:
                        yield made._replace(bk=128)


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
    items = v.tiles(m, n) * batch * shared_out
    waves = ceil(items / _together(cluster * max(v.parts, 1), processors))
    steps = ceil(cdiv(k, v.bk) / shared_out) * v.bk / 64
    piece = span(2 * columns)

    shortest, each = STEP[v.bk]
    alone = ALONE if instances == 2 and rows == 128 and waves == 1 else 1
    main = steps * max(area * 64 / MACS * alone, shortest + each * (rows + v.loaded))
    store = STORE + STORE_EACH * area
    if not v.parts:
        store += PIECE * 2 * area / piece
    if instances == 2:  # one stores while the other multiplies
        body = main + (waves - 1) * max(main, store) + store
    else:
        body = waves * (main + store)
    body *= IN_STEP[cluster]

    of_a, of_b = _row_bytes(m, k, along_k[0]), _row_bytes(n, k, along_k[1])
    if v.exchanged:
        of_a, of_b = of_b, of_a
    loaded = v.loaded * (WITHIN if v.loaded > columns else 1)
    of_item = (rows * of_a / SHARING[v.along_n] + loaded * of_b / SHARING[v.along_m]) / shared_out
    intake = ceil(2 * items / processors) * of_item / INTAKE

    written = m * n / WRITE * (UNALIGNED_STORE if n % 16 else 1)
    if not v.parts:
        written *= ACROSS if v.exchanged else NARROW_PIECES if piece == 32 else 1
    memory = 2 * batch * ((m + n) * k / READ + written)

    time = LAUNCH + FIRST * v.bk * (rows + v.loaded)
    time += (body**OVERLAP + intake**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    if cluster > 1:
        time += CLUSTERED
    if v.parts:
        time += PARTS + DOUBLED * log2(v.parts) + items * area * 4 / REDUCED
    if v.groups > 1:
        time += GROUPS + v.groups * area * 4 / max(v.parts, 1) / GATHERED
    return time


def _row_bytes(extent: int, k: int, along_k: bool) -> float:
    """What TMA loads of a row or column of an operand, in pieces of 128 bytes along k, or along their `extent`."""
    pitch, loaded = (k, 128 * cdiv(k, 64)) if along_k else (extent, 2 * k)
    return loaded * (UNALIGNED_LOAD if pitch % 16 else 1)

"""Which tiles of a product a block computes, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Literal, ParamSpec

from tiledsl.function import TileFunction, location, tile_function
from tiledsl.lang.dtypes import index
from tiledsl.lang.launch import cdiv
from tiledsl.lang.misuse import only_in_kernel
from tiledsl.lang.ranges import Extent, Range, tile, tiles

__all__ = ["Cluster", "Place", "Schedule", "WorkItem", "persistent", "tile_schedule"]

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many neighbouring tiles along m and along n are computed by the blocks of one cluster, at most 8 in all."""

    m: int = 1
    n: int = 1

    def __post_init__(self) -> None:
        for name, value in (("m", self.m), ("n", self.n)):
            if type(value) is not int or value < 1:  # pyright: ignore[reportUnnecessaryComparison]
                raise ValueError(f"Cluster({name}={value!r}): a positive int is expected")
        if self.m * self.n > 8:
            raise ValueError(f"a cluster of {self.m} x {self.n} = {self.m * self.n} blocks; at most 8 are portable")


class Place:
    """Where a block stands in its cluster. Without clusters: block 0 of 1."""

    m: int
    """How many blocks the cluster has along m, a compile-time int."""

    n: int
    """How many blocks the cluster has along n, a compile-time int."""

    at_m: index
    """This block's number along m: 0 to ``m - 1``."""

    at_n: index
    """This block's number along n: 0 to ``n - 1``."""


class WorkItem:
    """One unit of a block's work: ``WorkItem(m=tile(i, BM), n=tile(j, BN), k=tiles(K, BK))``.

    The `item` function of a `Schedule` returns it, with parts of any names; in ``for t in work:`` they are ``t.m``,
    ``t.n`` and so on.
    """

    def __init__(self, **parts: Any) -> None:
        raise only_in_kernel("WorkItem()")

    m: Range
    """Its rows."""

    n: Range
    """Its columns."""

    k: Iterator[Range]
    """``for k in t.k``: the tiles along k, as of `tiles`."""

    batch: index
    """The number of its matrix, of a schedule with batches; else 0."""

    split: index
    """The number of its part of k, of a schedule with splits; else 0."""

    @property
    def index(self) -> index:
        """Its number in the schedule. The blocks of a cluster share one."""
        raise only_in_kernel(".index")

    def __getattr__(self, name: str) -> Any:
        raise only_in_kernel(f".{name}")


class Schedule:
    """``work = Schedule(count, item, *args)``: there are ``count(place, *args)`` work items, and number i is
    ``item(i, place, *args)``, a `WorkItem`. ``for t in work`` goes through the items of this block.

    count, item: tile functions. args: anything that both need: extents, tensors, consts. place: the block's `Place`.
    In a kernel with clusters, the items are distributed to clusters, and `item` returns this block's part of one.

    Every role computes the items for itself, so both functions must return the same in all threads of a block; what
    depends on the thread is an error. They may read memory that the kernel does not write. A count that depends on
    memory needs `persistent`, which then launches as many blocks as the GPU has processors.
    """

    def __init__(self, count: TileFunction[..., Any], item: TileFunction[..., Any], *args: Any) -> None:
        raise only_in_kernel("Schedule()")

    def __iter__(self) -> Iterator[WorkItem]:
        raise only_in_kernel("a schedule")


def tile_schedule(
    m: Extent,
    n: Extent,
    k: Extent,
    tile: tuple[int, int, int],
    group: int = 8,
    along: Literal["m", "n"] = "m",
    batches: Extent = 1,
    splits: Extent = 1,
) -> Schedule:
    """``work = tile_schedule(M, N, K, tile=(BM, BN, BK))``: the tiles of an m x n result, one a block. It declares the
    grid.

    group, along: tiles come in bands of `group` tiles along m (or n), and in a band those along m first, so that blocks
    that run at the same time need few rows of A and columns of B. batches: how many matrices, one after the other.
    splits: how many items a tile is; they go through equal parts of k in whole tiles; the last ones may be shorter,
    or empty. Adding their sums is the author's: with `atomic_add`, or in a second kernel. In a kernel with a grid of
    its own, use `tile` instead.
    """
    raise only_in_kernel("tile_schedule()")


def persistent(schedule: Schedule, cluster: Cluster = Cluster()) -> Schedule:
    """``work = persistent(tile_schedule(...), cluster=Cluster(m=2))``: as many blocks as the GPU has processors, each
    with work items until none is left. It declares the grid and the cluster.

    The blocks of a cluster take neighbouring tiles in lock step, so that what they share is loaded once, by `tma_load`
    with ``multicast=``. A tile past the edge loads zeros and stores nothing: kernels with clusters reach memory by TMA
    or with guards. (PTX ISA: %nctaid, %cluster_ctarank.)
    """
    raise only_in_kernel("persistent()")


# -- what tile_schedule is -------------------------------------------------------------------------


class Unwrapped(TileFunction[P, Any]):
    """A tile function in which every sum, difference and product of `index` fits its width, so that it is computed in
    no more: of places in a problem whose tiles a launch can count. Functions that it calls have their own say."""


def unwrapped(fn: Any) -> Any:
    return Unwrapped(fn, location(fn))


cdiv_any: Any = cdiv  # of anything, as these functions take anything


@tile_function
def _pieces(extent: Any, size: Any) -> Any:
    """How many tiles cover an extent, which may itself be as large as an index is."""
    return cdiv_any(extent, size)


@unwrapped
def tile_count(place: Place, m: Any, n: Any, k: Any, sizes: Any, bands: Any, batches: Any, splits: Any) -> Any:
    """How many tiles there are, in units of a cluster's, each as often as there are matrices and parts of k.

    sizes: of a tile along m, n, k. bands: how many tiles one has, and whether along m. batches, splits: None is one.
    """
    count = _pieces(m, sizes[0] * place.m) * _pieces(n, sizes[1] * place.n)
    for times in (batches, splits):
        if times is not None:
            count *= times
    return count


@unwrapped
def tile_item(i: Any, place: Place, m: Any, n: Any, k: Any, sizes: Any, bands: Any, batches: Any, splits: Any) -> Any:
    """Work item number `i`: bands of tiles along one axis, in a band those along that axis first."""
    rows, columns = _pieces(m, sizes[0] * place.m), _pieces(n, sizes[1] * place.n)
    each = rows * columns
    rest, batch, split, along_k = i, 0, 0, tiles(k, sizes[2])
    if batches is not None:
        of_batch = each if splits is None else each * splits
        batch, rest = rest // of_batch, rest % of_batch
    if splits is not None:
        split, rest = rest // each, rest % each
        along_k = _part(k, sizes[2], split, splits)
    group, along_m = bands
    group = max(1, group // (place.m if along_m else place.n))
    banded, across = (rows, columns) if along_m else (columns, rows)
    inner, outer = in_bands(rest, banded, across, group)
    row, column = (inner, outer) if along_m else (outer, inner)
    if place.m * place.n > 1:
        row, column = row * place.m + place.at_m, column * place.n + place.at_n
    return WorkItem(m=tile(row, sizes[0]), n=tile(column, sizes[1]), k=along_k, batch=batch, split=split)


@unwrapped
def in_bands(i: Any, extent: Any, across: Any, group: Any) -> Any:
    """Number `i` of extent x across places: bands of `group` along the first axis, in a band those along it first."""
    first = i // (across * group) * group
    size = min(extent - first, group)
    within = i % (across * group)
    return first + within % size, within // size


@unwrapped
def _part(k: Any, size: int, split: Any, splits: Any) -> Any:
    """The tiles along k of one part: all have as many, but for the last ones, which may have none."""
    part = _pieces(_pieces(k, size), splits) * size
    start = split * part
    return tiles(start + min(part, k - start), size, start=start)

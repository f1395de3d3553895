"""Which tiles of a product a block computes, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Literal

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import index
from tiledsl.lang.misuse import only_in_kernel
from tiledsl.lang.ranges import Range

__all__ = ["Cluster", "Schedule", "WorkItem", "persistent", "tile_schedule"]

HostExtent = index | int | type[Dim]


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


class WorkItem:
    """One tile of the result."""

    @property
    def m(self) -> Range:
        """Its rows."""
        raise only_in_kernel(".m")

    @property
    def n(self) -> Range:
        """Its columns."""
        raise only_in_kernel(".n")

    @property
    def k(self) -> Iterator[Range]:
        """``for k in t.k``: the tiles along k, as of `tiles`."""
        raise only_in_kernel(".k")

    @property
    def batch(self) -> index:
        """The number of its matrix, of a schedule with batches; else 0."""
        raise only_in_kernel(".batch")

    @property
    def split(self) -> index:
        """The number of its part of k, of a schedule with splits; else 0."""
        raise only_in_kernel(".split")

    @property
    def index(self) -> index:
        """Its number in the schedule (of a cluster's tiles: that of the cluster)."""
        raise only_in_kernel(".index")


class Schedule:
    """``for t in work``: the work items of this block. Roles of one block go through the same items."""

    def __iter__(self) -> Iterator[WorkItem]:
        raise only_in_kernel("a schedule")


def tile_schedule(
    m: HostExtent,
    n: HostExtent,
    k: HostExtent,
    tile: tuple[int, int, int],
    group: int = 8,
    along: Literal["m", "n"] = "m",
    batches: HostExtent = 1,
    splits: HostExtent = 1,
) -> Schedule:
    """``work = tile_schedule(M, N, K, tile=(BM, BN, BK))``: the tiles of an m x n result, one a block. It declares the
    grid.

    group, along: tiles come in bands of `group` tiles along m (or n), and in a band those along m first, so that blocks
    that run at the same time need few rows of A and columns of B. batches: so many matrices, one after the other.
    splits: each tile is so many items, which go through equal parts of k, whole tiles along it; their sums are the
    author's to add, with `atomic_add` or in a second kernel. In a kernel with a grid of its own, use `tile` instead.
    """
    raise only_in_kernel("tile_schedule()")


def persistent(schedule: Schedule, cluster: Cluster = Cluster()) -> Schedule:
    """``work = persistent(tile_schedule(...), cluster=Cluster(m=2))``: as many blocks as the GPU has processors, each
    with work items until there are none left. It declares the grid and the cluster.

    The blocks of a cluster take neighbouring tiles in lock step, so that what they share is loaded once, by `tma_load`
    with ``multicast=``. A tile past the edge loads zeros and stores nothing: kernels with clusters reach memory by TMA
    or with guards. (PTX ISA: %nctaid, %cluster_ctarank.)
    """
    raise only_in_kernel("persistent()")

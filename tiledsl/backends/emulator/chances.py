"""What a seed decides of a run: the order of turns, which a GPU leaves open.

Without a seed, all warps that stand at one instruction move as one, run until they wait, go on together when nothing
else can run, and copies arrive as late as they may. With one, warps move alone, are preempted anywhere, wait longer
than they need to or not, and copies arrive at any time. Blocks of some random groups still move as one, so that a run
takes tens of times as long, not thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.backends.emulator.positions import Clusters

T = TypeVar("T")

GROUPS = 4
"""Into which the clusters of a chunk are divided at random; of a group, the blocks of one rank move as one."""

_DROPS = 0.02
"""How often who runs next becomes the last of all."""
_POLLS = 0.05
"""How often anybody is next, also one who spins while others run."""
_OFTEN = (0.0, 0.05, 0.5)
_LENGTHS = (1, 4, 16, 64)


class Chances:
    """Drawn from one seed, which is above 0; equal seeds draw alike.

    `length`: instructions of a turn, on average. `eager`: how often a warp that waits is asked whether it can go on
    while others run. `early`: how often copies arrive before somebody needs them. `ranked`: warps, or blocks, have
    priorities, some of which drop to the lowest, so that one may starve (S. Burckhardt et al., ASPLOS 2010); else each
    turn is anybody's.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed).random
        self.ranked = seed % 2 == 1
        self.length = _LENGTHS[int(random() * len(_LENGTHS))]
        self.eager, self.early = (_OFTEN[int(random() * len(_OFTEN))] for _ in range(2))
        self.by_block = random() < 0.3
        self.ranks: dict[tuple[int, int], float] = {}
        self.lowest = 0.0

    def happens(self, how_often: float) -> bool:
        return self.random() < how_often

    def some(self, count: int) -> Bools:
        """About half of so many."""
        return np.array([self.random() < 0.5 for _ in range(count)])

    def shuffled(self, values: Sequence[T]) -> list[T]:
        return sorted(values, key=lambda _: self.random())

    def groups(self, clusters: Clusters) -> Ints:
        """Of each block of a chunk, with which others it moves as one."""
        of_cluster = np.array([int(self.random() * GROUPS) for _ in range(int(clusters.number.max()) + 1)])
        return of_cluster[clusters.number] * clusters.size + clusters.rank

    def turn(self) -> int:
        """How many instructions a cohort may execute until it is preempted."""
        return 1 + int(self.random() * 2 * self.length)

    def choose(self, queue: Sequence[Cohort]) -> int:
        """Who is next: mostly a cohort that does not spin, if there is one."""
        running = [number for number, cohort in enumerate(queue) if not cohort.parked]
        if self.happens(_POLLS) or not running:
            return int(self.random() * len(queue))
        if not self.ranked:
            return running[int(self.random() * len(running))]
        first = max(running, key=lambda number: self.rank(queue[number]))
        if self.happens(_DROPS):
            self.ranks[self.who(queue[first])] = self.lowest = self.lowest - 1
        return first

    def who(self, cohort: Cohort) -> tuple[int, int]:
        """What has a priority: a warp of a block, or a block."""
        return cohort.chunk.run.launch.first + int(cohort.blocks[0]), 0 if self.by_block else int(cohort.warps[0, 0])

    def rank(self, cohort: Cohort) -> float:
        who = self.who(cohort)
        if who not in self.ranks:
            self.ranks[who] = self.random()
        return self.ranks[who]


def parts(cohort: Cohort, groups: Ints, unit: int) -> list[Cohort]:
    """The cohort's warps in units of neighbours, and its blocks in groups; all of it where a warp has no active lane,
    which runs for the sake of others alone."""
    if cohort.mask is not None and not cohort.active().any(axis=2).all():
        return [cohort]
    labels = groups[:, None] * (int(cohort.warps.max()) + 1) + np.broadcast_to(cohort.warps, cohort.shape[:2]) // unit
    each = np.unique(labels)
    return [cohort] if len(each) == 1 else [cohort.select(labels == label) for label in each]

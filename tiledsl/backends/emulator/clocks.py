"""Who knows of whose past: vector clocks of the warps of a chunk.

Each warp counts; what it does belongs to its count at that time. To arrive somewhere is to leave there what one knows
and to count on; to wait there is to take what was left. So one warp's access comes before another's if the other one
knows of a count at least as high. Three kinds of *agents* count, in every block of a cluster:

- warps: `warp`;
- the proxy fences of warps: `warps + warp` knows of what all lanes of the warp have fenced, all before that count;
- mbarriers: `2 * warps + column` counts phases that have ended, with the bytes that have arrived in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import NAMED_BARRIERS
from tiledsl.backends.emulator.clusters import Clusters

__all__ = ["Clocks", "Known"]

Ints = NDArray[np.int64]
Known = NDArray[np.int32]


class _Meeting:
    """What those who arrive leave: `left` in the current round, `kept` since rounds that have ended."""

    def __init__(self, *shape: int) -> None:
        self.left, self.kept = (np.zeros(shape, np.int32) for _ in range(2))

    def leave(self, places: tuple[Ints, ...], known: Known) -> None:
        np.maximum.at(self.left, places, known)

    def end(self, *places: Ints) -> None:
        """The round ends there."""
        self.kept[places] = np.maximum(self.kept[places], self.left[places])
        self.left[places] = 0


class Clocks:
    """`known` [blocks, warps, rank, agents]: what each warp knows. `synced` [blocks, warps]: its count when all of its
    lanes met last."""

    def __init__(self, clusters: Clusters, blocks: int, warps: int, mbarriers: int) -> None:
        self.ranks, self.clusters, self.warps = clusters.rank, clusters.number, warps
        agents = clusters.size, 2 * warps + mbarriers
        self.known = np.zeros((blocks, warps, *agents), np.int32)
        self.synced = np.ones((blocks, warps), np.int64)
        self.mbarriers = _Meeting(blocks, max(mbarriers, 1), *agents)
        self.named = _Meeting(blocks, NAMED_BARRIERS, *agents)
        self.cluster = _Meeting(int(clusters.number.max()) + 1, *agents)
        rows = np.repeat(np.arange(blocks), warps)
        self.tick(rows, np.tile(np.arange(warps), blocks))

    def now(self, rows: Ints, warps: Ints) -> Ints:
        """The counts of these warps."""
        return self.known[rows, warps, self.ranks[rows], warps].astype(np.int64)

    def tick(self, rows: Ints, warps: Ints) -> None:
        """These warps, each named once, count on."""
        self.known[rows, warps, self.ranks[rows], warps] += 1

    def sync(self, rows: Ints, warps: Ints) -> None:
        """All lanes of these warps meet."""
        self.tick(rows, warps)
        self.synced[rows, warps] = self.now(rows, warps)

    def leave(self, meeting: _Meeting, places: tuple[Ints, ...], rows: Ints, warps: Ints) -> None:
        """Warps, one an entry and maybe named twice, arrive at these places."""
        meeting.leave(places, self.known[rows, warps])
        rows, warps = np.unique(np.stack([rows, warps]), axis=1)
        self.tick(rows, warps)

    def take(self, kept: Known, rows: Ints, warps: Ints) -> None:
        """Warps, each named once, learn what was kept for them, one an entry."""
        self.known[rows, warps] = np.maximum(self.known[rows, warps], kept)
        own = kept[np.arange(len(rows)), self.ranks[rows], warps]
        self.synced[rows, warps] = np.maximum(self.synced[rows, warps], own + 1)

    def meet(self, rows: Ints) -> None:
        """All warps of these blocks meet."""
        everybody = self.known[rows].max(axis=1, keepdims=True)
        self.known[rows] = everybody
        for warp in range(self.warps):
            self.sync(rows, np.full(len(rows), warp))

    def fence(self, rows: Ints, warps: Ints) -> None:
        """What these warps have read and written is fenced."""
        self.tick(rows, warps)
        self.known[rows, warps, self.ranks[rows], self.warps + warps] = self.now(rows, warps)

    def end_phases(self, rows: Ints, columns: Ints, phases: Ints) -> None:
        """These mbarriers have ended so many phases."""
        self.mbarriers.left[rows, columns, self.ranks[rows], 2 * self.warps + columns] = phases
        self.mbarriers.end(rows, columns)

    def of_agents(self, known: Known, ranks: Any, agents: Any) -> Known:
        """How far those that know `known` [entries, rank, agents] know of these agents [entries, any]."""
        entries = np.arange(len(known))[:, None]
        return known[entries, ranks, agents]

"""Who knows of whose past: vector clocks of the warps of a chunk.

Each warp counts; what it does belongs to its count at that time. To arrive somewhere is to leave there what one knows
and to count on; to wait there is to take what was left. So one warp's access comes before another's if the other one
knows of a count at least as high. Four kinds of *agents* count, in every block of a cluster:

- warps: `warp`;
- the proxy fences of warps: `warps + warp` knows of what all lanes of the warp have fenced, all before that count;
- mbarriers: `2 * warps + column` counts phases that have ended, with the bytes that have arrived in them;
- work that threads begin and commit to mbarriers, of kernels with any: `work + warp` counts commits whose work has
  ended.

After a barrier of a whole block all of its warps have one count, above all that they had before. So where nothing but
such barriers orders warps, one number for each block, `met`, tells what lies behind its last barrier: what does needs
no look at the clocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import NAMED_BARRIERS
from tiledsl.backends.emulator.clusters import Clusters

__all__ = ["Clocks", "Known", "View"]

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


class View:
    """What some know, one an entry: of the agent `id`, a number that stands for its rank and which it is there, the
    entry knows ``flat[start + id]``."""

    __slots__ = ("flat", "start")

    def __init__(self, flat: Known, start: Ints) -> None:
        self.flat, self.start = flat, start

    def of(self, ids: NDArray[Any]) -> Known:
        """[entries, any], of agents [entries, any]."""
        return self.flat.take(self.start.reshape(-1, *[1] * (ids.ndim - 1)) + ids)

    def part(self, which: NDArray[np.bool_]) -> View:
        return View(self.flat, self.start[which])


class Clocks:
    """`known` [blocks, warps, rank, agents]: what each warp knows. `synced` [blocks, warps]: its count when all of its
    lanes met last. `met` [blocks]: all warps of the block know of what each did up to this count of its own, if nothing
    but barriers of whole blocks orders them."""

    def __init__(self, clusters: Clusters, blocks: int, warps: int, mbarriers: int, commits: bool) -> None:
        self.ranks, self.clusters, self.warps = clusters.rank, clusters.number, warps
        self.work = 2 * warps + mbarriers
        self.agents = self.work + (warps if commits else 0)
        shape = clusters.size, self.agents
        self.known = np.zeros((blocks, warps, *shape), np.int32)
        self.synced = np.ones((blocks, warps), np.int64)
        self.met = np.zeros(blocks, np.int32)
        self.mbarriers = _Meeting(blocks, max(mbarriers, 1), *shape)
        self.named = _Meeting(blocks, NAMED_BARRIERS, *shape)
        self.cluster = _Meeting(int(clusters.number.max()) + 1, *shape)
        self.meet(np.arange(blocks))

    # -- agents --------------------------------------------------------------------------------

    def ids(self, rows: Ints, agents: Any) -> Ints:
        """Numbers for these agents of these blocks; those of one block follow each other."""
        return self.ranks[rows] * self.agents + agents

    def agent(self, id_: Any) -> int:
        return int(id_) % self.agents

    def view(self, rows: Ints, warps: Ints) -> View:
        """What these warps know now."""
        size = self.known[0, 0].size
        return View(self.known.reshape(-1), (rows * self.warps + warps) * size)

    def view_of(self, known: Known) -> View:
        """What is in `known` [entries, rank, agents]."""
        return View(known.reshape(-1), np.arange(len(known)) * known[0].size)

    def now(self, rows: Ints, warps: Ints) -> Ints:
        """The counts of these warps."""
        return self.known[rows, warps, self.ranks[rows], warps].astype(np.int64)

    # -- events --------------------------------------------------------------------------------

    def tick(self, rows: Ints, warps: Ints) -> None:
        """These warps, each named once, count on."""
        self.known[rows, warps, self.ranks[rows], warps] += 1

    def sync(self, rows: Ints, warps: Ints) -> None:
        """All lanes of these warps, each named once, meet."""
        self.tick(rows, warps)
        self.synced[rows, warps] = self.now(rows, warps)

    def leave(self, meeting: _Meeting, places: tuple[Ints, ...], rows: Ints, warps: Ints) -> None:
        """Warps, one an entry and maybe named twice, arrive at these places."""
        meeting.leave(places, self.known[rows, warps])
        self.tick(*np.divmod(np.unique(rows * self.warps + warps), self.warps))

    def leave_work(self, places: tuple[Ints, ...], rows: Ints, warps: Ints, counts: Ints) -> None:
        """Work that these warps have begun, so many commits of it, arrives at these mbarriers when it has ended. It
        comes after what the warp had waited for, and lets nobody know of what the warp has done itself."""
        known, entry, ranks = self.known[rows, warps], np.arange(len(rows)), self.ranks[rows]
        known[entry, ranks, warps] = known[entry, ranks, self.warps + warps] = 0
        known[entry, ranks, self.work + warps] = counts
        self.mbarriers.leave(places, known)

    def take(self, kept: Known, rows: Ints, warps: Ints) -> None:
        """Warps, each named once, learn what was kept for them, one an entry."""
        self.known[rows, warps] = np.maximum(self.known[rows, warps], kept)
        own = kept[np.arange(len(rows)), self.ranks[rows], warps]
        self.synced[rows, warps] = np.maximum(self.synced[rows, warps], own + 1)

    def meet(self, rows: Ints) -> None:
        """All warps of these blocks meet."""
        everybody = self.known[rows].max(axis=1)
        before = everybody[np.arange(len(rows)), self.ranks[rows], : self.warps].max(axis=1)
        self.known[rows] = everybody[:, None]
        warps = np.arange(self.warps)
        self.known[rows[:, None], warps, self.ranks[rows][:, None], warps] = before[:, None] + 1
        self.synced[rows] = before[:, None] + 1
        self.met[rows] = before

    def fence(self, rows: Ints, warps: Ints) -> None:
        """What these warps have read and written is fenced."""
        self.tick(rows, warps)
        self.known[rows, warps, self.ranks[rows], self.warps + warps] = self.now(rows, warps)

    def end_phases(self, rows: Ints, columns: Ints, phases: Ints) -> None:
        """These mbarriers have ended so many phases."""
        self.mbarriers.left[rows, columns, self.ranks[rows], 2 * self.warps + columns] = phases
        self.mbarriers.end(rows, columns)

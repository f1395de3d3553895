"""Proxy fences for global memory: what each thread knew at its last one, and all of them.

TMA may touch what a thread has written if a fence, of any thread, comes between the two. Mostly it is one of the thread
that starts TMA, its last one. (PTX ISA: memory consistency model, proxy-preserved base causality order.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, View
from tiledsl.backends.emulator.sanitizer.global_shadow import PLAIN, STRIDE, Entries


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads, one an entry: their blocks' `rows`, the agents `warps` of the run that their warps are, their
    `clusters`, what they have `known`, and the count at which the lanes of their warps had met, `synced`."""

    rows: Ints
    threads: Ints
    warps: Ints
    clusters: Ints
    known: View
    synced: Ints

    @property
    def lanes(self) -> Ints:
        return self.threads % WARP


Before = Callable[[Entries, Threads], Bools]
"""Which of these accesses, [entries, any], happen before what these threads do."""


class Fenced:
    """By thread [blocks, warps, 32], as it was at its last proxy fence for global memory: `known`, the clock of its
    warp; `synced`, the count at which the warp's lanes had met."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        blocks, warps, *clock = clocks.known.shape
        self.known = np.zeros((blocks, warps, WARP, *clock), np.int32)
        self.synced = np.zeros((blocks, warps, WARP), np.int64)

    def make(self, rows: Ints, threads: Ints) -> None:
        clocks, warps, lanes = self.clocks, threads // WARP, threads % WARP
        self.known[rows, warps, lanes] = clocks.known[rows, warps]
        self.synced[rows, warps, lanes] = clocks.synced[rows, warps]
        clocks.tick_once(rows, warps)

    def at(self, by: Threads) -> Threads:
        """These threads as they were at their fences."""
        thread = (by.rows * self.clocks.warps + by.threads // WARP) * WARP + by.lanes
        known = View(self.known.reshape(-1), thread * self.known[0, 0, 0].size)
        return Threads(by.rows, by.threads, by.warps, by.clusters, known, self.synced.reshape(-1)[thread])


class Fence:
    """One by the lanes `made` of one warp, with the clock that it has now, at its `count`. `before`: of its chunk."""

    def __init__(self, clocks: Clocks, before: Before, row: int, warp: int, made: Bools) -> None:
        self.before, self.row, self.warp, self.made = before, row, warp, made
        self.known, self.synced = clocks.known[row, warp].reshape(-1).copy(), clocks.synced[row, warp]
        self.cluster = clocks.in_run[row]
        self.who = self.cluster * STRIDE + clocks.ids(np.array([row]), warp)[0]
        self.count = clocks.now(np.array([row]), np.array([warp]))[0]

    def entries(self, count: int) -> Entries:
        """As an access, so many times."""
        values = self.who, self.count, np.argmax(self.made), PLAIN, 0
        return Entries(*(np.full((count, 1), value) for value in values))

    def follows(self, earlier: Entries) -> Bools:
        """Which of these accesses [entries, any] happen before it?"""
        values = self.row, self.warp * WARP, self.who, self.cluster, 0, self.count + 1
        row, thread, who, cluster, start, met = (np.full(len(earlier.who), value) for value in values)
        by = Threads(row, thread, who, cluster, View(self.known, start), met)
        before = self.before(earlier, by)
        alone = (earlier.who == self.who) & (earlier.when >= self.synced)
        return before & ~(alone & ~self.made[earlier.lane % WARP])

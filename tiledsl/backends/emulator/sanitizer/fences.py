"""Proxy fences of a chunk's threads: which plain accesses to shared memory come before those of TMA and wgmma.

A fence counts for the thread that executes it. What others know of a warp's fences is one count (`clocks`): all that
its lanes have done before is fenced. Where some of those lanes have made none, the fences of the others are kept here,
lane by lane. (PTX ISA: async proxy; fence.proxy.async.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.sanitizer.clocks import Clocks
from tiledsl.backends.emulator.sanitizer.shadow import Bools, Ints

__all__ = ["ProxyFences"]

Numbers = NDArray[Any]
"""Integers of any width."""


class ProxyFences:
    """`unfenced` [blocks, warps, 32]: lanes that have read or written since their last proxy fence. `partial`: of a
    row and a warp, the counts of fences that others of these lanes have not made, and the lanes that have."""

    def __init__(self, clocks: Clocks, blocks: int, warps: int) -> None:
        self.clocks = clocks
        self.unfenced = np.zeros((blocks, warps, WARP), np.bool_)
        self.partial: dict[tuple[int, int], list[tuple[int, Bools]]] = {}

    def accessed(self, rows: Ints, warps: Ints, lanes: Ints, matrix: bool) -> None:
        """These lanes read or write; all lanes of a warp move a matrix."""
        if matrix:
            self.unfenced[rows, warps] = True
        else:
            self.unfenced[rows, warps, lanes] = True

    def make(self, rows: Ints, warps: Ints, lanes: Ints) -> None:
        """These lanes execute a fence."""
        made = np.zeros_like(self.unfenced)
        made[rows, warps, lanes] = True
        self.unfenced &= ~made
        rows, warps = np.nonzero(made.any(axis=2))
        whole = ~self.unfenced[rows, warps].any(axis=1)
        self.clocks.fence(rows[whole], warps[whole])
        rows, warps = rows[~whole], warps[~whole]
        self.clocks.tick(rows, warps)
        for row, warp, count in zip(rows.tolist(), warps.tolist(), self.clocks.now(rows, warps).tolist(), strict=True):
            self.partial.setdefault((row, warp), []).append((count, made[row, warp]))

    def missing(
        self, late: Bools, rows: Numbers, warps: Numbers, lanes: Numbers, since: Numbers, known: Numbers
    ) -> Bools:
        """Which accesses no fence follows, of those, `late`, that no fence of the whole warp does.

        One entry an access, or what broadcasts to that: by whom, at which count `since` of the warp, and which count
        of it is `known`.
        """
        if not self.partial or not late.any():
            return late
        missing, places = late.copy(), np.argwhere(late)
        rows, warps, lanes, since, known = np.broadcast_arrays(rows, warps, lanes, since, known)
        who = np.stack([each[late] for each in (rows, warps, lanes)], axis=1)
        for row, warp, lane in np.unique(who, axis=0).tolist():
            fences = self.partial.get((row, warp), [])
            counts = np.array([count for count, made in fences if lane < WARP and made[lane]], np.int64)
            if not len(counts):
                continue
            at = tuple(places[(who == (row, warp, lane)).all(axis=1)].T)
            # The first fence behind each access; a last one that never comes.
            after = np.append(counts, np.iinfo(np.int64).max)[np.searchsorted(counts, since[at], side="right")]
            missing[at] = after > known[at]
        return missing

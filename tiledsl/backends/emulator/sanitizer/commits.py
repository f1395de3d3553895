"""Work that a thread begins and whose end a commit lets others know, by an arrival at an mbarrier.

What a thread begins ends in the order in which it began. A commit arrives when all of it before has ended, so whoever
waits for that arrival, or for a later commit's, comes after it; nothing else does, not even the thread that began it.
Of a warp one thread begins such work, and its own commits alone speak of it. (PTX ISA: tcgen05.mma, tcgen05.commit.)
"""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Sync
from tiledsl.backends.emulator.sanitizer.clocks import Known
from tiledsl.backends.emulator.sanitizer.memory import SharedHistory
from tiledsl.backends.emulator.sanitizer.shadow import Ints
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["CommittedWork"]

_FIX = "let the thread that begins it commit it to an mbarrier, and wait there before the block ends"


class CommittedWork:
    """Of one chunk, [blocks, warps]: `commits` so far; `needed`: the one behind which all work has ended, 0 for none;
    `lane`: who begins it, -1 for nobody yet. `begun`: which op began work last, for messages."""

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        self.memory, self.clocks = memory, memory.clocks
        self.commits, self.needed = (np.zeros((blocks, memory.warps), np.int64) for _ in range(2))
        self.lane = np.full(self.needed.shape, -1, np.int64)
        self.begun: Op | None = None

    def issue(self, access: Access) -> None:
        """Work begins that reads ("fetch") or writes."""
        memory, touch = self.memory, self.memory.by_proxy(access)
        who, lanes = (touch.owners, touch.warps), access.threads[:: access.run] % WARP
        self.lane[who] = np.where(self.lane[who] < 0, lanes, self.lane[who])
        if (other := self.lane[who] != lanes).any():
            self.begun, at = access.op, int(np.argmax(other))
            text = f"begins work in lane {lanes[at]}, and has begun some in lane {self.lane[who][at]}"
            self.fail(int(touch.owners[at]), int(touch.warps[at]), text, "let one thread of a warp begin all of it")
        agents, epochs = self.clocks.ids(touch.owners, self.clocks.work + touch.warps), self.commits[who] + 1
        self.needed[who], self.begun = epochs, access.op
        memory.against_writers(touch, in_order=agents)
        if access.proxies:
            memory.against_unfenced(touch)
        if access.kind == "fetch":
            memory.remember_work(touch, epochs)
            return
        memory.against_readers(touch, in_order=touch.warps)
        if access.proxies:
            memory.against_unfenced_readers(touch)
        memory.set_writer(access.op, touch.cells, agents[:, None], epochs[:, None])

    def commit(self, sync: Sync) -> Ints:
        """How many commits there are with this one, of each warp; 0 where another of its threads commits."""
        who = sync.blocks - self.memory.first, sync.warps
        own = self.lane[who] == sync.commits
        self.commits[who] += own
        return np.where(own, self.commits[who], 0)

    def require_committed(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        left = self.needed[rows, warps] > self.commits[rows, warps]
        if left.any():
            at = int(np.argmax(left))
            self.fail(int(rows[at]), int(warps[at]), "ends, and has not committed all work that it has begun")

    def end(self, known: Known) -> None:
        """All blocks have ended, with what each `known` [blocks, rank, agents]."""
        rows = np.arange(len(self.needed))
        if not self.needed.any():
            return
        warps = self.clocks.work + np.arange(self.memory.warps)
        left = self.needed > known[rows[:, None], self.clocks.ranks[rows][:, None], warps]
        if left.any():
            row, warp = np.argwhere(left)[0].tolist()
            self.fail(row, warp, "has begun work that may go on when the block ends: nobody waits for its last commit")

    def fail(self, row: int, warp: int, text: str, fix: str = _FIX) -> None:
        assert self.begun is not None
        raise HazardError(f"{self.memory.words.warp(row, warp)} {text}", self.begun.loc, fix)

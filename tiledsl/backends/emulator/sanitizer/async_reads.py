"""What TMA and wgmma read until their groups were waited for: stores, by threads, and products, by warpgroups.

(PTX ISA: cp.async.bulk.commit_group and wait_group; wgmma.fence, wgmma.commit_group, wgmma.wait_group.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.async_copies import require_few
from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.sanitizer.clocks import Clocks
from tiledsl.backends.emulator.sanitizer.memory import SharedHistory, Touch
from tiledsl.backends.emulator.sanitizer.shadow import Bools, Ints
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["ProductReads", "StoreReads"]


@dataclass(frozen=True, slots=True)
class _Reads:
    """What one op reads, one entry a copy or warpgroup. `who`: which of the block's threads, or warps, waits for each;
    `groups`: the number of the group among its own; `lanes` [entries, 1]."""

    touch: Touch
    who: Ints
    groups: Ints
    lanes: Ints

    def part(self, which: Bools) -> _Reads:
        return _Reads(self.touch.part(which), self.who[which], self.groups[which], self.lanes[which])


class _GroupReads:
    """`committed` [blocks, threads or warps]: how many groups each has. `open`: what is being read."""

    def __init__(self, memory: SharedHistory, blocks: int, each: int) -> None:
        self.memory, self.clocks = memory, memory.clocks
        self.committed = np.zeros((blocks, each), np.int64)
        self.open: list[_Reads] = []

    def begin(self, touch: Touch, who: Ints, lanes: Ints) -> None:
        self.memory.against_writers(touch)
        self.memory.against_unfenced(touch)
        require_few(touch.op, len(self.open))
        self.memory.begin_reading(touch, lanes)
        self.open.append(_Reads(touch, who, self.committed[touch.owners, who], lanes))

    def commit(self, rows: Ints, who: Ints) -> None:
        self.committed[rows, who] += 1

    def wait(self, rows: Ints, who: Ints, pending: int) -> None:
        """All groups of these but the last `pending` have ended."""
        if not self.open:
            return
        done = np.full(self.committed.shape, -1)
        done[rows, who] = self.committed[rows, who] - pending
        over = [reads.groups < done[reads.touch.owners, reads.who] for reads in self.open]
        ended = [reads.part(which) for reads, which in zip(self.open, over, strict=True) if which.any()]
        if not ended:
            return
        self.open = [reads.part(~which) for reads, which in zip(self.open, over, strict=True) if not which.all()]
        for reads in ended:
            self.end(reads)
        for reads in self.open:  # the same bytes may have been read by what has ended
            self.memory.begin_reading(reads.touch, reads.lanes)

    def end(self, reads: _Reads) -> None:
        self.memory.end_reading(reads.touch.cells, reads.touch.owners, reads.touch.warps)

    def left(self, rows: Ints, warps: Ints) -> tuple[Touch, int] | None:
        """What these warps have not waited for: one, and which entry of it."""
        ending = np.zeros((len(self.committed), self.memory.warps), np.bool_)
        ending[rows, warps] = True
        for reads in self.open:
            left = ending[reads.touch.owners, reads.touch.warps]
            if left.any():
                return reads.touch, int(np.argmax(left))
        return None

    def name(self, touch: Touch, entry: int) -> str:
        return self.memory.words.warp(int(touch.owners[entry]), int(touch.warps[entry]))


class StoreReads(_GroupReads):
    """Boxes that TMA takes from shared memory; each thread waits for its own."""

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        super().__init__(memory, blocks, memory.warps * WARP)

    def issue(self, access: Access) -> None:
        threads = access.threads[:: access.run]
        self.begin(self.memory.by_proxy(access), threads, threads[:, None] % WARP)

    def require_ended(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        if (found := self.left(rows, warps)) is not None:
            touch, entry = found
            raise HazardError(
                f"{self.name(touch, entry)} ends, and its {touch.op.name} may still read {touch.label}",
                touch.op.loc,
                "wait for it at the end: tma_commit(), tma_wait(0)",
            )


class ProductReads(_GroupReads):
    """Operands of products; a warpgroup is named by its first warp. `ready` [blocks, warps]: whether a fence has made a
    warp's registers ready."""

    clocks: Clocks

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        super().__init__(memory, blocks, memory.warps)
        self.ready = np.zeros(self.committed.shape, np.bool_)

    def issue(self, access: Access) -> None:
        rows, leaders = access.blocks[:: access.run] - self.memory.first, access.threads[:: access.run] // WARP
        warps = leaders[:, None] + np.arange(WARPGROUP_WARPS)
        self.require_ready(access.op, rows, leaders, np.asarray(self.ready[rows[:, None], warps].all(axis=1)))
        # What all of its warps know.
        known = self.clocks.view_of(self.clocks.known[rows[:, None], warps].min(axis=1))
        self.begin(self.memory.by_proxy(access, known), leaders, np.zeros((len(rows), 1), np.int64))

    def require_ready(self, op: Op, rows: Ints, leaders: Ints, ready: Bools) -> None:
        if ready.all():
            return
        at = int(np.argmin(ready))
        raise HazardError(
            f"{op.name} of {self.memory.words.warp(rows[at], leaders[at])} uses registers that no wgmma.fence has made "
            "ready",
            op.loc,
            "put wgmma_fence() before the first product, and after registers of it were written",
        )

    def fence(self, rows: Ints, warps: Ints) -> None:
        self.ready[rows, warps] = True

    def finish(self, op: Op, rows: Ints, warps: Ints) -> None:
        """Accumulators are read after this wait: all products of these warps are in groups."""
        waits = np.zeros(self.committed.shape, np.bool_)
        waits[rows, warps] = True
        for reads in self.open:
            touch = reads.touch
            lacks = waits[touch.owners, reads.who] & (reads.groups >= self.committed[touch.owners, reads.who])
            if lacks.any():
                raise HazardError(
                    f"{op.name} of {self.name(touch, int(np.argmax(lacks)))} does not wait for the product at "
                    f"{touch.op.loc}, which no commit has put into a group",
                    op.loc,
                    "put wgmma_commit() behind the products",
                )
        self.ready[rows, warps] = False

    def end(self, reads: _Reads) -> None:
        """Warps of a warpgroup wait together: each knows that the products have ended."""
        super().end(reads)
        rows, leaders = reads.touch.owners, reads.who
        ranks = self.memory.clocks.ranks[rows]
        when = self.clocks.known[rows, leaders, ranks, leaders] - 1
        for warp in range(1, WARPGROUP_WARPS):
            at = rows, leaders + warp, ranks, leaders
            self.clocks.known[at] = np.maximum(self.clocks.known[at], when)

    def require_ended(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        if (found := self.left(rows, warps)) is not None:
            who = self.name(*found)
            raise HazardError(
                f"{who} ends, and has not waited for its product", found[0].op.loc, "wait for it: acc.wait()"
            )

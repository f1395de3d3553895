"""Asynchronous reads and work: stores by TMA and products by wgmma, which read until their groups were waited for, and
work that commits to mbarriers.

(PTX ISA: cp.async.bulk.commit_group and wait_group; wgmma.fence, wgmma.commit_group, wgmma.wait_group.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.async_copies import require_few
from tiledsl.backends.emulator.hooks import Bools, Ints, Sync
from tiledsl.backends.emulator.sanitizer.clocks import ALL, Known
from tiledsl.backends.emulator.sanitizer.memory import SharedHistory, Touch
from tiledsl.errors import Accessed, HazardError, Side
from tiledsl.ir.core import Op


@dataclass(frozen=True, slots=True)
class _Reads:
    """What one op reads, one entry a copy or warpgroup. `who`: which of the block's threads, or warps, waits for each;
    `groups`: the number of the group among its own."""

    touch: Touch
    who: Ints
    groups: Ints

    def part(self, which: Bools) -> _Reads:
        return _Reads(self.touch.part(which), self.who[which], self.groups[which])


class StoreReads:
    """Boxes that TMA takes from shared memory; each thread waits for its own groups.

    `committed` [blocks, threads]: how many groups each has. `open`: what is being read. `unit`: threads that commit and
    wait as one; `together`: neighbouring units any of which waits for the groups of the first. `fix`: how to wait.
    """

    unit: ClassVar[int] = 1
    together: ClassVar[int] = 1
    fix: ClassVar[str] = "wait for it at the end: tma_commit(), tma_wait(0)"

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        self.memory, self.clocks = memory, memory.clocks
        self.committed = np.zeros((blocks, memory.warps * WARP // self.unit), np.int64)
        self.open: list[_Reads] = []

    def issue(self, touch: Touch) -> None:
        self.memory.against_writers(touch)
        self.memory.against_unfenced(touch)
        require_few(touch.access.op, len(self.open))
        who = touch.access.threads[:: touch.access.run] // self.unit
        self.open.append(_Reads(touch, who, self.committed[touch.owners, who]))
        self.begin(self.open[-1])

    def begin(self, reads: _Reads) -> None:
        self.memory.begin_reading(reads.touch, (reads.who % WARP)[:, None])

    def commit(self, rows: Ints, threads: Ints) -> None:
        self.committed[rows, threads // self.unit] += 1

    def wait(self, rows: Ints, threads: Ints, pending: int) -> None:
        """All groups of these but the last `pending` have ended."""
        if not self.open:
            return
        who, done = threads // self.unit, np.full(self.committed.shape, -1)
        np.maximum.at(done, (rows, who // self.together * self.together), self.committed[rows, who] - pending)
        over = [reads.groups < done[reads.touch.owners, reads.who] for reads in self.open]
        ended = [reads.part(which) for reads, which in zip(self.open, over, strict=True) if which.any()]
        if not ended:
            return
        self.open = [reads.part(~which) for reads, which in zip(self.open, over, strict=True) if not which.all()]
        for reads in ended:
            self.end(reads)
        for reads in self.open:  # the same bytes may have been read by what has ended
            self.begin(reads)

    def end(self, reads: _Reads) -> None:
        self.memory.end_reading(reads.touch.cells, reads.touch.owners, reads.touch.warps)

    def require_ended(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        ending = np.zeros((len(self.committed), self.memory.warps), np.bool_)
        ending[rows, warps] = True
        for touch in (reads.touch for reads in self.open):
            left = ending[touch.owners, touch.warps]
            if left.any() and not self.memory.reports.involves(touch.access.op.loc):
                side, access = self.side(touch, int(np.argmax(left)), "ends"), touch.access
                text = f"{side.who} ends, and has not waited for {access.op.name}, which may still read {access.label}"
                memory = Accessed(access.label, "shared", byte=int(access.addresses[0]) - access.base)
                error = HazardError(
                    text, access.op.loc, self.fix, code="T302", sides=(side,), memory=memory, missing="read-wait"
                )
                self.memory.reports.tell(error)

    def side(self, touch: Touch, entry: int, does: str) -> Side:
        block, warp = int(touch.owners[entry]) + self.memory.first, int(touch.warps[entry])
        return self.memory.cells.launch.side(touch.access.op, does, block, warp=warp)


class ProductReads(StoreReads):
    """Operands of products; a warpgroup, named by its first warp, waits for its groups. `ready` [blocks, warps]:
    whether a fence has made a warp's registers ready."""

    unit = WARP
    together = WARPGROUP_WARPS
    fix = "wait for it: acc.wait()"

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        super().__init__(memory, blocks)
        self.ready = np.zeros(self.committed.shape, np.bool_)

    def issue(self, touch: Touch) -> None:
        rows, leaders = touch.rows, touch.warps
        warps = leaders[:, None] + np.arange(WARPGROUP_WARPS)
        ready = self.ready[rows[:, None], warps].all(axis=1)
        if not ready.all():
            side = self.side(touch, int(np.argmin(ready)), "multiplies")
            error = HazardError(
                f"{touch.access.op.name} of {side.who} uses registers that no wgmma.fence has made ready",
                touch.access.op.loc,
                "put wgmma_fence() before the first product, and after registers of it were written",
                code="T306",
                sides=(side,),
                missing="wgmma-fence",
            )
            self.memory.reports.tell(error)
        # What all of its warps know.
        known = self.clocks.view_of(self.clocks.known[rows[:, None], warps].min(axis=1))
        super().issue(replace(touch, known=known))

    def begin(self, reads: _Reads) -> None:
        self.memory.begin_reading(reads.touch, ALL)  # lanes of a warp wait together

    def fence(self, rows: Ints, threads: Ints) -> None:
        self.ready[rows, threads // WARP] = True

    def finish(self, op: Op, rows: Ints, threads: Ints) -> None:
        """Accumulators are read after this wait: all products of these warps are in groups."""
        waits = np.zeros(self.committed.shape, np.bool_)
        waits[rows, threads // WARP] = True
        lacking = False
        for reads in self.open:
            touch = reads.touch
            lacks = waits[touch.owners, reads.who] & (reads.groups >= self.committed[touch.owners, reads.who])
            if lacks.any():
                side = self.side(touch, int(np.argmax(lacks)), "multiplies")
                lacking = True
                error = HazardError(
                    f"{op.name} of {side.who} does not wait for the product at {touch.access.op.loc}, which no commit "
                    "has put into a group",
                    op.loc,
                    "put wgmma_commit() behind the products",
                    code="T304",
                    sides=(replace(side, loc=op.loc, op=op.name, does="waits"), side),
                    missing="commit",
                )
                self.memory.reports.tell(error)
        if lacking:  # as if they had been committed: what follows from that is no other finding
            self.commit(rows, threads)
            self.wait(rows, threads, 0)
        self.ready[rows, threads // WARP] = False

    def end(self, reads: _Reads) -> None:
        """Warps of a warpgroup wait together: each knows that the products have ended."""
        super().end(reads)
        rows, leaders = reads.touch.owners, reads.who
        ranks = self.memory.clocks.ranks[rows]
        when = self.clocks.known[rows, leaders, ranks, leaders] - 1
        for warp in range(1, WARPGROUP_WARPS):
            at = rows, leaders + warp, ranks, leaders
            self.clocks.known[at] = np.maximum(self.clocks.known[at], when)


# -- committed work ---------------------------------------------------------------------------------


_FIX = "let the thread that begins it commit it to an mbarrier, and wait there before the block ends"


class CommittedWork:
    """Of one chunk, [blocks, warps]: `commits` so far; `needed`: the one behind which all work has ended, 0 for none;
    `lane`: who begins it, -1 for nobody yet. `begun`: which op began work last, for messages."""

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        self.memory, self.clocks = memory, memory.clocks
        self.commits, self.needed = (np.zeros((blocks, memory.warps), np.int64) for _ in range(2))
        self.lane = np.full(self.needed.shape, -1, np.int64)
        self.begun: Op | None = None

    def issue(self, touch: Touch) -> None:
        """Work begins that reads ("fetch") or writes."""
        memory, access = self.memory, touch.access
        who, lanes = (touch.owners, touch.warps), access.threads[:: access.run] % WARP
        self.lane[who] = np.where(self.lane[who] < 0, lanes, self.lane[who])
        if (other := self.lane[who] != lanes).any():
            self.begun, at = access.op, int(np.argmax(other))
            text = f"begins work in lane {lanes[at]}, and has begun some in lane {self.lane[who][at]}"
            self.tell(int(touch.owners[at]), int(touch.warps[at]), text, "let one thread of a warp begin all of it")
        agents, epochs = self.clocks.ids(touch.owners, self.clocks.work + touch.warps), self.commits[who] + 1
        self.needed[who], self.begun = epochs, access.op
        memory.against_writers(touch)
        if access.proxies:
            memory.against_unfenced(touch)
        if access.kind == "fetch":
            memory.remember_work(touch, epochs)
            return
        memory.against_readers(touch)
        if access.proxies:
            memory.against_unfenced_readers(touch)
        memory.set_writer(access.op, touch.cells, agents[:, None], epochs[:, None])

    def commit(self, sync: Sync) -> Ints:
        """How many commits there are with this one, of each warp; 0 where another of its threads commits."""
        who = sync.blocks - self.memory.first, sync.warps
        own = self.lane[who] == sync.lanes
        self.commits[who] += own
        return np.where(own, self.commits[who], 0)

    def require_committed(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        left = self.needed[rows, warps] > self.commits[rows, warps]
        if left.any():
            at = int(np.argmax(left))
            self.tell(int(rows[at]), int(warps[at]), "ends, and has not committed all work that it has begun")

    def end(self, known: Known) -> None:
        """All blocks have ended, with what each `known` [blocks, rank, agents]."""
        rows = np.arange(len(self.needed))
        if not self.needed.any():
            return
        warps = self.clocks.work + np.arange(self.memory.warps)
        left = self.needed > known[rows[:, None], self.clocks.ranks[rows][:, None], warps]
        if left.any():
            row, warp = np.argwhere(left)[0].tolist()
            self.tell(row, warp, "has begun work that may go on when the block ends: nobody waits for its last commit")

    def tell(self, row: int, warp: int, text: str, fix: str = _FIX) -> None:
        assert self.begun is not None
        side = self.memory.cells.launch.side(self.begun, text, row + self.memory.first, warp=warp)
        message = f"{side.who} {text}"
        error = HazardError(message, self.begun.loc, fix, code="T305", sides=(side,), missing="commit")
        self.memory.reports.tell(error)

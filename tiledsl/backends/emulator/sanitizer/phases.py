"""Phases of mbarriers: that every arrival and every wait is of the same phase under all schedules.

An mbarrier counts: an arrival belongs to whatever phase goes on, and a wait tells two phases by their parity. Under one
schedule each has found its phase. It finds the same one under every other schedule if

- who arrives in a phase, or begins a copy whose bytes it counts, knows that the one before has ended,
- the bytes of a copy come in the phase in which the copy began,
- who waits for a phase knows that the one before has ended: or it could pass early, since the parity is that of the
  phase before this one,
- no phase ends before all who have waited for the one before it have gone on: one of its arrivals, or the beginning of
  one of its copies, comes after that.

To know is to come after all arrivals and bytes of a phase, by what the program orders. Take another schedule, and the
first arrival, byte or wait in it that is of another phase than here. All that it comes after was as here. So the phase
before its own has ended; and its own has not, since that takes this arrival or byte, or, of a wait, the next one has
not, since that takes something that comes after the wait. So there is none. And nothing waits for ever: what comes
first of all that was not done waits for what has been done. That holds as long as what the threads do does not depend
on the schedule, as it does where it depends on atomic operations. (`tests/property/test_protocols.py` compares this
with all interleavings of random protocols.)
"""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.backends.emulator.hooks import Bools, Ints, Sync
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, Known
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.sanitizer.shadow import Cells
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers

NEVER = -2
"""In place of a phase that a warp has waited for."""


class Phases:
    """Of one chunk. `arrived` [3, blocks, mbarriers, rank, warps]: the counts at which warps have arrived in the phase
    that goes on, in the one before, and in the one before that; 0: it has not. `later` [3, blocks, mbarriers]: does the
    phase wait for bytes or work, too, which come after arrivals? `began` [blocks, mbarriers]: how many phases had ended
    when the mbarrier was initialised; `copies`: how many have begun whose bytes it counts, and have not arrived;
    `begins`: who began the last one. [blocks, mbarriers, warps]: `waited`: the phase for which a warp has waited last;
    `since`: its count then; `waits`: by which op. `products`: what tells that it has gone on, too."""

    def __init__(self, cells: Cells, clocks: Clocks, labels: list[str], mbarriers: int, reports: Reports) -> None:
        self.cells, self.clocks, self.labels, self.reports = cells, clocks, labels, reports
        blocks, warps, ranks, _ = clocks.known.shape
        self.arrived = np.zeros((3, blocks, mbarriers, ranks, warps), np.int32)
        self.later = np.zeros((3, blocks, mbarriers), np.bool_)
        self.began, self.copies = (np.zeros((blocks, mbarriers), np.int32) for _ in range(2))
        self.waited = np.full((blocks, mbarriers, warps), NEVER, np.int32)
        self.since = np.zeros_like(self.waited)
        self.products = Products(clocks, blocks, mbarriers)
        self.waits: dict[tuple[int, int, int], Op] = {}
        self.begins: dict[tuple[int, int], tuple[Op, int, int]] = {}

    def initialise(self, rows: Ints, columns: Ints) -> None:
        self.began[rows, columns] = self.clocks.phases(rows, columns)
        self.arrived[:, rows, columns], self.later[:, rows, columns] = 0, False
        self.waited[rows, columns] = NEVER

    def ended(self, rows: Ints, columns: Ints) -> Ints:
        """How many phases have ended."""
        return self.clocks.phases(rows, columns) - self.began[rows, columns].astype(np.int64)

    def knows(self, known: Known, rows: Ints, columns: Ints, phases: Ints) -> Bools:
        """Clocks [entries, rank, agents] know that these phases, of the last three, have ended."""
        clocks, back = self.clocks, np.clip(self.ended(rows, columns) - phases, 0, 2)
        told = known[np.arange(len(rows)), clocks.ranks[rows], clocks.gone + clocks.warps + columns]
        arrived = (clocks.progress(known) >= self.arrived[back, rows, columns]).all(axis=(1, 2))
        return (phases < 0) | (told - self.began[rows, columns] > phases) | (arrived & ~self.later[back, rows, columns])

    def arrive(self, sync: Sync, owners: Ints, rows: Ints, columns: Ints) -> None:
        """Before what arrives is released."""
        self.comes(sync.op, owners, sync.warps, rows, columns)
        at = rows, columns, self.clocks.ranks[owners], sync.warps
        np.maximum.at(self.arrived[0], at, self.clocks.now(owners, sync.warps))
        if sync.commits or isinstance(sync.op, barriers.ExpectTx):
            self.later[0, rows, columns] = True

    def begin(self, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints) -> None:
        """Warps of the blocks `owners` begin copies, whose bytes these mbarriers count."""
        self.comes(op, owners, warps, rows, columns)
        np.add.at(self.copies, (rows, columns), 1)
        who = zip(rows.tolist(), columns.tolist(), owners.tolist(), warps.tolist(), strict=True)
        self.begins.update({(row, column): (op, owner, warp) for row, column, owner, warp in who})
        self.clocks.begin((rows, columns), owners, warps)

    def arrived_copies(self, rows: Ints, columns: Ints) -> None:
        """Before the phase ends that takes their bytes."""
        np.subtract.at(self.copies, (rows, columns), 1)

    def comes(self, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints) -> None:
        """Warps of the blocks `owners` do what a phase of these mbarriers waits for: they arrive, or begin a copy."""
        known, before = self.clocks.released(owners, warps), self.ended(rows, columns) - 1
        for at in np.flatnonzero(~self.knows(known, rows, columns, before))[:1]:
            self.tell_early(op, int(owners[at]), int(warps[at]), int(columns[at]))

    def tell_early(self, op: Op, owner: int, warp: int, column: int) -> None:
        does = "arrives at" if op.sync.releases else "begins a copy that is counted by"
        side = self.cells.launch.side(op, does, owner + self.cells.first, warp=warp)
        text = f"{side.who} {does} {self.labels[column]}, and nothing orders that behind the end of the phase before: "
        text += "under another schedule it may count in that one"
        fix = "let it wait for a phase before it arrives for the next one"
        self.reports.tell(HazardError(text, op.loc, fix, code="T419", sides=(side,), missing="mbarrier-wait"))

    def complete(self, rows: Ints, columns: Ints) -> None:
        """Behind the end of a phase."""
        phases, kept = self.ended(rows, columns) - 1, self.clocks.mbarriers.kept[rows, columns]
        heard = self.clocks.progress(kept[np.arange(len(rows)), self.clocks.ranks[rows]])
        overtaken = (self.waited[rows, columns] == phases[:, None] - 1) & (heard < self.since[rows, columns])
        overtaken &= ~self.products.have_gone_on(rows, columns, heard)
        for at in np.flatnonzero(self.copies[rows, columns])[:1]:
            self.tell_early(*self.begins[int(rows[at]), int(columns[at])], int(columns[at]))
        for at, warp in np.argwhere(overtaken)[:1].tolist():
            row, column, phase = int(rows[at]), int(columns[at]), int(phases[at])
            op = self.waits[row, column, warp]
            side = self.cells.launch.side(op, "waits", row + self.cells.first, warp=warp)
            text = f"{side.who} waits for phase {phase - 1} of {self.labels[column]}, and no arrival of the next phase "
            text += "comes after that: under another schedule that phase ends first, and the wait does not"
            fix = "let no phase end before all have waited for the one before it"
            self.reports.tell(HazardError(text, op.loc, fix, code="T421", sides=(side,), missing="mbarrier-wait"))
        for each in (self.arrived, self.later):
            each[1:, rows, columns] = each[:-1, rows, columns]
            each[0, rows, columns] = 0

    def acquire(self, op: Op, rows: Ints, warps: Ints, columns: Ints, phases: Ints) -> None:
        """Before what was released is acquired."""
        for at in np.flatnonzero(~self.knows(self.clocks.released(rows, warps), rows, columns, phases - 1))[:1]:
            side = self.cells.launch.side(op, "waits", int(rows[at]) + self.cells.first, warp=int(warps[at]))
            text = f"{side.who} waits for phase {phases[at]} of {self.labels[int(columns[at])]}, and nothing orders "
            text += "that behind the end of the phase before: under another schedule the wait ends at once"
            fix = "let each wait for one phase after the other"
            self.reports.tell(HazardError(text, op.loc, fix, code="T420", sides=(side,), missing="mbarrier-wait"))
        self.waited[rows, columns, warps] = phases
        self.since[rows, columns, warps] = self.clocks.now(rows, warps)
        self.products.forget(rows, columns, warps)
        self.waits.update(dict.fromkeys(zip(rows.tolist(), columns.tolist(), warps.tolist(), strict=True), op))


class Products:
    """What a warp that has waited for a product of its warpgroup knows of the other three: they have begun it, and so
    have gone on behind what they had waited for. [blocks, mbarriers, warps], of a warp's last wait at an mbarrier:
    `group`: that of the first product behind it; NEVER: none yet. `seen` [..., 4]: the counts of the warps of its
    warpgroup when they had waited for that group; NEVER: they have not. [blocks, warps]: `committed` groups; `fresh`:
    has a warp waited at an mbarrier since its last product?"""

    def __init__(self, clocks: Clocks, blocks: int, mbarriers: int) -> None:
        self.clocks, warps = clocks, -(-clocks.warps // WARPGROUP_WARPS) * WARPGROUP_WARPS
        self.group = np.full((blocks, mbarriers, warps), NEVER, np.int64)
        self.seen = np.full((blocks, mbarriers, warps, WARPGROUP_WARPS), NEVER, np.int64)
        self.committed, self.fresh = np.zeros((blocks, warps), np.int64), np.zeros((blocks, warps), np.bool_)

    def forget(self, rows: Ints, columns: Ints, warps: Ints) -> None:
        """These warps wait at these mbarriers."""
        self.group[rows, columns, warps] = self.seen[rows, columns, warps] = NEVER
        self.fresh[rows, warps] = True

    def begin(self, rows: Ints, warps: Ints) -> None:
        """The warpgroups of these warps begin a product."""
        for row, first in {(row, _first(warp)) for row, warp in zip(rows.tolist(), warps.tolist(), strict=True)}:
            members = slice(first, first + WARPGROUP_WARPS)
            if self.fresh[row, members].any():
                group: Ints = self.group[row, :, members]
                np.copyto(group, self.committed[row, members], where=group == NEVER)
                self.fresh[row, members] = False

    def commit(self, rows: Ints, warps: Ints) -> None:
        self.committed[rows, warps] += 1

    def wait(self, rows: Ints, warps: Ints, pending: int) -> None:
        """These warps have waited for all groups but the last `pending`."""
        done, counts = self.committed[rows, warps] - pending, self.clocks.now(rows, warps)
        for row, warp, ended, count in zip(rows.tolist(), warps.tolist(), done.tolist(), counts.tolist(), strict=True):
            members = slice(_first(warp), _first(warp) + WARPGROUP_WARPS)
            group, seen = self.group[row, :, members], self.seen[row, :, members, warp - _first(warp)]
            seen[(group != NEVER) & (group < ended) & (seen == NEVER)] = count

    def have_gone_on(self, rows: Ints, columns: Ints, heard: Known) -> Bools:
        """[entries, warps]: does one of the warpgroup, as far as `heard` says that it has come, say so of this warp?"""
        width = heard.shape[1]
        group = np.array([range(_first(warp), _first(warp) + WARPGROUP_WARPS) for warp in range(width)], np.int64)
        seen, come = self.seen[rows, columns, :width], heard[:, np.minimum(group, width - 1)]
        return np.asarray(((seen != NEVER) & (come >= seen)).any(axis=2))


def _first(warp: int) -> int:
    """The first warp of its warpgroup."""
    return warp // WARPGROUP_WARPS * WARPGROUP_WARPS

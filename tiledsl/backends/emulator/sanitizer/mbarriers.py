"""mbarriers for the check of hazards: when each was initialised, by whom, its phase, and arrivals from other blocks."""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Bools, Ints, Sync
from tiledsl.backends.emulator.sanitizer.clocks import Clocks
from tiledsl.backends.emulator.sanitizer.phases import Phases
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.sanitizer.shadow import Cells
from tiledsl.errors import UNKNOWN_LOC, HazardError, Loc, Side
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers
from tiledsl.ir.types import U64

NEVER = np.iinfo(np.int32).max
"""The time of a fence that has not been made."""


class MbarrierUse:
    """Of one chunk. [blocks, mbarriers]: `init_warp`, `init_lane` and `init_epoch`: who initialised an mbarrier, and
    when; `init_fence`: when that thread fenced it. [blocks, rank, agents]: `visits`: when each warp of another block
    arrived last in this memory; `ended`: what the block knew at last. `absent` [warps, 32]: lanes without a thread."""

    def __init__(
        self, cells: Cells, clocks: Clocks, labels: list[str], blocks: int, mbarriers: int, reports: Reports
    ) -> None:
        self.cells, self.clocks, self.labels, self.reports = cells, clocks, labels, reports
        self.first, self.ranks = cells.first, clocks.ranks
        self.table = np.full(-(-cells.launch.shared_bytes // U64.bytes) + 1, -1, np.int64)
        x, y, z = cells.launch.threads
        self.absent = np.arange(clocks.warps * WARP).reshape(-1, WARP) >= x * y * z
        shape = blocks, mbarriers
        self.init_warp, self.init_lane, self.init_epoch, self.init_fence = (np.zeros(shape, np.int32) for _ in range(4))
        self.phases = Phases(cells, clocks, labels, mbarriers, reports)
        self.visits, self.ended = (np.zeros(clocks.known[:, 0].shape, np.int32) for _ in range(2))

    def columns(self, places: Ints) -> Ints:
        return self.table[places // U64.bytes]

    def initialise(self, label: str, base: int, rows: Ints, threads: Ints, places: Ints) -> None:
        for place in np.unique(places[self.columns(places) < 0]).tolist():
            self.table[place // U64.bytes] = len(self.labels)
            self.labels.append(f"{label}[{(place - base) // U64.bytes}]")
        at, warps = (rows, self.columns(places)), threads // WARP
        self.init_warp[at], self.init_lane[at] = warps, threads % WARP
        self.init_fence[at] = NEVER
        self.init_epoch[at] = self.clocks.now(rows, warps)
        self.phases.initialise(*at)

    def require_initialised(self, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints, fenced: Bools) -> None:
        """Warps of the blocks `owners` know that these mbarriers were initialised, and fenced where that is asked. What
        is told of one mbarrier is told of all that have been initialised: they lack the same barrier, or fence."""
        by, when = self.init_warp[rows, columns], self.init_epoch[rows, columns]
        known = self.clocks.arrivals(self.clocks.known[owners, warps, self.ranks[rows]])[np.arange(len(by)), by]
        for at in np.flatnonzero(known < when):
            user, maker = self.cells.warp(owners[at], warps[at]), self.cells.warp(rows[at], by[at])
            label = self.labels[int(columns[at])]
            message = f"{op.name}: {user} uses {label}, and does not know that {maker} has initialised it"
            fix = "put a barrier() behind the initialisation (of the cluster, if it uses the mbarrier)"
            sides = Side(op.loc, op.name, user, "uses"), Side(UNKNOWN_LOC, "", maker, "initialised")
            self.reports.tell(HazardError(message, op.loc, fix, code="T407", sides=sides, missing="barrier"))
            self.init_epoch[:] = self.init_fence[:] = 0
            return
        for column in columns[fenced & (known < self.init_fence[rows, columns])]:
            message = f"{op.name}: {self.labels[int(column)]} was initialised without a fence"
            message += ", and TMA or another block of the cluster uses it"
            fix = "put fence_mbarrier_init() behind the initialisation, before the barrier"
            self.reports.tell(HazardError(message, op.loc, fix, code="T408", missing="init-fence"))
            self.init_fence[:] = 0
            break

    def arrive(self, sync: Sync, commits: Ints | None = None) -> None:
        """commits: of each warp whose work it is that arrives, by TMA's proxy, how many there are."""
        owners, rows, columns = sync.blocks - self.first, sync.homes - self.first, self.columns(sync.places)
        self.phases.arrive(sync, owners, rows, columns)
        remote = owners != rows
        fenced = remote if commits is None else np.ones_like(remote)
        self.require_initialised(sync.op, owners, sync.warps, rows, columns, fenced)
        if remote.any():
            warps = sync.warps[remote]
            self.visits[rows[remote], self.ranks[owners[remote]], warps] = self.clocks.now(owners[remote], warps)
        if commits is None:
            narrow = remote if isinstance(sync.op, barriers.Arrive) and sync.op.reach == "cta" else None
            self.clocks.release(self.clocks.mbarriers, (rows, columns), owners, sync.warps, sync.lanes, narrow)
        else:
            self.clocks.release_work((rows, columns), owners, sync.warps, commits)

    def complete(self, rows: Ints, places: Ints) -> None:
        self.clocks.end_phases(rows, self.columns(places))
        self.phases.complete(rows, self.columns(places))

    def acquire(self, sync: Sync) -> None:
        """Lanes of one warp may wait for several."""
        assert sync.phases is not None and sync.lanes is not None
        each = np.stack([sync.blocks - self.first, sync.warps, self.columns(sync.places), sync.phases])
        which = np.zeros(1, np.int64)
        if (each == each[:, :1]).all():  # most often one warp waits for one
            each = each[:, :1]
        else:
            each, which = np.unique(each, axis=1, return_inverse=True)
        rows, warps_, columns, phases = each
        lanes = self.absent[warps_]
        lanes[np.broadcast_to(which.reshape(-1), sync.lanes.shape), sync.lanes] = True
        self.phases.acquire(sync.op, rows, warps_, columns, phases)
        self.require_initialised(sync.op, rows, warps_, rows, columns, np.zeros(len(rows), np.bool_))
        for column in np.unique(columns).tolist():
            which = columns == column
            kept = self.clocks.mbarriers.kept[rows[which], column]
            self.clocks.acquire(kept, rows[which], warps_[which], lanes[which])

    def fence(self, rows: Ints, threads: Ints) -> None:
        """What these threads have initialised is fenced; of all else that they did a proxy fence alone says so."""
        open_ = self.init_fence == NEVER
        if not open_.any():
            return
        made = np.zeros((len(self.init_warp), self.clocks.warps, WARP), np.bool_)
        made[rows, threads // WARP, threads % WARP] = True
        rows, columns = np.nonzero(open_)
        fenced = made[rows, self.init_warp[rows, columns], self.init_lane[rows, columns]]
        rows, columns = rows[fenced], columns[fenced]
        self.init_fence[rows, columns] = self.clocks.now(rows, self.init_warp[rows, columns].astype(np.int64))

    def exit(self, rows: Ints, warps: Ints) -> None:
        np.maximum.at(self.ended, rows, self.clocks.arrivals(self.clocks.known[rows, warps]))

    def end(self, loc: Loc) -> None:
        """All blocks have ended: those that others of the cluster arrived in knew of that."""
        for row, rank, warp in np.argwhere(self.visits > self.ended)[:1].tolist():
            error = HazardError(
                f"{self.cells.launch.block_name(row + self.first)} may end before warp {warp} of block {rank} "
                "of its cluster arrives at an mbarrier in its shared memory",
                loc,
                "end the kernel with a barrier of the cluster (cluster_arrive, cluster_wait), or wait for all arrivals",
                code="T417",
                missing="cluster-barrier",
            )
            self.reports.tell(error)

"""Who comes before whom in a chunk: what barriers, fences, copies and products tell the checks of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.clocks import Clocks
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Access, AccessKind, LaunchInfo
from tiledsl.backends.emulator.order_atomics import AtomicOrder
from tiledsl.backends.emulator.order_memory import SharedHistory, Touch
from tiledsl.backends.emulator.order_products import ProductGroups
from tiledsl.backends.emulator.shadow import Bools, Ints
from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import mem, tile
from tiledsl.ir.types import U64
from tiledsl.layout.shared import CHUNK

if TYPE_CHECKING:
    from tiledsl.backends.emulator.bulk_copies import Transfer
    from tiledsl.backends.emulator.machine import Chunk

__all__ = ["Order"]

NEVER = np.iinfo(np.int32).max
"""The time of a fence that has not been made."""


def _mbarriers(kernel: Kernel) -> int:
    """At most so many mbarriers are there."""
    bases = {(op.offset, op.bytes) for op in kernel.walk() if isinstance(op, mem.SharedBase) and op.dtype == U64}
    tiles = [op.type.bytes for op in kernel.walk() if isinstance(op, tile.SharedAlloc) and op.type.dtype == U64]
    return (sum(bytes_ for _, bytes_ in bases) + sum(tiles)) // U64.bytes


class Order:
    """Of one chunk. `clocks`: who knows of whom; `memory`: who touched what; `products`: of warpgroups, on their way;
    `atomics`: what atomic operations and fences let others know.

    [blocks, mbarriers]: `init_warp`, `init_lane` and `init_epoch`: who initialised an mbarrier, and when; `init_fence`:
    when that thread fenced it. [blocks, rank, agents]: `visits`: when each warp of another block arrived last in this
    one's memory; `ended`: what the block knew at last.
    """

    def __init__(self, chunk: Chunk, launch: LaunchInfo) -> None:
        self.chunk, self.launch = chunk, launch
        self.first, self.count, self.warps = chunk.first, chunk.count, chunk.warps
        self.ranks = chunk.clusters.rank
        mbarriers = _mbarriers(chunk.machine.kernel)
        self.clocks = Clocks(chunk.clusters, chunk.count, chunk.warps, mbarriers)
        self.memory = SharedHistory(chunk, launch, self.clocks)
        self.products = ProductGroups(self.memory, chunk.count)
        self.atomics = AtomicOrder(chunk.machine.kernel, self.clocks, chunk.first)
        shape = self.count, mbarriers
        self.init_warp, self.init_lane, self.init_epoch, self.init_fence = (np.zeros(shape, np.int32) for _ in range(4))
        self.visits, self.ended = (np.zeros(self.clocks.known[:, 0].shape, np.int32) for _ in range(2))

    # -- accesses ------------------------------------------------------------------------------

    def access(self, access: Access) -> None:
        """By threads themselves, or the beginning of a `cp.async`."""
        touch = self.memory.by_lanes(access)
        self.memory.against_writers(touch)
        if access.kind == "read":
            self.memory.remember_reads(touch)
            return
        self.memory.against_readers(touch)
        if not isinstance(access.op, mem.CpAsync):
            self.memory.remember_writes(touch)

    def delivered(self, access: Access) -> None:
        """What a `cp.async` brings, for the thread that waited for it."""
        self.memory.remember_writes(self.memory.by_lanes(access))

    def begun(self, transfer: Transfer, kind: AccessKind) -> None:
        """Boxes are on their way, from shared memory ("fetch") or to it ("async")."""
        warps = transfer.threads // WARP
        touch = Touch(
            transfer.op, kind, transfer.label, transfer.base, transfer.owners, warps, transfer.rows,
            self.cells_of(transfer), self.clocks.known[transfer.owners, warps],
        )  # fmt: skip
        self.memory.against_writers(touch)
        self.memory.against_unfenced(touch)
        if kind == "async":
            self.memory.against_unfenced_readers(touch)
            self.memory.against(self.memory.fetchers, touch)
        else:
            self.memory.begin_reading(touch, transfer.threads[:, None] % WARP)

    def written(self, transfer: Transfer, columns: Ints) -> None:
        """Loads have arrived, counted by these mbarriers."""
        self.memory.remember_arrival(transfer.op, transfer.rows, self.cells_of(transfer), columns)

    def fetched(self, transfer: Transfer) -> None:
        """The threads of stores have waited until they had read their source."""
        self.memory.end_reading(self.cells_of(transfer), transfer.rows, transfer.threads // WARP)

    def cells_of(self, transfer: Transfer) -> Ints:
        return self.memory.cells(transfer.rows, transfer.at, CHUNK)

    # -- mbarriers -----------------------------------------------------------------------------

    def initialised(self, c: Cohort, rows: Ints, columns: Ints) -> None:
        threads = c.lanes_of(c.active())[1]
        warps = threads // WARP
        at = np.array(self.chunk.mbarriers.offsets)[columns]
        self.memory.reserved[self.memory.cells(rows, at[:, None], U64.bytes)] = True
        self.init_warp[rows, columns], self.init_lane[rows, columns] = warps, threads % WARP
        self.init_fence[rows, columns] = NEVER
        self.init_epoch[rows, columns] = self.clocks.now(rows, warps)

    def require_initialised(self, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints, fenced: Bools) -> None:
        """Warps of the blocks `owners` know that these mbarriers were initialised, and fenced where that is asked."""
        by, when = self.init_warp[rows, columns], self.init_epoch[rows, columns]
        known, entries, ranks = self.clocks.known[owners, warps], np.arange(len(rows)), self.ranks[rows]
        late = known[entries, ranks, by] < when
        unfenced = fenced & (known[entries, ranks, by] < self.init_fence[rows, columns])
        labels = self.chunk.mbarriers.labels
        if late.any():
            at = int(np.argmax(late))
            raise HazardError(
                f"{op.name}: {self.memory.who(owners[at], warps[at])} uses {labels[int(columns[at])]}, and does not "
                f"know that {self.memory.who(rows[at], by[at])} has initialised it",
                op.loc,
                "put a barrier() behind the initialisation (of the cluster, if it uses the mbarrier)",
            )
        if unfenced.any():
            at = int(np.argmax(unfenced))
            raise HazardError(
                f"{op.name}: {labels[int(columns[at])]} was initialised without a fence, and TMA or another block of "
                "the cluster uses it",
                op.loc,
                "put fence_mbarrier_init() behind the initialisation, before the barrier",
            )

    def arrive(self, op: Op, owners: Ints, warps: Ints, rows: Ints, columns: Ints) -> None:
        """Warps of the blocks `owners` arrive at mbarriers of the blocks `rows`."""
        remote = owners != rows
        self.require_initialised(op, owners, warps, rows, columns, remote)
        if remote.any():
            when = self.clocks.now(owners[remote], warps[remote])
            self.visits[rows[remote], self.ranks[owners[remote]], warps[remote]] = when
        self.clocks.leave(self.clocks.mbarriers, (rows, columns), owners, warps)

    def counted(self, transfer: Transfer, columns: Ints) -> None:
        """The bytes of loads will count at these mbarriers."""
        warps = transfer.threads // WARP
        everywhere = np.ones(len(columns), np.bool_)
        self.require_initialised(transfer.op, transfer.owners, warps, transfer.rows, columns, everywhere)

    def end_phases(self, rows: Ints, columns: Ints) -> None:
        if len(rows):
            self.clocks.end_phases(rows, columns, self.chunk.mbarriers.phase[rows, columns])

    def acquire(self, c: Cohort, op: Op, columns: Ints) -> None:
        """The cohort's active lanes have waited for these mbarriers."""
        lanes = c.active()
        blocks, threads = c.lanes_of(lanes)
        each = np.stack([blocks - self.first, threads // WARP, c.spread(columns)[lanes]])
        rows, warps, columns = np.unique(each, axis=1)
        self.require_initialised(op, rows, warps, rows, columns, np.zeros(len(rows), np.bool_))
        for column in np.unique(columns).tolist():
            which = columns == column
            self.clocks.take(self.clocks.mbarriers.kept[rows[which], column], rows[which], warps[which])

    # -- barriers ------------------------------------------------------------------------------

    def arrive_named(self, rows: Ints, warps: Ints, numbers: Ints) -> None:
        self.clocks.leave(self.clocks.named, (rows, numbers), rows, warps)
        self.clocks.sync(rows, warps)

    def end_named(self, rows: Ints, numbers: Ints) -> None:
        self.clocks.named.kept[rows, numbers] = 0
        self.clocks.named.end(rows, numbers)

    def acquire_named(self, c: Cohort, numbers: Ints) -> None:
        rows, warps, which = self.pairs(c)
        self.clocks.take(self.clocks.named.kept[rows, numbers.ravel()[which]], rows, warps)

    def arrive_cluster(self, rows: Ints, warps: Ints) -> None:
        self.clocks.leave(self.clocks.cluster, (self.clocks.clusters[rows],), rows, warps)
        self.clocks.sync(rows, warps)

    def end_cluster(self, clusters: Ints) -> None:
        self.clocks.cluster.end(clusters)

    def acquire_cluster(self, c: Cohort) -> None:
        rows, warps, _ = self.pairs(c)
        self.clocks.take(self.clocks.cluster.kept[self.clocks.clusters[rows]], rows, warps)

    def fence(self, c: Cohort) -> None:
        self.atomics.fence(*self.pairs(c)[:2])

    def fence_proxy(self, c: Cohort) -> None:
        blocks, threads = c.lanes_of(c.active())
        self.memory.fences.make(blocks - self.first, threads // WARP, threads % WARP)
        self.fence_inits(c)

    def fence_inits(self, c: Cohort) -> None:
        """What these threads have initialised is fenced; of all else that they did a proxy fence alone says so."""
        open_ = self.init_fence == NEVER
        if not open_.any():
            return
        blocks, threads = c.lanes_of(c.active())
        made = np.zeros((self.count, self.warps, WARP), np.bool_)
        made[blocks - self.first, threads // WARP, threads % WARP] = True
        rows, columns = np.nonzero(open_)
        by, lanes = self.init_warp[rows, columns], self.init_lane[rows, columns]
        rows, columns = (each[made[rows, by, lanes]] for each in (rows, columns))
        self.init_fence[rows, columns] = self.clocks.now(rows, self.init_warp[rows, columns])

    def pairs(self, c: Cohort) -> tuple[Ints, Ints, Bools]:
        """Row and warp of each warp of which a lane is active, and which of the cohort's warps these are."""
        which = c.active().any(axis=2).ravel()
        rows = np.repeat(c.blocks - self.first, c.shape[1])
        warps = np.broadcast_to(c.warps, c.shape[:2]).ravel()
        return rows[which], warps[which], which

    # -- products ------------------------------------------------------------------------------

    def fence_registers(self, c: Cohort) -> None:
        self.products.fence(*self.pairs(c)[:2])

    def commit_products(self, c: Cohort) -> None:
        self.products.commit(*self.pairs(c)[:2])

    def wait_for_products(self, c: Cohort, op: Op, pending: int, finish: bool) -> None:
        self.products.wait(op, *self.pairs(c)[:2], pending, finish)

    # -- the end -------------------------------------------------------------------------------

    def finish(self, c: Cohort) -> None:
        """These warps end."""
        rows, warps, _ = self.pairs(c)
        np.maximum.at(self.ended, rows, self.clocks.known[rows, warps])
        self.products.require_ended(rows, warps)
        ending = np.zeros((self.count, self.warps), np.bool_)
        ending[rows, warps] = True
        for transfer in self.chunk.bulk.unread():
            left = ending[transfer.owners, transfer.threads // WARP]
            if left.any():
                at = int(np.argmax(left))
                who = self.memory.who(transfer.owners[at], transfer.threads[at] // WARP)
                raise HazardError(
                    f"{who} ends, and its {transfer.op.name} may still read {transfer.label}",
                    transfer.op.loc,
                    "wait for it at the end: tma_commit(), tma_wait(0)",
                )

    def end(self) -> None:
        """All blocks have ended: those that others of the cluster arrived in knew of that."""
        late = self.visits > self.ended
        if late.any():
            row, rank, warp = np.argwhere(late)[0].tolist()
            raise HazardError(
                f"block {self.launch.block_index(row + self.first)} may end before warp {warp} of block {rank} of its "
                "cluster arrives at an mbarrier in its shared memory",
                self.chunk.machine.kernel.loc,
                "end the kernel with a barrier of the cluster (cluster_arrive, cluster_wait), or wait for all arrivals",
            )
        incomplete = self.chunk.mbarriers.bytes != 0
        if incomplete.any():
            row, column = np.argwhere(incomplete)[0].tolist()
            self.fail_bytes(row, column)

    def fail_bytes(self, row: int, column: int) -> None:
        mbarriers = self.chunk.mbarriers
        lacks = int(mbarriers.bytes[row, column])
        users = list(mbarriers.users[column])
        raise HazardError(
            f"{mbarriers.labels[column]} of block {self.launch.block_index(row + self.first)} ends in a phase that "
            + (f"lacks {lacks} bytes" if lacks > 0 else f"has got {-lacks} bytes which nobody expected"),
            users[0].loc if users else self.chunk.machine.kernel.loc,
            "let expect_tx say how many bytes the loads of the phase bring",
        )

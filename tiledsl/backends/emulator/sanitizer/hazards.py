"""The check of hazards: who may touch shared memory, by all that orders warps, copies and products.

It hears of a run as any hook does. An access must come after those that it conflicts with by what its warp has waited
for, whatever the order in which the emulator ran them: `clocks` says who knows of whom, `memory` who touched
what, `mbarriers`, `fences`, `atomics`, `async_reads` and `commits` what lets others
know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.clusters import Clusters
from tiledsl.backends.emulator.hooks import Access, FenceKind, Group, LaunchInfo, Sync, SyncKind
from tiledsl.backends.emulator.sanitizer.async_reads import ProductReads, StoreReads
from tiledsl.backends.emulator.sanitizer.atomics import AtomicOrder
from tiledsl.backends.emulator.sanitizer.clocks import Clocks
from tiledsl.backends.emulator.sanitizer.commits import CommittedWork
from tiledsl.backends.emulator.sanitizer.mbarriers import MbarrierUse
from tiledsl.backends.emulator.sanitizer.memory import SharedHistory
from tiledsl.backends.emulator.sanitizer.shadow import Ints, ShadowHook
from tiledsl.backends.emulator.sanitizer.words import Words
from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import gpu, mem, tile, wgmma
from tiledsl.ir.types import U64

__all__ = ["HazardCheck", "Ordering"]


_OTHERWISE = {"", "token", "mbarrier", *get_args(Group)}
"""What tells of the end of work but for a commit that arrives at an mbarrier."""


@dataclass(frozen=True)
class Ordering:
    """What can order the warps of a kernel. `mbarriers`: at most so many are there. `atomics`: whether releases and
    acquires do. `commits`: whether commits of work do, which arrive at mbarriers. `simple`: whether nothing but
    barriers of whole blocks does."""

    loc: Loc
    mbarriers: int
    atomics: bool
    commits: bool
    simple: bool

    @staticmethod
    def of(kernel: Kernel) -> Ordering:
        ops = list(kernel.walk())
        atomics = any(op.sync.releases or op.sync.acquires for op in ops)
        bases = {(op.offset, op.bytes) for op in ops if isinstance(op, mem.SharedBase) and op.dtype == U64}
        tiles = [op.type.bytes for op in ops if isinstance(op, tile.SharedAlloc) and op.type.dtype == U64]
        mbarriers = (sum(bytes_ for _, bytes_ in bases) + sum(tiles)) // U64.bytes
        commits = any(access.done not in _OTHERWISE for op in ops for access in op.touches)
        simple = not atomics and not any(_orders_some(op) for op in ops)
        return Ordering(kernel.loc, 0 if simple else mbarriers, atomics, commits, simple)


def _orders_some(op: Op) -> bool:
    """Does it order other threads than those of a warp or of the whole block, or let TMA or wgmma touch memory?"""
    if "mbarrier" in op.features or any(access.proxy == "async" for access in op.accesses()):
        return True
    return op.sync.meets not in ("", "warp") and not isinstance(op, gpu.Barrier)


class _Chunk:
    """What is known of the blocks `first` ... `first + count - 1`."""

    def __init__(self, ordering: Ordering, launch: LaunchInfo, first: int, count: int) -> None:
        self.ordering, self.first = ordering, first
        x, y, z = launch.threads
        clusters, warps = Clusters(launch, first, count), -(-x * y * z // WARP)
        self.clocks = Clocks(clusters, count, warps, ordering.mbarriers, ordering.commits)
        self.words = Words(launch, first, ordering.simple)
        self.memory = SharedHistory(self.words, self.clocks, first, count, ordering.simple)
        self.mbarriers = MbarrierUse(self.words, self.clocks, self.memory.labels, count, ordering.mbarriers)
        self.atomics = AtomicOrder(self.clocks, first) if ordering.atomics else None
        self.stores, self.products = StoreReads(self.memory, count), ProductReads(self.memory, count)
        self.work = CommittedWork(self.memory, count)

    def warps(self, blocks: Ints, threads: Ints) -> tuple[Ints, Ints]:
        """Row and warp of each warp of these threads, which stand in the order of blocks and warps."""
        warps = (blocks - self.first) * self.clocks.warps + threads // WARP
        return np.divmod(warps[np.flatnonzero(np.diff(warps, prepend=-1))], self.clocks.warps)

    # -- accesses ------------------------------------------------------------------------------

    def access(self, access: Access) -> None:
        """By threads themselves, or the beginning of a `cp.async`."""
        touch = self.memory.by_lanes(access)
        self.memory.against_writers(touch)
        if access.kind == "read":
            self.memory.remember_reads(touch)
            return
        self.memory.against_readers(touch)
        if access.kind != "async":
            self.memory.remember_writes(touch)

    def load(self, access: Access) -> None:
        """Boxes are on their way to shared memory."""
        touch = self.memory.by_proxy(access)
        assert access.mbarriers is not None
        columns, everywhere = self.mbarriers.columns(access.mbarriers), np.ones(len(touch.rows), np.bool_)
        self.mbarriers.require_initialised(touch.op, touch.owners, touch.warps, touch.rows, columns, everywhere)
        self.memory.against_writers(touch)
        self.memory.against_unfenced(touch)
        self.memory.against_unfenced_readers(touch)
        self.memory.against_fetchers(touch)

    def delivered(self, access: Access) -> None:
        self.words.copies.add(access.op)
        if access.mbarriers is None:  # for the thread that has waited for it
            self.memory.remember_writes(self.memory.by_lanes(access))
            return
        touch, columns = self.memory.by_proxy(access), self.mbarriers.columns(access.mbarriers)
        phases = self.mbarriers.phase[touch.rows, columns]
        self.memory.remember_arrival(access.op, touch.rows, touch.cells, columns, phases)


class HazardCheck(ShadowHook[_Chunk]):
    """Raises HazardError for accesses to shared memory that nothing orders."""

    def __init__(self, ordering: Ordering) -> None:
        super().__init__(partial(_Chunk, ordering))

    def end(self, shadow: _Chunk) -> None:
        shadow.mbarriers.end(shadow.ordering.loc)
        shadow.work.end(shadow.mbarriers.ended)

    # -- accesses ------------------------------------------------------------------------------

    def on_access(self, access: Access) -> None:
        if not len(access.blocks) or access.kind == "mbarrier":
            return
        chunk = self.of(access.blocks)
        if access.until == "mbarrier":
            chunk.load(access)
        elif access.until == "bulk":
            chunk.stores.issue(access)
        elif access.until == "wgmma":
            chunk.products.issue(access)
        elif access.until == "commit":
            chunk.work.issue(access)
        elif access.space == "shared":
            chunk.access(access)
        if access.order is not None and chunk.atomics is not None:
            chunk.atomics.access(access)

    def on_delivery(self, access: Access) -> None:
        self.of(access.blocks).delivered(access)

    def on_commit(self, op: Op, group: Group, blocks: Ints, threads: Ints) -> None:
        chunk = self.of(blocks)
        if group == "bulk":
            chunk.stores.commit(blocks - chunk.first, threads)
        elif group == "wgmma":
            chunk.products.commit(*chunk.warps(blocks, threads))

    def on_wait(self, op: Op, group: Group, blocks: Ints, threads: Ints, pending: int) -> None:
        chunk = self.of(blocks)
        if group == "bulk":
            chunk.stores.wait(blocks - chunk.first, threads, pending)
        elif group == "wgmma":
            warps = chunk.warps(blocks, threads)
            chunk.products.wait(*warps, pending)
            if op.finish if isinstance(op, wgmma.Wait) else op.operands:
                chunk.products.finish(op, *warps)

    # -- what orders them ----------------------------------------------------------------------

    def on_barrier(self, op: Op, blocks: Ints) -> None:
        chunk = self.of(blocks)
        chunk.clocks.meet(blocks - chunk.first)

    def on_sync_warp(self, op: Op, blocks: Ints, warps: Ints) -> None:
        chunk = self.of(blocks)
        chunk.clocks.sync(blocks - chunk.first, warps)

    def on_init(self, op: Op, label: str, base: int, blocks: Ints, threads: Ints, places: Ints) -> None:
        chunk = self.of(blocks)
        chunk.memory.reserve(blocks - chunk.first, places, U64.bytes)
        chunk.mbarriers.initialise(label, base, blocks - chunk.first, threads, places)

    def on_arrive(self, sync: Sync) -> None:
        chunk = self.of(sync.blocks)
        rows, clocks = sync.blocks - chunk.first, chunk.clocks
        if sync.kind == "mbarrier":
            chunk.mbarriers.arrive(sync, None if sync.commits is None else chunk.work.commit(sync))
        elif sync.kind == "named":
            clocks.leave(clocks.named, (rows, sync.places), rows, sync.warps)
            clocks.sync(rows, sync.warps)
        else:
            clocks.leave(clocks.cluster, (clocks.clusters[rows],), rows, sync.warps)
            clocks.sync(rows, sync.warps)

    def on_complete(self, kind: SyncKind, homes: Ints, places: Ints) -> None:
        chunk = self.of(homes)
        rows, clocks = homes - chunk.first, chunk.clocks
        if kind == "mbarrier":
            chunk.mbarriers.complete(rows, places)
        elif kind == "named":
            clocks.named.kept[rows, places] = 0
            clocks.named.end(rows, places)
        else:
            clocks.cluster.end(np.unique(clocks.clusters[rows]))

    def on_acquire(self, sync: Sync) -> None:
        chunk = self.of(sync.blocks)
        rows, clocks = sync.blocks - chunk.first, chunk.clocks
        if sync.kind == "mbarrier":
            chunk.mbarriers.acquire(sync)
        elif sync.kind == "named":
            clocks.take(clocks.named.kept[rows, sync.places], rows, sync.warps)
        else:
            clocks.take(clocks.cluster.kept[clocks.clusters[rows]], rows, sync.warps)

    def on_fence(self, op: Op, kind: FenceKind, blocks: Ints, threads: Ints) -> None:
        chunk = self.of(blocks)
        if kind == "registers":
            chunk.products.fence(*chunk.warps(blocks, threads))
        elif kind == "memory" and chunk.atomics is not None:
            chunk.atomics.fence(*chunk.warps(blocks, threads))
        elif kind == "proxy":
            chunk.memory.fences.make(blocks - chunk.first, threads // WARP, threads % WARP)
        if kind in ("proxy", "init"):
            chunk.mbarriers.fence(blocks - chunk.first, threads)

    def on_exit(self, blocks: Ints, warps: Ints) -> None:
        chunk = self.of(blocks)
        rows = blocks - chunk.first
        chunk.mbarriers.exit(rows, warps)
        chunk.work.require_committed(rows, warps)
        chunk.products.require_ended(rows, warps)
        chunk.stores.require_ended(rows, warps)

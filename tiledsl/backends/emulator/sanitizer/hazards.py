"""The check of hazards: every access to memory must happen after those that it conflicts with.

It is a hook, and knows of a run what hooks are told. Happens-before is what warps have waited for (`clocks`), whatever
the order in which the emulator ran them; `memory` is the history of accesses to shared memory, `global_memory` of those
to global memory; `mbarriers`, `atomics` and `async_reads` are what releases and acquires. `checks` finds reads of
shared memory that was never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.hooks import Access, FenceKind, Group, Hook, Ints, LaunchInfo, Sync, SyncKind
from tiledsl.backends.emulator.positions import Clusters
from tiledsl.backends.emulator.sanitizer.async_reads import CommittedWork, ProductReads, StoreReads
from tiledsl.backends.emulator.sanitizer.atomics import AtomicOrder
from tiledsl.backends.emulator.sanitizer.checks import LastWrites, Unwritten
from tiledsl.backends.emulator.sanitizer.checks_registers import check_registers
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, Meeting, NamedRounds
from tiledsl.backends.emulator.sanitizer.global_memory import GlobalHistory, GlobalShadow
from tiledsl.backends.emulator.sanitizer.global_shadow import uses_of
from tiledsl.backends.emulator.sanitizer.mbarriers import MbarrierUse
from tiledsl.backends.emulator.sanitizer.memory import SharedHistory, Touch
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.sanitizer.shadow import Cells
from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers, gpu, mem, tile, wgmma
from tiledsl.ir.types import U64

_OTHERWISE = {"", "token", "mbarrier", *get_args(Group)}
"""What tells of the end of work but for a commit that arrives at an mbarrier."""


def _orders_some(op: Op) -> bool:
    """Does it order other threads than those of a warp or of the whole block, or let TMA or wgmma touch memory?"""
    if "mbarrier" in op.features or any(access.proxy == "async" for access in op.accesses()):
        return True
    return op.sync.meets not in ("", "warp") and not isinstance(op, gpu.Barrier)


class Checks:
    """Finds accesses to memory that nothing orders, asynchronous copies that were not waited for, shared memory that is
    read and was never written, and registers that are used too early, which need no run (`registers`).

    `uses`: what the kernel does with tensors. What can order its warps: `mbarriers`: at most so many are there.
    `atomics`: whether releases and acquires do. `narrow`: have some arrivals the scope of a block? `commits`: whether
    commits of work do, which arrive at mbarriers. `simple`: whether nothing but barriers of whole blocks does.
    `overlapping`: are there tiles with bytes in common?
    """

    def __init__(self, kernel: Kernel) -> None:
        ops = list(kernel.walk())
        self.loc, self.uses, self.registers = kernel.loc, uses_of(kernel), [*check_registers(kernel)]
        self.atomics = any(op.sync.releases or op.sync.acquires for op in ops)
        self.narrow = any(isinstance(op, barriers.Arrive) and op.reach == "cta" for op in ops)
        self.commits = any(access.done not in _OTHERWISE for op in ops for access in op.touches)
        self.simple = not self.atomics and not any(_orders_some(op) for op in ops)
        bases = sorted((op.offset, op.bytes, op.dtype == U64) for op in ops if isinstance(op, mem.SharedBase))
        self.overlapping = any(start + size > after for (start, size, _), (after, *_) in pairwise(bases))
        tiles = [op.type.bytes for op in ops if isinstance(op, tile.SharedAlloc) and op.type.dtype == U64]
        self.mbarriers = 0 if self.simple else (sum(b for _, b, u64 in set(bases) if u64) + sum(tiles)) // U64.bytes


def checks_of(
    launches: Sequence[tuple[Checks, LaunchInfo]], reports: Reports, unwritten: frozenset[str]
) -> Sequence[OfLaunch]:
    """Those of each launch of a run; of none if no access matters to the checks that are on. unwritten: tensors that
    hold nothing yet."""
    selection = reports.selection
    for kernel, _ in launches if "registers" in selection else ():
        for error in kernel.registers:
            reports.tell(error)
    asked = "T201" in selection or "T204" in selection
    empty = [Unwritten(launch, unwritten if asked else frozenset(), reports) for _, launch in launches]
    if any(name in selection for name in ("shared", "global", "barriers")):
        shadow = GlobalShadow([(launch, kernel.uses) for kernel, launch in launches], reports)
        orders = any(kernel.atomics for kernel, _ in launches)
        return [_Launch(kernel, reports, e, shadow, orders) for (kernel, _), e in zip(launches, empty, strict=True)]
    if "uninitialised" in selection:
        return [_Writes(kernel, reports, e) for (kernel, _), e in zip(launches, empty, strict=True)]
    return ()


@dataclass(eq=False)
class OfLaunch(Hook):
    """The checks of a launch. `unwritten`: of the tensors that hold nothing yet."""

    kernel: Checks
    reports: Reports
    unwritten: Unwritten

    def end_launch(self) -> None:
        """All blocks have ended."""
        writes = [name for name, use in self.kernel.uses.items() if use.writes or use.updates]
        self.unwritten.end(self.kernel.loc, writes)


@dataclass(eq=False)
class _Launch(OfLaunch):
    """What is known of global memory. `orders`: do releases or acquires of any launch of the run?"""

    shadow: GlobalShadow
    orders: bool

    def of_blocks(self, launch: LaunchInfo, first: int, count: int) -> Hook:
        return _Blocks(self, launch, first, count)


class _Writes(OfLaunch):
    """Finds uninitialised reads alone: no clock runs. `cells`, `writes`: of some blocks."""

    def of_blocks(self, launch: LaunchInfo, first: int, count: int) -> Hook:
        blocks = _Writes(self.kernel, self.reports, self.unwritten)
        blocks.cells = Cells(launch, first, count)
        blocks.writes = LastWrites(blocks.cells, self.kernel.overlapping, self.reports)
        return blocks

    cells: Cells
    writes: LastWrites

    def on_access(self, access: Access) -> None:
        if len(access.blocks) and access.space == "shared":
            self.writes.access(access, self.cells.touched(access))
        elif access.space == "global":
            self.unwritten.access(access)

    def on_delivery(self, access: Access) -> None:
        self.writes.write(access, self.cells.touched(access))


class _Blocks(Hook):
    """What is known of the blocks `first` ... `first + count - 1`. `shared`, `last_writes`, `globals`: are these checks
    on?"""

    def __init__(self, of: _Launch, launch: LaunchInfo, first: int, count: int) -> None:
        kernel, reports, shadow = of.kernel, of.reports, of.shadow
        self.loc, self.first, self.reports, self.unwritten = kernel.loc, first, reports, of.unwritten
        self.shared, selection = "shared" in reports.selection, reports.selection
        x, y, z = launch.threads
        clusters, warps = Clusters(launch, first, count), -(-x * y * z // WARP)
        self.cells = Cells(launch, first, count)
        self.last_writes = LastWrites(self.cells, kernel.overlapping, reports) if "uninitialised" in selection else None
        self.clocks = clocks = Clocks(clusters, count, warps, kernel.mbarriers, kernel.commits, kernel.narrow)
        self.memory = SharedHistory(self.cells, clocks, count, kernel.simple, reports)
        self.mbarriers = MbarrierUse(self.cells, clocks, self.memory.labels, count, kernel.mbarriers, reports)
        self.named_rounds = NamedRounds(clocks, count)
        self.globals = GlobalHistory(shadow, launch, clocks, clusters, first, count) if "global" in selection else None
        self.atomics = AtomicOrder(clocks, launch, first, shadow.published) if of.orders else None
        self.products, self.work = ProductReads(self.memory, count), CommittedWork(self.memory, count)
        self.groups: dict[Group, StoreReads] = {"wgmma": self.products, "bulk": StoreReads(self.memory, count)}
        self.begin = {
            "mbarrier": self.load,
            "commit": self.work.issue,
            **{group: reads.issue for group, reads in self.groups.items()},
        }

    def on_end(self) -> None:
        self.memory.end(self.mbarriers.ended)
        self.mbarriers.end(self.loc)
        self.work.end(self.mbarriers.ended)

    # -- accesses ------------------------------------------------------------------------------

    def on_access(self, access: Access) -> None:
        """In this order: bytes in flight are also uninitialised, and so are those of mbarriers."""
        if not len(access.blocks):
            return
        if access.space == "shared":
            cells, wrong = self.cells.touched(access), self.reports.wrong
            if access.until == "mbarrier":
                self.counted(access)
            elif access.until == "wgmma":
                self.multiplied(access)
            if self.shared:
                self.touch(self.memory.touch(access, cells))
            if self.last_writes is not None:
                self.last_writes.access(access, cells, self.reports.wrong == wrong)
        else:
            self.unwritten.access(access)
            if self.globals is not None:
                columns = None if access.mbarriers is None else self.mbarriers.columns(access.mbarriers)
                self.globals.access(access, columns)
        if access.order is not None and self.atomics is not None:
            self.atomics.access(access)

    def touch(self, touch: Touch) -> None:
        if touch.access.kind == "mbarrier":
            self.memory.require_delivered(touch)
        else:
            self.begin.get(touch.access.until, self.access)(touch)

    def access(self, touch: Touch) -> None:
        """By threads themselves, or the beginning of a `cp.async`."""
        self.memory.against_writers(touch)
        if touch.access.kind == "read":
            self.memory.remember_reads(touch)
            return
        self.memory.against_readers(touch)
        if touch.access.kind == "async":
            self.memory.begin_writing(touch)
        else:
            self.memory.remember_writes(touch)

    def load(self, touch: Touch) -> None:
        """Boxes begin to be copied to shared memory, or threads send to that of another block."""
        self.memory.against_writers(touch)
        if any(access.proxy == "async" for access in touch.access.op.touches):
            self.memory.against_unfenced(touch)
            self.memory.against_unfenced_readers(touch)
            self.memory.against_fetchers(touch)
        else:
            self.memory.against_readers(touch)
        self.memory.begin_writing(touch)

    def warps_of(self, blocks: Ints, threads: Ints) -> tuple[Ints, Ints]:
        """The rows and warps of these threads, each once."""
        warps = np.unique((blocks - self.first) * self.clocks.warps + threads // WARP)
        return np.divmod(warps, self.clocks.warps)

    def multiplied(self, access: Access) -> None:
        """Begin products, for which all lanes of four warps have come."""
        at, products = slice(None, None, access.run), self.mbarriers.phases.products
        rows, warps = self.warps_of(access.blocks[at], access.threads[at])
        if products.fresh.any():
            products.begin(rows, warps)
        for warp in range(WARPGROUP_WARPS):
            self.clocks.join(rows, warps + warp)

    def counted(self, access: Access) -> None:
        """Copies begin whose bytes mbarriers count."""
        assert access.mbarriers is not None
        rows, warps = access.blocks[:: access.run] - self.first, access.threads[:: access.run] // WARP
        owners = rows if access.owners is None else access.owners - self.first
        columns, everywhere = self.mbarriers.columns(access.mbarriers), np.ones(len(rows), np.bool_)
        self.mbarriers.require_initialised(access.op, owners, warps, rows, columns, everywhere)
        self.mbarriers.phases.begin(access.op, owners, warps, rows, columns)

    def on_delivery(self, access: Access) -> None:
        cells = self.cells.touched(access)
        if access.mbarriers is not None:
            rows = access.blocks[:: access.run] - self.first
            self.mbarriers.phases.arrived_copies(rows, self.mbarriers.columns(access.mbarriers))
        if self.shared:
            touch = self.memory.touch(access, cells)
            if access.mbarriers is None:  # for the thread that has waited for it
                self.memory.remember_writes(touch)
            else:
                columns = self.mbarriers.columns(access.mbarriers)
                self.memory.remember_arrival(access.op, touch.rows, touch.cells, columns)
        if self.last_writes is not None:
            self.last_writes.write(access, cells)

    def on_commit(self, op: Op, group: Group, blocks: Ints, threads: Ints) -> None:
        if self.globals is not None:
            self.globals.commit(group, blocks - self.first, threads)
        if group == "wgmma":
            self.mbarriers.phases.products.commit(*self.warps_of(blocks, threads))
        if self.shared and group in self.groups:
            self.groups[group].commit(blocks - self.first, threads)

    def on_wait(self, op: Op, group: Group, blocks: Ints, threads: Ints, pending: int) -> None:
        if self.globals is not None:
            self.globals.wait(op, group, blocks - self.first, threads, pending)
        if group == "wgmma":
            self.mbarriers.phases.products.wait(*self.warps_of(blocks, threads), pending)
        if not self.shared or group not in self.groups:
            return
        rows = blocks - self.first
        self.groups[group].wait(rows, threads, pending)
        if op.finish if isinstance(op, wgmma.Wait) else isinstance(op, wgmma.WaitGroup) and op.operands:
            self.products.finish(op, rows, threads)

    # -- what orders them ----------------------------------------------------------------------

    def on_barrier(self, op: Op, blocks: Ints) -> None:
        self.clocks.meet(blocks - self.first)

    def on_sync_warp(self, op: Op, blocks: Ints, warps: Ints) -> None:
        self.clocks.sync(blocks - self.first, warps)

    def on_init(self, op: Op, label: str, base: int, blocks: Ints, threads: Ints, places: Ints) -> None:
        rows = blocks - self.first
        self.memory.reserve(rows, places, U64.bytes)
        self.mbarriers.initialise(label, base, rows, threads, places)

    def on_arrive(self, sync: Sync) -> None:
        rows, clocks = sync.blocks - self.first, self.clocks
        if sync.kind == "mbarrier":
            self.mbarriers.arrive(sync, self.work.commit(sync) if sync.commits else None)
        else:
            if sync.kind == "named":
                self.require_next_round(sync, rows)
            meeting, places = self.meeting(sync.kind, rows, sync.places)
            clocks.release(meeting, places, rows, sync.warps)
            if sync.op.sync.meets:  # (PTX ISA: barrier.cta.arrive, barrier.cluster.arrive order no lanes.)
                clocks.sync(rows, sync.warps)

    def require_next_round(self, sync: Sync, rows: Ints) -> None:
        """Under no schedule may an arrival at a named barrier count in the round before."""
        late = self.named_rounds.arrive(rows, sync.places, sync.warps)
        if late is None:
            return
        at, other = late
        launch, block, warp = self.cells.launch, int(sync.blocks[at]), int(sync.warps[at])
        side = launch.side(sync.op, "arrives", block, warp=warp)
        before = "itself" if other == warp else f"warp {other}"
        error = HazardError(
            f"{side.who} arrives at barrier {sync.places[at]}, and nothing orders that behind the end of the round "
            f"before, in which {before} arrived: it may count in that one",
            sync.op.loc,
            "let it wait for a round before it arrives for the next one, or use another number",
            code="T418",
            sides=(side, launch.side(sync.op, "arrived", block, warp=other)),
        )
        self.reports.tell(error)

    def on_complete(self, kind: SyncKind, homes: Ints, places: Ints) -> None:
        rows = homes - self.first
        if kind == "mbarrier":
            self.mbarriers.complete(rows, places)
            return
        meeting, at = self.meeting(kind, rows, places)
        if kind == "named":
            meeting.kept[at] = 0
            self.named_rounds.end(*at)
        meeting.end(*at)

    def on_acquire(self, sync: Sync) -> None:
        rows = sync.blocks - self.first
        if sync.kind == "mbarrier":
            self.mbarriers.acquire(sync)
            return
        meeting, places = self.meeting(sync.kind, rows, sync.places)
        self.clocks.acquire(meeting.kept[places], rows, sync.warps)

    def meeting(self, kind: SyncKind, rows: Ints, places: Ints) -> tuple[Meeting, tuple[Ints, ...]]:
        """What a named barrier or one of a cluster has of those who arrive, and where."""
        if kind == "named":
            return self.clocks.named, (rows, places)
        return self.clocks.cluster, (self.clocks.clusters[rows],)

    def on_fence(self, op: Op, kind: FenceKind, blocks: Ints, threads: Ints) -> None:
        rows = blocks - self.first
        if kind == "registers":
            self.products.fence(rows, threads)
        elif kind == "memory" and self.atomics is not None:
            warps = rows * self.clocks.warps + threads // WARP
            assert isinstance(op, gpu.Fence)
            self.atomics.fence(op, *np.divmod(np.unique(warps), self.clocks.warps), op.reach)
        elif kind == "global proxy":
            if self.globals is not None:
                self.globals.fence(rows, threads)
        elif kind == "proxy":
            self.memory.fences.make(rows, threads // WARP, threads % WARP)
        if kind in ("proxy", "init"):
            self.mbarriers.fence(rows, threads)

    def on_exit(self, blocks: Ints, warps: Ints) -> None:
        rows = blocks - self.first
        self.mbarriers.exit(rows, warps)
        self.work.require_committed(rows, warps)
        for reads in self.groups.values():
            reads.require_ended(rows, warps)

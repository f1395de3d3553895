"""The scheduler: chunks of blocks, cohorts in turn, barriers, deadlock.

A chunk is a range of neighbouring blocks that are emulated together; it owns their shared memory and
shares nothing else with other chunks but global memory. Usually one chunk lives at a time; more are
started when every live one spins on memory (a block may wait for a later one).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Sequence, TextIO

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.async_copies import AsyncCopies
from tiledsl.backends.emulator.boundary import internal_error
from tiledsl.backends.emulator.bulk_copies import BulkCopies
from tiledsl.backends.emulator.checks_order import OrderCheck
from tiledsl.backends.emulator.clusters import Clusters, whole_clusters
from tiledsl.backends.emulator.cohort import Cohort, Mask, merge
from tiledsl.backends.emulator.mbarriers import ClusterBarriers, Mbarriers, NamedBarriers
from tiledsl.backends.emulator.memory import GlobalBuffer, SharedTile
from tiledsl.backends.emulator.options import Hook, LaunchInfo, Options
from tiledsl.backends.emulator.order import Order
from tiledsl.backends.emulator.positions import Positions
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.waiting import Waiting
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Kernel, Op, Value

__all__ = ["Chunk", "Machine"]

_PATIENCE = 64
"""Turns of spinning loops, with nothing else to run, after which another chunk is started."""


_CHUNK_STEPS = 64
"""Iterations of a loop that a chunk counts as."""

_SHARED_BYTES, _CHECKED_BYTES = 1 << 26, 1 << 22
"""Shared memory that is emulated at once; with checks, which remember some hundred bytes of each."""


@dataclass(frozen=True)
class _Arrived:
    """A cohort that waits at the barrier `op`."""

    cohort: Cohort
    op: Op


class Machine:
    """One launch. `registers` are those that every cohort starts with, arguments included.

    `buffers`: tensors by thread-level pointer argument; `tensors`: all, by name; `tiles`: tile-level shared
    allocations. `checker`: the hook that knows who has waited for whom, if there is one.
    """

    def __init__(
        self,
        kernel: Kernel,
        program: Program,
        registers: list[Any],
        launch: LaunchInfo,
        hooks: Sequence[Hook],
        options: Options,
        stdout: TextIO,
    ) -> None:
        self.kernel, self.program, self.registers = kernel, program, registers
        self.launch, self.hooks, self.options, self.stdout = launch, hooks, options, stdout
        self.buffers: dict[Value, GlobalBuffer] = {}
        self.tensors: dict[str, GlobalBuffer] = {}
        self.checker = next((h for h in hooks if isinstance(h, OrderCheck)), None)
        self.tiles: dict[Op, SharedTile] = {}
        self.positions = Positions(launch)
        self.queue: deque[Cohort] = deque()
        self.idle = self.steps = 0

    def run(self) -> None:
        x, y, z = self.launch.grid
        blocks = x * y * z
        unit = whole_clusters(self.launch)
        most = min(self.options.chunk_threads // (self.positions.warps * WARP), self.blocks_in_memory())
        size = max(1, most // unit) * unit
        starts = iter(range(0, blocks, size))
        first = next(starts, None)
        for hook in self.hooks:
            hook.on_launch(self.launch)
        while self.queue or first is not None:
            if first is not None and (not self.queue or self.idle > _PATIENCE):
                self.spend(self.kernel.loc, _CHUNK_STEPS)
                Chunk(self, first, min(size, blocks - first)).start()
                self.idle, first = 0, next(starts, None)
            self.turn()

    def blocks_in_memory(self) -> int:
        """How many blocks may be emulated at once, so that their shared memory, and its shadow, fit well."""
        limit = _CHECKED_BYTES if self.options.checks else _SHARED_BYTES
        return max(1, limit // max(1, self.launch.shared_bytes))

    def turn(self) -> None:
        """Let the cohort at the head of the queue run until it gives way."""
        cohort = self.queue.popleft()
        chunk = cohort.chunk
        chunk.ready -= 1
        cohort = self.with_neighbours(cohort)
        code = self.program.code
        try:
            while code[cohort.pc].step(cohort):
                pass
        except Exception as failure:
            op = code[cohort.pc].op
            error = internal_error(failure, op.name, op.loc)
            if error is None:
                raise
            raise error from failure
        if self.idle > _PATIENCE:
            chunk.go_on()
        chunk.settle()

    def with_neighbours(self, cohort: Cohort) -> Cohort:
        """Merge the cohort with all of its chunk that gave way at the same point."""
        if not cohort.parked or not self.queue:
            return cohort
        same = [o for o in self.queue if o.parked and o.pc == cohort.pc and o.chunk is cohort.chunk]
        if same:
            self.queue = deque(o for o in self.queue if o not in same)
            cohort.chunk.ready -= len(same)
            cohort = merge([cohort, *same], self.program.fills)
        cohort.parked = False
        return cohort

    def enqueue(self, cohort: Cohort) -> None:
        self.queue.append(cohort)
        cohort.chunk.ready += 1

    def iterate(self, op: Op, idle: bool = False) -> None:
        """One more iteration of a loop. idle: of a `while` loop, and no loop has ended since."""
        self.idle += idle
        self.spend(op.loc)

    def spend(self, loc: Loc, steps: int = 1) -> None:
        """Raises HazardError when the run has had more than `Options.max_steps`."""
        self.steps += steps
        if self.steps <= self.options.max_steps:
            return
        fix = "if it is only long, set TILEDSL_MAX_STEPS, or pass Options(max_steps=...)"
        if self.idle <= self.steps // 2:
            raise HazardError(f"the run does not end: {self.options.max_steps} iterations of loops", loc, fix)
        waiting = {id(o.chunk): o.chunk for o in self.queue}.values()
        at_barriers = "".join("\n  " + line for chunk in waiting for line in chunk.describe_waiting())
        raise HazardError(
            f"this loop spins for ever: {self.options.max_steps} iterations and no loop has ended{at_barriers}",
            loc,
            f"check that what the loop waits for is written; {fix}",
        )


class Chunk:
    """Blocks `first` ... `first + count - 1`, whole clusters. `shared`: [count, pitch] bytes. `copies`, `bulk`: what is
    on its way there. `ended`: how many warps of each block have. `order`: who waited for whom, if that is checked."""

    def __init__(self, machine: Machine, first: int, count: int) -> None:
        self.machine, self.first, self.count = machine, first, count
        self.pitch = -(-max(machine.launch.shared_bytes, 1) // 16) * 16
        self.shared = np.zeros((count, self.pitch), np.uint8)
        self.typed: dict[np.dtype[Any], NDArray[Any]] = {}
        self.warps = machine.positions.warps
        self.copies = AsyncCopies(self.shared, first, self.warps)
        self.ready = 0
        self.finished = 0
        self.waiting: list[_Arrived] = []
        self.blocked = Waiting(self)
        self.ended = np.zeros(count, np.int64)
        self.clusters = Clusters(machine.launch, first, count)
        self.mbarriers = Mbarriers(count, self.pitch)
        self.named_barriers = NamedBarriers(count)
        self.cluster_barriers = ClusterBarriers(self.clusters.number, self.warps)
        self.bulk = BulkCopies(self)
        self.order: Order | None = machine.checker.begin(self) if machine.checker is not None else None
        self.arrived = np.zeros(count, np.int64)

    def start(self) -> None:
        for hook in self.machine.hooks:
            hook.on_blocks_begin(self.first, self.count)
        blocks = np.arange(self.first, self.first + self.count)
        exists: Mask = self.machine.positions.exists
        warps = np.arange(self.warps)[None]
        self.machine.enqueue(Cohort(self, blocks, warps, list(self.machine.registers), exists, exists))

    def shared_as(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """All shared memory of the chunk as one flat array of `dtype`."""
        if dtype not in self.typed:
            self.typed[dtype] = self.shared.reshape(-1).view(dtype)
        return self.typed[dtype]

    # -- what instructions call ----------------------------------------------------------------

    def replace(self, parts: Sequence[Cohort]) -> None:
        """The running cohort was split: its parts go to the head of the queue."""
        for part in reversed(parts):
            self.machine.queue.appendleft(part)
            self.ready += 1

    def give_way(self, cohort: Cohort) -> bool:
        """Let others run first; they may join this cohort. False if there is nobody to wait for."""
        others = self.machine.queue or self.blocked.entries or self.machine.idle > _PATIENCE
        if not others:
            return False
        cohort.parked = True
        self.machine.enqueue(cohort)
        return True

    def arrive(self, cohort: Cohort, op: Op) -> bool:
        """The cohort reaches a barrier. True if it may go on at once, all its blocks being complete."""
        if not cohort.is_whole():
            self.fail_partial(cohort, op)
        if cohort.is_regular and cohort.warps.shape[1] == self.warps:
            self.announce(op, cohort.blocks)
            cohort.pc += 1
            return True
        self.waiting.append(_Arrived(cohort, op))
        np.add.at(self.arrived, cohort.blocks - self.first, cohort.warps.shape[1])
        complete = self.arrived == self.warps
        if complete.any():
            self.release(complete, op)
        return False

    def release(self, complete: NDArray[np.bool_], op: Op) -> None:
        """Let the warps of the blocks in `complete` go on, those at one point together."""
        self.arrived[complete] = 0
        self.announce(op, np.flatnonzero(complete) + self.first)
        waiting, self.waiting = self.waiting, []
        leaving: dict[int, list[Cohort]] = {}
        for arrived in waiting:
            cohort = arrived.cohort
            rows = complete[cohort.blocks - self.first][:, None]
            for keep in (rows, ~rows):
                if not keep.any():
                    continue
                part = cohort if keep.all() else cohort.select(np.broadcast_to(keep, cohort.shape[:2]))
                if keep is rows:
                    leaving.setdefault(cohort.pc, []).append(part)
                else:
                    self.waiting.append(_Arrived(part, arrived.op))
        for cohorts in leaving.values():
            cohort = merge(cohorts, self.machine.program.fills)
            cohort.pc += 1
            self.machine.enqueue(cohort)

    def announce(self, op: Op, blocks: NDArray[np.int64]) -> None:
        for hook in self.machine.hooks:
            hook.on_barrier(op, blocks)

    def finish(self, cohort: Cohort) -> None:
        self.finished += cohort.shape[0] * cohort.shape[1]
        rows = self.rows_of(cohort)
        if self.order is not None:
            self.order.finish(cohort)
        np.add.at(self.ended, rows, 1)
        self.cluster_barriers.end(rows)
        self.end_cluster_rounds()
        self.machine.idle = 0

    def rows_of(self, cohort: Cohort) -> NDArray[np.int64]:
        """The row of each of the cohort's warps' blocks."""
        return np.repeat(cohort.blocks - self.first, cohort.shape[1])

    # -- mbarriers and clusters ----------------------------------------------------------------

    def flip(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Phases of these mbarriers may have become complete."""
        ended = self.mbarriers.flip(rows, columns)
        if self.order is not None:
            self.order.end_phases(*ended)

    def count_bytes(self, op: Op, rows: NDArray[np.int64], columns: NDArray[np.int64], arrived: int) -> None:
        self.mbarriers.expect(op, rows, columns, -arrived)
        self.flip(rows, columns)

    def end_cluster_rounds(self) -> None:
        ended = self.cluster_barriers.complete()
        if self.order is not None:
            self.order.end_cluster(ended)

    def require_running(self, op: Op, owners: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Raise HazardError if the shared memory of a block is reached, from another one, that has ended."""
        gone = (owners != rows) & (self.ended[rows] == self.warps)
        if gone.any():
            at = int(np.argmax(gone))
            index = self.machine.launch.block_index
            raise HazardError(
                f"{op.name} in block {index(int(owners[at]) + self.first)} reaches shared memory of block "
                f"{index(int(rows[at]) + self.first)} of its cluster, which has ended",
                op.loc,
                "end the kernel with a barrier of the cluster (cluster_arrive, cluster_wait)",
            )

    # -- when nothing runs ---------------------------------------------------------------------

    def go_on(self) -> bool:
        """Let those go on that wait for a condition, if need be by letting asynchronous copies arrive."""
        if not self.blocked.entries:
            return False
        if self.blocked.wake():
            return True
        self.blocked.let_arrive()
        return self.blocked.wake()

    def settle(self) -> None:
        """After a turn: the chunk has ended, or waits for ever."""
        if self.finished == self.count * self.warps:
            for hook in self.machine.hooks:
                hook.on_blocks_end(self.first, self.count)
        elif self.ready or self.go_on():
            return
        elif self.blocked.entries:
            self.blocked.fail(self.describe_waiting())
        elif self.waiting:
            lines = self.describe_waiting()
            raise HazardError(
                "deadlock: a barrier that not all threads of the block reach\n  " + "\n  ".join(lines),
                self.waiting[0].op.loc,
                "let every thread of the block execute the same barriers",
            )

    def describe_waiting(self) -> list[str]:
        """For one block that waits at a barrier: which of its warps stand where."""
        if not self.waiting:
            return []
        block = int(self.waiting[0].cohort.blocks[0])
        here: dict[Loc, list[int]] = {}
        for arrived in self.waiting:
            cohort = arrived.cohort
            warps = np.broadcast_to(cohort.warps, cohort.shape[:2])[cohort.blocks == block].ravel()
            here.setdefault(arrived.op.loc, []).extend(warps.tolist())
        spinning = _warps_in(block, [c for c in self.machine.queue if c.chunk is self])
        blocked = _warps_in(block, [e.cohort for e in self.blocked.entries])
        absent = set(range(self.warps)) - {w for warps in here.values() for w in warps} - {*spinning, *blocked}
        index = self.machine.launch.block_index(block)
        lines = [f"block {index}: {_name_warps(w)} waits at {loc}" for loc, w in here.items() if w]
        if spinning:
            lines.append(f"block {index}: {_name_warps(spinning)} still runs")
        if absent:
            lines.append(f"block {index}: {_name_warps(sorted(absent))} has finished")
        return lines

    def fail_partial(self, cohort: Cohort, op: Op) -> None:
        partial = cohort.partial_warps()
        blocks, threads = cohort.lanes_of(cohort.active() & partial[:, :, None])
        launch = self.machine.launch
        raise HazardError(
            f"{op.name} is reached by a part of a warp only: by thread {launch.thread_index(int(threads[0]))} of "
            f"block {launch.block_index(int(blocks[0]))}, but not by all lanes of its warp",
            op.loc,
            "move it out of the condition that the lanes do not share",
        )


def _warps_in(block: int, cohorts: Sequence[Cohort]) -> list[int]:
    """The warps of the block that are in these cohorts."""
    rows = [np.broadcast_to(c.warps, c.shape[:2])[c.blocks == block].ravel().tolist() for c in cohorts]
    return [warp for row in rows for warp in row]


def _name_warps(warps: Sequence[int]) -> str:
    ordered = sorted(warps)
    named = ", ".join(map(str, ordered[:8])) + (", ..." if len(ordered) > 8 else "")
    return f"warp {named}" if len(ordered) == 1 else f"warps {named}, each,"

"""Which cohorts can run, and which stand at a barrier: the queue of a run, and the cohorts of each chunk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.chunk import Chunk
from tiledsl.backends.emulator.cohort import Cohort, merge
from tiledsl.backends.emulator.waiting import Roles, Wait, Waiting
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Op

__all__ = ["PATIENCE", "Schedule", "Turns"]

PATIENCE = 64
"""Turns of spinning loops, with nothing else to run, after which another chunk is started."""


class Turns:
    """The cohorts that can run, of all chunks that live. `idle`: iterations of `while` loops since a loop has ended;
    `steps`: of all loops."""

    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.queue: deque[Cohort] = deque()
        self.schedules: dict[Chunk, Schedule] = {}
        self.idle = self.steps = 0

    def iterate(self, op: Op, idle: bool = False) -> None:
        """One more iteration of a loop. idle: of a `while` loop, and no loop has ended since."""
        self.idle += idle
        self.spend(op.loc)

    def spend(self, loc: Loc, steps: int = 1) -> None:
        """Raises HazardError when the run has had more than `Options.max_steps`."""
        self.steps += steps
        if self.steps <= self.max_steps:
            return
        fix = "if it is only long, set TILEDSL_MAX_STEPS, or pass Options(max_steps=...)"
        if self.idle <= self.steps // 2:
            raise HazardError(f"the run does not end: {self.max_steps} iterations of loops", loc, fix)
        waiting = {id(o.chunk): self.schedules[o.chunk] for o in self.queue}.values()
        at_barriers = "".join("\n  " + line for schedule in waiting for line in schedule.describe())
        raise HazardError(
            f"this loop spins for ever: {self.max_steps} iterations and no loop has ended{at_barriers}",
            loc,
            f"check that what the loop waits for is written; {fix}",
        )


@dataclass(frozen=True)
class _Arrived:
    """A cohort that waits at the barrier `op`."""

    cohort: Cohort
    op: Op


class Schedule:
    """The cohorts of one chunk: those at a full barrier are `waiting`, those at a condition `blocked`; the others run,
    or are `ready` to, in the queue of `turns`."""

    def __init__(self, chunk: Chunk, turns: Turns, fills: dict[int, bool], roles: Roles) -> None:
        self.chunk, self.turns, self.fills = chunk, turns, fills
        self.ready = self.finished = 0
        self.waiting: list[_Arrived] = []
        self.arrived = np.zeros(chunk.count, np.int64)
        self.blocked = Waiting(chunk.run.launch, fills, roles)

    def enqueue(self, cohort: Cohort) -> None:
        self.turns.queue.append(cohort)
        self.ready += 1

    def take(self, cohort: Cohort) -> Cohort:
        """It is its turn: it goes on with all of the chunk that gave way at the same point."""
        self.ready -= 1
        queue = self.turns.queue
        if not cohort.parked or not queue:
            return cohort
        same = [o for o in queue if o.parked and o.pc == cohort.pc and o.chunk is cohort.chunk]
        if same:
            self.turns.queue = deque(o for o in queue if o not in same)
            self.ready -= len(same)
            cohort = merge([cohort, *same], self.fills)
        cohort.parked = False
        return cohort

    # -- what instructions call ----------------------------------------------------------------

    def replace(self, parts: Sequence[Cohort]) -> None:
        """The running cohort was split: its parts go to the head of the queue."""
        for part in reversed(parts):
            self.turns.queue.appendleft(part)
            self.ready += 1

    def give_way(self, cohort: Cohort) -> bool:
        """Let others run first; they may join this cohort. False if there is nobody to wait for."""
        others = self.turns.queue or self.blocked.entries or self.turns.idle > PATIENCE
        if not others:
            return False
        cohort.parked = True
        self.enqueue(cohort)
        return True

    def wait(self, cohort: Cohort, wait: Wait) -> bool:
        """True if all of the cohort may go on at once; those of its warps that may are a cohort of their own else."""
        rows = wait.ready(cohort)
        if rows.all():
            wait.passed(cohort)
            return True
        if rows.any():
            self.replace([cohort.select(rows)])
            cohort = cohort.select(~rows)
        self.blocked.add(cohort, wait)
        return False

    def arrive(self, cohort: Cohort, op: Op) -> bool:
        """The cohort reaches a barrier. True if it may go on at once, all its blocks being complete."""
        if not cohort.is_whole():
            self.fail_partial(cohort, op)
        if cohort.is_regular and cohort.warps.shape[1] == self.chunk.warps:
            self.announce(op, cohort.blocks)
            cohort.pc += 1
            return True
        self.waiting.append(_Arrived(cohort, op))
        np.add.at(self.arrived, cohort.blocks - self.chunk.first, cohort.warps.shape[1])
        complete = self.arrived == self.chunk.warps
        if complete.any():
            self.release(complete, op)
        return False

    def release(self, complete: NDArray[np.bool_], op: Op) -> None:
        """Let the warps of the blocks in `complete` go on, those at one point together."""
        self.arrived[complete] = 0
        self.announce(op, np.flatnonzero(complete) + self.chunk.first)
        waiting, self.waiting = self.waiting, []
        leaving: dict[int, list[Cohort]] = {}
        for arrived in waiting:
            cohort = arrived.cohort
            rows = complete[cohort.blocks - self.chunk.first][:, None]
            for keep in (rows, ~rows):
                if not keep.any():
                    continue
                part = cohort if keep.all() else cohort.select(np.broadcast_to(keep, cohort.shape[:2]))
                if keep is rows:
                    leaving.setdefault(cohort.pc, []).append(part)
                else:
                    self.waiting.append(_Arrived(part, arrived.op))
        for cohorts in leaving.values():
            cohort = merge(cohorts, self.fills)
            cohort.pc += 1
            self.enqueue(cohort)

    def announce(self, op: Op, blocks: NDArray[np.int64]) -> None:
        for hook in self.chunk.run.hooks:
            hook.on_barrier(op, blocks)

    def finish(self, cohort: Cohort) -> None:
        self.finished += cohort.shape[0] * cohort.shape[1]
        blocks, warps, _ = cohort.active_warps()
        for hook in self.chunk.run.hooks:
            hook.on_exit(blocks, warps)
        self.chunk.end(blocks - self.chunk.first)
        self.turns.idle = 0

    # -- when nothing runs ---------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.finished == self.chunk.count * self.chunk.warps

    def go_on(self) -> bool:
        """Let those go on that wait for a condition, if need be by letting asynchronous copies arrive."""
        if not self.blocked.entries:
            return False
        leaving = self.blocked.wake()
        if not leaving:
            self.blocked.let_arrive()
            leaving = self.blocked.wake()
        for cohort in leaving:
            self.enqueue(cohort)
        return bool(leaving)

    def require_progress(self) -> None:
        """Raises HazardError if all cohorts wait for ever."""
        if self.ready or self.go_on():
            return
        if self.blocked.entries:
            self.blocked.fail(self.describe())
        if self.waiting:
            raise HazardError(
                "deadlock: a barrier that not all threads of the block reach\n  " + "\n  ".join(self.describe()),
                self.waiting[0].op.loc,
                "let every thread of the block execute the same barriers",
            )

    def describe(self) -> list[str]:
        """For one block that waits at a barrier: which of its warps stand where."""
        if not self.waiting:
            return []
        block = int(self.waiting[0].cohort.blocks[0])
        here: dict[Loc, list[int]] = {}
        for arrived in self.waiting:
            cohort = arrived.cohort
            warps = np.broadcast_to(cohort.warps, cohort.shape[:2])[cohort.blocks == block].ravel()
            here.setdefault(arrived.op.loc, []).extend(warps.tolist())
        spinning = _warps_in(block, [c for c in self.turns.queue if c.chunk is self.chunk])
        blocked = _warps_in(block, self.blocked.cohorts)
        absent = set(range(self.chunk.warps)) - {w for warps in here.values() for w in warps} - {*spinning, *blocked}
        index = self.chunk.run.launch.block_index(block)
        lines = [f"block {index}: {_name_warps(w)} waits at {loc}" for loc, w in here.items() if w]
        if spinning:
            lines.append(f"block {index}: {_name_warps(spinning)} still runs")
        if absent:
            lines.append(f"block {index}: {_name_warps(sorted(absent))} has finished")
        return lines

    def fail_partial(self, cohort: Cohort, op: Op) -> None:
        partial = cohort.partial_warps()
        blocks, threads = cohort.lanes_of(cohort.active() & partial[:, :, None])
        launch = self.chunk.run.launch
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

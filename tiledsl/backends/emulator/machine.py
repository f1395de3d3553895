"""A run: chunks of blocks are started, and their cohorts have turns.

Usually one chunk of each launch lives at a time; more are started when every live one spins on memory (a block may wait
for a later one).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.boundary import raise_internal
from tiledsl.backends.emulator.chunk import Chunk, Launch
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Options
from tiledsl.backends.emulator.positions import whole_clusters
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.residency import NotStarted, Residency
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.schedule import PATIENCE, Schedule, Turns
from tiledsl.errors import HazardError

_CHUNK_STEPS = 64
"""Iterations of a loop that a chunk counts as."""

_SHARED_BYTES, _CHECKED_BYTES = 1 << 26, 1 << 22
"""Shared memory that is emulated at once; with checks, which remember some hundred bytes of each."""


@dataclass(frozen=True, eq=False)
class Part:
    """A launch of a run. `registers`: those that every cohort starts with, arguments included. `fits`: how many blocks
    the GPU holds at once."""

    launch: Launch
    program: Program
    registers: list[Any]
    fits: Residency

    def chunk_blocks(self, options: Options) -> int:
        """Return how many blocks a chunk has at most, in whole clusters."""
        launch, unit = self.launch.launch, whole_clusters(self.launch.launch)
        memory = _CHECKED_BYTES if options.checks else _SHARED_BYTES
        threads = self.launch.positions.warps * WARP
        most = min(options.chunk_threads // threads, memory // max(1, launch.shared_bytes), self.fits.blocks)
        return max(1, most // unit) * unit


class _Waiting(NotStarted):
    """The blocks of one launch that have not started. They start in chunks."""

    def __init__(self, part: Part, options: Options) -> None:
        super().__init__(part.launch.launch, part.fits)
        self.part, self.size, self.unit = part, part.chunk_blocks(options), whole_clusters(self.launch)

    def begin(self, turns: Turns) -> bool:
        """Start the next ones, as many as the GPU holds beside those that run. Return False if that is none."""
        chunks = [chunk for chunk in turns.schedules if chunk.run is self.part.launch]
        room = self.fits.blocks - sum(chunk.count - chunk.blocks_ended for chunk in chunks)
        count = min(self.size, room // self.unit * self.unit, self.left)
        if count <= 0:
            return False
        _begin(self.part, self.first, count, turns)
        self.first, self.left = self.first + count, self.left - count
        return True


def run_blocks(parts: Sequence[Part], options: Options, turns: Turns, reports: Reports | None) -> None:
    """All blocks of these launches, which run at the same time."""
    _require_few(parts, options)
    waiting = deque(_Waiting(part, options) for part in parts)
    for _ in parts:
        _begin_some(waiting, turns)
    while turns.queue or waiting:
        if not turns.queue or turns.idle > PATIENCE:
            at_rest = turns.at_rest()
            if not _begin_some(waiting, turns) and at_rest:
                raise turns.endless(waiting[0] if waiting else None)
        schedule = _turn(turns)
        if not schedule.ended:
            schedule.require_progress()
            continue
        chunk = schedule.chunk
        del turns.schedules[chunk]
        chunk.hook.on_end()
        if reports is not None:
            for error in chunk.mbarriers.incomplete(chunk.run.launch, chunk.run.kernel.loc):
                if not reports.told:  # copies that nobody waits for do not come
                    reports.tell(error)


def _require_few(parts: Sequence[Part], options: Options) -> None:
    """Raise HazardError if the chunks alone have more steps than the run may have, with or without a seed."""
    for part in parts:
        launch = part.launch.launch
        steps = _CHUNK_STEPS * -(-prod(launch.grid) // part.chunk_blocks(options))
        if steps > options.max_steps:
            head = f"the run does not end: a grid of {' x '.join(map(str, launch.grid))} blocks"
            message = f"{head} counts as {steps} iterations of loops or more; at most {options.max_steps} are possible"
            fix = "launch fewer blocks, set TILEDSL_MAX_STEPS, or pass Options(max_steps=...)"
            raise HazardError(message, part.launch.kernel.loc, fix, code="T402")


def _begin_some(waiting: deque[_Waiting], turns: Turns) -> bool:
    """Start blocks of the first launch of which the GPU holds more; its next turn comes after the others'."""
    for each in waiting:
        if each.begin(turns):
            waiting.remove(each)
            waiting.extend([each] if each.left else [])
            return True
    return False


def _begin(part: Part, first: int, count: int, turns: Turns) -> None:
    run = part.launch
    chunk = Chunk(run, first, count, turns.changes)
    turns.spend(run.kernel.loc, chunk, _CHUNK_STEPS)
    turns.schedules[chunk] = schedule = Schedule(chunk, part.program.code, part.program.loops, turns)
    blocks, warps, exists = np.arange(first, first + count), np.arange(chunk.warps)[None], run.positions.exists
    schedule.begin(Cohort(chunk, blocks, warps, list(part.registers), exists, exists))
    turns.idle = 0


def _turn(turns: Turns) -> Schedule:
    """Let the next cohort run until it gives way."""
    cohort = turns.next()
    schedule = turns.schedules[cohort.chunk]
    cohort, code = schedule.take(cohort), schedule.code
    if cohort.pc not in schedule.loops.waiting:
        turns.changes.count += 1
    try:
        if turns.chances is not None:
            schedule.run(cohort, turns.chances)
        else:
            while code[cohort.pc].step(cohort, schedule):
                pass
    except Exception as failure:
        op = code[cohort.pc].op
        raise_internal(failure, op.name, op.loc)
        raise
    return schedule

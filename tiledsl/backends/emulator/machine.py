"""A run: chunks of blocks are started, and their cohorts have turns.

Usually one chunk lives at a time; more are started when every live one spins on memory (a block may wait for a later
one).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.boundary import internal_error
from tiledsl.backends.emulator.chunk import Chunk, Run
from tiledsl.backends.emulator.clusters import whole_clusters
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Options
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.schedule import PATIENCE, Schedule, Turns

__all__ = ["Machine"]

_CHUNK_STEPS = 64
"""Iterations of a loop that a chunk counts as."""

_SHARED_BYTES, _CHECKED_BYTES = 1 << 26, 1 << 22
"""Shared memory that is emulated at once; with checks, which remember some hundred bytes of each."""


class Machine:
    """One launch. `registers` are those that every cohort starts with, arguments included."""

    def __init__(self, run: Run, program: Program, registers: list[Any], options: Options, turns: Turns) -> None:
        self.shared, self.program, self.registers, self.options = run, program, registers, options
        self.turns = turns

    def run(self) -> None:
        launch, turns = self.shared.launch, self.turns
        x, y, z = launch.grid
        blocks = x * y * z
        unit = whole_clusters(launch)
        most = min(self.options.chunk_threads // (self.shared.positions.warps * WARP), self.blocks_in_memory())
        size = max(1, most // unit) * unit
        starts = iter(range(0, blocks, size))
        first = next(starts, None)
        for hook in self.shared.hooks:
            hook.on_launch(launch)
        while turns.queue or first is not None:
            if first is not None and (not turns.queue or turns.idle > PATIENCE):
                turns.spend(self.shared.kernel.loc, _CHUNK_STEPS)
                self.start(first, min(size, blocks - first))
                turns.idle, first = 0, next(starts, None)
            self.turn()

    def blocks_in_memory(self) -> int:
        """How many blocks may be emulated at once, so that their shared memory, and its shadow, fit well."""
        limit = _CHECKED_BYTES if self.options.checks else _SHARED_BYTES
        return max(1, limit // max(1, self.shared.launch.shared_bytes))

    def start(self, first: int, count: int) -> None:
        chunk = Chunk(self.shared, first, count)
        for hook in self.shared.hooks:
            hook.on_blocks_begin(first, count)
        schedule = Schedule(chunk, self.turns)
        self.turns.schedules[chunk] = schedule
        blocks, warps = np.arange(first, first + count), np.arange(chunk.warps)[None]
        exists = self.shared.positions.exists
        schedule.enqueue(Cohort(chunk, blocks, warps, list(self.registers), exists, exists))

    def turn(self) -> None:
        """Let the cohort at the head of the queue run until it gives way."""
        cohort = self.turns.queue.popleft()
        schedule = self.turns.schedules[cohort.chunk]
        cohort = schedule.take(cohort)
        code = self.program.code
        try:
            while code[cohort.pc].step(cohort, schedule):
                pass
        except Exception as failure:
            op = code[cohort.pc].op
            error = internal_error(failure, op.name, op.loc)
            if error is None:
                raise
            raise error from failure
        if self.turns.idle > PATIENCE:
            schedule.go_on()
        if schedule.ended:
            self.end(schedule.chunk)
        else:
            schedule.require_progress()

    def end(self, chunk: Chunk) -> None:
        del self.turns.schedules[chunk]
        for hook in self.shared.hooks:
            hook.on_blocks_end(chunk.first, chunk.count)
        if self.options.checks:
            chunk.mbarriers.require_complete(self.shared.launch, self.shared.kernel.loc)

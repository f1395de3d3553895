"""A run: chunks of blocks are started, and their cohorts have turns.

Usually one chunk lives at a time; more are started when every live one spins on memory (a block may wait for a later
one).
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.boundary import raise_internal
from tiledsl.backends.emulator.chunk import Chunk, Launch
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Options
from tiledsl.backends.emulator.positions import whole_clusters
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.sanitizer.reports import Reports
from tiledsl.backends.emulator.schedule import PATIENCE, Instr, Schedule, Turns

_CHUNK_STEPS = 64
"""Iterations of a loop that a chunk counts as."""

_SHARED_BYTES, _CHECKED_BYTES = 1 << 26, 1 << 22
"""Shared memory that is emulated at once; with checks, which remember some hundred bytes of each."""


def run_blocks(
    shared: Launch, program: Program, registers: list[Any], options: Options, turns: Turns, reports: Reports | None
) -> None:
    """All blocks of a launch. `registers` are those that every cohort starts with, arguments included."""
    launch = shared.launch
    x, y, z = launch.grid
    blocks, unit = x * y * z, whole_clusters(launch)
    memory = _CHECKED_BYTES if reports is not None else _SHARED_BYTES
    most = min(options.chunk_threads // (shared.positions.warps * WARP), memory // max(1, launch.shared_bytes))
    size = max(1, most // unit) * unit
    starts = iter(range(0, blocks, size))
    first = next(starts, None)
    while turns.queue or first is not None:
        if first is not None and (not turns.queue or turns.idle > PATIENCE):
            turns.spend(shared.kernel.loc, _CHUNK_STEPS)
            chunk = Chunk(shared, first, min(size, blocks - first))
            turns.schedules[chunk] = Schedule(chunk, turns)
            blocks_, warps = np.arange(first, first + chunk.count), np.arange(chunk.warps)[None]
            exists = shared.positions.exists
            turns.schedules[chunk].begin(Cohort(chunk, blocks_, warps, list(registers), exists, exists))
            turns.idle, first = 0, next(starts, None)
        schedule = _turn(program.code, turns)
        if not schedule.ended:
            schedule.require_progress()
            continue
        chunk = schedule.chunk
        del turns.schedules[chunk]
        chunk.hook.on_end()
        if reports is not None:
            for error in chunk.mbarriers.incomplete(launch, shared.kernel.loc):
                if not reports.told:  # copies that nobody waits for do not come
                    reports.tell(error)


def _turn(code: Sequence[Instr], turns: Turns) -> Schedule:
    """Let the next cohort run until it gives way."""
    cohort = turns.next()
    schedule = turns.schedules[cohort.chunk]
    cohort = schedule.take(cohort)
    try:
        if turns.chances is not None:
            schedule.run(code, cohort, turns.chances)
        else:
            while code[cohort.pc].step(cohort, schedule):
                pass
    except Exception as failure:
        op = code[cohort.pc].op
        raise_internal(failure, op.name, op.loc)
        raise
    return schedule

"""Where a thread is, barriers of whole blocks, and the synchronisation that lets nobody wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.backends.emulator.memory import first_of, name_threads
from tiledsl.backends.emulator.rules.registry import Condition, condition, rule
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import async_copy, barriers, gpu, tma, warp
from tiledsl.ir.semantics import numpy_dtype

LANES = np.arange(WARP)


@rule(gpu.ThreadId)
def thread_id(c: Cohort, op: gpu.ThreadId) -> Any:
    return c.chunk.run.positions.thread(c.warps, op.axis, numpy_dtype(op.dtype))


@rule(gpu.BlockId)
def block_id(c: Cohort, op: gpu.BlockId) -> Any:
    return c.chunk.run.positions.block(c.blocks, op.axis, numpy_dtype(op.dtype))


@rule(gpu.GridSize)
def grid_size(c: Cohort, op: gpu.GridSize) -> Any:
    return np.array(c.chunk.run.launch.grid[op.axis], numpy_dtype(op.dtype))


@rule(gpu.WarpId)
def warp_id(c: Cohort, op: gpu.WarpId) -> Any:
    return c.warps.astype(numpy_dtype(op.dtype))[:, :, None]


@rule(gpu.LaneId)
def lane_id(c: Cohort, op: gpu.LaneId) -> Any:
    return LANES[None, None].astype(numpy_dtype(op.dtype))


@rule(gpu.SyncWarp)
def sync_warp(c: Cohort, op: gpu.SyncWarp) -> None:
    """The lanes of a warp run in lock step here, so nobody waits; checkers want to know."""
    require_whole_warps(c, op)
    blocks, warps, _ = c.active_warps()
    c.chunk.hook.on_sync_warp(op, blocks, warps)


@rule(gpu.Barrier)
def arrive_at_barrier(c: Cohort, op: Op) -> Any:
    """Gives the round of each block that its warps arrive in; None if the cohort has all warps of its blocks."""
    require_whole_warps(c, op)
    chunk, rows = c.chunk, c.blocks - c.chunk.first
    if c.is_regular and c.warps.shape[1] == chunk.warps:
        round_, complete = None, rows
    else:
        round_ = chunk.rounds[rows][:, None, None]
        np.add.at(chunk.arrived, rows, c.warps.shape[1])
        complete = np.flatnonzero(chunk.arrived == chunk.warps)
        chunk.arrived[complete] = 0
        chunk.rounds[complete] += 1
    if len(complete):
        chunk.hook.on_barrier(op, complete + chunk.first)
    return round_


@condition(gpu.Barrier)
class _BlockArrived(Condition):
    after, meets = True, True

    def ready(self, c: Cohort, op: Op, *values: Any) -> Bools:
        (round_,) = values
        if round_ is None:
            return np.ones((1, 1), np.bool_)
        return c.chunk.rounds[c.blocks - c.chunk.first][:, None] > round_[:, :, 0]

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        return "a barrier that not all threads of the block reach"


def require_whole_warps(c: Cohort, op: Op) -> None:
    """Raises HazardError if a warp reaches a warp-wide op with only some of its lanes."""
    if c.mask is None or c.mask is c.exists:
        return
    active = c.active()
    partial = active.any(axis=2) & (active != c.existing()).any(axis=2)
    if partial.any():
        raise HazardError(
            f"{op.name} takes part with all {WARP} lanes of a warp, but only some reach it: "
            f"{name_threads(c, active & partial[:, :, None])}",
            op.loc,
            "move it out of the condition that the lanes do not share",
            code="T415",
            sides=(first_of(c, op, active & partial[:, :, None], "reaches it"),),
        )


def whole_warpgroups(c: Cohort) -> Bools:
    """Which warps, [groups, warps], have come with all four of their warpgroup."""
    warps = np.broadcast_to(c.warps, c.shape[:2])
    group = (c.blocks - c.chunk.first)[:, None] * WARP + warps // WARPGROUP_WARPS
    return np.bincount(group.ravel())[group] == WARPGROUP_WARPS


@rule(async_copy.Wait, barriers.GridDependency, tma.Prefetch, tma.MapPrefetch)
def nothing(c: Cohort, op: Op, *operands: Any) -> None:
    """Copies with tokens are complete at once, launches follow each other, and a prefetch changes nothing."""


# -- exchange between the lanes of a warp -----------------------------------------------------------


@rule(warp.Shuffle)
def shuffle(c: Cohort, op: warp.Shuffle, value: Any, lane: Any) -> Any:
    """Return the values of other lanes.

    A source outside the group gives the lane's own value. So does a lane that the block does not have, whose value PTX
    leaves undefined (`undefined` finds who uses it).
    """
    require_whole_warps(c, op)
    source, absent = shuffle_sources(c, op, lane)
    if c.exists is not None:
        source = np.where(absent, LANES, source)
    values = np.asarray(value)
    if values.ndim == 0 or values.shape[2] == 1:
        return value
    shape = np.broadcast_shapes(source.shape, values.shape)
    return np.take_along_axis(np.broadcast_to(values, shape), np.broadcast_to(source, shape), axis=2)


def shuffle_sources(c: Cohort, op: warp.Shuffle, lane: Any) -> tuple[Ints, Bools]:
    """Return the lane that each lane reads, and whether the block has no such lane."""
    lane = np.asarray(lane, np.int64)
    within, first = LANES % op.width, LANES - LANES % op.width
    target = {
        "idx": lambda: lane % op.width,
        "up": lambda: within - lane,
        "down": lambda: within + lane,
        "xor": lambda: within ^ lane,
    }[op.mode]()
    source = np.where((target >= 0) & (target < op.width), first + target, LANES)
    if c.exists is None:
        return source, np.zeros(1, np.bool_)
    spread = np.broadcast_to(source, c.shape)
    return spread, ~np.take_along_axis(c.existing(), spread, axis=2)


@rule(warp.Uniform)
def uniform(c: Cohort, op: warp.Uniform, value: Any) -> Any:
    return value


@rule(warp.Vote)
def vote(c: Cohort, op: warp.Vote, predicate: Any) -> Any:
    require_whole_warps(c, op)
    predicate = np.asarray(predicate)
    if op.mode == "all":
        return (predicate | ~c.existing()).all(axis=2, keepdims=True)
    holds = predicate & c.existing()
    if op.mode == "any":
        return holds.any(axis=2, keepdims=True)
    bits = np.uint32(1) << LANES.astype(np.uint32)
    return np.where(holds, bits, np.uint32(0)).sum(axis=2, keepdims=True, dtype=np.uint32)

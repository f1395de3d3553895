"""Where a thread is, and the synchronisation that lets nobody wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.events import fences
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import gpu
from tiledsl.ir.semantics import numpy_dtype

__all__ = ["require_whole_warps"]

_LANES = np.arange(WARP)[None, None]


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
    return _LANES.astype(numpy_dtype(op.dtype))


@rule(gpu.SyncWarp)
def sync_warp(c: Cohort, op: gpu.SyncWarp) -> None:
    """The lanes of a warp run in lock step here, so nobody waits; checkers want to know."""
    require_whole_warps(c, op)
    hooks = c.chunk.run.hooks
    if hooks:
        blocks, warps, _ = c.active_warps()
        for hook in hooks:
            hook.on_sync_warp(op, blocks, warps)


@rule(gpu.Fence)
def fence(c: Cohort, op: gpu.Fence) -> None:
    """Every write is visible at once, in program order: nothing is left to order, but checkers want to know."""
    fences(c, op, "memory")


def require_whole_warps(c: Cohort, op: Op) -> None:
    """Raises EmulatorError if a warp reaches a warp-wide op with only some of its lanes."""
    if c.is_whole():
        return
    partial = c.partial_warps()
    if partial.any():
        blocks, threads = c.lanes_of(c.active() & partial[:, :, None])
        launch = c.chunk.run.launch
        raise EmulatorError(
            f"{op.name} takes part with all {WARP} lanes of a warp, but only some reach it: thread "
            f"{launch.thread_index(int(threads[0]))} of block {launch.block_index(int(blocks[0]))} does",
            op.loc,
            "move it out of the condition that the lanes do not share",
        )

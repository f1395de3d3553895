"""Where a thread is, and synchronisation. (PTX ISA: special registers; bar; bar.warp; membar.)"""

from __future__ import annotations

from tiledsl.ir.atomics import SCOPE_FEATURES, SCOPES
from tiledsl.ir.core import Orders, Pure, attribute
from tiledsl.ir.facts import Sync, by
from tiledsl.ir.types import I32, INDEX, DType


class Position(Pure):
    """Base of the ops that say where a thread is. The result is index at tile level, i32 below."""

    varies = "thread"
    nan = "computes"
    gives = ("dtype",)
    dtype = attribute(DType, INDEX, among=(INDEX, I32))


class ThreadId(Position):
    """Index of the thread in its block along `axis` (0 = x, 1 = y, 2 = z)."""

    name = "gpu.thread_id"
    cause = by(lambda op: f"the thread index along {'xyz'[op.axis]}")
    axis = attribute(int, most=2)


class BlockId(Position):
    """Index of the block in the grid along `axis`."""

    name = "gpu.block_id"
    varies = "cta"
    cause = by(lambda op: f"the block index along {'xyz'[op.axis]}")
    axis = attribute(int, most=2)


class GridSize(Position):
    """How many blocks the grid has along `axis`. (PTX ISA: %nctaid.)"""

    name = "gpu.grid_size"
    varies = "grid"
    axis = attribute(int, most=2)


class WarpId(Position):
    """Linear thread index (x fastest) divided by 32. The same for all threads of a warp."""

    name = "gpu.warp_id"
    cause = "the warp's index"


class LaneId(Position):
    """Linear thread index (x fastest) modulo 32."""

    name = "gpu.lane_id"
    cause = "the lane"


class Barrier(Orders):
    """All threads of the block wait for each other; their memory accesses before it are visible after.

    PTX ``barrier.sync 0`` / ``bar.sync 0``.
    """

    name = "gpu.barrier"
    sync = Sync(meets="cta")
    scope, alike = "cta", ()
    called = "barrier()"


class SyncWarp(Orders):
    """The threads of the warp wait for each other, with memory ordering (``bar.warp.sync``)."""

    name = "gpu.sync_warp"
    sync = Sync(meets="warp")
    scope, alike = "warp", ()
    called = "syncwarp()"


class Fence(Orders):
    """This thread's writes become visible before its later ones: ``fence.acq_rel`` at `reach`."""

    name = "gpu.fence"
    sync = by(lambda op: Sync(releases=op.reach, acquires=op.reach))
    features = by(lambda op: SCOPE_FEATURES[op.reach])
    called = "fence()"
    reach = attribute(str, "gpu", among=SCOPES)

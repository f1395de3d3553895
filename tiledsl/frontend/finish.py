"""What is known when the whole kernel has been built: threads of roles, arrivals at slots, ends of clusters."""

from __future__ import annotations

from tiledsl.errors import CompileError
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.frontend.hopper import Processors
from tiledsl.frontend.intrinsics.rings import check_rings, finish_rings
from tiledsl.frontend.intrinsics.roles import check_roles, end_stores, settle_roles
from tiledsl.frontend.intrinsics.schedules import settle_schedule
from tiledsl.ir.core import Op
from tiledsl.ir.ops import barriers, gpu

__all__ = ["finish", "settle"]


def settle(unit: Unit) -> None:
    """Declare what the kernel did not have to: threads are those of the roles, the grid is that of the schedule."""
    settle_roles(unit)
    settle_schedule(unit)
    _forget_processors(unit)


def _forget_processors(unit: Unit) -> None:
    """Once the grid has been read, nothing is left of what was computed for it alone."""
    sources = [op for op in unit.body.walk() if isinstance(op, Processors)]
    if not sources:
        return
    computed: set[Op] = set(sources)
    for op in unit.body.walk():
        if any(v.op in computed for v in op.operands):
            computed.add(op)
    for op in reversed(list(unit.body.walk())):
        if op in computed and op.is_pure and not any(result.uses for result in op.results):
            op.erase()
    for source in sources:
        if source.parent is not None:
            user = next(iter(source.result.uses))[0]
            message = "processors is known to the host alone, in the extents of grid()"
            unit.report(CompileError(message, user.loc, "in the kernel, grid_size() is how many blocks there are"))


def finish(frame: Frame) -> None:
    """Complete the ops that waited for the end, and report roles and rings that do not fit together."""
    unit = frame.unit
    check_roles(unit)
    check_rings(unit)
    if unit.errors:
        return
    unit.builder.loc = unit.signature.loc
    if unit.hopper.stores:
        end_stores(frame)
    finish_rings(unit)
    _end_cluster(unit)


def _end_cluster(unit: Unit) -> None:
    """No block of a cluster ends while another one may still write to its shared memory or arrive there."""
    cluster = unit.hopper.cluster
    if cluster is None or cluster.blocks == 1:
        return
    # The threads of a warp that came out of different roles meet again.
    unit.builder.add(gpu.SyncWarp())
    unit.builder.add(barriers.ClusterArrive())
    unit.builder.add(barriers.ClusterWait())

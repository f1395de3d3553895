"""How the user of a ring hands its slots back: who arrives there, after what, and at the slots of which blocks.

Where products read tiles, one thread of each warpgroup does it: its warps end their products together (measured:
`benchmarks/wgmma_wait.py`), and meet at the end of a use in which they have done more than that. The slots of a ring
that no product reads are released by each warp for itself, so that none waits for another. Which of both a ring is,
is known when all of its uses are: until then `HandBack` stands for it.
"""

from __future__ import annotations

from typing import Sequence

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.frontend.frame import Unit
from tiledsl.frontend.hopper import RingObject
from tiledsl.frontend.intrinsics.roles import add_if, leads_warp, leads_warpgroup, warpgroup_barrier
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op, Value, attribute
from tiledsl.ir.ops import barriers, gpu
from tiledsl.ir.types import I32, INDEX

__all__ = ["HandBack", "accesses", "finish_releases", "slot_before"]


class HandBack(Op):
    """The slot so far before the operand is free, if the second operand, a bool, holds.

    use: is this the end of a use, and no wait for products of earlier ones? meet: must warps have met?
    """

    distance = attribute(int, 0)
    use = attribute(bool, True)
    meet = attribute(bool, False)


def slot_before(builder: Builder, stages: int, slot: Value, distance: int) -> Value:
    """The slot `distance` steps before."""
    distance %= stages
    if distance == 0:
        return slot
    moved = builder.scalar("sub", slot, builder.constant(distance, INDEX))
    wraps = builder.scalar("lt", slot, builder.constant(distance, INDEX))
    return builder.select(wraps, builder.scalar("add", moved, builder.constant(stages, INDEX)), moved)


def accesses(ring: RingObject) -> set[Op]:
    """What single threads do with its tiles so far: not what goes on by itself until the ring's own waits."""
    return {
        op
        for tile in ring.tiles.values()
        for op, _ in tile.uses
        if not any(access.memory is tile and access.done in ("mbarrier", "wgmma") for access in op.accesses())
    }


def finish_releases(unit: Unit, ring: RingObject) -> None:
    """Complete how slots are handed back, and how many arrivals each waits for: of every block it is sent to."""
    role, cluster = ring.user, unit.hopper.cluster
    assert role is not None
    axes = sorted(ring.multicast)
    receivers = 1 if cluster is None else 1 + sum(cluster.along(axis) - 1 for axis in axes)
    for op in ring.inits:
        op.attrs["count"] = receivers * (role.warps // WARPGROUP_WARPS if ring.products else role.warps)
    for op in ring.releases:
        if ring.products or op.use:
            _hand_back(unit, ring, op, axes if receivers > 1 else ())
        op.erase()
    for op in () if ring.products else ring.waits:
        op.erase()


def _hand_back(unit: Unit, ring: RingObject, op: HandBack, axes: Sequence[str]) -> None:
    assert ring.user is not None and op.parent is not None
    builder = Builder(op.parent, op.loc, before=op)
    slot, *conditions = op.operands
    if ring.products:
        if op.meet:
            # One thread speaks for the warpgroup: what the others have read must have come before.
            warpgroup_barrier(unit, builder, ring.user)
        mine = leads_warpgroup(builder)
        for condition in conditions:
            mine = builder.scalar("and", mine, condition)
        slot = slot_before(builder, ring.stages, slot, op.distance)
    else:
        # One lane speaks for its warp. Nothing is on its way that the slot would have to wait for.
        builder.add(gpu.SyncWarp())
        mine = leads_warp(builder)
    block = Block()
    inside = Builder(block, op.loc)
    if axes:
        _arrive_everywhere(unit, inside, [ring.empty, slot], axes)
    else:
        inside.add(barriers.Arrive(ring.empty, slot))
    add_if(builder, mine, block)


def _arrive_everywhere(unit: Unit, b: Builder, place: Sequence[Value], axes: Sequence[str]) -> None:
    """Arrive at the slot in every block that writes to this one's: the neighbours along `axes`, and itself."""
    cluster = unit.hopper.cluster
    assert cluster is not None and cluster.at_m is not None and cluster.at_n is not None
    row = b.scalar("mul", cluster.at_n, b.constant(cluster.m, I32))
    if "m" in axes:
        for m in range(cluster.m):
            b.add(barriers.Arrive(*place, b.scalar("add", row, b.constant(m, I32)), cluster=True))
    if "n" not in axes:
        return
    for n in range(cluster.n):
        rank = b.scalar("add", cluster.at_m, b.constant(n * cluster.m, I32))
        if "m" not in axes:
            b.add(barriers.Arrive(*place, rank, cluster=True))
            continue
        other, block = b.scalar("ne", cluster.at_n, b.constant(n, I32)), Block()
        Builder(block, b.loc).add(barriers.Arrive(*place, rank, cluster=True))
        add_if(b, other, block)

"""`Ring`: stages that one role fills by TMA and another one uses. What `fill` and `use` do is in `ring_regions`.

Slot and phase of a role are values that its loops carry. Counts of arrivals are known when the kernel has been built.
"""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.frontend.hopper import RingObject
from tiledsl.frontend.intrinsics.barriers import compile_time_int, needs
from tiledsl.frontend.intrinsics.ring_releases import finish_releases
from tiledsl.frontend.intrinsics.roles import if_, leads
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.ops import barriers, gpu, tile
from tiledsl.ir.types import INDEX, U32, U64, SharedType
from tiledsl.layout.shared import ROW

__all__ = ["advanced", "check_rings", "finish_rings", "skip_slots"]

MAX_STAGES = 32


@intrinsic(lang.Ring)
def _ring(call: Call) -> RingObject:
    what, builder, state = "Ring()", call.builder, call.frame.unit.hopper
    needs(call, "tma", what)
    if not call.frame.at_top_level:
        raise call.error(f"{what} under a run-time condition, in a loop or in a role", "make it before the roles")
    stages = compile_time_int(call, "stages", what, 1, MAX_STAGES)
    given: dict[str, Any] = call["tiles"]
    if not given:
        raise call.error(f"{what} without tiles", "name the tiles of a stage: Ring(4, a=shared(...), b=shared(...))")
    tiles = {name: _stages_of(call, name, value, stages) for name, value in given.items()}
    slots = SharedType(U64, (stages,))
    full, empty = (builder.value(tile.SharedAlloc(type=slots, layout=str(ROW))) for _ in range(2))
    number = len(state.rings)
    full.name, empty.name = ("full", "empty") if number == 0 else (f"full{number}", f"empty{number}")
    ring = RingObject(number, call.frame.loc(call.node), stages, tiles, full, empty)
    _initialise(call.frame, ring)
    first, phase = builder.constant(0, INDEX), builder.constant(0, U32)
    call.frame.env |= {ring.filling: (first, phase), ring.using: (first, phase, first)}
    state.rings.append(ring)
    return ring


def _stages_of(call: Call, name: str, given: Any, stages: int) -> Value:
    """So many of the tile that was given, which is used no other way: `check_rings` sees to that."""
    alloc = given.op if isinstance(given, Value) else None
    if not isinstance(alloc, tile.SharedAlloc):
        fix = f"{name}=shared((BM, BK), bf16, layout=swizzle_128b)"
        raise call.error(f"Ring(): {name} is a new shared tile, got {describe(given)}", fix)
    state = call.frame.unit.hopper
    if alloc.result in state.templates:
        raise call.error(
            f"Ring(): the tile of {name} is that of another ring, or of another name", "allocate one for each"
        )
    state.templates.append(alloc.result)
    type_ = SharedType(alloc.type.dtype, (stages, *alloc.type.dims))
    value = call.builder.value(tile.SharedAlloc(*alloc.operands, type=type_, layout=alloc.layout))
    value.name = name
    return value


def _initialise(frame: Frame, ring: RingObject) -> None:
    builder = frame.builder

    def first_thread() -> None:
        for slot in range(ring.stages):
            at = builder.constant(slot, INDEX)
            builder.add(barriers.Init(ring.full, at, count=1))
            ring.inits.append(builder.add(barriers.Init(ring.empty, at, count=1)))
        builder.add(barriers.FenceInit())

    if_(frame, leads(frame), first_thread)
    frame.unit.hopper.ready.append(builder.add(gpu.Barrier()))


# -- slots -----------------------------------------------------------------------------------------


def advanced(builder: Builder, stages: int, slot: Value, phase: Value) -> tuple[Value, Value]:
    """The next slot, and its phase: that changes from the last slot to the first one."""
    if stages == 1:
        return slot, builder.scalar("xor", phase, builder.constant(1, U32))
    following = builder.scalar("add", slot, builder.constant(1, INDEX))
    wraps = builder.scalar("eq", following, builder.constant(stages, INDEX))
    slot = builder.select(wraps, builder.constant(0, INDEX), following)
    return slot, builder.scalar("xor", phase, builder.cast(wraps, U32))


def skip_slots(frame: Frame, count: Value) -> None:
    """The slots of `count` uses are another instance's: go past them in every ring."""
    builder = frame.builder
    for ring in frame.unit.hopper.rings:
        slot, phase, waiting = frame.env[ring.using]
        stages = builder.constant(ring.stages, INDEX)
        at = builder.scalar("add", slot, count)
        rounds = builder.cast(builder.scalar("floordiv", at, stages), U32)
        odd = builder.scalar("and", rounds, builder.constant(1, U32))
        slot, phase = builder.scalar("mod", at, stages), builder.scalar("xor", phase, odd)
        frame.env[ring.using] = (slot, phase, waiting)


# -- the end ---------------------------------------------------------------------------------------


def check_rings(unit: Unit) -> None:
    """Report rings that are not filled or not used, and tiles that were given to a ring and are used besides."""
    for ring in unit.hopper.rings:
        for role, did, fix in (
            (ring.filler, "filled", "with ring.fill() as s:"),
            (ring.user, "used", "with ring.use() as s:"),
        ):
            if role is None:
                unit.report(CompileError(f"this ring is never {did}", ring.loc, f"{fix} in a role, or remove the ring"))
        if ring.named and not ring.takes:
            message = "a slot of this ring is named here, and none is ever taken"
            unit.report(CompileError(message, ring.named[0], "i = ring.take(), and ring.slot(i), ring.free(i)"))
        if ring.takes and not ring.frees:
            message = "slots of this ring are taken here, and never handed back: it would be full for ever"
            unit.report(CompileError(message, ring.takes[0], "ring.free(i), when slot i has been read"))
        idle = [name for name in ring.tiles if name not in ring.read]
        if ring.user is not None and idle:
            message = f"the tile {idle[0]} of this ring is never read in its ring.use()"
            unit.report(CompileError(message, ring.loc, f"read s.{idle[0]}, or leave {idle[0]} out of the ring"))
    for template in unit.hopper.templates:
        for op, _ in template.uses:
            name = template.name or "the tile"
            fix = "use the tiles of its slots, s.a; or give the ring a tile of its own"
            unit.report(CompileError(f"{name} was given to a ring, which has it in stages", op.loc, fix))


def finish_rings(unit: Unit) -> None:
    """Complete arrivals at slots, and forget the tiles that stood for those of a stage."""
    for ring in unit.hopper.rings:
        try:
            finish_releases(unit, ring)
        except CompileError as error:
            unit.report(error)
            return
    for template in unit.hopper.templates:
        assert template.op is not None
        template.op.erase()
    _ready(unit)


def _ready(unit: Unit) -> None:
    """In a cluster, all its blocks wait until the rings of each are initialised; once is enough for all rings."""
    if not unit.hopper.ready or unit.cluster == (1, 1, 1):
        return
    last = unit.hopper.ready[-1]
    assert last.parent is not None
    builder = Builder(last.parent, last.loc, before=last)
    builder.add(barriers.ClusterArrive())
    builder.add(barriers.ClusterWait())
    last.erase()

"""`Ring`, and its slots: ``with ring.fill()``, ``with ring.use()``, and both ends of a use by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generator

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import Region, View, describe
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.cooperation import Place, RingObject, RoleObject, SlotObject
from tiledsl.frontend.frame import Frame, Unit, during
from tiledsl.frontend.views import memory_name
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import rings, tile
from tiledsl.ir.types import INDEX, MOST_SLOTS, SharedType

ring_class: Any = lang.Ring  # generic, so that its methods are partly unknown to type checkers

MAX_IN_FLIGHT = 7


@intrinsic(lang.Ring)
def _ring(call: Call) -> RingObject:
    what, builder, state = call.what, call.builder, call.state
    call.needs("tma")
    if not call.frame.at_top_level:
        raise call.error(f"{what} under a run-time condition, in a loop or in a role", "make it before the roles")
    stages = call.integer("stages", 1, MOST_SLOTS)
    given: dict[str, Any] = call["tiles"]
    if not given:
        raise call.error(f"{what} without tiles", "name the tiles of a stage: Ring(4, a=shared(...), b=shared(...))")
    tiles = {name: _stages_of(call, name, value, stages) for name, value in given.items()}
    cluster = state.cluster or Place()
    place: list[Any] = [cluster.at_m, cluster.at_n] if cluster.blocks > 1 else []
    value = builder.value(rings.Make(*tiles.values(), *place, stages=stages, cluster=(cluster.m, cluster.n)))
    value.name = "ring"
    ring = RingObject(value, stages, tiles, f"$cursor{len(state.rings)}")
    state.rings.append(ring)
    return ring


def _stages_of(call: Call, name: str, given: Any, stages: int) -> Value:
    """So many of the tile that was given, which is used no other way: `check_rings` sees to that."""
    alloc = given.op if isinstance(given, Value) else None
    if not isinstance(alloc, tile.SharedAlloc):
        fix = f"{name}=shared((BM, BK), bf16, layout=swizzle_128b)"
        raise call.error(f"Ring(): {name} is a new shared tile, got {describe(given)}", fix)
    templates = call.state.templates
    if alloc.result in templates:
        message = f"Ring(): the tile of {name} is that of another ring, or of another name"
        raise call.error(message, "allocate one for each")
    templates.append(alloc.result)
    type_ = SharedType(alloc.type.dtype, (stages, *alloc.type.dims))
    value = call.builder.value(tile.SharedAlloc(*alloc.operands, type=type_, layout=alloc.layout))
    value.name = name
    if not alloc.result.uses:
        alloc.erase()
    return value


def check_rings(unit: Unit) -> None:
    """Report tiles that were given to a ring and are used besides."""
    for template in unit.cooperation.templates:
        for op, _ in template.uses:
            name = template.name or "the tile"
            fix = "use the tiles of its slots, s.a; or give the ring a tile of its own"
            unit.report(CompileError(f"{name} was given to a ring, which has it in stages", op.loc, fix))


# -- regions ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Use:
    """A fill or a use of a slot that is being built.

    block: that its body is built into. slot: its number. outer: the fill or use around it.
    """

    ring: RingObject
    fills: bool
    in_flight: int
    block: Block
    slot: Value
    outer: _Use | None

    def has(self, view: View) -> bool:
        """Is it a tile of this ring, or a part of one?"""
        return any(tile is view.base for tile in self.ring.tiles.values())


@intrinsic(ring_class.fill)
def _fill(call: Call) -> Region:
    return Region(call.what, lambda frame, _: _around_slot(call, frame, True, 0))


@intrinsic(ring_class.use)
def _use(call: Call) -> Region:
    stages = call["self"].stages
    fix = "how many groups of products may stay in flight: 0 or 1, as a rule"
    count = call.integer("in_flight", 0, MAX_IN_FLIGHT, fix)
    if count >= stages:
        message = f"ring.use(in_flight={count}) of a ring of {stages} stages: no slot would ever be free to fill"
        raise call.error(message, f"use in_flight={stages - 1} at most, or more stages")
    return Region(call.what, lambda frame, _: _around_slot(call, frame, False, count))


@contextmanager
def _around_slot(call: Call, frame: Frame, fills: bool, in_flight: int) -> Generator[SlotObject]:
    """``with ring.fill() as s:``, or ``with ring.use(in_flight=n) as s:``."""
    ring: RingObject = call["self"]
    env, builder, state, loc = frame.env, call.builder, call.state, call.builder.loc
    role = _role(call, ring)
    if fills and role.instances > 1:
        message = f"{call.what} in {role.shown}, which has {role.instances} instances"
        raise call.error(message, "fill it in a role with one instance: slots have one order")
    _check_instances(call, role, ring)
    begin = rings.Acquire if fills else rings.Wait
    builder.add(begin(ring.value, env[ring.cursor]))
    slot = builder.value(rings.Slot(ring.value, env[ring.cursor]))
    slot.name = "slot"
    with during(state, region=_Use(ring, fills, in_flight, builder.block, slot, state.region)):
        yield SlotObject(ring, slot)
    builder.loc = loc
    at = ring.value, env[ring.cursor]
    end = rings.Publish(*at) if fills else rings.Release(*at, in_flight=in_flight)
    env[ring.cursor] = builder.value(end)


def _role(call: Call, ring: RingObject) -> RoleObject:
    """The role that reaches the ring here. That it is the only one is checked when all is built."""
    role = call.state.role
    if role is None:
        name = "load" if call.callee is ring_class.fill else "math"
        raise call.error(f"{call.what} outside of a role", f'with role("{name}", ...):')
    if any(region.ring is ring for region in _regions(call)):
        raise call.error(f"{call.what} inside a region of the same ring", "a slot is used once at a time")
    return role


def _regions(call: Call) -> Iterator[_Use]:
    """The fills and uses around, the innermost first."""
    region = call.state.region
    while region is not None:
        yield region
        region = region.outer


def _check_instances(call: Call, role: RoleObject, ring: RingObject) -> None:
    """Instances skip each other's slots, so many for each work item: one use for each tile along k. They do so in
    turns: a wait for a phase tells it from the one before it alone, and one that is a round ahead would pass."""
    state, what = call.state, call.what
    work, here = state.work, f"{what} in {role.shown}, which has {role.instances} instances"
    if role.instances == 1:
        return
    if work is None or work.k_loop is not call.builder.block:
        message = f"{here}, outside of `for k in t.k` directly in `for t in work`"
        fix = "an instance skips as many slots as the other one's item has tiles along k: one use for each"
        raise call.error(message, fix)
    if not state.turn:
        fix = 'put the loop over t.k into `with math.turn("multiply"):`, math being what role() gives'
        raise call.error(f"{here}, outside of a turn: one could be a round of slots ahead of the other", fix)
    if ring in work.used:
        raise call.error(f"a second {what} for one tile along k", f"{role.shown} has instances: use it once")
    work.used.append(ring)


def slot_filled(call: Call, dst: View) -> list[Value] | None:
    """The ring and the slot at which the bytes of a load count that stands here; None outside of ``ring.fill()``."""
    role, fills = call.state.role, [region for region in _regions(call) if region.fills]
    if not fills:
        return None
    assert role is not None
    if not role.one_thread:
        fix = f'role("{role.name}", threads=1): one thread begins the copies; or let all threads write the tiles'
        raise call.error(f"tma_load() in {role.shown}, whose body {role.threads} threads run", fix)
    region = next((fill for fill in fills if fill.has(dst)), fills[0])
    if not region.has(dst):
        shown = ", ".join(f"s.{n}" for n in region.ring.tiles)
        message = f"tma_load() in ring.fill() to {memory_name(dst)}, which is no tile of this ring"
        raise call.error(message, f"its tiles are {shown}; elsewhere pass mbarrier=(bars, i)")
    if call.builder.block is not region.block:
        message = "tma_load() in ring.fill() under a run-time condition or loop: how many bytes come is not known"
        raise call.error(message, "put it directly into the region; past the edge TMA loads zeros")
    return [region.ring.value, region.slot]


def refuse_in_flight(call: Call) -> None:
    """An error for a product that reads registers, while others may continue after the region around it."""
    region = call.state.region
    if region is not None and region.in_flight:
        message = f"wgmma() with a in registers, in ring.use(in_flight={region.in_flight})"
        raise call.error(message, "registers that a product reads stay as they are until it ends: in_flight=0")


def drain(call: Call) -> None:
    """All products of this role have ended: the slots that waited for that are free."""
    env, state = call.frame.env, call.state
    for ring in state.rings if state.role is not None else ():
        env[ring.cursor] = call.builder.value(rings.Drain(ring.value, env[ring.cursor]))


# -- take and free ---------------------------------------------------------------------------------


@intrinsic(ring_class.take)
def _take(call: Call) -> Value:
    ring: RingObject = call["self"]
    role, env, builder = _role(call, ring), call.frame.env, call.builder
    if role.instances > 1:
        message = f"ring.take() in {role.shown}, which has {role.instances} instances"
        raise call.error(message, "instances skip each other's slots, one use for each tile along k: ring.use()")
    builder.add(rings.Wait(ring.value, env[ring.cursor]))
    slot = builder.value(rings.Slot(ring.value, env[ring.cursor]))
    env[ring.cursor] = builder.value(rings.Skip(ring.value, env[ring.cursor], builder.constant(1, INDEX)))
    return slot


@intrinsic(ring_class.slot)
def _slot(call: Call) -> SlotObject:
    return SlotObject(call["self"], _taken(call))


@intrinsic(ring_class.free)
def _free(call: Call) -> None:
    ring: RingObject = call["self"]
    call.builder.add(rings.Free(ring.value, _taken(call)))


def _taken(call: Call) -> Value:
    """The number of a slot that was taken."""
    number = call["number"]
    _role(call, call["self"])
    if not isinstance(number, Value) or number.type is not INDEX:
        fix = f"i = ring.take(), and {call.what[:-1]}i)"
        raise call.error(f"{call.what} takes the number of a slot, got {describe(number)}", fix)
    return number

"""`Ring`, and its slots: ``with ring.fill()``, ``with ring.use()``, and both ends of a use by themselves."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Generator

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import Region, View, describe
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.cooperation import Place, RingObject, SlotObject
from tiledsl.frontend.frame import Frame, Unit, during
from tiledsl.frontend.views import memory_name
from tiledsl.ir.core import Value
from tiledsl.ir.ops import rings, roles, tile
from tiledsl.ir.types import INDEX, MOST_SLOTS, SharedType

ring_class: Any = lang.Ring  # generic, so that its methods are partly unknown to type checkers

MOST_IN_FLIGHT = 7


@intrinsic(lang.Ring)
def _ring(call: Call) -> RingObject:
    what, builder, state = call.what, call.builder, call.state
    call.needs("tma")
    if not call.frame.at_top_level:
        raise call.error(
            f"{what} under a run-time condition, in a loop or in a role", "make it before the roles", code="C603"
        )
    stages = call.integer("stages", 1, MOST_SLOTS)
    given: dict[str, Any] = call["tiles"]
    if not given:
        raise call.error(
            f"{what} without tiles", "name the tiles of a stage: Ring(4, a=shared(...), b=shared(...))", code="C603"
        )
    tiles = [_stages_of(call, name, value, stages) for name, value in given.items()]
    cluster = state.cluster or Place()
    place: list[Any] = [cluster.at_m, cluster.at_n] if cluster.blocks > 1 else []
    value = builder.value(rings.Make(*tiles, *place, stages=stages, cluster=(cluster.m, cluster.n)))
    value.name = "ring"
    ring = RingObject(value, f"$cursor{len(state.rings)}")
    state.rings.append(ring)
    return ring


def _stages_of(call: Call, name: str, given: Any, stages: int) -> Value:
    """So many of the tile that was given, which is used no other way: `check_rings` sees to that."""
    alloc = given.op if isinstance(given, Value) else None
    if not isinstance(alloc, tile.SharedAlloc):
        fix = f"{name}=shared((BM, BK), bf16, layout=swizzle_128b)"
        raise call.error(f"Ring(): {name} is a new shared tile, got {describe(given)}", fix, code="C603")
    templates = call.state.templates
    if alloc.result in templates:
        message = f"Ring(): the tile of {name} is that of another ring, or of another name"
        raise call.error(message, "allocate one for each", code="C603")
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
            unit.report(CompileError(f"{name} was given to a ring, which has it in stages", op.loc, fix, code="C603"))


# -- regions ---------------------------------------------------------------------------------------


@intrinsic(ring_class.fill)
def _fill(call: Call) -> Region:
    return Region(call.what, partial(_around_slot, call, rings.Acquire, rings.Publish, {}))


@intrinsic(ring_class.use)
def _use(call: Call) -> Region:
    most = min(MOST_IN_FLIGHT, call["self"].value.type.stages - 1)
    fix = "how many groups of products may stay in flight: 0 or 1, as a rule; each keeps a slot of the ring from fills"
    count = call.integer("in_flight", 0, most, fix)
    return Region(call.what, partial(_around_slot, call, rings.Wait, rings.Release, {"in_flight": count}))


@contextmanager
def _around_slot(
    call: Call, begin: type[rings.RingOp], end: type[rings.RingOp], how: dict[str, Any], frame: Frame, _: Any
) -> Generator[SlotObject]:
    """``with ring.fill() as s:``, or ``with ring.use(in_flight=n) as s:``."""
    ring: RingObject = call["self"]
    builder, state, loc = call.builder, call.state, call.builder.loc
    role = _role(call, ring)
    if role.instances > 1:
        _check_instances(call, role, ring)
    begun: Any = builder.add(begin(ring.value, frame.env[ring.cursor], **how))
    begun.result.name = "slot"
    with during(state, slots=(*state.slots, begun)):
        yield SlotObject(ring, begun.result)
    builder.loc = loc
    frame.env[ring.cursor] = builder.value(end(ring.value, frame.env[ring.cursor]))


def _role(call: Call, ring: RingObject) -> roles.Region:
    """The role that reaches the ring here. That it is the only one is checked when all is built."""
    role = call.state.role
    if role is None:
        name = "load" if call.callee is ring_class.fill else "math"
        raise call.error(f"{call.what} outside of a role", f'with role("{name}", ...):', code="C605")
    if any(begun.ring is ring.value for begun in call.state.slots):
        raise call.error(f"{call.what} inside a region of the same ring", "a slot is used once at a time", code="C605")
    if role.instances > 1 and call.callee in (ring_class.fill, ring_class.take):
        message = f"{call.what} in {role.shown}, which has {role.instances} instances"
        fix = "slots have one order: fill or take them in a role with one instance"
        raise call.error(message, f"{fix}; instances use one for each tile along k, by ring.use()", code="C605")
    return role


def _check_instances(call: Call, role: roles.Region, ring: RingObject) -> None:
    """Instances skip each other's slots, so many for each work item: one use for each tile along k. They do so in
    turns: a wait for a phase tells it from the one before it alone, and one that is a round ahead would pass."""
    work, k_loop, what = call.state.work, call.builder.block, call.what
    here = f"{what} in {role.shown}, which has {role.instances} instances"
    if work is None or call.state.k_loop is not k_loop:
        message = f"{here}, outside of `for k in t.k` directly in `for t in work`"
        fix = "an instance skips as many slots as the other one's item has tiles along k: one use for each"
        raise call.error(message, fix, code="C605")
    turns = [type(op) for op in work.ops if isinstance(op, (roles.Enter, roles.Leave))]
    if turns.count(roles.Enter) == turns.count(roles.Leave):
        fix = 'put the loop over t.k into `with math.turn("multiply"):`, math being what role() gives'
        raise call.error(
            f"{here}, outside of a turn: one could be a round of slots ahead of the other", fix, code="C605"
        )
    if any(isinstance(op, rings.Wait) and op.ring is ring.value for op in (*work.walk(), *k_loop.walk())):
        raise call.error(
            f"a second {what} for one tile along k", f"{role.shown} has instances: use it once", code="C605"
        )


def slot_filled(call: Call, dst: View) -> list[Value] | None:
    """The ring and the slot at which the bytes of a load count that stands here; None outside of ``ring.fill()``."""
    fills: list[Any] = [begun for begun in reversed(call.state.slots) if isinstance(begun, rings.Acquire)]
    if not fills:
        return None
    fill = next((fill for fill in fills if dst.base in fill.ring.op.tiles), None)
    if fill is None:
        message = f"tma_load() in ring.fill() to {memory_name(dst)}, which is no tile of this ring"
        shown = ", ".join(f"s.{tile.name}" for tile in fills[0].ring.op.tiles)
        raise call.error(message, f"its tiles are {shown}; elsewhere pass mbarrier=(bars, i)", code="C604")
    if call.builder.block is not fill.parent:
        message = "tma_load() in ring.fill() under a run-time condition or loop: how many bytes come is not known"
        raise call.error(message, "put it directly into the region; past the edge TMA loads zeros", code="C604")
    return [fill.ring, fill.result]


def drain(call: Call) -> None:
    """All products of this role have ended: the slots that waited for that are free."""
    env, state = call.frame.env, call.state
    for ring in state.rings if state.role is not None else ():
        env[ring.cursor] = call.builder.value(rings.Drain(ring.value, env[ring.cursor]))


# -- take and free ---------------------------------------------------------------------------------


@intrinsic(ring_class.take)
def _take(call: Call) -> Value:
    ring: RingObject = call["self"]
    _role(call, ring)
    env = call.frame.env
    slot, env[ring.cursor] = call.builder.add(rings.Take(ring.value, env[ring.cursor])).results
    return slot


@intrinsic(ring_class.slot)
def _slot(call: Call) -> SlotObject:
    return SlotObject(call["self"], _taken(call))


@intrinsic(ring_class.free)
def _free(call: Call) -> None:
    call.builder.add(rings.Free(call["self"].value, _taken(call)))


def _taken(call: Call) -> Value:
    """The number of a slot that was taken."""
    number = call["number"]
    _role(call, call["self"])
    if not isinstance(number, Value) or number.type is not INDEX:
        fix = f"i = ring.take(), and {call.what[:-1]}i)"
        raise call.error(f"{call.what} takes the number of a slot, got {describe(number)}", fix, code="C605")
    return number

"""`Ring`: stages that one role fills by TMA and another one uses; slots and phases are carried by loops."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Callable

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import Region, View, describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.frontend.hopper import WARPGROUP, RingObject, RoleObject, SlotObject
from tiledsl.frontend.intrinsics.barriers import compile_time_int, needs_hopper
from tiledsl.frontend.intrinsics.roles import if_, leads, leads_warpgroup, warpgroup_barrier
from tiledsl.frontend.intrinsics.tma import Box
from tiledsl.frontend.views import memory_name
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import barriers, control, gpu, tile, tma, wgmma
from tiledsl.ir.types import I32, INDEX, U32, U64, SharedType
from tiledsl.layout.shared import ROW

__all__ = ["check_rings", "finish_rings", "release_all", "skip_slots"]

ring_class: Any = lang.Ring  # generic, so that its methods are partly unknown to type checkers

MAX_STAGES = 32
MAX_IN_FLIGHT = 7


@intrinsic(lang.Ring)
def _ring(call: Call) -> RingObject:
    what, builder, state = "Ring()", call.builder, call.frame.unit.hopper
    needs_hopper(call, what)
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
    if given in state.templates:
        raise call.error(
            f"Ring(): the tile of {name} is that of another ring, or of another name", "allocate one for each"
        )
    state.templates[given] = call.frame.loc(call.node)
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


def _advanced(builder: Builder, stages: int, slot: Value, phase: Value) -> tuple[Value, Value]:
    """The next slot, and its phase: that changes from the last slot to the first one."""
    if stages == 1:
        return slot, builder.scalar("xor", phase, builder.constant(1, U32))
    following = builder.scalar("add", slot, builder.constant(1, INDEX))
    wraps = builder.scalar("eq", following, builder.constant(stages, INDEX))
    slot = builder.select(wraps, builder.constant(0, INDEX), following)
    return slot, builder.scalar("xor", phase, builder.cast(wraps, U32))


def _before(builder: Builder, stages: int, slot: Value, distance: int) -> Value:
    """The slot `distance` steps before."""
    distance %= stages
    if distance == 0:
        return slot
    moved = builder.scalar("sub", slot, builder.constant(distance, INDEX))
    wraps = builder.scalar("lt", slot, builder.constant(distance, INDEX))
    return builder.select(wraps, builder.scalar("add", moved, builder.constant(stages, INDEX)), moved)


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


# -- fill ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Fill(Region):
    """``with ring.fill() as s:``; `loaded` counts the bytes of each tile."""

    call: Call
    ring: RingObject
    block: Block | None = None
    slot: Value | None = None
    loaded: dict[str, int] = field(default_factory=dict[str, int])

    shown = "ring.fill()"

    def build(self, frame: Frame, node: ast.With, body: Callable[[Any], None]) -> None:
        ring, builder, state = self.ring, frame.builder, frame.unit.hopper
        _claim(self.call, ring, "fill")
        errors, loc = len(frame.unit.errors), builder.loc
        slot, phase = frame.env[ring.filling]
        other = builder.scalar("xor", phase, builder.constant(1, U32))
        builder.add(barriers.Wait(ring.empty, slot, other))
        expect = builder.add(barriers.ExpectTx(ring.full, slot, bytes=1))
        self.block, self.slot, state.fill = builder.block, slot, self
        try:
            body(SlotObject(ring, slot, used=False))
        finally:
            state.fill = None
        builder.loc = loc
        frame.env[ring.filling] = _advanced(builder, ring.stages, slot, phase)
        if len(frame.unit.errors) == errors:
            self._check_loaded()
            expect.attrs["bytes"] = sum(self.loaded.values())

    def counted(self, call: Call, dst: View, box: Box) -> list[Value]:
        """The mbarrier of a load in this region, whose bytes are counted."""
        name = next((n for n, t in self.ring.tiles.items() if t is dst.base), None)
        if name is None:
            shown = ", ".join(f"s.{n}" for n in self.ring.tiles)
            message = f"tma_load() in ring.fill() to {memory_name(dst)}, which is no tile of this ring"
            raise call.error(message, f"its tiles are {shown}; elsewhere pass mbarrier=(bars, i)")
        if call.builder.block is not self.block:
            message = "tma_load() in ring.fill() under a run-time condition or loop: how many bytes come is not known"
            raise call.error(message, "put it directly into the region; past the edge TMA loads zeros")
        if call["multicast"] and call.frame.unit.hopper.cluster is not None:
            self._shared_along(call, call["multicast"])
        self.loaded[name] = self.loaded.get(name, 0) + box.bytes
        assert self.slot is not None
        return [self.ring.full, self.slot]

    def _shared_along(self, call: Call, axis: str) -> None:
        cluster = call.frame.unit.hopper.cluster
        if axis in ("m", "n") and cluster is not None and cluster.along(axis) > 1:
            self.ring.multicast.add(axis)

    def _check_loaded(self) -> None:
        for name, value in self.ring.tiles.items():
            type_: Any = value.type
            whole = type_.bytes // self.ring.stages
            found = self.loaded.get(name, 0)
            if found == 0:
                fix = f"tma_load(..., s.{name})"
                raise self.call.error(f"ring.fill() loads nothing into s.{name}", fix)
            if found != whole:
                message = f"ring.fill() loads {found} bytes into s.{name}, which has {whole}"
                raise self.call.error(message, "fill every tile of the slot once, as a whole or in parts")


@intrinsic(ring_class.fill)
def _fill(call: Call) -> Region:
    return _Fill(call, call["self"])


def _claim(call: Call, ring: RingObject, verb: str) -> RoleObject:
    """The role that fills, or uses, the ring: one alone."""
    state = call.frame.unit.hopper
    role, what = state.role, f"ring.{verb}()"
    if role is None:
        raise call.error(f"{what} outside of a role", f'with role("{"load" if verb == "fill" else "math"}", ...):')
    if ring in [region.ring for region in (state.fill, state.use) if region is not None]:
        raise call.error(f"{what} inside a region of the same ring", "a slot is used once at a time")
    if verb == "fill" and not role.one_thread:
        fix = f'role("{role.name}", threads=1): one thread begins the copies'
        raise call.error(f"{what} in {role.shown}, whose body {role.threads} threads run", fix)
    if verb == "use" and role.one_thread:
        raise call.error(f"{what} in {role.shown}, whose body one thread runs", "slots are used by whole warpgroups")
    owner = ring.filler if verb == "fill" else ring.user
    if owner is not None and owner is not role:
        did = "filled" if verb == "fill" else "used"
        fix = "make a ring for each role, or one role of them; instances=2 makes a role twice"
        raise call.error(f"this ring is {did} by {owner.shown} already, and now by {role.shown}", fix)
    if verb == "fill":
        ring.filler = role
    else:
        ring.user = role
    return role


# -- use -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Use(Region):
    """``with ring.use(in_flight=n) as s:``; products: how many the body has begun. fenced: is there a fence before?"""

    call: Call
    ring: RingObject
    in_flight: int
    block: Block | None = None
    products: int = 0
    fenced: bool = False

    shown = "ring.use()"

    def build(self, frame: Frame, node: ast.With, body: Callable[[Any], None]) -> None:
        ring, builder, state = self.ring, frame.builder, frame.unit.hopper
        role = _claim(self.call, ring, "use")
        self._check_instances(frame, role)
        loc = builder.loc
        slot, phase, waiting = frame.env[ring.using]
        builder.add(barriers.Wait(ring.full, slot, phase))
        self.block, outer, state.use = builder.block, state.use, self
        try:
            body(SlotObject(ring, slot, used=True))
        finally:
            state.use = outer
        builder.loc = loc
        ring.plainly = ring.plainly or not self.products or _is_read_plainly(ring)
        if self.products:
            builder.add(wgmma.Commit())
            builder.add(wgmma.Wait(pending=self.in_flight, finish=False))
        if ring.plainly:
            # One thread speaks for the warpgroup: what the others have read must have come before.
            warpgroup_barrier(self.call)
        if self.products:
            waiting = self._release(frame, slot, waiting)
        else:
            if_(frame, leads_warpgroup(frame), lambda: _release(builder, ring, slot))
        frame.env[ring.using] = (*_advanced(builder, ring.stages, slot, phase), waiting)

    def product(self, call: Call, from_registers: bool) -> None:
        """A product begins here: a fence comes before the first one, and before those that read registers."""
        if from_registers and self.in_flight:
            message = f"wgmma() with a in registers, in ring.use(in_flight={self.in_flight})"
            raise call.error(message, "registers that a product reads stay as they are until it ends: in_flight=0")
        nested = call.builder.block is not self.block
        if from_registers or nested or not self.fenced:
            call.builder.add(wgmma.Fence())
        self.fenced = self.fenced or not nested
        self.products += 1

    def _release(self, frame: Frame, slot: Value, waiting: Value) -> Value:
        """Free the slot of the group that has just ended; gives how many slots are not free yet."""
        builder, ring, count = frame.builder, self.ring, self.in_flight
        if count == 0:
            if_(frame, leads_warpgroup(frame), lambda: _release(builder, ring, slot))
            return waiting
        most = builder.constant(count, INDEX)
        ended = builder.scalar("eq", waiting, most)
        mine = builder.scalar("and", leads_warpgroup(frame), ended)
        free = _before(builder, ring.stages, slot, count)
        if_(frame, mine, lambda: _release(builder, ring, free))
        return builder.select(ended, waiting, builder.scalar("add", waiting, builder.constant(1, INDEX)))

    def _check_instances(self, frame: Frame, role: RoleObject) -> None:
        """Instances go past each other's slots, so many for each work item: one use for each tile along k."""
        state = frame.unit.hopper
        if role.instances == 1:
            return
        if state.k_loop is None or state.k_loop.block is not frame.builder.block:
            message = f"ring.use() in {role.shown}, which has {role.instances} instances, outside of `for k in t.k`"
            fix = "an instance goes past as many slots as the other one's item has tiles along k: one use for each"
            raise self.call.error(message, fix)
        if self.ring in state.k_loop.used:
            raise self.call.error(
                "a second ring.use() for one tile along k", f"{role.shown} has instances: use it once"
            )
        state.k_loop.used.append(self.ring)


def _is_read_plainly(ring: RingObject) -> bool:
    ops = [op for tile_ in ring.tiles.values() for op, _ in tile_.uses]
    return any(not isinstance(op, (wgmma.Mma, tma.Load)) for op in ops)


def _release(builder: Builder, ring: RingObject, slot: Value) -> None:
    ring.releases.append(builder.add(barriers.Arrive(ring.empty, slot)))


def release_all(call: Call) -> None:
    """All products have ended: free the slots that wait for that."""
    frame, builder, state = call.frame, call.builder, call.frame.unit.hopper
    for ring in state.rings:
        if ring.user is not state.role or not ring.in_flight:
            continue
        if ring.plainly:
            warpgroup_barrier(call)
        slot, phase, waiting = frame.env[ring.using]
        for distance in range(ring.in_flight, 0, -1):
            enough = builder.scalar("ge", waiting, builder.constant(distance, INDEX))
            mine = builder.scalar("and", leads_warpgroup(frame), enough)
            free = _before(builder, ring.stages, slot, distance)
            if_(frame, mine, lambda ring=ring, free=free: _release(builder, ring, free))
        frame.env[ring.using] = (slot, phase, builder.constant(0, INDEX))


@intrinsic(ring_class.use)
def _use(call: Call) -> Region:
    ring: RingObject = call["self"]
    fix = "how many groups of products may stay on their way: 0 or 1, as a rule"
    count = compile_time_int(call, "in_flight", "ring.use()", 0, MAX_IN_FLIGHT, fix)
    if count >= ring.stages:
        message = f"ring.use(in_flight={count}) of a ring of {ring.stages} stages: no slot would ever be free to fill"
        raise call.error(message, f"use in_flight={ring.stages - 1} at most, or more stages")
    if ring.in_flight is not None and ring.in_flight != count:
        message = f"ring.use(in_flight={count}), and elsewhere in_flight={ring.in_flight}"
        raise call.error(message, "all uses of a ring have one in_flight")
    ring.in_flight = count
    return _Use(call, ring, count)


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
        idle = [name for name in ring.tiles if name not in ring.read]
        if ring.user is not None and idle:
            message = f"the tile {idle[0]} of this ring is never read in its ring.use()"
            unit.report(CompileError(message, ring.loc, f"read s.{idle[0]}, or leave {idle[0]} out of the ring"))
    for template, _ in unit.hopper.templates.items():
        for op, _ in template.uses:
            name = template.name or "the tile"
            fix = "use the tiles of its slots, s.a; or give the ring a tile of its own"
            unit.report(CompileError(f"{name} was given to a ring, which has it in stages", op.loc, fix))


def finish_rings(unit: Unit) -> None:
    """Complete arrivals: each slot is released by the warpgroups of every block that its tiles were sent to."""
    cluster = unit.hopper.cluster
    for ring in unit.hopper.rings:
        assert ring.user is not None
        groups = ring.user.warps // WARPGROUP
        shared = sorted(ring.multicast)
        receivers = 1 if cluster is None else 1 + sum(cluster.along(axis) - 1 for axis in shared)
        for op in ring.inits:
            op.attrs["count"] = groups * receivers
        if receivers > 1:
            for op in ring.releases:
                _release_everywhere(unit, op, shared)
    for template in unit.hopper.templates:
        assert template.op is not None
        template.op.erase()
    _ready(unit)


def _release_everywhere(unit: Unit, op: Op, axes: list[str]) -> None:
    """Arrive at the slot in every block that writes to this one's: the neighbours along `axes`, and itself."""
    cluster = unit.hopper.cluster
    assert cluster is not None and cluster.at_m is not None and cluster.at_n is not None and op.parent is not None
    b = Builder(op.parent, op.loc, before=op)
    row = b.scalar("mul", cluster.at_n, b.constant(cluster.m, I32))
    if "m" in axes:
        for m in range(cluster.m):
            b.add(barriers.Arrive(*op.operands, b.scalar("add", row, b.constant(m, I32)), cluster=True))
    if "n" in axes:
        for n in range(cluster.n):
            place = b.scalar("add", cluster.at_m, b.constant(n * cluster.m, I32))
            if "m" not in axes:
                b.add(barriers.Arrive(*op.operands, place, cluster=True))
                continue
            other = b.scalar("ne", cluster.at_n, b.constant(n, I32))
            _conditional(b, other, barriers.Arrive(*op.operands, place, cluster=True))
    op.erase()


def _conditional(builder: Builder, condition: Value, op: Op) -> None:
    blocks = [Block(), Block()]
    Builder(blocks[0], builder.loc).add(op)
    for block in blocks:
        Builder(block, builder.loc).add(control.Yield())
    builder.add(control.If(condition, blocks=blocks))


def _ready(unit: Unit) -> None:
    """In a cluster, all its blocks wait until the rings of each are initialised; once is enough for all rings."""
    for position, op in enumerate(unit.hopper.ready):
        if position + 1 < len(unit.hopper.ready) or unit.cluster == (1, 1, 1):
            continue
        assert op.parent is not None
        builder = Builder(op.parent, op.loc, before=op)
        builder.add(barriers.ClusterArrive())
        builder.add(barriers.ClusterWait())
        op.erase()

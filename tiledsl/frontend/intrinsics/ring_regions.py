"""``with ring.fill()`` and ``with ring.use()``: a slot of a ring is waited for, filled or used, and handed on.

`take` and `free` are both ends of a use by themselves.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, Callable

from tiledsl import lang
from tiledsl.arch import MOST_ARRIVALS
from tiledsl.frontend.bindings import Region, View, describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.hopper import RingObject, RoleObject, SlotObject
from tiledsl.frontend.intrinsics.barriers import compile_time_int
from tiledsl.frontend.intrinsics.ring_releases import HandBack, accesses
from tiledsl.frontend.intrinsics.rings import advanced
from tiledsl.frontend.intrinsics.tma import Box
from tiledsl.frontend.views import memory_name
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import barriers, wgmma
from tiledsl.ir.types import INDEX, U32

__all__ = ["commit_products", "release_all"]

ring_class: Any = lang.Ring  # generic, so that its methods are partly unknown to type checkers

MAX_IN_FLIGHT = 7


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
        frame.env[ring.filling] = advanced(builder, ring.stages, slot, phase)
        if len(frame.unit.errors) == errors:
            self._check_loaded()
            size = sum(self.loaded.values())
            if size > MOST_ARRIVALS:
                message = f"a slot of this ring takes {size} bytes; an mbarrier counts {MOST_ARRIVALS} at most"
                raise frame.error(node, message, "make its tiles smaller")
            expect.attrs["bytes"] = size

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
    role, what, fills = state.role, f"ring.{verb}()", verb == "fill"
    if role is None:
        raise call.error(f"{what} outside of a role", f'with role("{"load" if fills else "math"}", ...):')
    around: list[Any] = [state.fill] if state.fill is not None else state.use.chain if state.use is not None else []
    if ring in [region.ring for region in around]:
        raise call.error(f"{what} inside a region of the same ring", "a slot is used once at a time")
    if fills and not role.one_thread:
        fix = f'role("{role.name}", threads=1): one thread begins the copies'
        raise call.error(f"{what} in {role.shown}, whose body {role.threads} threads run", fix)
    if not fills and role.one_thread:
        raise call.error(f"{what} in {role.shown}, whose body one thread runs", "slots are used by whole warpgroups")
    owner = ring.filler if fills else ring.user
    if owner is not None and owner is not role:
        did = "filled" if fills else "used"
        fix = "make a ring for each role, or one role of them; instances=2 makes a role twice"
        raise call.error(f"this ring is {did} by {owner.shown} already, and now by {role.shown}", fix)
    if fills:
        ring.filler = role
    else:
        ring.user = role
    return role


# -- use -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Use(Region):
    """``with ring.use(in_flight=n) as s:``, which may stand in that of another ring.

    products: how many the body has begun. fenced: is there a fence before them? nested: does one stand under a
    condition or in a loop, so that the body may begin none?
    """

    call: Call
    ring: RingObject
    in_flight: int
    block: Block | None = None
    outer: _Use | None = None
    products: int = 0
    fenced: bool = False
    nested: bool = False

    shown = "ring.use()"

    @property
    def chain(self) -> list[_Use]:
        """This region and those around it."""
        return [self, *(self.outer.chain if self.outer is not None else [])]

    def build(self, frame: Frame, node: ast.With, body: Callable[[Any], None]) -> None:
        ring, builder, state = self.ring, frame.builder, frame.unit.hopper
        role = _claim(self.call, ring, "use")
        self._check_instances(frame, role)
        loc, before = builder.loc, accesses(ring)
        slot, phase, _ = frame.env[ring.using]
        builder.add(barriers.Wait(ring.full, slot, phase))
        self.block, self.outer, state.use = builder.block, state.use, self
        try:
            body(SlotObject(ring, slot, used=True))
        finally:
            state.use = self.outer
        builder.loc = loc
        _, _, waiting = frame.env[ring.using]  # fewer, if the body has waited for all products
        ring.products = ring.products or self.products > 0
        self._end_group(frame)
        added = accesses(ring) - before
        if any(not op.touches or any(touch.proxy == "generic" for touch in op.touches) for op in added):
            # The asynchronous proxy overwrites what the generic one has read. Neither a barrier nor an arrival orders
            # the two: without a fence TMA may be ahead of an ldmatrix that was issued before, and on an H200 it was
            # (docs/hardware.md). All threads of the body have read. (PTX ISA: memory consistency model; async proxy.)
            builder.add(barriers.FenceProxy())
        waiting = self._release(frame, slot, waiting, meet=bool(added) or not self.products)
        frame.env[ring.using] = (*advanced(builder, ring.stages, slot, phase), waiting)

    def _end_group(self, frame: Frame) -> None:
        """The body is a group: what it has begun, unless a region inside has made that one already."""
        state, builder = frame.unit.hopper, frame.builder
        if self.products:
            if state.open_products or self.nested:
                builder.add(wgmma.Commit())
            builder.add(wgmma.Wait(pending=self.in_flight, finish=False))
            state.open_products = False
        elif self.in_flight:
            # Slots become free in order, this one after those of products before it. (Not by an empty group: of that
            # ptxas may make products that follow each other, C7519.)
            self.ring.waits.append(builder.add(wgmma.Wait(pending=0, finish=False)))

    def product(self, call: Call, from_registers: bool) -> None:
        """A product begins here: a fence comes before the first one, and before those that read registers."""
        if from_registers and self.in_flight:
            message = f"wgmma() with a in registers, in ring.use(in_flight={self.in_flight})"
            raise call.error(message, "registers that a product reads stay as they are until it ends: in_flight=0")
        block = call.builder.block
        if from_registers or block is not self.block or not self.fenced:
            call.builder.add(wgmma.Fence())
        self.fenced = self.fenced or block is self.block
        call.frame.unit.hopper.open_products = True
        for region in self.chain:
            region.products += 1
            region.nested = region.nested or block is not region.block

    def _release(self, frame: Frame, slot: Value, waiting: Value, meet: bool) -> Value:
        """Free the slot of the group that has just ended; gives how many slots are not free yet."""
        builder, ring, count = frame.builder, self.ring, self.in_flight
        if count == 0:
            ring.releases.append(builder.add(HandBack(slot, meet=meet)))
            return waiting
        most = builder.constant(count, INDEX)
        ended = builder.scalar("eq", waiting, most)
        ring.releases.append(builder.add(HandBack(slot, ended, distance=count, meet=meet)))
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


def commit_products(call: Call) -> None:
    """What the region around has begun is a group, before it is waited for."""
    state = call.frame.unit.hopper
    if state.open_products:
        call.builder.add(wgmma.Commit())
        state.open_products = state.use is None or call.builder.block is not state.use.block


def release_all(call: Call) -> None:
    """All products have ended: free the slots that wait for that."""
    frame, builder, state = call.frame, call.builder, call.frame.unit.hopper
    for ring in state.rings:
        if ring.user is not state.role or not ring.in_flight:
            continue
        slot, phase, waiting = frame.env[ring.using]
        for distance in range(ring.in_flight, 0, -1):
            enough = builder.scalar("ge", waiting, builder.constant(distance, INDEX))
            # Whoever has read more than products do has met the others at the end of that use.
            ring.releases.append(builder.add(HandBack(slot, enough, distance=distance, use=False)))
        frame.env[ring.using] = (slot, phase, builder.constant(0, INDEX))


@intrinsic(ring_class.use)
def _use(call: Call) -> Region:
    ring: RingObject = call["self"]
    fix = "how many groups of products may stay on their way: 0 or 1, as a rule"
    count = compile_time_int(call, "in_flight", "ring.use()", 0, MAX_IN_FLIGHT, fix)
    if count >= ring.stages:
        message = f"ring.use(in_flight={count}) of a ring of {ring.stages} stages: no slot would ever be free to fill"
        raise call.error(message, f"use in_flight={ring.stages - 1} at most, or more stages")
    _agree(call, f"ring.use(in_flight={count})", ring, count)
    return _Use(call, ring, count)


def _agree(call: Call, what: str, ring: RingObject, count: int) -> None:
    if ring.in_flight is not None and ring.in_flight != count:
        raise call.error(f"{what}, and elsewhere in_flight={ring.in_flight}", "all uses of a ring have one in_flight")
    ring.in_flight = count


# -- take and free ---------------------------------------------------------------------------------


@intrinsic(ring_class.take)
def _take(call: Call) -> Value:
    ring: RingObject = call["self"]
    role = _claim(call, ring, "take")
    if role.instances > 1:
        message = f"ring.take() in {role.shown}, which has {role.instances} instances"
        raise call.error(message, "instances go past each other's slots, one use for each tile along k: ring.use()")
    _agree(call, "ring.take(), which leaves no products on their way", ring, 0)
    slot, phase, waiting = call.frame.env[ring.using]
    call.builder.add(barriers.Wait(ring.full, slot, phase))
    call.frame.env[ring.using] = (*advanced(call.builder, ring.stages, slot, phase), waiting)
    ring.takes.append(call.frame.loc(call.node))
    return slot


@intrinsic(ring_class.slot)
def _slot(call: Call) -> SlotObject:
    ring, number = _taken(call, "slot")
    return SlotObject(ring, number, used=True)


@intrinsic(ring_class.free)
def _free(call: Call) -> None:
    ring, number = _taken(call, "free")
    call.builder.add(barriers.FenceProxy())  # as behind a use whose body reads tiles
    ring.releases.append(call.builder.add(HandBack(number, meet=True)))
    ring.frees = True


def _taken(call: Call, verb: str) -> tuple[RingObject, Value]:
    """The ring, and the number of a slot that was taken."""
    ring: RingObject = call["self"]
    number = call["number"]
    fix = f"i = ring.take(), and ring.{verb}(i)"
    _claim(call, ring, verb)
    ring.named.append(call.frame.loc(call.node))
    if not isinstance(number, Value) or number.type is not INDEX:
        raise call.error(f"ring.{verb}() takes the number of a slot, got {describe(number)}", fix)
    return ring, number

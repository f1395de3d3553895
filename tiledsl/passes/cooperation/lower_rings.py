"""Lower rings to mbarriers: two a slot, "full" and "empty", and the arrivals of both ends there.

The producer of a slot waits at its "empty" and arrives at its "full"; the consumer does the reverse. A cursor becomes
three values: slot, phase, and how many slots before it are held. How an end arrives depends on its asynchronous work
(`endpoints`): TMA counts bytes at the mbarrier; MMAs are committed and waited for as a group; threads execute a proxy
fence where the other end uses another proxy, then a barrier. (PTX ISA: mbarrier; async proxy; wgmma.wait_group.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tiledsl.arch import MOST_TX_BYTES, WARPGROUP_WARPS
from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import barriers, gpu, rings, roles, tile, wgmma
from tiledsl.ir.types import CURSOR, I32, INDEX, U32, U64, SharedType
from tiledsl.layout.shared import ROW
from tiledsl.passes.analysis.structure import incoming, reached
from tiledsl.passes.cooperation.endpoints import End, Ring, rings_of, role_of


def lower_rings(kernel: Kernel) -> None:
    found = {ring.make.result: ring for ring in rings_of(kernel)}
    if found:
        _Lowering(kernel, found).block(kernel.body)


_PARTS = {"slot": INDEX, "phase": U32, "held": INDEX}
"""What a cursor becomes."""


@dataclass
class _OpenUse:
    """A use, from its wait to its release.

    in_flight: of its group. fenced: a wgmma fence precedes its MMAs. multiplies: it has MMAs, or a nested use has.
    nested: an MMA is under a condition or in a loop. read: threads read tiles themselves, besides MMAs. generic: they
    do so by the generic proxy.
    """

    ring: Ring
    block: Block
    in_flight: int
    fenced: bool = False
    multiplies: bool = False
    nested: bool = False
    read: bool = False
    generic: bool = False


class _Lowering:
    """One walk in program order.

    parts: the values that replace a cursor (slot, phase, held) and a ring (its "full" mbarriers). bars: the mbarriers
    at which an end arrives. releasing: drains and skips of rings whose slots may be held there. uses: the enclosing
    uses, innermost last. open: these have issued MMAs that are not committed yet.
    """

    def __init__(self, kernel: Kernel, found: dict[Value, Ring]) -> None:
        self.kernel, self.rings = kernel, found
        self.parts: dict[Value, list[Value]] = {}
        self.bars: dict[End, Value] = {}
        self.releasing = {op for ring in found.values() if ring.in_flight for op in _releasing(ring)}
        self.uses: list[_OpenUse] = []
        self.open = False
        self.b = Builder(kernel.body)

    def block(self, block: Block) -> None:
        with self.b.anew(block) as ops:
            for op in ops:
                self.b.loc = op.loc
                rule = _RULES.get(type(op))
                if rule is None:
                    self.other(op)
                    continue
                for result, new in zip(op.results, rule(self, op), strict=True):
                    if isinstance(new, list):
                        self.parts[result] = new
                    else:
                        result.replace_all_uses_with(new)
                op.drop_operands()
                op.parent = None

    def other(self, op: Op) -> None:
        """Other ops stay; a cursor among their values becomes three values, a ring operand its "full" mbarriers."""
        if isinstance(op, wgmma.Mma) and self.uses:
            self.product(op)
        elif isinstance(op, wgmma.Wait) and op.finish and self.open:
            self.b.add(wgmma.Commit())
            self.open = self.b.block is not self.uses[-1].block
        for use in self.uses:
            if "" in use.ring.consumer.works(op):
                use.read = True
                use.generic |= "generic" in use.ring.consumer.proxies(op)
        self.b.block.append(op)
        if any(v in self.parts for v in op.operands):
            op.set_operands([new for v in op.operands for new in self.parts.get(v, [v])])
        for block in op.blocks:
            block.args = self.split(block.args)
            self.block(block)
        op.results = self.split(op.results)

    def split(self, values: list[Value]) -> list[Value]:
        """The same arguments or results, with three values for each cursor."""
        found: list[Value] = []
        for value in values:
            parts = [value]
            if value.type == CURSOR:
                parts = [Value(type_, value.owner, 0, f"{value.name}_{part}") for part, type_ in _PARTS.items()]
                self.parts[value] = parts
            for part in parts:
                part.index = len(found)
                found.append(part)
        return found

    # -- making --------------------------------------------------------------------------------

    def make(self, op: rings.Make) -> list[Any]:
        """All rings are initialised with the first one."""
        if not self.bars:
            self.initialise()
        return [self.parts[op.result]]

    def initialise(self) -> None:
        b = self.b
        for number, (value, ring) in enumerate(self.rings.items()):
            for end, name in ((ring.producer, "full"), (ring.consumer, "empty")):
                slots = SharedType(U64, (ring.make.stages,))
                bars = self.bars[end] = b.value(tile.SharedAlloc(type=slots, layout=str(ROW)))
                bars.name = name + (str(number) if number else "")
            self.parts[value] = [self.bars[ring.producer]]
        with b.when(b.value(roles.Leads())):
            for ring in self.rings.values():
                for slot in range(ring.make.stages):
                    at = b.constant(slot, INDEX)
                    for end in (ring.producer, ring.consumer):
                        b.add(barriers.Init(self.bars[end], at, count=end.arrivals))
            b.add(barriers.FenceInit())
        if self.kernel.cluster == (1, 1, 1):
            b.add(gpu.Barrier())
        else:  # no block arrives at another one's before that has initialised them
            b.add(barriers.ClusterArrive())
            b.add(barriers.ClusterWait())

    def start(self, op: rings.Cursor) -> list[Any]:
        zero = self.b.constant(0, INDEX)
        return [[zero, self.b.constant(0, U32), zero]]

    # -- slots ---------------------------------------------------------------------------------

    def advanced(self, op: rings.RingOp) -> list[Value]:
        """The cursor of the next slot, whose phase changes from the last slot to the first one."""
        b, stages, (slot, phase, held) = self.b, self.rings[op.ring].make.stages, self.parts[op.at]
        if stages == 1:
            return [slot, b.scalar("xor", phase, 1), held]
        following = b.scalar("add", slot, 1)
        wraps = b.scalar("eq", following, stages)
        return [b.select(wraps, 0, following), b.scalar("xor", phase, b.cast(wraps, U32)), held]

    def skip(self, op: rings.Skip) -> list[Any]:
        b, ring, (slot, phase, held) = self.b, self.rings[op.ring], self.parts[op.cursor]
        if op in self.releasing:
            # MMAs of the previous item may be in flight; the slots that they read directly precede this one.
            b.add(wgmma.Wait(pending=0, finish=False))
            held = self.release_held(ring, slot, held)
        stages = b.constant(ring.make.stages, INDEX)
        at = b.scalar("add", slot, op.count)
        rounds = b.cast(b.scalar("floordiv", at, stages), U32)
        odd = b.scalar("and", rounds, 1)
        return [[b.scalar("mod", at, stages), b.scalar("xor", phase, odd), held]]

    def before(self, ring: Ring, slot: Value, distance: int) -> Value:
        """The slot `distance` steps before."""
        b, distance = self.b, distance % ring.make.stages
        if distance == 0:
            return slot
        moved = b.scalar("sub", slot, distance)
        wraps = b.scalar("lt", slot, distance)
        return b.select(wraps, b.scalar("add", moved, ring.make.stages), moved)

    # -- filling -------------------------------------------------------------------------------

    def acquire(self, op: rings.Acquire) -> list[Any]:
        b, ring, (slot, phase, _) = self.b, self.rings[op.ring], self.parts[op.cursor]
        b.add(barriers.Wait(self.bars[ring.consumer], slot, b.scalar("xor", phase, 1)))
        endpoint = ring.producer.endpoint
        if endpoint.bytes:  # they are announced before the loads begin
            size = sum(ring.bytes(load) for load in ring.loads_of(op))
            if size > MOST_TX_BYTES:
                message = f"a slot of this ring takes {size} bytes; an mbarrier counts {MOST_TX_BYTES} at most"
                raise CompileError(message, op.loc, "make its tiles smaller", code="C603")
            b.add(endpoint.signal(self.bars[ring.producer], slot, bytes=size))
        return [slot]

    def publish(self, op: rings.Publish) -> list[Any]:
        ring = self.rings[op.ring]
        end = ring.producer
        if not end.endpoint.bytes:
            if "generic" in end.proxies() and "async" in ring.consumer.proxies():
                self.fence()  # it reads what threads have written
            self.arrive(end, self.parts[op.cursor][0])
        return [self.advanced(op)]

    # -- using ---------------------------------------------------------------------------------

    def wait(self, op: rings.Wait | rings.Take) -> list[Any]:
        ring, (slot, phase, _) = self.rings[op.ring], self.parts[op.cursor]
        self.b.add(barriers.Wait(self.bars[ring.producer], slot, phase))
        if isinstance(op, rings.Take):
            return [slot, self.advanced(op)]
        self.uses.append(_OpenUse(ring, self.b.block, op.in_flight))
        return [slot]

    def product(self, op: wgmma.Mma) -> None:
        """A fence comes before the first product of a use, and before those that read registers."""
        here, block = self.uses[-1], self.b.block
        from_registers = not isinstance(op.a.type, SharedType)
        if from_registers or block is not here.block or not here.fenced:
            self.b.add(wgmma.Fence())
        here.fenced = here.fenced or block is here.block
        self.open = True
        for use in self.uses:
            use.multiplies = True
            use.nested = use.nested or block is not use.block

    def release(self, op: rings.Release) -> list[Any]:
        b, ring, (slot, phase, held) = self.b, self.rings[op.ring], self.parts[op.cursor]
        use = self.uses.pop()
        self.end_group(use)
        if use.generic and "async" in ring.producer.proxies():
            # The asynchronous proxy overwrites what the generic one has read. Neither a barrier nor an arrival orders
            # the two: without a fence TMA may be ahead of an ldmatrix that was issued before, and on an H200 it was
            # (docs/hardware.md). All threads of the body have read. (PTX ISA: memory consistency model; async proxy.)
            self.fence()
        ended = b.scalar("eq", held, ring.in_flight) if ring.in_flight else None
        self.arrive(ring.consumer, slot, ended, ring.in_flight, meet=use.read or not use.multiplies)
        if ended is not None:
            self.parts[op.cursor] = [slot, phase, b.select(ended, held, b.scalar("add", held, 1))]
        return [self.advanced(op)]

    def end_group(self, use: _OpenUse) -> None:
        """Commits what the body has issued, unless a nested use has done so."""
        if use.multiplies:
            if self.open or use.nested:
                self.b.add(wgmma.Commit())
            self.b.add(wgmma.Wait(pending=use.in_flight, finish=False))
            self.open = False
        elif use.ring.in_flight:
            # Slots are released in order, this one after those of earlier MMAs. (Not by an empty group, which can make
            # ptxas serialise the MMAs after it, C7519.)
            self.b.add(wgmma.Wait(pending=0, finish=False))

    def drain(self, op: rings.Drain) -> list[Any]:
        slot, phase, held = self.parts[op.cursor]
        if op in self.releasing:
            held = self.release_held(self.rings[op.ring], slot, held)
        return [[slot, phase, held]]

    def release_held(self, ring: Ring, slot: Value, held: Value) -> Value:
        """Releases the slots before this one that are held, the oldest first. Gives the new count of held slots, 0."""
        b = self.b
        for distance in range(ring.in_flight, 0, -1):
            # Warps that read tiles themselves have synchronised at the end of that use.
            self.arrive(ring.consumer, slot, b.scalar("ge", held, distance), distance)
        return b.constant(0, INDEX)

    def free(self, op: rings.Free) -> list[Any]:
        ring = self.rings[op.ring]
        if "generic" in ring.consumer.proxies() and "async" in ring.producer.proxies():
            self.fence()  # as behind a use whose body reads tiles
        self.arrive(ring.consumer, op.slot, meet=True)
        return []

    def fence(self) -> None:
        """Order what threads have done so far, in uses around as well, before later work of the asynchronous proxy."""
        self.b.add(barriers.FenceProxy())
        for use in self.uses:
            use.generic = use.generic and use.block is not self.b.block

    # -- arriving ------------------------------------------------------------------------------

    def arrive(
        self, end: End, slot: Value, condition: Value | None = None, distance: int = 0, meet: bool = False
    ) -> None:
        """The role's elected threads arrive at the slot `distance` before, if `condition` holds. meet: others have
        accessed the slot as well, and are waited for first."""
        b, ring, who = self.b, end.ring, end.endpoint.who
        if who == "warpgroup" and meet:
            b.add(roles.GroupBarrier())
        elif who == "warp" and not end.role.one_thread:
            b.add(gpu.SyncWarp())
        mine = None if end.role.one_thread else leads_warp(b) if who == "warp" else _leads_warpgroup(b)
        if mine is not None and condition is not None:
            mine = b.scalar("and", mine, condition)
        slot = self.before(ring, slot, distance)
        with nullcontext() if mine is None else b.when(mine):
            self.signal(end, slot)

    def signal(self, end: End, slot: Value) -> None:
        """Arrives at the slot in every block whose loads fill this block's slot: its neighbours along the axes of
        multicast, and itself."""
        b, ring, signal, bars = self.b, end.ring, end.endpoint.signal, self.bars[end]
        if end is ring.producer or not ring.shared_along:
            b.add(signal(bars, slot))
            return
        (width, height), along = ring.make.cluster, ring.shared_along
        at_m, at_n = (b.cast(at, I32) for at in ring.place)
        row = b.scalar("mul", at_n, width)
        for m in range(width) if "m" in along else ():
            b.add(signal(bars, slot, b.scalar("add", row, m)))
        for n in range(height) if "n" in along else ():
            rank = b.scalar("add", at_m, n * width)
            with b.when(b.scalar("ne", at_n, n)) if "m" in along else nullcontext():
                b.add(signal(bars, slot, rank))


def _releasing(ring: Ring) -> list[Op]:
    users = [op for op, _ in ring.make.result.uses if isinstance(op, (rings.Drain, rings.Skip))]
    return [op for op in users if role_of(op) is ring.consumer.role and _may_hold(op.cursor)]


def _may_hold(cursor: Value) -> bool:
    """True if slots before this one may be held: not after a drain, and not before the first use."""
    found = reached([cursor], lambda v: [v.op.cursor] if isinstance(v.op, rings.Skip) else incoming(v))
    # What neither control flow nor a skip passes on is a use's.
    passed_on = (rings.Skip, rings.Cursor, rings.Drain)
    return any(not isinstance(v.op, passed_on) and not incoming(v) for v in found)


def leads_warp(b: Builder) -> Value:
    return b.scalar("eq", b.value(gpu.LaneId()), 0)


def _leads_warpgroup(b: Builder) -> Value:
    own = b.scalar("mod", b.value(gpu.WarpId()), WARPGROUP_WARPS)
    return b.scalar("and", b.scalar("eq", own, 0), leads_warp(b))


_RULES: dict[type[Op], Callable[[_Lowering, Any], Sequence[Any]]] = {
    rings.Make: _Lowering.make,
    rings.Cursor: _Lowering.start,
    rings.Acquire: _Lowering.acquire,
    rings.Publish: _Lowering.publish,
    rings.Wait: _Lowering.wait,
    rings.Take: _Lowering.wait,
    rings.Release: _Lowering.release,
    rings.Drain: _Lowering.drain,
    rings.Skip: _Lowering.skip,
    rings.Free: _Lowering.free,
}

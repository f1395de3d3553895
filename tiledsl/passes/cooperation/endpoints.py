"""The ends of a ring: which role stands there, how it accesses the tiles, and how it signals completion.

An endpoint is data. A ring is filled and used by the ops that access its tiles. Each declares by `Access.done` what
signals its completion, and each such kind of work has a row here. A proxy fence is needed where threads at one end and
the asynchronous proxy at the other access the same shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.facts import Access
from tiledsl.ir.ops import barriers, rings, roles, tma
from tiledsl.ir.types import SharedType
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.structure import ops_around


@dataclass(frozen=True, slots=True)
class Endpoint:
    """who: arrives at a slot's mbarrier: the only thread of the role, or one of each warpgroup or warp. signal: the op
    by which it arrives, which takes the mbarrier (and, in a cluster, the rank of its block). bytes: the mbarrier also
    counts the bytes of loads, which are announced before they begin. groups: the work is committed and waited for in
    groups of a warpgroup. threads: threads may access the tiles as well, and the arrival covers them."""

    who: Literal["thread", "warpgroup", "warp"]
    signal: type[Op] = barriers.Arrive
    bytes: bool = False
    groups: bool = False
    threads: bool = False

    def arrivals(self, role: roles.Region) -> int:
        if role.one_thread:
            return 1
        return role.warps // WARPGROUP_WARPS if self.who == "warpgroup" else role.warps


ENDPOINTS: dict[str, Endpoint] = {
    "": Endpoint("warp", threads=True),
    "mbarrier": Endpoint("thread", signal=barriers.ExpectTx, bytes=True),
    "wgmma": Endpoint("warpgroup", groups=True, threads=True),
}
"""By `facts.Work`. "": plain accesses of threads, which fence and meet before one of them arrives."""


@dataclass(frozen=True, eq=False)
class End:
    """One end of a ring. ops: those with which `role` reaches its slots; accesses: those of its tiles; inside: all."""

    ring: Ring
    role: roles.Region
    ops: list[rings.RingOp]
    inside: set[Op]

    @cached_property
    def accesses(self) -> list[Op]:
        return [op for op in self.role.walk() if self.ring.reached_by(op)]

    def touches(self, op: Op) -> list[Access]:
        """Of the ring's tiles."""
        return [access for access in op.accesses() if access.memory in self.ring.tiles]

    def reached(self, *, writes: bool) -> set[Value | int | None]:
        """The ring's tiles that are written here, or read."""
        return {touch.memory for op in self.accesses for touch in self.touches(op) if touch.writes == writes}

    def works(self, op: Op) -> set[str]:
        """What signals that the op's accesses of the ring's tiles are complete; "" where they are in program order."""
        return {touch.done if touch.done in ENDPOINTS else "" for touch in self.touches(op)} or {""}

    def by_threads(self, op: Op) -> bool:
        """True if the op accesses the tiles in program order, not asynchronously."""
        return self.ring.reached_by(op) and "" in self.works(op)

    @cached_property
    def endpoint(self) -> Endpoint:
        found = {work: op for op in self.accesses for work in self.works(op)}
        kinds = sorted(found.keys() - {""})
        alone = [kind for kind in kinds if not ENDPOINTS[kind].threads]
        mixed = kinds[:2] if len(kinds) > 1 else ["", *alone] if "" in found else []
        if len(mixed) > 1:
            first, second = (called(found[kind]) for kind in mixed)
            message = f"{self.role.shown} reaches the tiles of a ring by {first} and by {second}"
            raise CompileError(message, found[mixed[1]].loc, "make a ring for what each of them fills or reads")
        row, role = ENDPOINTS[kinds[0] if kinds else ""], self.role
        if row.who == "thread" and not role.one_thread:
            first = found[kinds[0]]
            message = f"{called(first)} in {role.shown}, whose body {role.threads} threads run"
            raise CompileError(message, first.loc, f'role("{role.title}", threads=1): one thread begins what it fills')
        return row

    @property
    def in_flight(self) -> int:
        """How many uses may be in flight past their end, their slots held."""
        if not self.endpoint.groups:
            return 0
        return max((op.in_flight for op in self.ops if isinstance(op, rings.Release)), default=0)

    def proxies(self, *ops: Op) -> set[str]:
        """The proxies by which these ops, or all accesses, reach the ring's tiles in shared memory."""
        touches = [touch for op in ops or self.accesses for touch in self.touches(op)]
        return {t.proxy for t in touches if isinstance(t.memory, Value) and isinstance(t.memory.type, SharedType)}

    @cached_property
    def asynchronous(self) -> bool:
        """True if the asynchronous proxy accesses shared memory here."""
        return "async" in self.proxies()


class Ring:
    """A ring and both its ends. Raises CompileError where it lacks one, or is used as no ring can be."""

    def __init__(self, make: rings.Make) -> None:
        self.make, self.stages, self.tiles, self.place = make, make.stages, make.tiles, make.place
        users = [op for op, _ in make.result.uses]
        self.loads = [op for op in users if isinstance(op, tma.Load)]
        filled = [op for op in users if isinstance(op, (rings.Acquire, rings.Publish))]
        used = [op for op in users if isinstance(op, (rings.Wait, rings.Release, rings.Free))]
        self.producer = self._end([*filled], "filled", "with ring.fill() as s:")
        self.consumer = self._end([*used], "used", "with ring.use() as s:")
        if self.producer.role is self.consumer.role:
            message = f"{self.producer.role.shown} fills this ring, and uses it as well"
            raise CompileError(message, used[0].loc, "a ring goes from one role to another")
        acquires = [op for op in filled if isinstance(op, rings.Acquire)]
        if self.producer.endpoint.bytes:
            for op in acquires:
                self._check_loads(op)
        else:
            self._check_groups()
            self._check_written(filled[0].loc)
        self._check_uses([*used])

    def _end(self, ops: list[rings.RingOp], did: str, example: str) -> End:
        if not ops:
            fix = f"{example} in a role, or remove the ring"
            raise CompileError(f"this ring is never {did}", self.make.loc, fix)
        role, *others = dict.fromkeys(_role(op) for op in ops)
        for op in ops if others else ():
            if _role(op) is not role:
                message = f"this ring is {did} by {role.shown} already, and now by {_role(op).shown}"
                fix = "make a ring for each role, or one role of them; instances=2 makes a role twice"
                raise CompileError(message, op.loc, fix)
        return End(self, role, ops, set(role.walk()))

    def reached_by(self, op: Op) -> bool:
        return any(tile in op.operands for tile in self.tiles)

    def _check_groups(self) -> None:
        """No products in the role that fills: nothing would wait for them before the slot is published."""
        for op in self.producer.accesses if self.producer.endpoint.groups else ():
            if self.producer.works(op) != {""}:
                message = f"{called(op)} reads the tiles of a ring in {self.producer.role.shown}, which fills it"
                raise CompileError(message, op.loc, "multiply in the role that uses the ring")

    def _check_written(self, loc: Loc) -> None:
        """Each tile is written somewhere; without a count of bytes it is not known which fill writes what."""
        for tile in self.tiles:
            if tile not in self.producer.reached(writes=True):
                name = name_of(tile)
                fix = f"tma_load(..., s.{name}) in a role with threads=1, or s.{name}[i, j] = x, store(x, s.{name})"
                raise CompileError(f"ring.fill() writes nothing into s.{name}", loc, fix)

    def _check_uses(self, used: list[rings.RingOp]) -> None:
        counts = {op: op.in_flight if isinstance(op, rings.Release) else 0 for op in used if type(op) is not rings.Wait}
        for op, count in counts.items():
            if count != next(iter(counts.values())):
                message = f"in_flight={count}, and elsewhere in_flight={next(iter(counts.values()))}"
                raise CompileError(message, op.loc, "all uses of a ring have one in_flight; take() has 0")
        for tile in self.tiles:
            if tile not in self.consumer.reached(writes=False):
                message = f"the tile {tile.name} of this ring is never read in its ring.use()"
                fix = f"read s.{tile.name}, or leave {tile.name} out of the ring"
                raise CompileError(message, self.make.loc, fix)
        frees = [op for op in used if isinstance(op, rings.Free)]
        takes = [op for op in used if isinstance(op, rings.Wait) and not ends_a_use(op)]
        if frees and not takes:
            message = "a slot of this ring is named here, and none is ever taken"
            raise CompileError(message, frees[0].loc, "i = ring.take(), and ring.slot(i), ring.free(i)")
        if takes and not frees:
            message = "slots of this ring are taken here, and never released: it would be full for ever"
            raise CompileError(message, takes[0].loc, "ring.free(i), when slot i has been read")

    # -- bytes ---------------------------------------------------------------------------------

    def loads_of(self, op: rings.Acquire) -> list[tma.Load]:
        return [load for load in self.loads if _cursor(load.mbarrier[1]) is op.cursor]

    def bytes_of(self, tile: Value) -> int:
        """A stage of the tile."""
        assert isinstance(tile.type, SharedType)
        return tile.type.bytes // self.stages

    def bytes(self, load: tma.Load) -> int:
        """What arrives in one block's slot by this load: the share of each block of the cluster."""
        return load.bytes * self.along(load.multicast)

    def along(self, axis: str) -> int:
        return self.make.cluster["mn".index(axis)] if axis else 1

    def _check_loads(self, op: rings.Acquire) -> None:
        for tile in self.tiles:
            found, whole = sum(self.bytes(load) for load in self.loads_of(op) if load.tile is tile), self.bytes_of(tile)
            if not found:
                fix = f"tma_load(..., s.{tile.name})"
                raise CompileError(f"ring.fill() loads nothing into s.{tile.name}", op.loc, fix)
            if found != whole:
                message = f"ring.fill() loads {found} bytes into s.{name_of(tile)}, which has {whole}"
                raise CompileError(message, op.loc, "fill every tile of the slot once, as a whole or in parts")

    def arrivals(self, end: End) -> int:
        """Arrivals of this end that complete a phase; of a consumer, from each block that shares the slot."""
        blocks = 1 if end is self.producer else 1 + sum(self.along(axis) - 1 for axis in self.shared_along)
        return blocks * end.endpoint.arrivals(end.role)

    @property
    def shared_along(self) -> list[str]:
        """Axes of the cluster along which blocks load for each other."""
        return sorted({load.multicast for load in self.loads if self.along(load.multicast) > 1})


def ends_a_use(op: rings.Wait) -> bool:
    """True if the end of a use releases the slot; False if `ring.free` does, by its number."""
    assert op.parent is not None
    behind = op.parent.ops[op.parent.ops.index(op) + 1 :]
    ends = (o for o in behind if isinstance(o, (rings.Release, rings.Skip)) and o.ring is op.ring)
    return isinstance(next(ends, None), rings.Release)


def _cursor(slot: Value) -> Value | None:
    return slot.op.cursor if isinstance(slot.op, rings.Slot) else None


def _role(op: Op) -> roles.Region:
    for around, _ in ops_around(op.parent):
        if isinstance(around, roles.Region):
            return around
    raise CompileError(f"{called(op)} outside of a role", op.loc, 'with role("math", ...):')


def rings_of(kernel: Kernel) -> Iterator[Ring]:
    for op in list(kernel.body.ops):
        if isinstance(op, rings.Make):
            yield Ring(op)

"""The ends of a ring: which role stands there, how it accesses the tiles, and how it signals completion.

An endpoint is data. A ring is filled and used by the ops that access its tiles. Each declares by `Access.done` what
signals its completion, and each such kind of work has a row here. A proxy fence is needed where threads at one end and
the asynchronous proxy at the other access the same shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.facts import Access
from tiledsl.ir.ops import async_copy, barriers, rings, roles, tma
from tiledsl.ir.types import SharedType
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.structure import ops_around
from tiledsl.passes.checks.checker import of_each


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


ENDPOINTS: dict[str, Endpoint] = {
    "": Endpoint("warp", threads=True),
    "mbarrier": Endpoint("thread", signal=barriers.ExpectTx, bytes=True),
    "wgmma": Endpoint("warpgroup", groups=True, threads=True),
}
"""By `facts.Work`. "": plain accesses of threads, which fence and meet before one of them arrives."""


@dataclass(frozen=True, eq=False)
class End:
    """One end of a ring: what `role` does with its slots. accesses: the ops that reach the tiles."""

    ring: Ring
    role: roles.Region

    @cached_property
    def accesses(self) -> list[Op]:
        return [op for op in self.role.walk() if self.touches(op)]

    def touches(self, *ops: Op) -> list[Access]:
        """Of the ring's tiles."""
        return [access for op in ops for access in op.accesses() if access.memory in self.ring.tiles]

    def works(self, op: Op) -> set[str]:
        """What signals that the op's accesses of the ring's tiles are complete; "" where they are in program order."""
        return {touch.done if touch.done in ENDPOINTS else "" for touch in self.touches(op)}

    @cached_property
    def endpoint(self) -> Endpoint:
        for op in self.accesses:
            if isinstance(op, async_copy.Send):
                fix = "store to a shared tile of its own, and count the bytes at an mbarrier of its own"
                raise CompileError(f"{called(op)} to a tile of a ring", op.loc, fix, code="C604")
        found = {work: op for op in self.accesses for work in self.works(op)}
        kinds = sorted(found.keys() - {""})
        alone = [kind for kind in kinds if not ENDPOINTS[kind].threads]
        mixed = kinds[:2] if len(kinds) > 1 else ["", *alone] if "" in found else []
        if len(mixed) > 1:
            first, second = (called(found[kind]) for kind in mixed)
            message = f"{self.role.shown} reaches the tiles of a ring by {first} and by {second}"
            raise CompileError(
                message, found[mixed[1]].loc, "make a ring for what each of them fills or reads", code="C604"
            )
        row, role = ENDPOINTS[kinds[0] if kinds else ""], self.role
        if row.who == "thread" and not role.one_thread:
            first = found[kinds[0]]
            message = f"{called(first)} in {role.shown}, whose body {role.threads} threads run"
            raise CompileError(
                message, first.loc, f'role("{role.title}", threads=1): one thread begins what it fills', code="C604"
            )
        return row

    @property
    def arrivals(self) -> int:
        """Arrivals of this end that complete a phase; of a consumer, from each block that shares the slot."""
        ring, warps = self.ring, 1 if self.role.one_thread else self.role.warps
        others = 0 if self is ring.producer else sum(ring.along(axis) - 1 for axis in ring.shared_along)
        return (1 + others) * (warps // WARPGROUP_WARPS if self.endpoint.who == "warpgroup" else warps)

    def proxies(self, *ops: Op) -> set[str]:
        """The proxies by which these ops, or all accesses, reach the ring's tiles in shared memory."""
        touches = self.touches(*(ops or self.accesses))
        return {t.proxy for t in touches if isinstance(t.memory, Value) and isinstance(t.memory.type, SharedType)}


class Ring:
    """A ring and both its ends. Raises CompileError where it lacks one, or is used as no ring can be.

    in_flight: how many uses may be in flight past their end, their slots held.
    """

    def __init__(self, make: rings.Make) -> None:
        self.make, self.tiles, self.place = make, make.tiles, make.place
        users = [op for op, _ in make.result.uses]
        self.loads = [op for op in users if isinstance(op, tma.Load)]
        filled = [op for op in users if isinstance(op, (rings.Acquire, rings.Publish))]
        used = [op for op in users if isinstance(op, (rings.Wait, rings.Release, rings.Take, rings.Free))]
        self.producer = self._end(filled, "filled", "with ring.fill() as s:")
        self.consumer = self._end(used, "used", "with ring.use() as s:")
        if self.producer.role is self.consumer.role:
            message = f"{self.producer.role.shown} fills this ring, and uses it as well"
            raise CompileError(message, used[0].loc, "a ring goes from one role to another", code="C604")
        if self.producer.endpoint.bytes:
            for op in filled:
                if isinstance(op, rings.Acquire):
                    self._check_loads(op)
        else:
            self._check_written(filled[0].loc)
        self._check_uses(used)
        counts = [op.in_flight for op in used if isinstance(op, rings.Wait)]
        self.in_flight = max(counts, default=0) if self.consumer.endpoint.groups else 0

    def _end(self, ops: Sequence[rings.RingOp], did: str, example: str) -> End:
        if not ops:
            fix = f"{example} in a role, or remove the ring"
            raise CompileError(f"this ring is never {did}", self.make.loc, fix, code="C604")
        role = role_of(ops[0])
        for op in ops:
            if role_of(op) is not role:
                message = f"this ring is {did} by {role.shown} already, and now by {role_of(op).shown}"
                fix = "make a ring for each role, or one role of them; instances=2 makes a role twice"
                raise CompileError(message, op.loc, fix, code="C604")
        return End(self, role)

    def _check_written(self, loc: Loc) -> None:
        """Each tile is written somewhere; without a count of bytes it is not known which fill writes what. No products
        read them in the role that fills: nothing would wait for them before the slot is published."""
        end = self.producer
        for op in end.accesses if end.endpoint.groups else ():
            if end.works(op) != {""}:
                message = f"{called(op)} reads the tiles of a ring in {end.role.shown}, which fills it"
                raise CompileError(message, op.loc, "multiply in the role that uses the ring", code="C604")
        for tile in self.tiles:
            if not any(touch.writes and touch.memory is tile for touch in end.touches(*end.accesses)):
                name = name_of(tile)
                fix = f"tma_load(..., s.{name}) in a role with threads=1, or s.{name}[i, j] = x, store(x, s.{name})"
                raise CompileError(f"ring.fill() writes nothing into s.{name}", loc, fix, code="C604")

    def _check_uses(self, used: Sequence[rings.RingOp]) -> None:
        begun = [op for op in used if isinstance(op, (rings.Wait, rings.Take))]
        counts = [op.in_flight if isinstance(op, rings.Wait) else 0 for op in begun]
        for op, count in zip(begun, counts, strict=True):
            if count != counts[0]:
                message = f"in_flight={count}, and elsewhere in_flight={counts[0]}"
                raise CompileError(message, op.loc, "all uses of a ring have one in_flight; take() has 0", code="C604")
        end = self.consumer
        for tile in self.tiles:
            if not any(touch.memory is tile and not touch.writes for touch in end.touches(*end.accesses)):
                message = f"the tile {tile.name} of this ring is never read in its ring.use()"
                fix = f"read s.{tile.name}, or leave {tile.name} out of the ring"
                raise CompileError(message, self.make.loc, fix, code="C604")
        takes, frees = ([op for op in used if isinstance(op, kind)] for kind in (rings.Take, rings.Free))
        if bool(takes) != bool(frees):
            did, missing = ("taken", "released") if takes else ("released", "taken")
            message = f"slots of this ring are {did} here, and never {missing}"
            fix = "i = ring.take(), and ring.free(i) after its last read"
            raise CompileError(message, (takes or frees)[0].loc, fix, code="C604")

    # -- bytes ---------------------------------------------------------------------------------

    def loads_of(self, op: rings.Acquire) -> list[tma.Load]:
        return [load for load in self.loads if load.mbarrier[1] is op.result]

    def bytes_of(self, tile: Value) -> int:
        """A stage of the tile."""
        assert isinstance(tile.type, SharedType)
        return tile.type.bytes // self.make.stages

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
                raise CompileError(f"ring.fill() loads nothing into s.{tile.name}", op.loc, fix, code="C604")
            if found != whole:
                message = f"ring.fill() loads {found} bytes into s.{name_of(tile)}, which has {whole}"
                raise CompileError(
                    message, op.loc, "fill every tile of the slot once, as a whole or in parts", code="C604"
                )

    @property
    def shared_along(self) -> list[str]:
        """Axes of the cluster along which blocks load for each other."""
        return sorted({load.multicast for load in self.loads if self.along(load.multicast) > 1})


def role_of(op: Op) -> roles.Region:
    for around, _ in ops_around(op.parent):
        if isinstance(around, roles.Region):
            return around
    raise CompileError(f"{called(op)} outside of a role", op.loc, 'with role("math", ...):', code="C605")


def rings_of(kernel: Kernel) -> list[Ring]:
    """Raises CompileErrors with those of all rings."""
    return of_each((op for op in kernel.body.ops if isinstance(op, rings.Make)), Ring)

"""Who does what in a kernel, and what goes from whom to whom: its roles and rings, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import barriers, roles
from tiledsl.passes.analysis.called import called
from tiledsl.passes.banks.bank_report import table
from tiledsl.passes.cooperation.endpoints import End, Ring, rings_of

__all__ = ["EndReport", "RingReport", "RoleReport", "RolesReport", "roles_report"]


@dataclass(frozen=True, slots=True)
class RoleReport:
    """threads: that run the body, of each of `instances`. registers: of a thread; from those that it has at the launch.
    turns: in which instances go one after the other."""

    name: str
    loc: Loc
    warps: tuple[int, int]
    threads: int
    instances: int
    registers: tuple[int, int]
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndReport:
    """by: what reaches the tiles. arrivals: that make a slot the other end's. in_flight: uses whose slots are held."""

    role: str
    by: tuple[str, ...]
    arrivals: int
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class RingReport:
    """tiles: name, and bytes of a stage. shared_along: axes of the cluster along which blocks load for each other."""

    name: str
    loc: Loc
    stages: int
    tiles: tuple[tuple[str, int], ...]
    producer: EndReport
    consumer: EndReport
    shared_along: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RolesReport:
    title: str
    roles: tuple[RoleReport, ...]
    rings: tuple[RingReport, ...]

    def __str__(self) -> str:
        if not self.roles:
            return f"{self.title}\nno roles: all threads of a block run the whole kernel"
        head = ("role", "warps", "threads", "registers", "turns")
        rows = [
            (
                role.name,
                f"{role.warps[0]} to {role.warps[1]}",
                f"{role.instances} x {role.threads}" if role.instances > 1 else str(role.threads),
                f"{role.registers[1]} of {role.registers[0]}" if role.registers[0] else "as launched",
                ", ".join(role.turns),
            )
            for role in self.roles
        ]
        parts = [f"{self.title}\n{table(head, rows, 4)}"]
        head = ("ring", "stages", "a stage has", "filled by", "used by", "arrivals", "held")
        rows = [
            (
                ring.name,
                str(ring.stages),
                ", ".join(f"{name} {size} bytes" for name, size in ring.tiles),
                f"{ring.producer.role}: {', '.join(ring.producer.by)}",
                f"{ring.consumer.role}: {', '.join(ring.consumer.by)}",
                f"{ring.producer.arrivals}, {ring.consumer.arrivals}"
                + (f", shared along {' and '.join(ring.shared_along)}" if ring.shared_along else ""),
                str(ring.consumer.in_flight),
            )
            for ring in self.rings
        ]
        if rows:
            parts.append(table(head, rows, 6))
        return "\n\n".join(parts)


def roles_report(kernel: Kernel, title: str) -> RolesReport:
    """Of a kernel as the frontend makes it. Raises CompileError where a ring cannot be."""
    at_launch = barriers.registers_at_launch(kernel.thread_count, kernel.blocks_per_sm)
    found = [_role(op, at_launch) for op in kernel.body.ops if isinstance(op, roles.Region)]
    return RolesReport(title, tuple(found), tuple(_ring(ring) for ring in rings_of(kernel)))


def _role(op: roles.Region, at_launch: int) -> RoleReport:
    turns = dict.fromkeys(inner.title for inner in op.walk() if isinstance(inner, roles.Enter))
    warps = op.first, op.first + op.all_warps - 1
    registers = (at_launch, op.registers) if op.registers else (0, 0)
    threads = 1 if op.one_thread else op.threads
    return RoleReport(op.title, op.loc, warps, threads, op.instances, registers, tuple(turns))


def _ring(ring: Ring) -> RingReport:
    tiles = tuple((tile.name, _bytes(tile) // ring.stages) for tile in ring.tiles)
    shared_along, ends = tuple(ring.shared_along), (_end(ring.producer), _end(ring.consumer))
    return RingReport(ring.make.result.name, ring.make.loc, ring.stages, tiles, *ends, shared_along)


def _bytes(tile: Value) -> int:
    return getattr(tile.type, "bytes", 0)


def _end(end: End) -> EndReport:
    by = dict.fromkeys(called(op) for op in end.accesses)
    return EndReport(end.role.title, tuple(by), end.ring.arrivals(end), end.in_flight)

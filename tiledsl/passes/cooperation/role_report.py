"""Who does what in a kernel, and what goes from whom to whom: its roles and rings, as data and as text."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import barriers, roles
from tiledsl.passes.analysis.called import called
from tiledsl.passes.cooperation.endpoints import End, Ring, rings_of
from tiledsl.tables import table


@dataclass(frozen=True, slots=True)
class RolesReport:
    """`str` gives the tables. registers: those that a thread has at the launch."""

    title: str
    registers: int
    roles: tuple[roles.Region, ...]
    rings: tuple[Ring, ...]

    def __str__(self) -> str:
        if not self.roles:
            return f"{self.title}\nno roles: all threads of a block run the whole kernel"
        head = ("role", "warps", "threads", "registers", "turns")
        rows = [
            (
                role.title,
                f"{role.first} to {role.first + role.all_warps - 1}",
                f"{f'{role.instances} x ' if role.instances > 1 else ''}{1 if role.one_thread else role.threads}",
                f"{role.registers} of {self.registers}" if role.registers else "as launched",
                ", ".join(dict.fromkeys(op.title for op in role.walk() if isinstance(op, roles.Enter))),
            )
            for role in self.roles
        ]
        text = f"{self.title}\n{table(head, rows, left=range(5))}"
        head = ("ring", "stages", "a stage has", "filled by", "used by", "arrivals", "held")
        rows = [
            (
                ring.make.result.name,
                str(ring.make.stages),
                ", ".join(f"{tile.name} {ring.bytes_of(tile)} bytes" for tile in ring.tiles),
                _end(ring.producer),
                _end(ring.consumer),
                f"{ring.producer.arrivals}, {ring.consumer.arrivals}"
                + (f", shared along {' and '.join(ring.shared_along)}" if ring.shared_along else ""),
                str(ring.in_flight),
            )
            for ring in self.rings
        ]
        return f"{text}\n\n{table(head, rows, left=range(7))}" if rows else text


def _end(end: End) -> str:
    return f"{end.role.title}: {', '.join(dict.fromkeys(map(called, end.accesses)))}"


def roles_report(kernel: Kernel, title: str) -> RolesReport:
    """Of a kernel as the frontend makes it, which stays as it is. Raises CompileErrors where a ring cannot be."""
    kernel, at_launch = kernel.clone(), barriers.registers_at_launch(kernel)
    return RolesReport(title, at_launch, tuple(roles.roles_of(kernel.body)), tuple(rings_of(kernel)))

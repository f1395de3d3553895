"""Cohorts that wait for something other than a full barrier: mbarriers, named barriers, clusters, the other warps of a
warpgroup.

A cohort waits for a *condition*. Warps for which it holds go on at once, without the others. The others are tried
again when nothing of their chunk can run; those that stand at one point then go on together, so that cohorts stay
wide. Asynchronous copies arrive only when that lets nobody go on. When even that does not, the warps wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort, merge
from tiledsl.backends.emulator.control import Instr
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Op

if TYPE_CHECKING:
    from tiledsl.backends.emulator.machine import Chunk

__all__ = ["CONDITIONS", "Condition", "Roles", "Rows", "WaitInstr", "Waiting", "condition"]

Rows = NDArray[np.bool_]
Roles = dict[tuple[int, int], Loc]
"""The roles of a kernel: first warp and number of warps; where they are declared."""


class Condition:
    """What the warps that come to an op wait for; one object for each class of ops.

    `after`: they wait after the op's rule, whose result `ready` gets; otherwise before it, with the op's operands.
    `gathers`: whether it holds depends on which warps wait at the op together.
    """

    after: ClassVar[bool] = False
    gathers: ClassVar[bool] = False

    def ready(self, c: Cohort, op: Op, *values: Any) -> Rows:
        """For which warps, [groups, warps], it holds."""
        raise NotImplementedError

    def passed(self, c: Cohort, op: Op, *values: Any) -> None:
        """The cohort goes on."""

    def missing(self, c: Cohort, op: Op, *values: Any) -> str:
        """What the cohort's first warp waits for, for messages."""
        raise NotImplementedError

    def wanted(self, c: Cohort, op: Op, *values: Any) -> None:
        """Nothing else can run: let arrive what the cohort waits for."""


CONDITIONS: dict[type[Op], Condition] = {}


def condition(*classes: type[Op]) -> Any:
    """Registers an object of the decorated class for these op classes."""

    def register(cls: type[Condition]) -> type[Condition]:
        for op in classes:
            assert op not in CONDITIONS, f"{op.name} has two conditions"
            CONDITIONS[op] = cls()
        return cls

    return register


@dataclass(slots=True, eq=False)
class WaitInstr(Instr):
    """Lets those warps go on for which the condition holds; `srcs`: registers with what it depends on."""

    condition: Condition
    srcs: tuple[int, ...]

    def values(self, c: Cohort) -> list[Any]:
        return [c.regs[s] for s in self.srcs]

    def ready(self, c: Cohort) -> Rows:
        return self.condition.ready(c, self.op, *self.values(c))

    def step(self, c: Cohort) -> bool:
        rows = np.broadcast_to(self.ready(c), c.shape[:2])
        if rows.all():
            self.condition.passed(c, self.op, *self.values(c))
            self.release(c)
            c.pc += 1
            return True
        if rows.any():
            c.chunk.replace([c.select(rows)])
            c = c.select(~rows)
        c.chunk.blocked.add(c, self)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _Blocked:
    cohort: Cohort
    instr: WaitInstr


class Waiting:
    """The cohorts of a chunk that wait for conditions."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.entries: list[_Blocked] = []

    def add(self, cohort: Cohort, instr: WaitInstr) -> None:
        self.entries.append(_Blocked(cohort, instr))

    def wake(self) -> bool:
        """Let go on whoever can. True if anybody does."""
        leaving: dict[int, list[Cohort]] = {}
        entries, self.entries = self.entries, []
        for entry in self.gathered(entries):
            cohort, instr = entry.cohort, entry.instr
            rows = np.broadcast_to(instr.ready(cohort), cohort.shape[:2])
            if not rows.any():
                self.entries.append(entry)
                continue
            if not rows.all():
                self.add(cohort.select(~rows), instr)
                cohort = cohort.select(rows)
            leaving.setdefault(cohort.pc, []).append(cohort)
        for cohorts in leaving.values():
            self.chunk.machine.enqueue(merge(cohorts, self.chunk.machine.program.fills))
        return bool(leaving)

    def gathered(self, entries: list[_Blocked]) -> list[_Blocked]:
        """Those that wait for each other as one cohort."""
        found: list[_Blocked] = []
        together: dict[int, list[_Blocked]] = {}
        for entry in entries:
            if entry.instr.condition.gathers:
                together.setdefault(entry.cohort.pc, []).append(entry)
            else:
                found.append(entry)
        for same in together.values():
            cohort = merge([e.cohort for e in same], self.chunk.machine.program.fills)
            found.append(_Blocked(cohort, same[0].instr))
        return found

    def let_arrive(self) -> None:
        """Nobody can go on: what they wait for arrives, if it is on its way."""
        for entry in self.entries:
            entry.instr.condition.wanted(entry.cohort, entry.instr.op, *entry.instr.values(entry.cohort))

    def fail(self, barriers: Sequence[str]) -> None:
        """Raise HazardError: these warps wait for ever. `barriers`: who waits at full barriers."""
        first = self.entries[0]
        block = int(first.cohort.blocks[0])
        lines = [self.line(e, block) for e in self.entries if block in e.cohort.blocks]
        raise HazardError(
            "deadlock: these warps wait for ever\n  " + "\n  ".join([*lines, *barriers]),
            first.instr.op.loc,
            "let each of them get what it waits for: count the arrivals and bytes of every phase, and the phases",
        )

    def line(self, entry: _Blocked, block: int) -> str:
        """Who of this block waits there, and for what."""
        cohort = entry.cohort
        launch = self.chunk.machine.launch
        mine = cohort.select(np.broadcast_to((cohort.blocks == block)[:, None], cohort.shape[:2]))
        warps = np.broadcast_to(mine.warps, mine.shape[:2]).ravel().tolist()
        missing = entry.instr.condition.missing(mine, entry.instr.op, *entry.instr.values(mine))
        who = f"block {launch.block_index(block)}: {_name_warps(warps)}{self.role(warps)}"
        return f"{who} at {entry.instr.op.loc} for {missing}"

    def role(self, warps: Sequence[int]) -> str:
        """The role that the warps belong to, if the kernel has one of them."""
        for (first, count), loc in self.chunk.machine.program.roles.items():
            if first <= min(warps) and max(warps) < first + max(count, 1):
                return f" (the role at line {loc.line})"
        return ""


def _name_warps(warps: Sequence[int]) -> str:
    """With the verb: ``warp 3 waits``, ``warps 4, 5, 6, 7 wait``."""
    ordered = sorted(warps)
    named = ", ".join(map(str, ordered[:8])) + (", ..." if len(ordered) > 8 else "")
    return f"warp {named} waits" if len(ordered) == 1 else f"warps {named} wait"

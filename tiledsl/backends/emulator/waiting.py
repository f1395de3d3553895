"""Cohorts that wait for something other than a full barrier: mbarriers, named barriers, clusters, the other warps of a
warpgroup.

A cohort waits for a *condition*. Warps for which it holds go on at once, without the others. The others are tried
again when nothing of their chunk can run; those that stand at one point then go on together, so that cohorts stay
wide. Asynchronous copies arrive only when that lets nobody go on. When even that does not, the warps wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort, merge
from tiledsl.backends.emulator.conditions import Condition, Rows
from tiledsl.backends.emulator.hooks import LaunchInfo
from tiledsl.errors import HazardError, Loc
from tiledsl.ir.core import Op

__all__ = ["Roles", "Wait", "Waiting"]

Roles = dict[tuple[int, int], Loc]
"""The roles of a kernel: first warp and number of warps; where they are declared."""


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A wait for `condition` at `op`; `srcs`: registers with what it depends on."""

    op: Op
    condition: Condition
    srcs: tuple[int, ...]

    def values(self, c: Cohort) -> list[Any]:
        return [c.regs[s] for s in self.srcs]

    def ready(self, c: Cohort) -> Rows:
        """For which warps it holds, [groups, warps]."""
        return np.broadcast_to(self.condition.ready(c, self.op, *self.values(c)), c.shape[:2])

    def passed(self, c: Cohort) -> None:
        self.condition.passed(c, self.op, *self.values(c))


@dataclass(frozen=True, slots=True, eq=False)
class _Blocked:
    cohort: Cohort
    wait: Wait


class Waiting:
    """The cohorts of a chunk that wait for conditions. `fills`: as for `merge`; `roles`: for messages."""

    def __init__(self, launch: LaunchInfo, fills: dict[int, bool], roles: Roles) -> None:
        self.launch, self.fills, self.roles = launch, fills, roles
        self.entries: list[_Blocked] = []

    @property
    def cohorts(self) -> list[Cohort]:
        return [entry.cohort for entry in self.entries]

    def add(self, cohort: Cohort, wait: Wait) -> None:
        self.entries.append(_Blocked(cohort, wait))

    def wake(self) -> list[Cohort]:
        """Who can go on now."""
        leaving: dict[int, list[Cohort]] = {}
        entries, self.entries = self.entries, []
        for entry in self.gathered(entries):
            cohort, wait = entry.cohort, entry.wait
            rows = wait.ready(cohort)
            if not rows.any():
                self.entries.append(entry)
                continue
            if not rows.all():
                self.add(cohort.select(~rows), wait)
                cohort = cohort.select(rows)
            leaving.setdefault(cohort.pc, []).append(cohort)
        return [merge(cohorts, self.fills) for cohorts in leaving.values()]

    def gathered(self, entries: list[_Blocked]) -> list[_Blocked]:
        """Those that wait for each other as one cohort."""
        found: list[_Blocked] = []
        together: dict[int, list[_Blocked]] = {}
        for entry in entries:
            if entry.wait.condition.gathers:
                together.setdefault(entry.cohort.pc, []).append(entry)
            else:
                found.append(entry)
        for same in together.values():
            found.append(_Blocked(merge([e.cohort for e in same], self.fills), same[0].wait))
        return found

    def let_arrive(self) -> None:
        """Nobody can go on: what they wait for arrives, if it is on its way."""
        for entry in self.entries:
            entry.wait.condition.wanted(entry.cohort, entry.wait.op, *entry.wait.values(entry.cohort))

    def fail(self, barriers: Sequence[str]) -> None:
        """Raise HazardError: these warps wait for ever. `barriers`: who waits at full barriers."""
        first = self.entries[0]
        block = int(first.cohort.blocks[0])
        lines = [self.line(e, block) for e in self.entries if block in e.cohort.blocks]
        raise HazardError(
            "deadlock: these warps wait for ever\n  " + "\n  ".join([*lines, *barriers]),
            first.wait.op.loc,
            "let each of them get what it waits for: count the arrivals and bytes of every phase, and the phases",
        )

    def line(self, entry: _Blocked, block: int) -> str:
        """Who of this block waits there, and for what."""
        cohort, wait = entry.cohort, entry.wait
        mine = cohort.select(np.broadcast_to((cohort.blocks == block)[:, None], cohort.shape[:2]))
        warps = np.broadcast_to(mine.warps, mine.shape[:2]).ravel().tolist()
        missing = wait.condition.missing(mine, wait.op, *wait.values(mine))
        who = f"block {self.launch.block_index(block)}: {_name_warps(warps)}{self.role(warps)}"
        return f"{who} at {wait.op.loc} for {missing}"

    def role(self, warps: Sequence[int]) -> str:
        """The role that the warps belong to, if the kernel has one of them."""
        for (first, count), loc in self.roles.items():
            if first <= min(warps) and max(warps) < first + max(count, 1):
                return f" (the role at line {loc.line})"
        return ""


def _name_warps(warps: Sequence[int]) -> str:
    """With the verb: ``warp 3 waits``, ``warps 4, 5, 6, 7 wait``."""
    ordered = sorted(warps)
    named = ", ".join(map(str, ordered[:8])) + (", ..." if len(ordered) > 8 else "")
    return f"warp {named} waits" if len(ordered) == 1 else f"warps {named} wait"

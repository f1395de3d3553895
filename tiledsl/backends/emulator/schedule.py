"""Which cohorts can run, and which wait: the queue of a run, and the cohorts of each chunk.

A cohort waits for a *condition*. Warps for which it holds go on at once, without the others. The others are tried
again when nothing of their chunk can run; those at one instruction then go on together, so that cohorts stay wide.
Asynchronous copies are delivered only when no waiting warp can proceed. If none can after that, it is a deadlock.
With a seed, chance decides all of that (`chances`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Sequence

import numpy as np

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.backends.emulator.async_copies import Changes
from tiledsl.backends.emulator.chances import Chances, parts
from tiledsl.backends.emulator.chunk import Chunk, Launch
from tiledsl.backends.emulator.cohort import Cohort, merge
from tiledsl.backends.emulator.hooks import Bools
from tiledsl.backends.emulator.residency import NotStarted
from tiledsl.backends.emulator.rules.registry import Condition
from tiledsl.backends.emulator.waiters import Described, name_warps, role_of, sides_of, spinning, warps_of
from tiledsl.errors import HazardError, Loc, Side
from tiledsl.ir.core import Op

PATIENCE = 64
"""Iterations for which spinning loops may run alone before another chunk is started."""


class Turns:
    """The cohorts that can run, of all chunks that live. `idle`: iterations of `while` loops since a loop has ended;
    `steps`: of all loops. `changes`: see there. `chances`: None for the usual order."""

    def __init__(self, max_steps: int, chances: Chances | None) -> None:
        self.max_steps, self.chances = max_steps, chances
        self.changes = Changes()
        self.queue: deque[Cohort] = deque()
        self.schedules: dict[Chunk, Schedule] = {}
        self.idle = self.steps = 0

    def next(self) -> Cohort:
        """Takes a cohort off the queue: the first that does not spin. Those that do come when nobody else can run, also
        by letting copies arrive: what they ask for may take all of that, and they may not ask for ever."""
        if all(cohort.parked for cohort in self.queue):
            for schedule in self.schedules.values():
                schedule.go_on()
        if self.chances is not None:
            which = self.chances.choose(self.queue)
        else:
            which = next((number for number, cohort in enumerate(self.queue) if not cohort.parked), 0)
        cohort = self.queue[which]
        del self.queue[which]
        return cohort

    def spend(self, loc: Loc, chunk: Chunk, steps: int = 1) -> None:
        """A loop of the chunk has an iteration. Raises HazardError when the run has had more than
        `Options.max_steps`."""
        self.steps += steps
        if self.steps <= self.max_steps:
            return
        fix = "if it is only long, set TILEDSL_MAX_STEPS, or pass Options(max_steps=...)"
        if self.idle <= self.steps // 2:
            raise HazardError(f"the run does not end: {self.max_steps} iterations of loops", loc, fix, code="T402")
        launch, described = chunk.run.launch, self._described()
        others = "".join("\n  " + line for line, _ in described)
        message = f"this loop{launch.of} spins forever: {self.max_steps} iterations and no loop has ended{others}"
        fix = f"check that what the loop waits for is written; {fix}"
        side = Side(loc, does="spins", rank=launch.rank)
        raise HazardError(message, loc, fix, code="T403", sides=(side, *sides_of(described)))

    # -- when no turn changes anything ---------------------------------------------------------

    def at_rest(self) -> bool:
        """Return whether every cohort waits, or spins in a loop that nothing that runs can end.

        Asynchronous copies arrive before that is said.
        """
        before = self.changes.count
        if self.idle <= PATIENCE or not all(c.parked and c.repeats == before for c in self.queue) or not self.queue:
            return False
        for schedule in self.schedules.values():
            if schedule.go_on():
                return False
            schedule.chunk.copies.deliver_all()
        return self.changes.count == before

    def endless(self, others: NotStarted | None) -> HazardError:
        """Return the finding when the run is at rest.

        Args:
            others: The blocks that have not started, since the GPU holds no more. None: all have.
        """
        described = self._described()
        loc = next(side.loc for _, side in described if side is not None)
        lines = "".join("\n  " + line for line, _ in described)
        if others is None:
            message = f"deadlock: these loops spin forever, and nothing that runs can end them{lines}"
            fix = "let another thread write what the loop waits for, whatever the order of the warps and blocks"
            return HazardError(message, loc, fix, code="T403", sides=sides_of(described))
        most, first = others.fits.blocks, others.launch.block_name(others.first)
        message = (
            f"deadlock: the GPU holds at most {most} blocks{others.launch.of} at once, {others.fits}; all of these "
            f"wait, and {others.left} more, from {first} on, can start only when one has ended{lines}"
        )
        fix = (
            f"launch at most {most} blocks, each with a loop over its share of the work; or let a block wait only for "
            "blocks that have started: each takes a number by an atomic_add, and waits for lower ones"
        )
        return HazardError(message, loc, fix, code="T423", sides=sides_of(described))

    def _described(self) -> list[Described]:
        """Describe who spins and who waits, for each launch and place."""
        found: dict[tuple[Launch, Op], list[Cohort]] = {}
        for cohort in self.queue:
            loop = self.schedules[cohort.chunk].loops.heads.get(cohort.pc)
            if cohort.parked and loop is not None:
                found.setdefault((cohort.chunk.run, loop), []).append(cohort)
        lines, launches = [spinning(loop, cohorts) for (_, loop), cohorts in found.items()], set[Launch]()
        for schedule in self.schedules.values():
            if schedule.blocked and schedule.chunk.run not in launches:
                launches.add(schedule.chunk.run)
                lines += [each for each in schedule.describe() if each[1] is not None]
        return lines


@dataclass(slots=True, eq=False)
class Instr:
    """One instruction of the linear code. `op`: where it came from. `free`: registers that nothing reads after it.

    ``step`` executes it, and gives whether the cohort goes on (True) or has given way to others (False).
    """

    op: Op
    free: list[int] = field(default_factory=list[int], kw_only=True)

    @property
    def binds(self) -> bool:
        """Must all warps that executed it execute the next one together?"""
        return False

    def step(self, c: Cohort, s: Schedule) -> bool:
        raise NotImplementedError

    def advance(self, c: Cohort, pc: int = -1) -> bool:
        """Free registers, and go on with the next instruction or the one at `pc`."""
        for register in self.free:
            c.regs[register] = None
        c.pc = c.pc + 1 if pc < 0 else pc
        return True


@dataclass(slots=True, eq=False)
class WaitInstr(Instr):
    """Lets warps go on when a condition holds for them. `srcs`: the registers that it depends on."""

    condition: Condition
    srcs: tuple[int, ...]

    @property
    def binds(self) -> bool:
        return self.condition.gathers

    def step(self, c: Cohort, s: Schedule) -> bool:
        return s.wait(c, self)

    def values(self, c: Cohort) -> list[Any]:
        return [c.regs[s] for s in self.srcs]

    def ready(self, c: Cohort) -> Bools:
        """For which warps it holds, [groups, warps]."""
        found, shape = self.condition.ready(c, self.op, *self.values(c)), c.shape[:2]
        return found if found.shape == shape else np.broadcast_to(found, shape)

    def go_on(self, c: Cohort) -> None:
        self.condition.passed(c, self.op, *self.values(c))
        self.advance(c)


@dataclass(frozen=True, slots=True)
class Loops:
    """The places of a program's loops. `heads`: loops that give way to others, by their first instruction.
    `waiting`: places in the loops that change nothing (`repeats`)."""

    heads: Mapping[int, Op]
    waiting: frozenset[int]


class Schedule:
    """The cohorts of one chunk, which execute `code` with its `loops`. `blocked`: those that wait, each with its
    instruction. `ready`: the number of cohorts in the queue of `turns`. `finished`: warps that have ended. `groups`: of
    blocks that move as one (`chances`)."""

    def __init__(self, chunk: Chunk, code: Sequence[Instr], loops: Loops, turns: Turns) -> None:
        self.chunk, self.code, self.loops, self.turns = chunk, code, loops, turns
        self.ready = self.finished = 0
        self.blocked: list[tuple[Cohort, WaitInstr]] = []
        self.groups = None if turns.chances is None else turns.chances.groups(chunk.clusters)

    def begin(self, cohort: Cohort) -> None:
        for part in self.parts(cohort, 1):
            self.enqueue(part)

    def enqueue(self, cohort: Cohort) -> None:
        self.turns.queue.append(cohort)
        self.ready += 1

    def take(self, cohort: Cohort) -> Cohort:
        """The cohort, off the queue, merged with all cohorts of its chunk that are parked at the same instruction."""
        self.ready -= 1
        queue = self.turns.queue
        if self.groups is not None:
            cohort.parked = False
        if not cohort.parked or not queue:
            return cohort
        same = [o for o in queue if o.parked and o.pc == cohort.pc and o.chunk is cohort.chunk]
        if same:
            self.turns.queue = deque(o for o in queue if o not in same)
            self.ready -= len(same)
            cohort = merge([cohort, *same], self.chunk.run.fills)
        cohort.parked = False
        return cohort

    # -- what instructions call ----------------------------------------------------------------

    def replace(self, parts: Sequence[Cohort]) -> None:
        """The running cohort was split: its parts go to the head of the queue."""
        self.turns.queue.extendleft(reversed(parts))
        self.ready += len(parts)

    def give_way(self, cohort: Cohort) -> bool:
        """Let others run first; they may join this cohort. False if there is nobody to wait for."""
        if not (self.turns.queue or self.blocked or self.turns.idle > PATIENCE):
            return False
        cohort.parked = True
        self.enqueue(cohort)
        return True

    def rejoin(self, cohort: Cohort) -> bool:
        """The same, for no other reason."""
        return self.groups is None and self.give_way(cohort)

    def wait(self, cohort: Cohort, at: WaitInstr) -> bool:
        """True if the whole cohort goes on. Otherwise the warps that may go on become a cohort of their own, merged
        with others that are released at the same condition."""
        rows, meets = at.ready(cohort), at.condition.meets and self.groups is None
        if rows.all() and not (meets and self.blocked):
            at.go_on(cohort)
            return True
        self.blocked.append((cohort, at))
        if rows.any():
            same = [b for b in self.blocked if b[0] is cohort or (meets and b[1].condition is at.condition)]
            self.replace(self.wake(same))
        return False

    def wake(self, blocked: list[tuple[Cohort, WaitInstr]]) -> list[Cohort]:
        """The cohorts of these that can go on now, merged by instruction if there is no seed."""
        self.blocked = [entry for entry in self.blocked if entry not in blocked]
        together: dict[Any, list[Cohort]] = {}  # merged are those whose condition depends on their being together
        for cohort, at in blocked:
            together.setdefault((at, None if at.condition.gathers else cohort), []).append(cohort)
        leaving: dict[WaitInstr, list[Cohort]] = {}
        for (at, _), cohorts in together.items():
            cohort = merge(cohorts, self.chunk.run.fills)
            rows = at.ready(cohort)
            if rows.any():
                leaving.setdefault(at, []).append(cohort if rows.all() else cohort.select(rows))
            if not rows.all():
                self.blocked.append((cohort.select(~rows) if rows.any() else cohort, at))
        merged = [(cohort, at) for at, cohorts in leaving.items() for cohort in self.leave(cohorts, at)]
        for cohort, at in merged:
            at.go_on(cohort)
        return [cohort for cohort, _ in merged]

    def leave(self, cohorts: list[Cohort], at: WaitInstr) -> list[Cohort]:
        """How those move on that go on at one instruction."""
        if self.groups is None:
            return [merge(cohorts, self.chunk.run.fills)]
        if not at.condition.gathers:
            return cohorts
        return [part for cohort in cohorts for part in self.parts(cohort, WARPGROUP_WARPS)]

    def parts(self, cohort: Cohort, unit: int) -> list[Cohort]:
        """With a seed, units of so many neighbouring warps are on their own."""
        return [cohort] if self.groups is None else parts(cohort, self.groups[cohort.blocks - self.chunk.first], unit)

    def finish(self, cohort: Cohort) -> None:
        self.finished += cohort.shape[0] * cohort.shape[1]
        blocks, warps, _ = cohort.active_warps()
        self.chunk.hook.on_exit(blocks, warps)
        self.chunk.end(blocks - self.chunk.first)
        self.turns.idle = 0

    # -- when nothing runs ---------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.finished == self.chunk.count * self.chunk.warps

    def go_on(self) -> bool:
        """Let those go on that wait, if need be by letting asynchronous copies arrive."""
        leaving = self.wake_first(deliver=False) or self.wake_first(deliver=True)
        for cohort in leaving:
            self.enqueue(cohort)
        return bool(leaving)

    def wake_first(self, deliver: bool) -> list[Cohort]:
        """The cohorts of the first of those that wait who can go on. deliver: copies that they need arrive before."""
        for blocked in self.waiting():
            for cohort, at in blocked if deliver else ():
                at.condition.wanted(cohort, at.op, *at.values(cohort))
            if leaving := self.wake(blocked):
                return leaving
        return []

    def waiting(self) -> list[list[tuple[Cohort, WaitInstr]]]:
        """Those that are woken together: all, or with a seed in random order one after the other, but for warps that
        go on together."""
        chances = self.turns.chances
        if chances is None:
            return [self.blocked]
        together: dict[Any, list[tuple[Cohort, WaitInstr]]] = {}
        for cohort, at in self.blocked:
            together.setdefault(at if at.condition.gathers else cohort, []).append((cohort, at))
        return chances.shuffled([*together.values()])

    # -- by chance -----------------------------------------------------------------------------

    def run(self, cohort: Cohort, chances: Chances) -> None:
        """Let it run until it gives way or is preempted; before that, copies may arrive and others be woken."""
        if chances.happens(chances.early):
            self.chunk.copies.arrive("mbarrier", lambda copy: chances.some(len(copy.waits)))
        if self.blocked and chances.happens(chances.eager):
            for other in self.wake(self.waiting()[0]):
                self.enqueue(other)
        code, left = self.code, chances.turn()
        while code[cohort.pc].step(cohort, self):
            left -= 1
            if left <= 0 and not code[cohort.pc - 1].binds:
                return self.begin(cohort)

    def require_progress(self) -> None:
        """Raises HazardError if all cohorts wait for ever."""
        if self.ready or self.go_on() or not self.blocked:
            return
        described = self.describe()
        raise HazardError(
            "deadlock: these warps wait for ever\n  " + "\n  ".join(line for line, _ in described),
            self.blocked[0][1].op.loc,
            "let each of them get what it waits for: count the arrivals and bytes of every phase, and the phases; let "
            "all threads of a block execute the same barriers",
            code="T401",
            sides=sides_of(described),
        )

    def describe(self) -> list[Described]:
        """For one block with warps that wait: which of its warps wait where, and what the others do; as lines of text,
        and those that wait as data."""
        if not self.blocked:
            return []
        block = int(self.blocked[0][0].blocks[0])
        launch = self.chunk.run.launch
        name, absent = f"{launch.block_name(block)}: ", set(range(self.chunk.warps))
        waiting: dict[tuple[Op, str], list[int]] = {}
        for cohort, at in self.blocked:
            if block not in cohort.blocks:
                continue
            mine = cohort.select(np.broadcast_to((cohort.blocks == block)[:, None], cohort.shape[:2]))
            warps = sorted(warps_of(mine, block))
            absent.difference_update(warps)
            missing = at.condition.missing(mine, at.op, *at.values(mine))
            waiting.setdefault((at.op, missing), []).extend(warps)
        lines: list[Described] = []
        for (op, missing), warps in waiting.items():
            who, role = name_warps(sorted(warps), "waits", "wait"), self.role(sorted(warps))
            of_role = "" if role is None else f" (the role at line {role.line})"
            who_, index = who.rpartition(" ")[0], launch.block_index(block)
            side = Side(op.loc, op.name, who_, f"waits for {missing}", index, None, (*warps,), role, launch.rank)
            lines.append((f"{name}{who}{of_role} at {op.loc} for {missing}", side))
        running = {w for c in self.turns.queue if c.chunk is self.chunk for w in warps_of(c, block)} & absent
        others = (running, "still runs", "still run"), (absent - running, "has ended", "have ended")
        rest = [(sorted(warps), one, several) for warps, one, several in others if warps]
        return lines + [(name + name_warps(warps, one, several), None) for warps, one, several in rest]

    def role(self, warps: Sequence[int]) -> Loc | None:
        return role_of(self.chunk.run.roles, warps)

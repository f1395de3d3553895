"""Instructions of the linear code: plain ops, and what structured control flow becomes.

When the lanes of a condition differ, both sides run under a mask. A *blocking* region (see `program`) is first split
by warps, so that a warp that waits does not stop the others; only warps whose own lanes differ then run it under a
mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Sequence

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort, Mask, blend
from tiledsl.backends.emulator.hooks import Bools
from tiledsl.backends.emulator.repeats import visit
from tiledsl.backends.emulator.rules.registry import Rule
from tiledsl.backends.emulator.schedule import PATIENCE, Instr, Schedule
from tiledsl.ir.core import Op

ALL: Final = "all"
NONE: Final = "none"
SPLIT: Final = "split"


@dataclass(slots=True, eq=False)
class OpInstr(Instr):
    """An op with a rule: reads registers `srcs`, writes `dsts`."""

    rule: Rule
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]

    def step(self, c: Cohort, s: Schedule) -> bool:
        regs = c.regs
        result = self.rule(c, self.op, *map(regs.__getitem__, self.srcs))
        dsts = self.dsts
        if len(dsts) == 1:
            regs[dsts[0]] = result
        elif dsts:
            for register, value in zip(dsts, result, strict=True):
                regs[register] = value
        return self.advance(c)


@dataclass(slots=True, eq=False)
class ReturnInstr(Instr):
    def step(self, c: Cohort, s: Schedule) -> bool:
        s.finish(c)
        return False


def _read(c: Cohort, registers: Sequence[int]) -> list[Any]:
    return [c.regs[r] for r in registers]


def _write(c: Cohort, registers: Sequence[int], values: Sequence[Any], mask: Mask = None) -> None:
    for register, value in zip(registers, values, strict=True):
        c.regs[register] = blend(mask, value, c.regs[register])


def _decide(c: Cohort, s: Schedule, condition: Any, blocking: bool) -> str | tuple[Any, Any]:
    """Whether all or no active lane has the condition; else the masks of those that do and do not.

    SPLIT: the warps of a blocking region differed, and cohorts that agree have taken this one's place.
    """
    if np.ndim(condition) == 0:
        return ALL if condition else NONE
    yes = condition if c.mask is None else condition & c.mask
    if not yes.any():
        return NONE
    no = ~condition if c.mask is None else ~condition & c.mask
    if not no.any():
        return ALL
    if blocking:
        some_yes: Bools = np.any(c.spread(yes), axis=2)
        some_no: Bools = np.any(c.spread(no), axis=2)
        classes: list[Bools] = [some_yes & ~some_no, ~some_yes, some_yes & some_no]
        parts = [c.select(rows) for rows in classes if rows.any()]
        if len(parts) > 1:
            s.replace(parts)
            return SPLIT
    return yes, no


# -- if --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class IfBegin(Instr):
    """`saved`: the mask outside. `pending`: the lanes that still have to run the else block."""

    condition: int
    saved: int
    pending: int
    blocking: bool
    else_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        decision = _decide(c, s, c.regs[self.condition], self.blocking)
        if decision is SPLIT:
            return False
        regs = c.regs
        regs[self.saved] = c.mask
        regs[self.pending] = None
        if decision is NONE:
            return self.advance(c, self.else_pc)
        if isinstance(decision, tuple):
            c.mask, regs[self.pending] = decision
        return self.advance(c)


@dataclass(slots=True, eq=False)
class IfEnd(Instr):
    """Ends either block; the then block may have written the results of other lanes. Those that are pending go on
    with the else block, which is next."""

    yields: tuple[int, ...]
    results: tuple[int, ...]
    pending: int
    join_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        _write(c, self.results, _read(c, self.yields), c.mask)
        pending, c.regs[self.pending] = c.regs[self.pending], None
        if pending is None:
            return self.advance(c, self.join_pc)
        c.mask = pending
        return self.advance(c)


@dataclass(slots=True, eq=False)
class Join(Instr):
    """After an if or a loop: the mask outside is restored; cohorts that a blocking region split may merge."""

    saved: int
    blocking: bool

    def step(self, c: Cohort, s: Schedule) -> bool:
        c.mask = c.regs[self.saved]
        self.advance(c)
        return not (self.blocking and s.rejoin(c))


# -- loops -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class LoopBegin(Instr):
    """`carried`: what an iteration begins with. `saved`: the mask outside."""

    inits: tuple[int, ...]
    carried: tuple[int, ...]
    saved: int

    def step(self, c: Cohort, s: Schedule) -> bool:
        _write(c, self.carried, _read(c, self.inits))
        c.regs[self.saved] = c.mask
        return self.advance(c)


@dataclass(slots=True, eq=False)
class LoopTest(Instr):
    """Lanes leave with the values, `passed`, that they had when the condition turned false; the others go on with them
    as `arguments`. `waits`: the loop may wait for what another warp writes. Leaving it is a change, unless it is only
    a part of an iteration of a loop that waits, too."""

    condition: int
    passed: tuple[int, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    blocking: bool
    waits: bool
    exit_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        decision = _decide(c, s, c.regs[self.condition], self.blocking)
        if decision is SPLIT:
            return False
        values = _read(c, self.passed)
        if decision is NONE:
            _write(c, self.results, values, c.mask)
            c.visits.pop(self.op, None)
            if self.waits and self.exit_pc not in s.loops.waiting:
                s.turns.idle = 0
                s.turns.changes.count += 1
            return self.advance(c, self.exit_pc)
        if isinstance(decision, tuple):
            c.mask, leaving = decision
            _write(c, self.results, values, leaving)
        _write(c, self.arguments, values)
        return self.advance(c)


@dataclass(slots=True, eq=False)
class LoopNext(Instr):
    """Go back to the head. `waits`: as above; then it is idle. `spins`: it then gives way to others, too.
    `deciding`: of a loop that changes nothing (`waiting_loops`), the registers that it decides by; else None."""

    yields: tuple[int, ...]
    carried: tuple[int, ...]
    saved: int
    head_pc: int
    waits: bool
    spins: bool
    deciding: tuple[int, ...] | None

    def step(self, c: Cohort, s: Schedule) -> bool:
        _write(c, self.carried, _read(c, self.yields), None if c.mask is c.regs[self.saved] else c.mask)
        self.advance(c, self.head_pc)
        s.turns.idle += self.waits
        s.turns.spend(self.op.loc, s.chunk)
        if self.deciding is not None and s.turns.idle > PATIENCE:
            visit(c, self.op, _read(c, self.deciding))
        return not (self.spins and s.give_way(c))


def begin_counting(c: Cohort, op: Op, lo: Any, hi: Any, step: Any) -> tuple[Any, Any]:
    """The induction variable and the trips, as `count_down` takes them. Trips that are left are counted; the induction
    variable, which may wrap at the end, is not compared."""
    return np.subtract(lo, step), _trip_count(lo, hi, step) + 1


def count_down(c: Cohort, op: Op, induction: Any, step: Any, trips: Any) -> tuple[Any, Any, Any]:
    """The induction variable of the next iteration, the trips that are left, and whether there is one."""
    return np.add(induction, step), trips - 1, trips > 1


def _trip_count(lo: Any, hi: Any, step: Any) -> Any:
    """How often ``range(lo, hi, step)`` iterates, 0 for a step of 0: a Python int if the same for all lanes, else an
    array."""
    if np.ndim(lo) == 0 and np.ndim(hi) == 0 and np.ndim(step) == 0:
        return len(range(int(lo), int(hi), int(step))) if step else 0
    start, end, by = (np.asarray(v, np.int64) for v in (lo, hi, step))
    up, size = by > 0, np.maximum(np.abs(by).astype(np.uint64), np.uint64(1))
    span: Any = np.where(up, end - start, start - end).astype(np.uint64)  # right where there are iterations
    some: Any = np.where(up, start < end, (start > end) & (by < 0))
    return np.where(some, (span - np.uint64(1)) // size + np.uint64(1), np.uint64(0))

"""Instructions of the linear code: plain ops, and what structured control flow becomes (`control_waits`: the others).

``step(cohort)`` executes one instruction and says whether the cohort goes on (True) or has given way to
the scheduler (False). When the lanes of a condition differ, both sides run under a mask. A *blocking*
region (see `program`) is first split by warps, so that a warp that waits does not stop the others; only
warps whose own lanes differ then run it under a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort, Mask, blend
from tiledsl.backends.emulator.rules.registry import Rule
from tiledsl.backends.emulator.schedule import Schedule
from tiledsl.ir.core import Op

__all__ = [
    "ForBegin",
    "ForNext",
    "ForTest",
    "IfBegin",
    "IfElse",
    "IfEnd",
    "Instr",
    "Join",
    "OpInstr",
    "WhileBegin",
    "WhileNext",
    "WhileTest",
]

Rows = NDArray[np.bool_]

ALL: Final = "all"
NONE: Final = "none"
SPLIT: Final = "split"


@dataclass(slots=True, eq=False)
class Instr:
    """`op`: where it came from. `free`: registers that nothing reads after it."""

    op: Op
    free: list[int] = field(default_factory=list[int], kw_only=True)

    def step(self, c: Cohort, s: Schedule) -> bool:
        raise NotImplementedError

    def release(self, c: Cohort) -> None:
        for register in self.free:
            c.regs[register] = None


@dataclass(slots=True, eq=False)
class OpInstr(Instr):
    """An op with a rule: reads registers `srcs`, writes `dsts`."""

    rule: Rule
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]

    def step(self, c: Cohort, s: Schedule) -> bool:
        regs = c.regs
        result = self.rule(c, self.op, *[regs[s] for s in self.srcs])
        dsts = self.dsts
        if len(dsts) == 1:
            regs[dsts[0]] = result
        elif dsts:
            for register, value in zip(dsts, result, strict=True):
                regs[register] = value
        for register in self.free:
            regs[register] = None
        c.pc += 1
        return True


def _read(c: Cohort, registers: Sequence[int]) -> list[Any]:
    return [c.regs[r] for r in registers]


def _write(c: Cohort, registers: Sequence[int], values: Sequence[Any]) -> None:
    for register, value in zip(registers, values, strict=True):
        c.regs[register] = value


def _blend_into(c: Cohort, mask: Mask, registers: Sequence[int], values: Sequence[Any]) -> None:
    for register, value in zip(registers, values, strict=True):
        c.regs[register] = blend(mask, value, c.regs[register])


def _decide(c: Cohort, s: Schedule, condition: Any, blocking: bool) -> str | tuple[Any, Any]:
    """Whether all or no active lane has the condition; else the masks of those that do and do not.

    SPLIT: the warps of a blocking region differed, and cohorts that agree have taken this one's place.
    """
    if np.ndim(condition) == 0:
        return ALL if condition else NONE
    if c.mask is None:
        if condition.all():
            return ALL
        if not condition.any():
            return NONE
        yes, no = condition, ~condition
    else:
        yes = condition & c.mask
        if not yes.any():
            return NONE
        no = ~condition & c.mask
        if not no.any():
            return ALL
    if blocking:
        some_yes: Rows = np.any(c.spread(yes), axis=2)
        some_no: Rows = np.any(c.spread(no), axis=2)
        classes: list[Rows] = [some_yes & ~some_no, ~some_yes, some_yes & some_no]
        parts = [c.select(rows) for rows in classes if rows.any()]
        if len(parts) > 1:
            s.replace(parts)
            return SPLIT
    return yes, no


# -- if --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class IfBegin(Instr):
    """`saved`: the mask outside. `pending`: the lanes that still have to run the else block.

    `from_then`: the lanes whose results the then block has already written.
    """

    condition: int
    saved: int
    pending: int
    from_then: int
    blocking: bool
    else_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        decision = _decide(c, s, c.regs[self.condition], self.blocking)
        if decision is SPLIT:
            return False
        regs = c.regs
        regs[self.saved] = c.mask
        regs[self.pending] = regs[self.from_then] = None
        if decision is NONE:
            c.pc = self.else_pc
            return True
        if isinstance(decision, tuple):
            c.mask, regs[self.pending] = decision
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class IfElse(Instr):
    """Ends the then block."""

    yields: tuple[int, ...]
    results: tuple[int, ...]
    pending: int
    from_then: int
    join_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        _write(c, self.results, _read(c, self.yields))
        self.release(c)
        if c.regs[self.pending] is None:
            c.pc = self.join_pc
            return True
        c.regs[self.from_then] = c.mask
        c.mask = c.regs[self.pending]
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class IfEnd(Instr):
    """Ends the else block."""

    yields: tuple[int, ...]
    results: tuple[int, ...]
    from_then: int

    def step(self, c: Cohort, s: Schedule) -> bool:
        values = _read(c, self.yields)
        from_then = c.regs[self.from_then]
        if from_then is None:
            _write(c, self.results, values)
        else:
            _write(c, self.results, [blend(from_then, c.regs[r], v) for r, v in zip(self.results, values, strict=True)])
        self.release(c)
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class Join(Instr):
    """After an if or a loop: the mask outside is restored; cohorts that a blocking region split may merge."""

    saved: int
    scratch: tuple[int, ...]
    blocking: bool

    def step(self, c: Cohort, s: Schedule) -> bool:
        c.mask = c.regs[self.saved]
        for register in self.scratch:
            c.regs[register] = None
        self.release(c)
        c.pc += 1
        return not (self.blocking and s.give_way(c))


# -- for -------------------------------------------------------------------------------------------


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


@dataclass(slots=True, eq=False)
class ForBegin(Instr):
    """Counts trips rather than comparing the induction variable, which therefore may wrap at the end."""

    bounds: tuple[int, int, int]
    inits: tuple[int, ...]
    induction: int
    carried: tuple[int, ...]
    saved: int
    count: int
    trips: int

    def step(self, c: Cohort, s: Schedule) -> bool:
        lo, hi, step = _read(c, self.bounds)
        inits = _read(c, self.inits)
        regs = c.regs
        regs[self.trips] = _trip_count(lo, hi, step)
        regs[self.count] = 0
        regs[self.saved] = c.mask
        regs[self.induction] = lo
        _write(c, self.carried, inits)
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class ForTest(Instr):
    carried: tuple[int, ...]
    results: tuple[int, ...]
    count: int
    trips: int
    blocking: bool
    spins: bool
    exit_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        more = c.regs[self.count] < c.regs[self.trips]
        decision = _decide(c, s, more, self.blocking)
        if decision is SPLIT:
            return False
        if decision is NONE:
            _write(c, self.results, _read(c, self.carried))
            if self.spins:
                s.turns.idle = 0
            c.pc = self.exit_pc
            return True
        if isinstance(decision, tuple):
            c.mask = decision[0]
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class ForNext(Instr):
    """Goes back to the test. `spins`: as for `WhileNext`; such a loop ends by itself, but gives way as often."""

    yields: tuple[int, ...]
    carried: tuple[int, ...]
    induction: int
    increment: int
    saved: int
    count: int
    test_pc: int
    spins: bool

    def step(self, c: Cohort, s: Schedule) -> bool:
        values = _read(c, self.yields)
        regs = c.regs
        if c.mask is regs[self.saved]:
            _write(c, self.carried, values)
        else:
            _blend_into(c, c.mask, self.carried, values)
        regs[self.count] = regs[self.count] + 1
        regs[self.induction] = np.add(regs[self.induction], regs[self.increment])
        self.release(c)
        s.turns.iterate(self.op)
        c.pc = self.test_pc
        s.turns.idle += self.spins
        return not (self.spins and s.give_way(c))


# -- while -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WhileBegin(Instr):
    inits: tuple[int, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    saved: int

    def step(self, c: Cohort, s: Schedule) -> bool:
        _write(c, self.arguments, _read(c, self.inits))
        for register in self.results:
            c.regs[register] = None
        c.regs[self.saved] = c.mask
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class WhileTest(Instr):
    """Ends the first block. Lanes leave with the values they had when the condition turned false."""

    condition: int
    passed: tuple[int, ...]
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    blocking: bool
    exit_pc: int = -1

    def step(self, c: Cohort, s: Schedule) -> bool:
        decision = _decide(c, s, c.regs[self.condition], self.blocking)
        if decision is SPLIT:
            return False
        values = _read(c, self.passed)
        if decision is NONE:
            _blend_into(c, c.mask, self.results, values)
            s.turns.idle = 0
        elif isinstance(decision, tuple):
            c.mask, leaving = decision
            _blend_into(c, leaving, self.results, values)
            _write(c, self.arguments, values)
        else:
            _write(c, self.arguments, values)
        self.release(c)
        c.pc = self.exit_pc if decision is NONE else c.pc + 1
        return True


@dataclass(slots=True, eq=False)
class WhileNext(Instr):
    """Goes back to the test. `spins`: the loop may wait for what another warp writes, so it gives way."""

    yields: tuple[int, ...]
    arguments: tuple[int, ...]
    saved: int
    head_pc: int
    spins: bool

    def step(self, c: Cohort, s: Schedule) -> bool:
        values = _read(c, self.yields)
        if c.mask is c.regs[self.saved]:
            _write(c, self.arguments, values)
        else:
            _blend_into(c, c.mask, self.arguments, values)
        self.release(c)
        c.pc = self.head_pc
        s.turns.iterate(self.op, idle=True)
        return not (self.spins and s.give_way(c))

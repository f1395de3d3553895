"""Which lines of a kernel no thread executed: of these a check says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.control import IfBegin, IfEnd, Join, LoopBegin, LoopTest
from tiledsl.backends.emulator.program import Program
from tiledsl.backends.emulator.schedule import Instr, Schedule
from tiledsl.errors import Loc


@dataclass(slots=True, eq=False)
class _Watched(Instr):
    """An instruction that chooses what comes next. `ran`: gets where cohorts went."""

    inner: Instr
    ran: set[int]

    def step(self, c: Cohort, s: Schedule) -> bool:
        goes_on = self.inner.step(c, s)
        self.ran.add(c.pc)
        return goes_on


def watched(program: Program, ran: set[int]) -> Program:
    """The program, which adds to `ran` the first instructions of the blocks that cohorts enter."""
    branches = IfBegin, IfEnd, LoopTest
    return replace(
        program, code=[_Watched(i.op, i, ran, free=i.free) if isinstance(i, branches) else i for i in program.code]
    )


Regions = dict[int, dict[tuple[str, int], Loc]]
"""By the first instruction of a block of the kernel: its lines, with a location in each."""


def entries(program: Program) -> Iterator[tuple[int, Instr]]:
    """Each instruction with the first one of its block of the kernel: it runs if that one does."""
    begins = {0}
    entered, around = 0, list[int]()
    for pc, instr in enumerate(program.code):
        if isinstance(instr, Join):
            entered = around.pop()
        elif pc in begins:
            entered = pc
        yield entered, instr
        if isinstance(instr, (IfBegin, LoopBegin)):
            around.append(entered)
        if isinstance(instr, IfBegin):
            begins |= {pc + 1, instr.else_pc}
        elif isinstance(instr, LoopTest):
            begins.add(pc + 1)


def regions(program: Program) -> Regions:
    """What runs if its first instruction does; without the blocks inside."""
    found: Regions = {0: {}}
    for entered, instr in entries(program):
        loc = instr.op.loc
        lines = found.setdefault(entered, {})
        if loc.line:
            lines.setdefault((loc.file, loc.line), loc)
    return found


def not_run(programs: Iterable[tuple[Regions, set[int]]]) -> list[Loc]:
    """Lines of which no op was executed, in order: one location each. programs: those that ran, each with the blocks
    that cohorts have entered."""
    lines, left = set[tuple[str, int]](), dict[tuple[str, int], Loc]()
    for regions, ran in programs:
        executed = {0, *ran}
        lines.update(*(lines for entry, lines in regions.items() if entry in executed))
        left |= {line: loc for entry, each in regions.items() if entry not in executed for line, loc in each.items()}
    return [left[line] for line in sorted(left.keys() - lines)]

"""Which lines of a kernel no thread executed: of these a check says nothing."""

from __future__ import annotations

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


def not_run(program: Program, ran: set[int]) -> list[Loc]:
    """Lines of which no op was executed, in order: one location each."""
    runs, around, entered = True, list[bool](), set[int]()
    lines: dict[bool, dict[tuple[str, int], Loc]] = {True: {}, False: {}}
    for pc, instr in enumerate(program.code):
        if isinstance(instr, Join):
            runs = around.pop()
        elif pc in entered:
            runs = pc in ran
        loc = instr.op.loc
        lines[runs].setdefault((loc.file, loc.line), loc)
        if isinstance(instr, (IfBegin, LoopBegin)):
            around.append(runs)
        if isinstance(instr, IfBegin):
            entered |= {pc + 1, instr.else_pc}
        elif isinstance(instr, LoopTest):
            entered.add(pc + 1)
    left = [loc for line, loc in lines[False].items() if line[1] and line not in lines[True]]
    return sorted(left, key=lambda loc: (loc.file, loc.line))

"""Instructions at which a cohort may have to wait, and the last one."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.control import Instr
from tiledsl.backends.emulator.schedule import Schedule
from tiledsl.backends.emulator.waiting import Wait

__all__ = ["BarrierInstr", "ReturnInstr", "WaitInstr"]


@dataclass(slots=True, eq=False)
class BarrierInstr(Instr):
    def step(self, c: Cohort, s: Schedule) -> bool:
        return s.arrive(c, self.op)


@dataclass(slots=True, eq=False)
class WaitInstr(Instr):
    """Lets those warps go on for which a condition holds."""

    wait: Wait

    def step(self, c: Cohort, s: Schedule) -> bool:
        if not s.wait(c, self.wait):
            return False
        self.release(c)
        c.pc += 1
        return True


@dataclass(slots=True, eq=False)
class ReturnInstr(Instr):
    def step(self, c: Cohort, s: Schedule) -> bool:
        s.finish(c)
        return False

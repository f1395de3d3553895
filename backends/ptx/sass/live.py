"""Which general registers hold a value that is still needed, at each instruction: a backward data flow.

An instruction's own results count at it, as in ``nvdisasm --print-life-ranges``: it is where both are held.
A result written under a predicate ends no earlier life, since the old value may stay. R1, the stack pointer, is
kept to the end. Calls go through the subroutines that ptxas adds.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.backends.ptx.sass.program import SassProgram

STACK = 1
"""The number of the stack pointer."""


def live_registers(program: SassProgram) -> list[int]:
    """Those of each instruction of one function, as a mask with a bit for each register."""
    sasses = program.instructions
    reads = [_mask(s.operands.reads) for s in sasses]
    writes = [_mask(s.operands.writes) for s in sasses]
    ends = [0 if s.operands.conditional else w for s, w in zip(sasses, writes, strict=True)]
    before, last = [0] * len(sasses), None
    while before != last:  # backwards, so that only loops take more than one pass
        last = [*before]
        for i in reversed(range(len(sasses))):
            after = 0
            for t in program.call_edges[i]:
                after |= before[t]
            before[i] = reads[i] | (after & ~ends[i])
    kept = _mask([STACK]) if any(STACK in s.operands.writes for s in sasses) else 0
    return [b | w | kept for b, w in zip(before, writes, strict=True)]


def _mask(registers: Iterable[int]) -> int:
    return sum(1 << number for number in registers)

"""Which registers hold a value that is still needed, at each instruction: a backward data flow.

An instruction's own results count at it, as in ``nvdisasm --print-life-ranges``: it is where both are held.
A result written under a predicate ends no earlier life, since the old value may stay. R1, the stack pointer, is
kept to the end. Calls go through the subroutines that ptxas adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.backends.ptx.sass.operands import Register
from tiledsl.backends.ptx.sass.program import SassProgram

PLACE = {"R": (0, 256), "UR": (256, 64), "P": (320, 8), "UP": (328, 8)}
"""Bits of a mask: first one and how many, by register file."""


STACK = Register("R", 1)


@dataclass(frozen=True)
class Liveness:
    """`masks`: a bit a register, for each instruction."""

    masks: tuple[int, ...]

    def count(self, place: int) -> int:
        """How many general registers."""
        return _part(self.masks[place], "R").bit_count()

    def registers(self, place: int, file: str = "R") -> tuple[int, ...]:
        """Their numbers, in order."""
        part = _part(self.masks[place], file)
        return tuple(i for i in range(part.bit_length()) if part >> i & 1)

    def peak(self, places: Iterable[int] | None = None) -> tuple[int, int]:
        """(most general registers alive at once, the first instruction where they are), over `places` or the whole."""
        chosen = range(len(self.masks)) if places is None else places
        first = max(chosen, key=lambda place: (self.count(place), -place), default=None)
        return (0, 0) if first is None else (self.count(first), first)


def live_registers(program: SassProgram) -> Liveness:
    """Solve the data flow for one function."""
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
    return Liveness(tuple(b | w | kept for b, w in zip(before, writes, strict=True)))


def _mask(registers: Iterable[Register]) -> int:
    return sum(1 << PLACE[r.file][0] + r.number for r in registers)


def _part(mask: int, file: str) -> int:
    first, count = PLACE[file]
    return mask >> first & ((1 << count) - 1)

"""Control codes: what the assembler tells the scheduler in each instruction's high bits.

The hardware checks no hazards of its own: the stall count, six scoreboard barriers and the reuse flags in
the encoding are all that keeps an instruction from reading a register too early. From Volta on, an
instruction has 128 bits, and bits 105 to 125 are, from the lowest:

    stall 4 | yield 1 | write barrier 3 | read barrier 3 | wait mask 6 | reuse 4

Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (arXiv 1804.06826), chapter 2,
found them on Volta; tests hold them against nvdisasm and against the data flow of every target below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiledsl.errors import TileError

CAPABILITIES = (80, 86, 89, 90, 100, 120)
"""Compute capabilities, major * 10 + minor, whose fields are known to be these."""

SHIFT = 105
NO_BARRIER = 7
TARGET = re.compile(r"sm_(\d+)[af]?")


@dataclass(frozen=True, slots=True)
class Control:
    """stall: clocks before the warp's next instruction may issue. yields: the scheduler should turn to
    another warp then (its bit is stored inverted). write_barrier, read_barrier: the barrier, 0 to 5, that
    is released when the result is written or the sources are read, or None. waits: barriers that must be
    released before this issues. reuse: for the source operands a, b, c and d, whether the value stays in
    the operand cache.
    """

    stall: int
    yields: bool
    write_barrier: int | None
    read_barrier: int | None
    waits: frozenset[int]
    reuse: tuple[bool, bool, bool, bool]

    def __str__(self) -> str:
        """Such as ``B0-2---:R-:W3:Y:S04``: the notation of maxas, with waits, read, write, yield, stall."""
        waits = "".join(str(i) if i in self.waits else "-" for i in range(6))
        read, write = ("-" if b is None else str(b) for b in (self.read_barrier, self.write_barrier))
        return f"B{waits}:R{read}:W{write}:{'Y' if self.yields else '-'}:S{self.stall:02}"


def decode_control(encoding: int) -> Control:
    """The control code of an instruction's 128 bits."""
    code = encoding >> SHIFT
    write, read, wait, reuse = code >> 5 & 7, code >> 8 & 7, code >> 11 & 63, code >> 17 & 15
    return Control(
        stall=code & 15,
        yields=not code >> 4 & 1,
        write_barrier=None if write == NO_BARRIER else write,
        read_barrier=None if read == NO_BARRIER else read,
        waits=frozenset(i for i in range(6) if wait >> i & 1),
        reuse=(bool(reuse & 1), bool(reuse & 2), bool(reuse & 4), bool(reuse & 8)),
    )


def check_target(target: str) -> int:
    """The compute capability of a target such as "sm_90a", as 90. TileError if its encoding is not known."""
    found = TARGET.fullmatch(target)
    if found is None or int(found[1]) not in CAPABILITIES:
        known = ", ".join(f"sm_{c}" for c in CAPABILITIES)
        raise TileError(
            f"cannot read the SASS of {target or 'an unnamed target'}: its encoding is not known here\n"
            f"  fix: compile for one of {known}"
        )
    return int(found[1])

"""Operands of SASS instructions: which general registers each one reads and writes, and how many at each place.

nvdisasm's text names the first register of a vector; how many follow is in the opcode: ``LDS.128 R4`` writes
R4 to R7, ``DFMA`` reads pairs, ``HMMA.16816.F32`` takes 4, 2 and 4. The tables below are checked against the
life ranges that ``nvdisasm --print-life-ranges`` prints, over the kernels of the tests.

An opcode that no table knows is decoded as far as its text goes, and marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Callable

from tiledsl.arch import WARP
from tiledsl.backends.ptx.sass.opcodes import CLASS, names


@dataclass(frozen=True)
class Operands:
    """The general registers of one instruction, by number.

    results, sources: those of each operand, in order; none for constants, predicates and uniform registers. known:
    every register is accounted for; if not, `reads` and `writes` may miss some. conditional: it may not run, so that
    what it writes may keep its old value. never: it does not run (``@!PT``), and only takes its slot.
    """

    opcode: str
    results: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...]
    conditional: bool
    known: bool
    never: bool = False

    @cached_property
    def reads(self) -> frozenset[int]:
        return frozenset[int]().union(*self.sources)

    @cached_property
    def writes(self) -> frozenset[int]:
        return frozenset[int]().union(*self.results)


Mods = tuple[str, ...]
Widths = tuple[int, ...]
"""Registers of the result, and of each source by its place (the last one goes for the rest)."""
ONE: Widths = (1, 1)
INTEGERS, FLOATS = frozenset({"S64", "U64"}), frozenset({"F64"})

GUARD = re.compile(r"@(!?)U?P(\d|T)\s+")
BARE = re.compile(r"[-~!|]*(UR|UP|R|P)(\d+|Z|T)(?![\w\[])")
REGISTER = re.compile(r"(?<![\w.$])R(\d+)(\.64|\.U32)?(?!\w)")
COMMA = re.compile(r",(?![^\[({]*[\])}])")
"""Between operands, not inside of brackets."""
SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")
SHORT_SHAPE = re.compile(r"(16|8)8(\d+)")

TESTS = ("SETP", "SETP2", "PLOP3", "FCHK")
"""Ends of opcodes whose results are predicates: two, of FCHK one."""
CARRY_OUT = frozenset({"IADD", "IADD3", "IMAD", "LEA", "LOP3", "VOTE"})
"""Opcodes with predicate results behind the register result."""

NO_RESULT = names(
    """
    ACQBULK ARRIVES BAR BPT BRA BREAK BRX BSSY BSYNC CALL CCTL CCTLL CGAERRBAR DEPBAR ENDCOLLECTIVE ERRBAR EXIT FENCE
    JMP KILL LDGDEPBAR LDGSTS MEMBAR NANOSLEEP NOP PMTRIG PREEXIT RED REDG REDS RET ST STG STL STS STSM UBLKCP
    UCGABAR_ARV UCGABAR_WAIT USETMAXREG UTMACCTL UTMACMDFLUSH UTMALDG UTMASTG WARPGROUP WARPSYNC YIELD
    """
)
GLOBAL = frozenset({"ATOM", "ATOMG", "CCTL", "LD", "LDG", "LDGSTS", "RED", "REDG", "ST", "STG"})
"""Opcodes with 64-bit addresses."""


TWO_WORDS = {"64", "F64", "S64", "U64"}


def _words(mods: Iterable[str]) -> int:
    """Words of a value that modifiers tell the size of: what a memory access moves, a 64-bit integer or float."""
    return 4 if "128" in mods else 2 if TWO_WORDS.intersection(mods) else 1


def _sized(mods: Mods) -> Widths:
    return _words(mods), _words(mods)


def _transaction_barrier(mods: Mods) -> Widths:
    """An arrival gives the state of the barrier, 64 bits, and takes a count."""
    return (2, 1) if "ARRIVE" in mods else _sized(mods)


def _matrix_move(mods: Mods) -> Widths:
    words = int(mods[-1]) if mods[-1] in ("2", "4") else 1
    return words, words


def _pairs(mods: Mods) -> Widths:
    """Also code addresses, which have 64 bits."""
    return 2, 2


def _multiply(mods: Mods) -> Widths:
    if "HI" in mods:
        return 1, 1, 1, 2
    return (2, 1, 1, 2) if "WIDE" in mods else ONE


def _to_integer(mods: Mods) -> Widths:
    return _words(INTEGERS.intersection(mods)), _words(FLOATS.intersection(mods))


def _from_integer(mods: Mods) -> Widths:
    return _to_integer(mods)[::-1]


def _float_to_float(mods: Mods) -> Widths:
    """The types stand as result, source."""
    types = [m for m in mods if m in ("F64", "F32", "F16", "BF16", "TF32")]
    result, source = [*types, "F32", "F32"][:2]
    return _words([result]), _words([source])


def _counter(mods: Mods) -> Widths:
    return ONE if "32" in mods else (2, 1)


def _mma(bits: int, accumulator: int) -> Callable[[Mods], Widths]:
    """A warp-wide product of m x n x k elements of `bits`; the mantissa of `accumulator` is in bits."""

    def rule(mods: Mods) -> Widths:
        shape = mma_shape(mods)
        if shape is None:
            return ONE
        m, n, k = shape
        width = 32 if "TF32" in mods else 4 if {"S4", "U4"} & set(mods) else bits
        held = 16 if accumulator == 32 and mods[1] == "F16" else accumulator

        def words(count: int, size: int) -> int:
            return max(1, count * size // 32 // WARP)

        return words(m * n, held), words(m * k, width), words(n * k, width), words(m * n, held)

    return rule


def mma_shape(mods: Iterable[str]) -> tuple[int, int, int] | None:
    """m, n and k of a matrix instruction: ``16816`` is 16 x 8 x 16, ``884`` is 8 x 8 x 4, and newer opcodes write
    ``16x8x16``. None if no modifier says it."""
    for text in mods:
        if found := SHAPE.fullmatch(text):
            return int(found[1]), int(found[2]), int(found[3])
        if found := SHORT_SHAPE.fullmatch(text):
            return int(found[1]), 8, int(found[2])
    return None


def _wgmma(mods: Mods) -> Widths:
    """The accumulator of a warpgroup. A source A in registers, 64 rows of 32 bytes, has 4 words; where A is in
    shared memory, too, one descriptor operand stands for both, and the accumulator comes second."""
    shape = mma_shape(mods)
    if shape is None:
        return ONE
    words = shape[1] // (4 if mods[1] == "F16" else 2)
    return words, 4, words


RULES: dict[str, Callable[[Mods], Widths]] = {
    **dict.fromkeys(("LDG", "LDS", "LDL", "LD", "LDC", "LDCU", "ULDC", "STG", "STS", "STL", "ST"), _sized),
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDS", "FRND"), _sized),
    # From sm_100 on, integer instructions have 64-bit forms.
    **dict.fromkeys(("IADD", "IADD3", "ISETP", "IMNMX", "VIMNMX", "SEL", "MOV"), _sized),
    **dict.fromkeys(("LDSM", "STSM", "MOVM"), _matrix_move),
    **dict.fromkeys(("DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "FADD2", "FMUL2", "FFMA2"), _pairs),
    **dict.fromkeys(("RET", "BRX", "CALL", "LEPC", "JMX"), _pairs),
    "IMAD": _multiply,
    "F2F": _float_to_float,
    "F2I": _to_integer,
    "I2F": _from_integer,
    "CS2R": _counter,
    "SYNCS": _transaction_barrier,
    "HMMA": _mma(16, 32),
    "QMMA": _mma(8, 32),
    "IMMA": _mma(8, 32),
    "BMMA": _mma(1, 32),
    "DMMA": _mma(64, 64),
    "HGMMA": _wgmma,
    "IGMMA": _wgmma,
    "QGMMA": _wgmma,
}
"""Widths by opcode, from its modifiers; of all other opcodes every operand has one word."""

UNKNOWN_MODS = frozenset({"SP", "SF", "256", "ENL2"})
"""Sparse and scaled products and 32-byte accesses have operands that are not described here."""


def decode_operands(text: str) -> Operands:
    """Decode what nvdisasm wrote."""
    guard = GUARD.match(text)
    opcode, _, rest = text[guard.end() if guard else 0 :].rstrip("; \t").partition(" ")
    base, *modifiers = opcode.split(".")
    mods = tuple(modifiers)
    described = not UNKNOWN_MODS.intersection(mods)
    known = described and (base in RULES if CLASS.get(base) == "MMA" else base in CLASS)
    if guard is not None and guard[1] and guard[2] == "T":  # @!PT: a slot that must be filled
        return Operands(opcode, (), (), True, known, never=True)
    widths = RULES[base](mods) if described and base in RULES else ONE
    parts = [part.strip() for part in COMMA.split(rest) if part.strip()]
    results = _results(base, parts)
    operands: list[tuple[int, ...]] = []
    for number, part in enumerate(parts):
        width = widths[0 if number < results else min(number - results + 1, len(widths) - 1)]
        to_shared = base == "LDGSTS" and number == 0
        operands.append(_registers(part, width, 2 if base in GLOBAL and "E" in mods and not to_shared else 1))
    conditional = guard is not None and guard[2] != "T"
    return Operands(opcode, tuple(operands[:results]), tuple(operands[results:]), conditional, known)


def _results(base: str, parts: list[str]) -> int:
    """How many operands are results: the first ones."""
    if base in NO_RESULT:
        return 0
    if base == "VOTE":
        return len(parts) - 1
    if base.endswith(TESTS):
        return 1 if base == "FCHK" else 2
    files = [found[1] if (found := BARE.match(part)) else part for part in parts]
    kinds = "".join("p" if f in ("P", "UP") else "r" if f in ("R", "UR", "PR") else "-" for f in files)
    found = re.match("p*(rp*)?" if base in CARRY_OUT else "p*r?", kinds)
    return found.end() if found else 0


def _registers(part: str, width: int, address_width: int) -> tuple[int, ...]:
    """All registers that an operand stands for: of a value, `width` ones; of an address, what it says itself, or else
    `address_width` ones."""
    in_constants, in_memory = part.startswith(("c[", "cx[")), "[" in part
    registers: list[int] = []
    for first, size in REGISTER.findall(part):
        if in_constants:
            count = 1
        elif in_memory:
            count = (2 if size == ".64" else 1) if size else address_width
        else:
            count = width
        registers += range(int(first), int(first) + count)
    return tuple(registers)

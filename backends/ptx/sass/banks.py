"""Register banks and the operand cache of Volta and later, and what FFMAs cost there.

What is modelled, and where it is from:

- Two banks: even and odd register numbers. (Jia et al., arXiv 1804.06826, chapter 4.)
- The operand cache has one entry for each source slot (a, b, c) and bank. A reuse flag puts the operand into
  it. The next instruction of the warp that reads a register of that bank in that slot finds it there if it is
  the same register, and clears it unless it is flagged again; memory instructions pass it by. (Huerta et al.,
  "Dissecting and Modeling the Architecture of Modern GPU Cores", MICRO 2025, section 5.3.1.) ptxas counts on
  just this: `tests/unit/test_ptx_sass_banks.py` finds each of its flags served by this rule, and some of them by no
  simpler one. A switch of warps may lose entries: hits are an upper bound.
- **Conflict, 64-bit banks** (Volta, 16 fp32 lanes a scheduler: an FFMA takes two clocks, in which a bank delivers
  two operands): the three source registers are distinct, not in the cache, and all in one bank. (Jia et al.)
- **Reads, one register a bank and clock** (32 fp32 lanes a scheduler: sm_86 to sm_90 and later): an FFMA may issue
  every clock, but two banks deliver two operands, so three operands a clock need the cache. Whatever other warps do
  meanwhile, the reads of the busier bank are a bound. It was measured on Ampere (Huerta et al.); on Hopper it is not
  confirmed (docs/registers.md says what speaks against it), so take it to compare two loops, not as a forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.backends.ptx.sass.opcodes import names
from tiledsl.backends.ptx.sass.program import Sass

VARIABLE_LATENCY = names(
    """
    ATOM ATOMG ATOMS B2R BAR BMOV CCTL F2F F2I FLO FRND I2F LD LDC LDCU LDG LDGSTS LDL LDS LDSM MATCH MUFU POPC
    R2UR RED REDG REDUX S2R S2UR SHFL ST STG STL STS STSM SYNCS ULDC VOTE
    """
)
"""Instructions that take their operands on another way, outside of the operand cache."""


@dataclass(frozen=True, slots=True)
class Fma:
    """An instruction as the register file sees it. sources: the register of each slot, or None for a constant or
    nothing; reuse: its flags; results: the registers it writes. is_fma: it counts as an FFMA."""

    results: tuple[int, ...]
    sources: tuple[int | None, ...]
    reuse: tuple[bool, ...] = (False, False, False)
    is_fma: bool = True


@dataclass(frozen=True)
class BankCounts:
    """Sums over the FFMAs of a sequence; per slot where there are three.

    flags: reuse flags set. hits: operands that came from the operand cache. conflicts: FFMAs whose three sources
    lie in one 64-bit bank, `conflicts_with_reuse`: after the operand cache. bank_reads: operands read from the
    even and from the odd bank, after the operand cache, by all instructions. issued: all of these.
    """

    fmas: int
    issued: int
    flags: tuple[int, ...]
    hits: tuple[int, ...]
    conflicts: int
    conflicts_with_reuse: int
    bank_reads: tuple[int, ...]

    @property
    def reuse_rate(self) -> float:
        """Operands from the cache over all source operands of FFMAs."""
        return sum(self.hits) / (3 * self.fmas) if self.fmas else 0.0

    @property
    def rates(self) -> tuple[float, ...]:
        """The same for each slot."""
        return tuple(h / self.fmas if self.fmas else 0.0 for h in self.hits)

    @property
    def bound(self) -> int:
        """Clocks that, by the model, no interleaving of warps can beat: issue slots, and reads of the busier bank."""
        return max(self.issued, *self.bank_reads)


def fma_of(sass: Sass) -> Fma:
    """What the register file sees of an instruction."""
    operands = sass.operands
    results = tuple(sorted(operands.writes))
    if sass.base in VARIABLE_LATENCY:
        return Fma(results, (None, None, None), is_fma=False)
    sources = [registers[0] if registers else None for registers in (*operands.sources, (), (), ())[:3]]
    return Fma(results, tuple(sources), sass.control.reuse[:3], sass.base == "FFMA")


def served(sequence: Sequence[Fma], *, loop: bool = True) -> list[tuple[bool, ...]]:
    """Which operands come from the operand cache, by slot. `loop`: the sequence repeats, and its second iteration is
    looked at, so that what the last instruction flags serves the first one."""
    cache: dict[tuple[int, int], int] = {}
    hits: list[tuple[bool, ...]] = []
    for _ in range(2 if loop else 1):
        hits = [_pass(fma, cache) for fma in sequence]
    return hits


def _pass(fma: Fma, cache: dict[tuple[int, int], int]) -> tuple[bool, ...]:
    """One instruction through the cache, which it changes."""
    hit = [False, False, False]
    for slot, register in enumerate(fma.sources):
        if register is None:
            continue
        entry = slot, register % 2
        hit[slot] = cache.pop(entry, None) == register
        if fma.reuse[slot]:
            cache[entry] = register
    for entry in [e for e, held in cache.items() if held in fma.results]:
        del cache[entry]
    return tuple(hit)


def _reads(fma: Fma, hit: tuple[bool, ...]) -> set[int]:
    """Registers that must come from the register file: one that stands in two slots is read once."""
    return {r for r, cached in zip(fma.sources, hit, strict=True) if r is not None and not cached}


def _bank_counts(registers: Iterable[int]) -> tuple[int, int]:
    odd = [r % 2 for r in registers]
    return odd.count(0), odd.count(1)


def count_banks(sequence: Sequence[Fma], *, loop: bool = True) -> BankCounts:
    """All counts of a sequence of instructions, which repeats if it is a `loop`."""
    hits = served(sequence, loop=loop)
    pairs = list(zip(sequence, hits, strict=True))
    fmas = [(fma, hit) for fma, hit in pairs if fma.is_fma]
    reads = [_bank_counts(_reads(fma, hit)) for fma, hit in pairs]
    return BankCounts(
        fmas=len(fmas),
        issued=len(sequence),
        flags=tuple(sum(fma.reuse[slot] for fma, _ in fmas) for slot in range(3)),
        hits=tuple(sum(hit[slot] for _, hit in fmas) for slot in range(3)),
        conflicts=sum(_conflicts(fma, (False, False, False)) for fma, _ in fmas),
        conflicts_with_reuse=sum(_conflicts(fma, hit) for fma, hit in fmas),
        bank_reads=tuple(sum(each[bank] for each in reads) for bank in range(2)),
    )


def _conflicts(fma: Fma, hit: tuple[bool, ...]) -> bool:
    return max(_bank_counts(_reads(fma, hit))) > 2

"""Register banks of Maxwell, on an abstract list of FFMAs: four banks, the register number modulo 4.

Two source registers of one FFMA in one bank cost a clock. The operand cache holds two registers for each source slot
(8 bytes: maxas, wiki page SGEMM); an operand that is there is not read. Flags are taken as set well: a register
stays for as long as it is among the last two that its slot has read.

This is for one purpose: to check a register mapping and an order of FFMAs against maxas's published counts
(tests/unit/test_ptx_sass_maxwell.py), which then tell what an order of FFMAs can gain where registers can be chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.backends.ptx.sass.banks import Fma

__all__ = ["MaxwellCounts", "count_maxwell"]

BANKS = 4
ENTRIES = 2


@dataclass(frozen=True, slots=True)
class MaxwellCounts:
    """conflicts: FFMAs with two source registers in one bank; conflicts_with_reuse: after the operand cache.
    hits: operands found in the cache, of `reads`."""

    conflicts: int
    conflicts_with_reuse: int
    hits: int
    reads: int

    @property
    def reuse_rate(self) -> float:
        return self.hits / self.reads if self.reads else 0.0


def count_maxwell(fmas: Sequence[Fma], *, entries: int = ENTRIES) -> MaxwellCounts:
    """Counts of `fmas` in their order, from an empty cache of `entries` registers a slot."""
    cache: list[list[int]] = [[], [], []]
    conflicts = with_reuse = hits = reads = 0
    for fma in fmas:
        found = [r is not None and r in held for r, held in zip(fma.sources, cache, strict=True)]
        conflicts += _conflict(fma.sources)
        with_reuse += _conflict([None if hit else r for r, hit in zip(fma.sources, found, strict=True)])
        hits += sum(found)
        reads += sum(r is not None for r in fma.sources)
        for register, held in zip(fma.sources, cache, strict=True):
            if register is not None:
                held[:] = [*(r for r in held if r != register), register][-entries:]
        for held in cache:  # a register that is written is stale
            held[:] = [r for r in held if r not in fma.results]
    return MaxwellCounts(conflicts, with_reuse, hits, reads)


def _conflict(registers: Sequence[int | None]) -> bool:
    banks = [r % BANKS for r in {r for r in registers if r is not None}]
    return len(set(banks)) < len(banks)

"""maxas's register mapping and its published counts, by the four-bank model.

Only these are published: C lies in registers 0 to 63, A in 64 to 71, B in 72 to 79; 16 of 64 FFMAs conflict; rows with
reuse remove 14, back and forth all; 25%, 39% and 49% of the operands are reused in rows, back and forth and in the
spiral; and the spiral, as C registers. The mapping of C below is derived from that list:

- In the first 16 numbers, neighbours 1,0 | 2,3 | 5,4 | 6,7 go around squares, and bit 0 is a step of one coordinate.
  So bits 1, 2 and 5, which count through the run, are the other one, and bits 3 and 4 the next pairs of the first.
- No C may share a bank with its A or B, or more than 16 would conflict; C's bank is its bits 0 and 1. Bit 0 must be 0
  in odd columns and 1 in even ones: then they differ in parity. Bit 1 must be 0 (banks 0 and 1) in rows of banks 2
  and 3, and 1 in rows of banks 0 and 1: rows 2, 0, 3, 1 for bits 2, 1 do so, and lie 2 apart, as maxas says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tiledsl.backends.ptx.sass.banks import Fma

# -- the model: four banks, the register number modulo 4
#
# Two source registers of one FFMA in one bank cost a clock. The operand cache holds two registers for each source slot
# (8 bytes: maxas, wiki page SGEMM); an operand that is there is not read. Flags are taken as set well: a register stays
# for as long as it is among the last two that its slot has read.

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


# -- the mapping

A, B = 64, 72
SPIRAL = [
    *(1, 0, 2, 3, 5, 4, 6, 7, 33, 32, 34, 35, 37, 36, 38, 39),
    *(45, 44, 46, 47, 41, 40, 42, 43, 13, 12, 14, 15, 9, 8, 10, 11),
    *(17, 16, 18, 19, 21, 20, 22, 23, 49, 48, 50, 51, 53, 52, 54, 55),
    *(61, 60, 62, 63, 57, 56, 58, 59, 29, 28, 30, 31, 25, 24, 26, 27),
]
ROWS_OF_BITS = (2, 0, 3, 1)


def place(c: int) -> tuple[int, int]:
    """(row, column) of the element that register `c` holds."""
    return ROWS_OF_BITS[c >> 1 & 3] + 4 * (c >> 5), 2 * (c >> 3 & 3) + 1 - (c & 1)


REGISTER = {place(c): c for c in range(64)}


def fmas(places: list[tuple[int, int]]) -> list[Fma]:
    assert sorted(places) == [(i, j) for i in range(8) for j in range(8)]
    return [Fma((REGISTER[i, j],), (A + i, B + j, REGISTER[i, j])) for i, j in places]


def lines(*, snake: bool) -> list[tuple[int, int]]:
    """Whole rows of 8. Snakes begin at the right: (0, 0) conflicts, and the first one has nothing cached."""
    return [(i, 7 - j if snake and i % 2 == 0 else j) for i in range(8) for j in range(8)]


def blocks(*, snake: bool) -> list[tuple[int, int]]:
    """The four 4 x 4 blocks that the loads bring, one after the other, each by its rows."""
    corners = ((0, 0), (0, 4), (4, 4), (4, 0))
    return [
        (top + i, left + (3 - j if snake and i % 2 == 0 else j))
        for top, left in corners
        for i in range(4)
        for j in range(4)
    ]


def test_every_element_has_its_register() -> None:
    assert len(REGISTER) == 64
    for (i, j), c in REGISTER.items():
        assert c % 4 not in ((A + i) % 4, (B + j) % 4)


@pytest.mark.parametrize("order", ["lines", "snake", "spiral"])
def test_16_of_64_conflict_in_any_order(order: str) -> None:
    places = {"lines": lines(snake=False), "snake": lines(snake=True), "spiral": [place(c) for c in SPIRAL]}
    assert count_maxwell(fmas(places[order])).conflicts == 16


def test_rows_remove_14_back_and_forth_all() -> None:
    """At the start of two rows, nothing is cached: where A's bank is that of the first column."""
    assert count_maxwell(fmas(lines(snake=False))).conflicts_with_reuse == 16 - 14
    assert count_maxwell(fmas(lines(snake=True))).conflicts_with_reuse == 0
    assert count_maxwell(fmas([place(c) for c in SPIRAL])).conflicts_with_reuse == 0


@pytest.mark.parametrize(
    ("places", "hits", "percent"),
    [
        (blocks(snake=False), 48, 25),
        (blocks(snake=True), 74, 39),
        ([place(c) for c in SPIRAL], 94, 49),
    ],
)
def test_published_reuse(places: list[tuple[int, int]], hits: int, percent: int) -> None:
    """Rows and snakes inside of the 4 x 4 blocks give the published rates (over rows of 8 they are 29% and 36%)."""
    counts = count_maxwell(fmas(places))
    assert (counts.hits, counts.reads) == (hits, 192)
    assert round(100 * counts.reuse_rate) == percent


def test_the_spiral_needs_two_registers_a_slot() -> None:
    """With one, back and forth would be better: the second entry is what the spiral is for."""
    spiral, snake = fmas([place(c) for c in SPIRAL]), fmas(lines(snake=True))
    assert count_maxwell(spiral, entries=1).hits == 60 < count_maxwell(snake, entries=1).hits == 63


def test_a_register_that_is_written_leaves_the_cache() -> None:
    first, second = Fma((1,), (2, 3, 1)), Fma((9,), (1, 3, 9))
    assert count_maxwell([first, Fma((2,), (8, 3, 2)), Fma((9,), (2, 3, 9))]).hits == 2
    assert count_maxwell([first, second]).hits == 1

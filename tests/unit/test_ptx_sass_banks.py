"""Register banks and the operand cache: the rules by hand, and ptxas's own flags as a witness."""

from __future__ import annotations

import pytest

from benchmarks.ffma_orders import Variant, examine
from tiledsl.backends.ptx.sass.banks import BankCounts, Fma, count_banks, fma_of, served
from tiledsl.backends.ptx.sass.report import SassReport

NONE, A, B = (False, False, False), (True, False, False), (False, True, False)


def fma(a: int, b: int, c: int, reuse: tuple[bool, bool, bool] = NONE) -> Fma:
    return Fma((c,), (a, b, c), reuse)


def once(*fmas: Fma) -> BankCounts:
    return count_banks(fmas, loop=False)


def test_three_operands_of_one_bank_conflict() -> None:
    assert once(fma(2, 4, 6)).conflicts == 1
    assert once(fma(1, 3, 5)).conflicts == 1
    assert once(fma(2, 4, 7)).conflicts == once(fma(2, 3, 4)).conflicts == 0
    assert once(fma(2, 2, 4)).conflicts == 0  # one register in two slots is read once


def test_a_cached_operand_does_not_conflict() -> None:
    counts = once(fma(2, 4, 7, A), fma(2, 6, 8))
    assert (counts.conflicts, counts.conflicts_with_reuse) == (1, 0)
    assert (counts.flags, counts.hits) == ((1, 0, 0), (1, 0, 0))
    assert counts.reuse_rate == pytest.approx(1 / 6)
    assert counts.rates == (0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("second", "third", "hits"),
    [
        (fma(2, 5, 9), fma(2, 7, 11), [True, False]),  # taken without a flag: gone
        (fma(2, 5, 9, A), fma(2, 7, 11), [True, True]),  # flagged again: kept
        (fma(3, 5, 9), fma(2, 7, 11), [False, True]),  # an odd register has an entry of its own
        (fma(4, 5, 9), fma(2, 7, 11), [False, False]),  # an even one clears that of R2
        (Fma((9,), (None, None, None), is_fma=False), fma(2, 7, 11), [False, True]),  # a load passes it by
        (Fma((0, 1, 2, 3), (None, None, None), is_fma=False), fma(2, 7, 11), [False, False]),  # R2 is written
    ],
)
def test_the_operand_cache(second: Fma, third: Fma, hits: list[bool]) -> None:
    """One entry a slot and bank, cleared by the next read there."""
    found = served([fma(2, 4, 7, A), second, third], loop=False)
    assert [hit[0] for hit in found[1:]] == hits


def test_another_slot_finds_nothing() -> None:
    assert served([fma(2, 4, 7, A), fma(4, 2, 9)], loop=False)[1] == NONE


def test_the_last_flag_of_a_loop_serves_its_first_instruction() -> None:
    body = [fma(2, 5, 9), fma(2, 7, 11, A)]
    assert served(body)[0] == (True, False, False)
    assert served(body, loop=False)[0] == NONE


def test_three_reads_of_two_banks_take_a_clock_and_a_half() -> None:
    body = [fma(2, 3, 4), fma(5, 6, 7)]
    counts = count_banks(body)
    assert counts.bank_reads == (3, 3)
    assert counts.bound == 3


@pytest.fixture(scope="module")
def loop() -> SassReport:
    return examine(Variant("shared", 8, 8, "rows"))[0]


def test_every_flag_of_ptxas_is_served(loop: SassReport) -> None:
    """ptxas sets a flag where it counts on a hit. In a loop that it has scheduled itself, between loads, all of its
    flags are served by the rule used here, and some are not by "the next instruction only"."""
    sequence = [fma_of(loop.program.instructions[i]) for i in loop.places]
    counts = count_banks(sequence)
    assert sum(counts.flags) > 200
    assert counts.hits == counts.flags
    next_only = sum(_next_serves(a, b) for a, b in zip(sequence, [*sequence[1:], sequence[0]], strict=True))
    assert next_only < sum(counts.flags)


def _next_serves(first: Fma, second: Fma) -> int:
    return sum(flag and r == s for flag, r, s in zip(first.reuse, first.sources, second.sources, strict=True))


def test_serpentine_reads_fewer_registers_than_rows(loop: SassReport) -> None:
    """Back and forth, each FFMA finds one of its factors in the cache: two reads are left, one a bank and clock."""
    back_and_forth = examine(Variant("shared", 8, 8, "serpentine"))[0].banks
    assert sum(back_and_forth.bank_reads) < sum(loop.banks.bank_reads)
    assert back_and_forth.reuse_rate > 0.32 > loop.banks.reuse_rate
    assert back_and_forth.conflicts == 0


def test_an_empty_slot_is_never_served() -> None:
    assert served([Fma((5,), (1, None, 2))], loop=False) == [NONE]

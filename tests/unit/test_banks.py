"""The bank model: pinned counts, what it does not depend on, and the emulator's own count of the same table."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.backends.emulator.options import Access
from tiledsl.backends.emulator.wavefronts import WavefrontCount
from tiledsl.errors import UNKNOWN_LOC
from tiledsl.ir.ops.gpu import Barrier
from tiledsl.layout import banks
from tiledsl.layout.banks import PHASES, Kind, Phases, cost, wavefronts

LANES = range(32)


@pytest.mark.parametrize("stride", range(1, 70))
def test_a_stride_of_words(stride: int) -> None:
    """Stride s, s > 0: gcd(s, 32) - 1 extra wavefronts."""
    assert wavefronts([4 * stride * lane for lane in LANES], 4) == gcd(stride, 32)


def test_a_broadcast_is_free() -> None:
    assert cost([64] * 32, 4) == (1, 1)
    assert cost([4 * (lane % 3) for lane in LANES], 4) == (1, 1)


@pytest.mark.parametrize(("width", "ideal"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)])
def test_neighbours_have_no_conflict(width: int, ideal: int) -> None:
    assert cost([width * lane for lane in LANES], width) == (ideal, ideal)


@pytest.mark.parametrize("row_bytes", [16, 32, 64, 80, 128, 144])
def test_rows_of_16_bytes(row_bytes: int) -> None:
    """Eight rows a phase: 4 * gcd(S / 16, 8) wavefronts for a row stride of S bytes, as for ldmatrix."""
    assert wavefronts([row_bytes * lane for lane in LANES], 16) == 4 * gcd(row_bytes // 16, 8)


def test_halves_of_a_word_share_it() -> None:
    assert wavefronts([2 * lane for lane in LANES], 2) == 1
    assert wavefronts([64 * lane + lane % 2 for lane in LANES], 1) == 16


def test_inactive_lanes_cost_nothing() -> None:
    addresses = [128 * lane for lane in LANES]
    assert wavefronts(addresses, 4, [lane < 3 for lane in LANES]) == 3
    assert wavefronts(addresses, 16, [lane == 9 for lane in LANES]) == 1
    assert cost(addresses, 4, [False] * 32) == (0, 0)


def test_lanes_that_add_to_one_word_take_turns() -> None:
    assert cost([0] * 32, 4, kind="atomic") == (32, 32)
    assert cost([4 * lane for lane in LANES], 4, kind="atomic") == (1, 1)


def test_phases_that_merge() -> None:
    """What an entry of the table would say if pairs of lanes made phases merge."""
    merging = Phases(8, merge=(1, 2))
    pairs = [16 * (lane // 2) for lane in LANES]
    assert wavefronts(pairs, 16) == 4
    assert cost(pairs, 16, rule=merging) == (2, 2)
    assert cost([16 * (lane // 4 * 2 + lane % 2) for lane in LANES], 16, rule=merging) == (2, 2)
    assert cost([16 * lane for lane in LANES], 16, rule=merging) == (4, 4)
    one_pair_apart = [16 * (lane // 2) if lane != 1 else 512 + 64 for lane in LANES]
    assert cost(one_pair_apart, 16, rule=merging) == (3, 3)


def test_every_entry_says_where_it_comes_from() -> None:
    for (kind, width), phases in PHASES.items():
        assert 32 % phases.lanes == 0
        assert (phases.basis == "open") == bool(phases.question), (kind, width)


addresses_and_width = st.sampled_from((1, 2, 4, 8, 16)).flatmap(
    lambda width: st.tuples(
        st.lists(st.integers(0, 300).map(lambda n: n * width), min_size=32, max_size=32), st.just(width)
    )
)


@given(case=addresses_and_width, words=st.integers(0, 1000))
def test_moving_all_lanes_by_whole_words_changes_nothing(case: tuple[list[int], int], words: int) -> None:
    addresses, width = case
    assert cost([a + 4 * words for a in addresses], width) == cost(addresses, width)


def test_moving_by_less_than_a_word_does() -> None:
    """Lanes 0 and 1 share a word, until the second one of them moves into the bank of lane 2."""
    addresses = [0, 2, 33 * 4] + [0] * 29
    assert wavefronts(addresses, 2) == 1
    assert wavefronts([a + 2 for a in addresses], 2) == 2


RULES = [*PHASES.values(), *(Phases(n, merge) for n in (8, 16) for merge in ((1,), (2,), (1, 2)))]


@given(case=addresses_and_width, active=st.lists(st.booleans(), min_size=32, max_size=32), rule=st.sampled_from(RULES))
def test_the_emulators_count_of_the_same_entry(case: tuple[list[int], int], active: list[bool], rule: Phases) -> None:
    addresses, width = case
    kind: Kind = "load"
    saved, PHASES[kind, width] = PHASES[kind, width], rule
    try:
        counted, static = emulated(addresses, width, active), wavefronts(addresses, width, active, kind)
    finally:
        PHASES[kind, width] = saved
    assert counted == static


def emulated(addresses: list[int], width: int, active: list[bool]) -> int:
    hook = WavefrontCount()
    threads = np.flatnonzero(active)
    chosen: Any = np.array(addresses, np.int64)[threads]
    blocks = np.zeros(len(threads), np.int64)
    hook.on_access(Access(Barrier(loc=UNKNOWN_LOC), "read", "shared", "S", 0, chosen, width, blocks, threads))
    return hook.wavefronts


def test_each_warp_of_each_block_is_an_access() -> None:
    hook = WavefrontCount()
    blocks = np.repeat(np.arange(2), 96)
    threads = np.tile(np.arange(96), 2)
    addresses = threads % 32 * 8
    hook.on_access(Access(Barrier(loc=UNKNOWN_LOC), "write", "shared", "S", 0, addresses, 4, blocks, threads))
    (count,) = hook.counts.values()
    assert (count.kind, count.accesses, count.wavefronts) == ("store", 6, 12)
    assert count.by_warp[:4].tolist() == [2, 2, 2, 0]


def test_the_model_has_one_table() -> None:
    """Neither count knows a number that stands in the table."""
    assert (banks.BANKS, banks.WORD, banks.WARP) == (32, 4, 32)

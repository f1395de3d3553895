"""The bank model: pinned counts, what it does not depend on, and what the emulator makes of an access."""

from __future__ import annotations

from math import gcd
from typing import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.backends.emulator.hooks import Access, AccessKind
from tiledsl.backends.emulator.wavefronts import WavefrontCount
from tiledsl.errors import UNKNOWN_LOC
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Op
from tiledsl.ir.ops import mem
from tiledsl.ir.ops.gpu import Barrier
from tiledsl.ir.types import F32, U32, PtrType
from tiledsl.layout import banks
from tiledsl.layout.banks import PHASES, Kind, cost, turns

LANES = range(32)


def wavefronts(addresses: Sequence[int], width: int, active: Sequence[bool] | None = None, kind: Kind = "load") -> int:
    return cost(addresses, width, active, kind).wavefronts


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


@given(st.data(), st.sampled_from(sorted(PHASES)))
def test_turns_are_the_wavefronts_that_are_counted(data: st.DataObject, entry: tuple[Kind, int]) -> None:
    kind, width = entry
    address = st.none() | st.integers(0, 40).map(lambda unit: unit * width)
    addresses = data.draw(st.lists(address, min_size=32, max_size=32))
    active = [a is not None for a in addresses]
    expected = cost([a or 0 for a in addresses], width, active, kind).wavefronts
    phase, lanes = turns(addresses, width, kind)
    seen: dict[tuple[int, int], int] = {}
    for lane, (at, found) in enumerate(zip(addresses, lanes, strict=True)):
        if at is None:
            assert found == ()
            continue
        bank, *waves = found
        assert bank == at // 4 % 32 and len(waves) == (at + width - 1) // 4 - at // 4 + 1
        for number, wave in enumerate(waves):
            # A bank serves one word a wavefront, and lanes of one phase alone share it.
            word = at // 4 + number
            assert seen.setdefault((word % 32, wave), word) == word
            assert seen.setdefault((-1, wave), lane // phase) == lane // phase
    assert len({wave for bank, wave in seen if bank == -1}) == expected


@pytest.mark.parametrize("row_bytes", [16, 32, 64, 80, 128, 144])
def test_rows_of_16_bytes(row_bytes: int) -> None:
    """Eight rows a phase: 4 * gcd(S / 16, 8) wavefronts for a row stride of S bytes, as for ldmatrix."""
    assert wavefronts([row_bytes * lane for lane in LANES], 16) == 4 * gcd(row_bytes // 16, 8)


@pytest.mark.parametrize("num", [1, 2, 4])
@pytest.mark.parametrize(
    ("row_bytes", "wavefronts_of_four"), [(16, 4), (32, 8), (64, 16), (80, 4), (128, 32), (144, 4), (48, 4), (96, 8)]
)
def test_rows_of_matrices(row_bytes: int, wavefronts_of_four: int, num: int) -> None:
    """ldmatrix and stmatrix of 1, 2 or 4 matrices: each is a phase, of the rows that eight lanes give."""
    addresses = [row_bytes * (lane % 8) + 16 * (lane // 8) for lane in LANES]
    giving = [lane < 8 * num for lane in LANES]
    expected = wavefronts_of_four * num // 4, num
    assert cost(addresses, 16, giving, "ldmatrix") == cost(addresses, 16, giving, "stmatrix") == expected
    assert expected[0] == num * gcd(row_bytes // 16, 8)


@pytest.mark.parametrize(("width", "ideal"), [(4, 1), (8, 2), (16, 4)])
def test_asynchronous_copies_count_as_stores_do(width: int, ideal: int) -> None:
    assert cost([width * lane for lane in LANES], width, kind="cp_async") == (ideal, ideal)
    columns = [128 * lane for lane in LANES]
    assert cost(columns, width, kind="cp_async") == cost(columns, width, kind="store") == (32, ideal)


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


PAIRS = [lane // 2 for lane in LANES]
FOURS = [lane // 4 * 2 + lane % 2 for lane in LANES]


@pytest.mark.parametrize(("width", "phases"), [(8, 2), (16, 4)])
@pytest.mark.parametrize("places", [PAIRS, FOURS, [0] * 32])
def test_loads_of_pairs_take_half_as_many(places: list[int], width: int, phases: int) -> None:
    """Two phases run as one where lanes i and i ^ 1, or all i and i ^ 2, read at one place. Stores never do."""
    addresses = [width * place for place in places]
    assert cost(addresses, width) == (phases // 2, phases // 2)
    assert cost(addresses, width, kind="store") == (phases, phases)


def test_which_pairs_count() -> None:
    """Those of the whole warp, all at one distance; a lane that takes no part pairs with any."""
    assert wavefronts([16 * place for place in range(32)], 16) == 4
    one_apart = [16 * (36 if lane == 1 else place) for lane, place in enumerate(PAIRS)]
    assert wavefronts(one_apart, 16) == 4
    assert wavefronts(one_apart, 16, [lane != 1 for lane in LANES]) == 2
    both = [16 * (PAIRS if lane // 8 % 2 else FOURS)[lane] for lane in LANES]
    assert wavefronts(both, 16) == 4


def test_merged_phases_have_conflicts_together() -> None:
    assert cost([64 * place for place in PAIRS], 16) == (8, 2)


def test_every_entry_says_where_it_comes_from() -> None:
    for (kind, width), phases in PHASES.items():
        assert 32 % phases.lanes == 0
        assert phases.calibrated or phases.note, (kind, width)


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


def accesses() -> list[tuple[Op, Kind, AccessKind, int]]:
    """An op of every class, its kind, what the emulator calls the access, and bytes a lane."""
    block = Block([PtrType("shared", F32), PtrType("global", F32)])
    shared, tensor = block.args
    word, number = Builder(block).constant(0, U32), Builder(block).constant(0.0, F32)
    return [
        (mem.LdMatrix(shared, num=2), "ldmatrix", "read", 16),
        (mem.StMatrix(shared, word, word, num=2), "stmatrix", "write", 16),
        (mem.CpAsync(shared, tensor, bytes=8), "cp_async", "async", 8),
        (mem.Load(shared, vec=4), "load", "read", 16),
        (mem.Store(shared, number), "store", "write", 4),
    ]


@pytest.mark.parametrize(("op", "kind", "access", "width"), accesses(), ids=str)
def test_the_emulator_tells_kinds_by_their_ops(op: Op, kind: Kind, access: AccessKind, width: int) -> None:
    """Of ldmatrix the hook sees the lanes that give an address: here those of two matrices."""
    hook, lanes = WavefrontCount(), np.arange(16)
    addresses = lanes % 8 * 144 + lanes // 8 * 16
    hook.on_access(Access(op, access, "shared", "S", 0, addresses, width, np.zeros(16, np.int64), lanes))
    (count,) = hook.counts.values()
    assert (count.kind, count.bytes) == (kind, width)
    assert count.wavefronts == wavefronts([*addresses.tolist(), *[0] * 16], width, [n < 16 for n in LANES], kind)


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
    assert (banks.BANKS, banks.WORD) == (32, 4)

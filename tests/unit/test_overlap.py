"""`self_overlapping` finds strides that give two indices one element, and such arrays are refused."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import gemm
from tiledsl.ir.types import F32
from tiledsl.runtime import arrays
from tiledsl.runtime.arrays import self_overlapping
from tiledsl.signatures.specialize import ArrayInfo


def overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return self_overlapping(ArrayInfo(F32, shape, strides, 0, -1, True, None))


def by_counting(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    reached = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))]
    return len({*reached}) < len(reached)


def test_it_is_exact() -> None:
    random, found = Random(47), {True: 0, False: 0}
    for _ in range(3000):
        shape = tuple(random.randint(1, 6) for _ in range(random.randint(0, 4)))
        strides = tuple(random.randint(-span, span) for span in random.choices((8, 30, 200), k=len(shape)))
        expected = by_counting(shape, strides)
        assert overlaps(shape, strides) == expected, (shape, strides)
        found[expected] += 1
    assert min(found.values()) > 500


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 4), (5, 3), False),
        ((4, 6), (5, 3), True),  # 3 rows on and 5 columns back
        ((10**9, 10**9), (10**9 + 1, 10**9), False),
        ((10**9 + 2, 10**9 + 2), (10**9 + 1, 10**9), True),
        ((1000, 4, 4), (25, 5, 3), False),
        ((1, 1), (0, 0), False),
        ((2, 3), (0, 1), True),
    ],
)
def test_large_ones_are_exact_too(shape: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert overlaps(shape, strides) == expected


def test_a_search_without_end_counts_as_an_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, strides = (9, 4, 4), (23, 5, 3)
    assert not overlaps(shape, strides) and not by_counting(shape, strides)
    monkeypatch.setattr(arrays, "SEARCHED", 0)
    assert overlaps(shape, strides)


def interleaved(down: int, across: int) -> np.ndarray:
    memory = np.full(64, np.float32(7))
    return np.lib.stride_tricks.as_strided(memory, (4, 4), (4 * down, 4 * across))


def test_rows_between_the_columns_of_others_are_written() -> None:
    A, B = np.arange(16, dtype=np.float32).reshape(4, 4), np.eye(4, dtype=np.float32)
    C = interleaved(5, 3)
    gemm(A, B, C, device="emulator")
    assert np.array_equal(C, A)
    with pytest.raises(KernelArgumentError) as refused:
        gemm(A, B, interleaved(3, 3), device="emulator")
    assert refused.value.code == "C804"

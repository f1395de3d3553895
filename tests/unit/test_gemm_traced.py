"""Formulas that are compiled have the bits that NumPy gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.gemm import traced as module
from tiledsl.gemm.traced import traced

COLUMN, OTHER = np.arange(1.0, 12.0), np.linspace(-3.0, 2.5, 11)
"""Of a length that is no multiple of the loop's width."""
POWERS = 2.0 ** (COLUMN - 6)


def everything(m: Any, n: Any) -> Sequence[Any]:
    """All that is traced: of numbers alone, with arrays, and with arrays of flags."""
    where: Any = np.where
    whole, rest = -(-m // 64), n % 48
    flags = (COLUMN > 4) & ((m >= COLUMN * 64) | (n == 7) | (rest >= COLUMN) | (m % 16 > 0))
    first = where(flags, np.ceil(m / COLUMN), np.minimum(n, OTHER) - whole)
    second = where(OTHER > 0, first + 0.1 * rest, np.maximum(OTHER, -1.5) * m / 3)
    third = where(n > COLUMN * 3, 1, np.floor(np.sqrt(n / COLUMN)))
    return first, second, COLUMN, third, n + 0 * COLUMN, 7, n / POWERS, m // POWERS


compiled = traced(everything, 2)


def bits(found: Iterable[Any]) -> list[bytes]:
    return [row.tobytes() for row in found]


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 40))
def test_compiled_formulas_have_the_bits_of_numpy(m: int, n: int) -> None:
    expected: Any = np.array(np.broadcast_arrays(*everything(m, n)))
    assert bits(compiled(m, n)) == bits(expected)


def test_without_llvmlite_numpy_evaluates_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: False)
    assert bits(traced(everything, 2)(1000, 77)) == bits(compiled(1000, 77))


def test_threads_do_not_overwrite_what_others_found() -> None:
    found = compiled(1000, 77)
    before = bits(found)
    with ThreadPoolExecutor(1) as other:
        there = other.submit(compiled, 2000, 88).result()
    assert bits(found) == before != bits(there)
    assert bits(there) == bits(compiled(2000, 88)) == bits(found)


def branching(m: Any) -> Sequence[Any]:
    return [COLUMN if m > 3 else OTHER]


def test_a_formula_must_not_branch_on_its_numbers() -> None:
    with pytest.raises(TypeError, match=r"no condition: use np\.where"):
        traced(branching, 1)

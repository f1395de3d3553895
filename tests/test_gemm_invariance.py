"""`gemm(..., batch_invariant=True)`: the bits of a row do not depend on how many rows there are, nor on the others."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.gemm import gemm
from tiledsl.gemm.plan import Problem, plan

BF16 = np.dtype(ml_dtypes.bfloat16)
N, K = 392, 1544
ROWS = 300
"""Among the plans for 1 to 300 rows are exchanged ones, several widths and, without the promise, parts of k."""


def operands(order: str) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(shape).astype(BF16) for shape in ((ROWS, K), (K, N)))
    return A, np.asarray(B, order=order), random.standard_normal(N).astype(np.float32)  # type: ignore[call-overload]


def bits(A: Any, B: Any, bias: Any) -> Any:
    return gemm(A, B, bias=bias, batch_invariant=True, device="emulator").view(np.uint16)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Each row multiplied by itself."""
    found: dict[str, Any] = {}
    for order in "CF":
        A, B, bias = operands(order)
        found[order] = np.concatenate([bits(A[i : i + 1], B, bias) for i in range(0, ROWS, 50)])
    return found


@settings(max_examples=3)
@given(st.integers(1, ROWS), st.sampled_from("CF"), st.integers(0, 5))
def test_a_row_has_the_same_bits_among_any_others(alone: dict[str, Any], m: int, order: str, seed: int) -> None:
    A, B, bias = operands(order)
    chosen = np.random.default_rng(seed).permutation(ROWS)[:m]
    found = bits(A[chosen], B, bias)
    for at, row in enumerate(chosen):
        if row % 50 == 0:
            assert (found[at] == alone[order][row // 50]).all()


def test_rows_of_a_batch_are_rows(alone: dict[str, Any]) -> None:
    A, B, bias = operands("F")
    found = bits(A.reshape(6, 50, K), np.repeat(B[None], 6, axis=0), bias)
    assert (found[:, 0] == alone["F"]).all()


def test_plans_differ_in_what_does_not_matter() -> None:
    """Else the tests above would show nothing: tiles and orientations do differ, and parts would be chosen."""

    def plans(promised: bool) -> list[Any]:
        return [plan(Problem(1, m, N, K, unit_b=1, bias=True, batch_invariant=promised)) for m in range(1, ROWS)]

    assert not any(made.consts["SPLIT"] for made in plans(True))
    assert any(made.consts["SPLIT"] for made in plans(False))
    assert len({made.exchanged for made in plans(True)}) == 2
    assert len({(made.consts["BM"], made.consts["BN"]) for made in plans(True)}) >= 2


def test_rows_of_fp32() -> None:
    random = np.random.default_rng(1)
    A, B = (random.standard_normal(shape).astype(np.float32) for shape in ((100, 1000), (1000, 40)))
    whole = gemm(A, B, batch_invariant=True, device="emulator")
    for m in (1, 17, 70):
        found = gemm(A[-m:], B, batch_invariant=True, device="emulator")
        assert found.tobytes() == whole[-m:].tobytes()

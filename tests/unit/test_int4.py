"""Weights of 4 bits: packed, multiplied by `int4_gemm` on the emulator, and the gallery's kernel of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl import Fragment, index, relu, tile_function
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import int4_gemm, pack_int4
from tiledsl.gemm.int4 import hopper_int4
from tiledsl.gemm.int4_call import Tile, choose_int4
from tiledsl.inspect.loading import load_module

GALLERY = Path(__file__).parent.parent.parent / "examples" / "gemm"

BF16 = ml_dtypes.bfloat16


def drawn(m: int, n: int, k: int, group: int = 128, zeros: bool = False, dtype: Any = BF16) -> tuple[Any, ...]:
    """X, q, scales and zero points: whole numbers and powers of two, so that all sums are exact in f32."""
    random = np.random.default_rng(m + n + k)
    groups = -(-k // group)
    scales = (2.0 ** random.integers(-2, 3, (groups, n))).astype(dtype)
    points = random.integers(0, 16, (groups, n)) if zeros else None
    return random.integers(-4, 5, (m, k)).astype(dtype), random.integers(0, 16, (k, n)), scales, points


def exact(X: Any, q: Any, scales: Any, zeros: Any, group: int) -> Any:
    spread = [np.repeat(x.astype(np.float64), group, 0)[: len(q)] for x in (scales, scales if zeros is None else zeros)]
    return X.astype(np.float64) @ ((q - (8 if zeros is None else spread[1])) * spread[0])


@pytest.mark.parametrize(("dtype", "zeros"), [(BF16, False), (np.float16, True)])
@pytest.mark.parametrize(
    ("m", "n", "k", "group"),
    [(1, 64, 2048, 128), (5, 200, 304, 128), (33, 70, 1000, 64), (70, 130, 129, 32), (3, 9, 1, 128)],
)
def test_products(m: int, n: int, k: int, group: int, zeros: bool, dtype: Any) -> None:
    X, q, scales, points = drawn(m, n, k, group, zeros, dtype)
    W = pack_int4(q, scales, points, group=group)
    C = int4_gemm(X, W, np.full((m, n), np.nan, np.float32), device="emulator")
    assert (exact(X, q, scales, points, group) == C).all()


@pytest.mark.parametrize(
    ("tile", "zeros"),
    [
        (Tile(64, 16, 512, 2), True),
        (Tile(128, 48, 128, 3), False),
        (Tile(256, 48, 128, 2), True),
        (Tile(128, 256, 64, 0, True), True),
        (Tile(64, 96, 128, 2, True), False),
    ],
)
def test_tiles_are_right_and_without_hazards(tile: Tile, zeros: bool) -> None:
    """More steps than stages, several tiles for a CTA with one processor, and NaN behind what is computed."""
    m, n, k = tile.columns + 3, 130, 1304
    X, q, scales, points = drawn(m, n, k, 64, zeros)
    W = pack_int4(q, scales, points, group=64)
    C = np.full((m, n), np.nan, np.float32)
    consts = {**tile.consts(4), "STAGES": 2, "GROUP": 64}
    hopper_int4.check(W.words, X.T[None], C.T[None], W.scales, W.zeros, **consts)
    assert (exact(X, q, scales, points, 64) == C).all()


@tile_function
def biased(y: Fragment[Any], bias: Any, n: Fragment[index]) -> Fragment[Any]:
    return relu(y + bias.get(n))


def test_alpha_a_bias_an_epilogue_and_strides() -> None:
    X, q, scales, _ = drawn(20, 72, 256)
    W, bias = pack_int4(q, scales), np.arange(-36, 36, dtype=np.float32)
    expected = np.maximum(0.5 * exact(X, q, scales, None, 128) + bias, 0)
    C = np.zeros((72, 20), np.float32).T
    assert int4_gemm(np.asfortranarray(X), W, C, 0.5, bias, biased, device="emulator") is C
    assert (expected == C).all()
    assert (int4_gemm(X[::-1], W, device="emulator") == exact(X, q, scales, None, 128)[::-1].astype(BF16)).all()


def test_what_is_not_finite_stays_in_its_row_or_column() -> None:
    X, q, scales, _ = drawn(20, 72, 256)
    expected = exact(X, q, scales, None, 128)
    X[3, 7], scales[1, 5], scales[0, 6] = np.nan, np.inf, np.nan
    C = int4_gemm(X, pack_int4(q, scales), np.zeros((20, 72), np.float32), device="emulator")
    assert np.isnan(C[3]).all() and not np.isfinite(C[:, 5:7]).any()
    other = np.ones((20, 72), bool)
    other[3], other[:, 5:7] = False, False
    assert (C[other] == expected[other]).all()


@pytest.mark.parametrize(("dtype", "of_scales"), [(BF16, BF16), (np.float16, np.float32)])
def test_many_rows_have_rounded_weights(dtype: Any, of_scales: Any) -> None:
    """Scales whose products with weights do not fit the dtype, and one row of X in each of 128 that shows a weight."""
    random, k = np.random.default_rng(0), 128
    q, scales = random.integers(0, 16, (k, 72)), random.uniform(0.1, 0.2, (1, 72)).astype(of_scales)
    X, W = np.eye(k, dtype=dtype), pack_int4(q, scales)
    weights = (q - 8).astype(np.float32) * scales.astype(dtype).astype(np.float32)
    C = int4_gemm(X, W, np.zeros((k, 72), np.float32), device="emulator")
    assert (weights.astype(dtype) == C).all() and (weights != C).any()
    few = int4_gemm(X[:64], W, np.zeros((64, 72), np.float32), device="emulator")
    assert (few == ((q - 8).astype(np.float32) * scales.astype(np.float32))[:64]).all()


def test_nothing_to_compute() -> None:
    X, q, scales, _ = drawn(3, 64, 128)
    W = pack_int4(q, scales)
    assert int4_gemm(X[:0], W, device="emulator").shape == (0, 64)
    assert repr(W) == "Int4Weights(k=128, n=64, group=128)"


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 40000), st.integers(1, 40000), st.sampled_from((2, 4)))
def test_every_choice_fits(m: int, n: int, k: int, result: int) -> None:
    chosen = choose_int4(m, n, k, result)
    rows, columns, depth = chosen["BM"], chosen["BN"], chosen["BK"]
    stage = depth * (rows // 2 + 2 * columns) + 5 * rows * depth // 32
    assert chosen["STAGES"] > 2 and chosen["STAGES"] * (stage + 16) <= 225 << 10
    assert rows * chosen["INSTANCES"] in (128, 256) and columns < m + 64 and chosen["ROUNDED"] == (m > 64)


def bad(change: dict[str, Any]) -> None:
    X, q, scales, _ = drawn(4, 64, 256)
    given = {"q": q, "scales": scales, "group": 128, "zeros": None, "X": X, "C": None} | change
    W = pack_int4(given["q"], given["scales"], given["zeros"], group=given["group"])
    int4_gemm(given["X"], W, given["C"], device="emulator")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 100}, "group is 100; expected one of"),
        ({"q": np.full((256, 64), 16)}, "q is from 16 to 16; expected integers from 0 to 15"),
        ({"q": np.full((256, 64), -1)}, "add 8 to signed weights"),
        ({"q": np.zeros((256, 64))}, "q is f64; expected integers from 0 to 15"),
        ({"q": np.zeros(256, int)}, r"q has the shape \(256,\); expected \[K, N\]"),
        ({"scales": np.ones((3, 64), BF16)}, r"shape \(3, 64\); expected bf16, f16 or f32 of shape \(2, 64\)"),
        ({"scales": np.ones((2, 64), int)}, "scales are i64"),
        ({"zeros": np.zeros((2, 63), int)}, r"zeros have the shape \(2, 63\); expected \(2, 64\)"),
        ({"X": np.ones((4, 255), BF16)}, r"X has the shape \(4, 255\); expected \[M, 256\]"),
        ({"X": np.ones((4, 256), np.float32)}, "X is f32; expected bf16 or f16"),
        ({"X": np.ones(256, BF16)}, r"X has the shape \(256,\)"),
        ({"C": np.ones((4, 63), BF16)}, r"C is bf16 of shape \(4, 63\); expected"),
        ({"C": np.ones((4, 64), np.int32)}, "C is i32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message):
        bad(change)


def test_weights_that_are_not_packed() -> None:
    X, q, *_ = drawn(4, 64, 256)
    with pytest.raises(KernelArgumentError, match="W is a ndarray; expected Int4Weights"):
        int4_gemm(X, q)  # pyright: ignore[reportArgumentType]


def test_the_gallery_s_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    step = load_module(GALLERY / "hopper_int4.py")
    X, q, scales, _ = drawn(20, 130, 1408)
    C = np.full((20, 130), np.nan, BF16)
    step.hopper_int4.check(step.packed(q), X, C, scales.astype(np.float32), STAGES=3)
    assert (exact(X, q, scales, None, 128).astype(BF16) == C).all()
    assert (step.packed(q)[:, : len(q) // 32] == pack_int4(q, scales).words).all()
    step.main(m=3, n=70, k=200)
    assert "to the product of 4 bits: 0.00" in capsys.readouterr().out

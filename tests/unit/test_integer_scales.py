"""`gemm` of integers with a scale for each row of A and each column of B."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.test_gemm_call import VIEWS, relu_bias
from tiledsl.arch import TARGETS
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import gemm, warmup
from tiledsl.gemm.plan import Problem, plan

Array = NDArray[Any]
OUT: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i8": np.int8, "u8": np.uint8}


def product(A: Array, B: Array, *more: Any, **given: Any) -> Array:
    return gemm(A, B, *more, device="emulator", **given)


def problem(m: int, n: int, k: int, *kinds: str) -> tuple[Array, Array, dict[str, Array]]:
    """Operands and scales by which results are within the range of i8, and past it."""
    rng = np.random.default_rng(m + n + k)
    of_a, of_b = (OUT[kind] for kind in kinds or ("i8", "i8"))
    kind = {"A": (of_a, (m, k)), "B": (of_b, (k, n))}
    A, B = (rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, endpoint=True) for t, s in kind.values())
    a, b = (rng.random(s).astype(np.float32) / 50 for s in ((m, 1), (1, n)))
    return A, B, {"scale_a": a, "scale_b": b}


def expected(A: Array, B: Array, scale_a: Array, scale_b: Array, out: str) -> Array:
    found = (A.astype(np.int64) @ B.astype(np.int64)).astype(np.float32) * (scale_a * scale_b)
    return rounded(found, out)


def rounded(found: Array, out: str) -> Array:
    if out not in ("i8", "u8"):
        return found.astype(OUT[out])
    info = np.iinfo(OUT[out])
    return np.clip(np.rint(found), info.min, info.max).astype(OUT[out])


def equal(x: Array, y: Array) -> bool:
    return x.dtype == y.dtype and x.tobytes() == np.ascontiguousarray(y).tobytes()


@pytest.mark.parametrize("out", OUT)
@pytest.mark.parametrize("kinds", [("i8", "i8"), ("u8", "i8"), ("u8", "u8")])
@pytest.mark.parametrize("size", [(70, 48, 300), (5, 200, 64), (1, 1, 1), (133, 257, 1000)])
def test_results_of_every_dtype(size: tuple[int, int, int], kinds: tuple[str, str], out: str) -> None:
    A, B, scales = problem(*size, *kinds)
    assert equal(product(A, B, out_dtype=out, **scales), expected(A, B, **scales, out=out))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_of_any_order(layout: str) -> None:
    """By rows and by columns of C, also such as TMA cannot store."""
    A, B, scales = problem(133, 17, 75)
    left, right = (np.asarray(X, order="F" if o == "T" else "C") for X, o in zip((A, B), layout, strict=True))
    for out in OUT:
        right_one = expected(A, B, **scales, out=out)
        assert equal(product(left, right, out_dtype=out, **scales), right_one)
        C = np.zeros((133, 17), OUT[out], "F")
        assert equal(np.ascontiguousarray(product(left, right, C, **scales)), right_one)


@pytest.mark.parametrize("view", VIEWS)
def test_scales_of_any_strides(view: str) -> None:
    A, B, scales = problem(70, 72, 68)
    given = {name: VIEWS[view](X.reshape(2, -1)).reshape(X.shape) for name, X in scales.items()}
    given["scale_a"] = np.repeat(scales["scale_a"], 3, axis=1)[:, :1]
    assert equal(product(A, B, **given), expected(A, B, **scales, out="bf16"))


def test_batches() -> None:
    """Each matrix as it is alone: of a batch, of one that is repeated, of rows that follow each other."""
    problems = [problem(33, 40, 50 + i) for i in range(3)]
    A, B = (np.stack([p[i][:, :50] if i == 0 else p[i][:50] for p in problems]) for i in range(2))
    of_a, of_b = (np.stack([p[2][name] for p in problems]) for name in ("scale_a", "scale_b"))
    for left, right, a, b in ((A, B, of_a, of_b), (A, B[0], of_a, of_b[0]), (A[0], B, of_a[0], of_b)):
        found = product(left, right, scale_a=a, scale_b=b)
        for i in range(3):
            one = [X if X.ndim == 2 else X[i] for X in (left, right, a, b)]
            assert equal(found[i], expected(*one, out="bf16"))


def test_factors_bias_and_epilogue() -> None:
    """Rounding comes last."""
    A, B, scales = problem(70, 48, 100)
    bias = np.random.default_rng(1).standard_normal(48).astype(np.float32)
    sums = expected(A, B, **scales, out="f32")
    for out in ("f32", "i8"):
        C = np.full((70, 48), 3, OUT[out])
        found = product(A, B, C, 0.5, -1.5, bias, relu_bias, **scales)
        assert found is C and equal(found, rounded(np.maximum((np.float32(0.5) * sums - 4.5) + bias, 0), out))
    a, b = np.ones((4, 1), np.float32), np.ones((1, 4), np.float32)
    A, B = np.eye(4, dtype=np.int8), np.array([[1, 3, 5, -1]] * 4, np.int8)
    halves = product(A, B, alpha=0.5, out_dtype="i8", scale_a=a, scale_b=b)
    assert halves[0].tolist() == [0, 2, 2, 0], "halves go to the even number"


def test_nothing_to_add_up() -> None:
    """And alpha = 0 reads neither operands nor scales."""
    nan = {"scale_a": np.full((3, 1), np.nan, np.float32), "scale_b": np.ones((1, 4), np.float32)}
    for k, alpha in ((0, 1.0), (8, 0.0)):
        for out in OUT:
            C = np.full((3, 4), 3, OUT[out])
            found = product(np.ones((3, k), np.int8), np.ones((k, 4), np.int8), C, alpha, 0.5, **nan)
            assert found.tolist() == [[2 if out in ("i8", "u8") else 1.5] * 4] * 3
    assert product(np.ones((3, 8), np.int8), np.ones((8, 4), np.int8), out_dtype="u8", **nan).tolist() == [[0] * 4] * 3


def test_a_warm_up_and_targets() -> None:
    warmup([(300, 200, 100)], "i8", out_dtype="i8", scales=True, layouts=("NN", "NT"), arch="sm_90a")
    for arch, target in TARGETS.items():
        if "wgmma" not in target.features:
            with pytest.raises(KernelArgumentError, match=f"are given on {arch}, and only the kernel for wgmma"):
                plan(Problem(1, 64, 64, 64, "i8", "bf16", arch=arch, scaled=True))


def test_refused() -> None:
    A, B, scales = problem(8, 16, 32)
    with pytest.raises(KernelArgumentError, match=r"shape \(8,\); expected f32 of shape \(8, 1\), one for each row"):
        product(A, B, scale_a=scales["scale_a"][:, 0], scale_b=scales["scale_b"])
    with pytest.raises(KernelArgumentError, match=r"scale_b is left out.*shape \(1, 16\), one for each column of B"):
        product(A, B, scale_a=scales["scale_a"])
    with pytest.raises(KernelArgumentError, match="C is i32; expected one of bf16, f16, f32, i8, u8 for A and B of i8"):
        product(A, B, np.zeros((8, 16), np.int32), **scales)

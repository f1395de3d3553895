"""`gemm` on host arrays: operands of any rank, strides and dtype, C allocated, scalars, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import Fragment, Memory, index, maximum, tile_function
from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import call, gemm
from tiledsl.gemm.epilogue import add_bias

BF16 = ml_dtypes.bfloat16


def numbers(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    """Small integers: their products are exact in every dtype here."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def exact(A: Any, B: Any) -> Any:
    return A.astype(np.float64) @ B.astype(np.float64)


def equal(C: Any, expected: Any) -> bool:
    return C.tobytes() == np.asarray(expected).astype(C.dtype).tobytes()


# -- shapes and strides ----------------------------------------------------------------------------------------

BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "none": ((40, 24), (24, 32)),
    "of one": ((1, 40, 24), (1, 24, 32)),
    "both": ((3, 40, 24), (3, 24, 32)),
    "of A, and B is shared": ((3, 40, 24), (24, 32)),
    "of A, and B is one of one": ((3, 40, 24), (1, 24, 32)),
    "of B, and A is shared": ((40, 24), (3, 24, 32)),
    "of B, and A is one of one": ((1, 40, 24), (3, 24, 32)),
    "vectors": ((3, 1, 24), (24, 32)),
    "columns": ((40, 24), (3, 24, 1)),
    "dot products": ((1, 24), (3, 24, 1)),
}


@pytest.mark.parametrize("shapes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: Any) -> None:
    A, B = numbers(*shapes[0], dtype=dtype), numbers(*shapes[1], dtype=dtype, seed=1)
    C = gemm(A, B, device="emulator")
    assert C.dtype == A.dtype
    assert C.shape == (A @ B).shape
    assert equal(C, exact(A, B))


def test_a_batch_of_no_step() -> None:
    """A broadcast view is read as it is, and C of another order of axes is written."""
    A, B = numbers(40, 24), numbers(3, 24, 32, seed=1)
    C = np.zeros((40, 3, 32), BF16).swapaxes(0, 1)
    assert gemm(np.broadcast_to(A, (3, 40, 24)), B, C, device="emulator") is C
    assert (exact(A, B) == C).all()


def test_a_shared_matrix_is_one_launch_of_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []
    function = call.planned
    monkeypatch.setattr(
        call, "planned", lambda of, *more: (planned.append((of.a.shape, of.b.shape)), function(of, *more))[1]
    )
    gemm(numbers(3, 40, 24), numbers(24, 32), device="emulator")
    gemm(numbers(3, 40, 24)[:, ::2], numbers(24, 32), device="emulator")
    gemm(numbers(1, 24), numbers(3, 24, 32).swapaxes(1, 2).copy().swapaxes(1, 2), device="emulator")
    gemm(numbers(1, 24), numbers(3, 24, 32), device="emulator")
    gemm(numbers(1, 24), numbers(3, 24, 32), bias=np.zeros(32, np.float32), device="emulator")
    assert planned == [
        ((1, 120, 24), (1, 24, 32)),
        ((1, 60, 24), (1, 24, 32)),
        ((1, 1, 24), (1, 24, 96)),
        ((3, 1, 24), (3, 24, 32)),
        ((3, 1, 24), (3, 24, 32)),
    ]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "steps": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "odd rows": lambda x: np.concatenate([x, x[:, :1]], axis=1)[:, : x.shape[1]],
    "an odd address": lambda x: np.concatenate([x[:, :1], x], axis=1)[:, 1:],
}


@pytest.mark.parametrize("b", VIEWS)
@pytest.mark.parametrize("a", VIEWS)
def test_strides_of_operands(a: str, b: str) -> None:
    A, B = numbers(40, 24), numbers(24, 32, seed=1)
    C = gemm(VIEWS[a](A), VIEWS[b](B), device="emulator")
    assert equal(C, exact(A, B))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 32, 24), (40, 1, 24), (40, 32, 1), (1, 1, 300), (7, 1, 1)])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("order", ["C", "F"])
def test_axes_of_extent_1(shape: tuple[int, int, int], dtype: Any, order: Any) -> None:
    m, n, k = shape
    A, B = np.asarray(numbers(m, k, dtype=dtype), order=order), np.asarray(numbers(k, n, dtype=dtype), order=order)
    C = np.full((m, n), np.nan, dtype, order)
    assert equal(gemm(A, B, C, device="emulator"), exact(A, B))
    C = gemm(A[::1, ::1], np.repeat(B, 3, axis=1)[:, ::3], device="emulator")
    assert equal(C, exact(A, B))


@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_nothing_to_add_or_to_write(dtype: Any) -> None:
    for m, n, k in ((0, 32, 24), (40, 0, 24), (0, 0, 0)):
        assert gemm(numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype), device="emulator").shape == (m, n)
    A, B = numbers(40, 0, dtype=dtype), numbers(0, 32, dtype=dtype)
    assert equal(gemm(A, B, device="emulator"), np.zeros((40, 32)))
    C = numbers(40, 32, dtype=dtype)
    assert equal(gemm(A, B, C.copy(), 1.0, 2.0, device="emulator"), 2 * C.astype(np.float32))
    assert gemm(numbers(0, 40, 24), numbers(24, 32), device="emulator").shape == (0, 40, 32)


# -- dtypes and scalars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["bf16", "float16", np.float32, np.dtype("float32"), BF16])
@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_dtypes_of_the_result(dtype: Any, out: Any) -> None:
    A, B = numbers(40, 24, dtype=dtype), numbers(24, 32, dtype=dtype, seed=1)
    C = gemm(A, B, out_dtype=out, device="emulator")
    assert C.dtype == {"bf16": np.dtype(BF16)}.get(
        out if isinstance(out, str) else "", np.dtype(out if out != "bf16" else BF16)
    )
    assert equal(C, exact(A, B))


def test_alpha_0_reads_no_operand_and_beta_0_no_result() -> None:
    m, n, k = 40, 30, 23
    A, B, C = np.full((m, k), np.nan, BF16), np.full((k, n), np.nan, BF16), numbers(m, n)
    assert equal(gemm(A, B, C.copy(), 0.0, 2.0, device="emulator"), 2 * C.astype(np.float32))
    assert equal(gemm(A, B, np.full_like(C, np.nan), 0, device="emulator"), np.zeros((m, n)))


@tile_function
def relu_bias(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    return maximum(add_bias(x, bias, column), 0)


@tile_function
def add_column(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    return x + column.to(x.dtype)


def test_a_bias_is_added_and_an_epilogue_applied() -> None:
    A, B, bias = numbers(40, 24), numbers(24, 32, seed=1), numbers(32, dtype=np.float32, seed=2)
    expected = exact(A, B) + bias
    assert equal(gemm(A, B, bias=bias, device="emulator"), expected)
    assert equal(gemm(A, B, bias=bias, epilogue=add_bias, device="emulator"), expected)
    assert equal(gemm(A, B, bias=bias, epilogue=relu_bias, device="emulator"), np.maximum(expected, 0))
    assert equal(gemm(A, B, bias=bias[::2].repeat(2)[::1], device="emulator"), exact(A, B) + bias[::2].repeat(2))


def test_columns_of_an_epilogue_are_those_of_one_matrix() -> None:
    """Although the matrices of B could be one with more columns."""
    A, B = numbers(1, 24), numbers(3, 24, 32).swapaxes(1, 2).copy().swapaxes(1, 2)
    C = gemm(A, B, epilogue=add_column, device="emulator")
    assert equal(C, exact(A, B) + np.arange(32))


# -- GPUs without wgmma ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
@pytest.mark.parametrize("size", [(40, 32, 24), (133, 75, 67), (40, 32, 0)])
def test_without_wgmma_mma_sync_serves(arch: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.gemm.mma import mma_fastest
    from tiledsl.gemm.plan import Problem, plan

    m, n, k = size
    assert plan(Problem(1, m, n, k, arch=arch)).kernel is mma_fastest
    monkeypatch.setattr(call, "EMULATED", (arch, 108))
    A, B, bias = numbers(2, m, k), numbers(2, k, n, seed=1), numbers(n, dtype=np.float32)
    assert equal(gemm(A, B, bias=bias, device="emulator"), exact(A, B) + bias)
    C = numbers(2, n, m).swapaxes(1, 2)
    expected = (exact(A, B) * 2 - C).astype(BF16)
    gemm(A, B[:, ::-1][:, ::-1], C, 2.0, -1.0, device="emulator")
    assert (expected == C).all()


# -- refused ---------------------------------------------------------------------------------------------------


def overlapping() -> dict[str, Any]:
    room = numbers(32, 64)
    return {"A": room[:, :32], "B": numbers(32, 32), "C": room[:, 31:63]}


def read_only() -> Any:
    C = numbers(8, 8)
    C.flags.writeable = False
    return C


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "one axis": (lambda: {"A": numbers(8)}, r"A has the shape \(8,\) and B \(8, 8\); expected two axes, or three"),
    "four axes": (lambda: {"A": numbers(1, 1, 8, 8)}, r"A has the shape \(1, 1, 8, 8\)"),
    "K": (lambda: {"A": numbers(8, 9)}, r"K is 9 in A, of shape \(8, 9\), but 8 in B"),
    "batches": (lambda: {"A": numbers(2, 8, 8), "B": numbers(3, 8, 8)}, "A has a batch of 2, but B one of 3"),
    "C's shape": (lambda: {"C": numbers(8, 9)}, r"C has the shape \(8, 9\); expected \(8, 8\)"),
    "C's batch": (lambda: {"A": numbers(2, 8, 8)}, r"C has the shape \(8, 8\); expected \(2, 8, 8\)"),
    "dtypes": (lambda: {"B": numbers(8, 8, dtype=np.float16)}, "A is bf16, but B is f16; only e4m3 and e5m2"),
    "A's dtype": (lambda: {"A": numbers(8, 8, dtype=np.int16)}, "A is i16, which no kernel multiplies"),
    "C's dtype": (lambda: {"C": numbers(8, 8, dtype=np.float64)}, "C is f64; expected one of bf16, f16, f32, e4m3"),
    "out_dtype": (lambda: {"out_dtype": "f32"}, "C is bf16, but out_dtype is f32"),
    "no dtype": (lambda: {"out_dtype": "f17"}, "the dtype 'f17' is none of f32, f64, f16, bf16"),
    "not an array": (lambda: {"B": [[1.0]]}, "B is a list; expected an array"),
    "overlap": (overlapping, "C is written, and shares memory with A"),
    "itself": (lambda: {"C": np.broadcast_to(numbers(1, 8), (8, 8))}, "C is written, but read-only"),
    "read-only": (lambda: {"C": read_only()}, "C is written, but read-only"),
    "backwards": (lambda: {"C": numbers(8, 8)[::-1]}, "C has negative strides"),
    "bias": (
        lambda: {"bias": numbers(9, dtype=np.float32)},
        r"bias is f32 of shape \(9,\); expected f32 of shape \(8,\)",
    ),
    "bias's dtype": (lambda: {"bias": numbers(8)}, r"bias is bf16 of shape \(8,\); expected f32"),
    "alpha": (lambda: {"alpha": "1"}, "alpha is a str; expected a Python or NumPy number"),
    "beta": (lambda: {"beta": 1e60}, r"beta is 1e\+60, out of the range of f32"),
    "device": (lambda: {"device": "tpu"}, "device is 'tpu'"),
    "stream": (lambda: {"stream": 0}, "stream is given, and the arrays are in host memory"),
    "f32": (
        lambda: {**{n: numbers(8, 8, dtype=np.float32) for n in "AB"}, "C": numbers(8, 8)},
        'C is bf16; expected one of f32 for A and B of f32\n  fix: .* or precision="tf32"',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    given = {"A": numbers(8, 8), "B": numbers(8, 8), "C": numbers(8, 8), "device": "emulator", **make()}
    with pytest.raises(KernelArgumentError, match=message) as found:
        gemm(**given)
    assert str(found.value).startswith("gemm(): ")
    assert "\n  fix: " in str(found.value)


def test_an_operand_of_an_unknown_library_cannot_be_imitated() -> None:
    class Exporter:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            return self.array.__dlpack__()

    A, B, C = (Exporter(numbers(8, 8, dtype=np.float16, seed=i)) for i in range(3))
    with pytest.raises(KernelArgumentError, match=r"C is left out, and A is a .*Exporter"):
        gemm(A, B, device="emulator")
    assert gemm(A, B, C, device="emulator") is C
    assert equal(C.array, exact(A.array, B.array))

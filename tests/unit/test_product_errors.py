"""Errors of products have a code and a fix, and name the function that was called and no kernel of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import cdiv, f32, tile_function
from tiledsl.errors import CompileErrors, KernelArgumentError, TileError
from tiledsl.gemm import gemm, grouped_gemm, int4_gemm, masked_gemm, pack_int4, warmup

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
M, N, K = 4, 16, 128


def ones(*shape: int, dtype: Any = BF16) -> Any:
    return np.ones(shape, dtype)


Q, SCALES = ones(K, N, dtype=np.int64), ones(1, N)
PRODUCTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gemm": (gemm, {"A": ones(M, K), "B": ones(K, N), "device": "emulator"}),
    "grouped_gemm": (
        grouped_gemm,
        {"A": ones(M, K), "B": ones(2, K, N), "offsets": np.array([0, 1, M]), "device": "emulator"},
    ),
    "masked_gemm": (
        masked_gemm,
        {"A": ones(2, M, K), "B": ones(2, K, N), "counts": np.array([1, M]), "device": "emulator"},
    ),
    "int4_gemm": (int4_gemm, {"X": ones(M, K), "W": pack_int4(Q, SCALES), "device": "emulator"}),
    "pack_int4": (pack_int4, {"q": Q, "scales": SCALES}),
    "warmup": (warmup, {"shapes": [(64, 64, 64)], "arch": "sm_90a"}),
}
"""Each product, and a call of it that is right."""


class Unreadable:
    """An object that raises whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@tile_function
def of_two(x: Any, bias: Any) -> Any:
    return x


NO_ARGUMENTS = [
    "x", b"x", [1], {1: 2}, object, Unreadable(), 1j, float("nan"), 10**40, np.datetime64("2020"), np.array(1), of_two,
    lambda x, bias, column: x, np.zeros((2, 2), object), np.zeros((2, 2), ">f4"), np.ma.masked_array(np.ones((2, 2))),
]  # fmt: skip
"""Objects that no keyword takes, but those of TAKEN."""
TAKEN = {("alpha", float), ("beta", float)}
"""NaN is a factor. (tests/unit/test_gemm_warmup.py is about unknown targets.)"""


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_other_exception_is_raised(name: str) -> None:
    product, given = PRODUCTS[name]
    for keyword in inspect.signature(product).parameters:
        for value in NO_ARGUMENTS:
            if (keyword, type(value)) in TAKEN or keyword == "arch":
                continue
            with pytest.raises(KernelArgumentError) as caught:
                product(**{**given, keyword: value})
            assert str(caught.value).startswith(f"{name}(): ") and "\n  fix: " in str(caught.value)


def overlapping(rows: int, columns: int) -> tuple[Any, Any]:
    """Return two arrays that share memory."""
    room = ones(rows, columns + 8)
    return room[:, :columns], room[:, 8:]


def read_only(*shape: int) -> Any:
    made = ones(*shape)
    made.flags.writeable = False
    return made


BIAS, OF_GROUPS = ones(N, dtype=np.float32), ones(2, N, dtype=np.float32)
EIGHT = {"A": ones(M, K, dtype=E4M3), "B": ones(K, N, dtype=E4M3)}
A_AND_C, X_AND_C = overlapping(N, N), overlapping(M, K)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "beta without C": ("gemm", {"beta": 1.0}, "C805"),
    "beta of NaN without C": ("gemm", {"beta": float("nan")}, "C805"),
    "beta without C, of no rows": ("gemm", {"A": ones(0, K), "beta": 1}, "C805"),
    "a precision in a list": ("gemm", {"precision": ["tf32"]}, "C805"),
    "no flag": ("gemm", {"batch_invariant": 1}, "C805"),
    "a number that no float equals": ("gemm", {"alpha": np.longdouble(1) / 3}, "C805"),
    "no tile function": ("gemm", {"epilogue": max}, "C805"),
    "an epilogue of two parameters": ("gemm", {"epilogue": of_two}, "C805"),
    "one scale": ("gemm", {**EIGHT, "scale_a": ones(M, 1, dtype=np.float32)}, "C803"),
    "a bias of one group": ("grouped_gemm", {"bias": BIAS}, "C803"),
    "a bias of bf16": ("masked_gemm", {"bias": ones(2, N)}, "C803"),
    "a bias of groups": ("int4_gemm", {"bias": OF_GROUPS}, "C803"),
    "a factor too large": ("grouped_gemm", {"alpha": 1e60}, "C805"),
    "C is read-only": ("grouped_gemm", {"C": read_only(M, N)}, "C804"),
    "C of one element": ("masked_gemm", {"C": np.broadcast_to(ones(1), (2, M, N))}, "C804"),
    "C in A": (
        "grouped_gemm",
        {"A": A_AND_C[0], "B": ones(2, N, N), "C": A_AND_C[1], "offsets": np.array([0, 1, N])},
        "C804",
    ),
    "C in X": (
        "int4_gemm",
        {"X": X_AND_C[0], "C": X_AND_C[1], "W": pack_int4(ones(K, K, dtype=np.int64), ones(1, K))},
        "C804",
    ),
    "expected rows below 0": ("masked_gemm", {"expected": -1}, "C805"),
    "expected rows without end": ("masked_gemm", {"expected": float("inf")}, "C805"),
    "a group of half an element": ("pack_int4", {"group": 128.0}, "C805"),
    "a group of 96": ("pack_int4", {"group": 96}, "C805"),
    "one shape": ("warmup", {"shapes": (64, 64, 64)}, "C805"),
    "an extent that is no integer": ("warmup", {"shapes": [(64, 64, 64.0)]}, "C805"),
    "two extents": ("warmup", {"shapes": [(64, 64)]}, "C803"),
    "a flag of warmup": ("warmup", {"bias": "no"}, "C805"),
    "one layout": ("warmup", {"layouts": "NT"}, "C805"),
    "a stream beside a target": ("warmup", {"stream": "x"}, "C805"),
    "a factor of warmup": ("warmup", {"beta": "x"}, "C805"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    called, change, code = REFUSED[name]
    product, given = PRODUCTS[called]
    with pytest.raises(KernelArgumentError) as caught:
        product(**{**given, **change})
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{called}(): ") and "\n  fix: " in str(caught.value)


@tile_function
def of_nothing(x: Any, bias: Any, column: Any) -> None:
    pass


@tile_function
def of_one(x: Any, bias: Any, column: Any) -> Any:
    return f32(1)


@tile_function
def without_a_guard(x: Any, bias: Any, column: Any) -> Any:
    return x + bias.get(column)


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize(
    ("epilogue", "code", "line"),
    [
        (of_nothing, "C112", "assert y is not None"),
        (of_one, "C104", "assert y is not None"),
        (without_a_guard, "C403", "return x + bias"),
    ],
)
def test_an_epilogue_function_that_cannot_be_applied(epilogue: Any, code: str, line: str, dtype: Any) -> None:
    """The error is at a line of it, or where it is applied. One number for a piece was once stored as an element."""
    with pytest.raises(CompileErrors) as caught:
        gemm(ones(M, N, dtype=dtype), ones(N, N, dtype=dtype), epilogue=epilogue, device="emulator")
    error = caught.value.errors[0]
    assert error.code == code and line in str(error)


def test_numbers_of_numpy() -> None:
    """They are what Python's are, wherever a product takes a number."""
    A, B, C = ones(M, K), ones(K, N), ones(M, N)
    assert (gemm(A, B, C, np.float64(0.5), np.int8(2), device="emulator") == 0.5 * K + 2).all()
    A, B = ones(2, M, K), ones(2, K, N)
    made = masked_gemm(A, B, np.full(2, M), alpha=np.float16(0.5), expected=np.uint8(3), device="emulator")
    assert (made == 0.5 * K).all()
    W = pack_int4(Q + 8, ones(4, N), group=np.int16(32))
    assert type(W.group) is int
    assert (int4_gemm(ones(M, K), W, alpha=np.float32(2), device="emulator") == 2 * K).all()


@pytest.mark.parametrize("kind", [int, np.int8, np.uint16, np.int64, np.uint64])
def test_cdiv_on_the_host(kind: Any) -> None:
    """Negative numbers are rounded up, too, and the result is an int of Python."""
    for a, b in ((7, 2), (8, 2), (0, 3), (1, 100)):
        found = cdiv(kind(a), b), cdiv(a, kind(b)), cdiv(kind(a), kind(b))
        assert found == (-(-a // b),) * 3 and {type(x) for x in found} == {int}
    if kind not in (np.uint16, np.uint64):
        assert cdiv(kind(-7), 2) == -3


@pytest.mark.parametrize("value", [True, np.bool_(True), 7.0, np.float32(7), "7"])
def test_cdiv_of_other_values_is_refused(value: Any) -> None:
    for numbers in ((value, 2), (7, value)):
        with pytest.raises(TileError, match="expected an integer"):
            cdiv(*numbers)

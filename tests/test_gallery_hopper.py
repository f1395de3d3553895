"""The Hopper kernels of the gallery are right on the emulator at any size that TMA takes; `gemm` takes every other."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl.errors import CompileErrors, KernelArgumentError

GEMM = Path(__file__).parent.parent / "examples" / "gemm"
sys.path.insert(0, str(GEMM))

from gallery import HOPPER, as_given, dtypes, load  # noqa: E402
from reference import error_bound, random_problem, worst_error  # noqa: E402

CASES = [
    pytest.param(number, consts, marks=pytest.mark.xdist_group(f"hopper {number}"))
    for number, entry in enumerate(HOPPER)
    for consts in entry.variants
]
FASTEST = len(HOPPER) - 1


@functools.cache
def _load(number: int) -> Any:
    """One object a kernel for all tests, since it keeps what it has compiled."""
    return load(HOPPER[number])


def _right(number: int, A: Any, B: Any, C: Any, format: str = "bf16", **consts: Any) -> bool:
    kernel = _load(number)
    kernel(*as_given(kernel, A, B, C), device="emulator", **consts)
    error, bound = worst_error(C, A, B, format=format)
    return bool(error <= bound)


@pytest.mark.parametrize(("number", "consts"), CASES)
@pytest.mark.parametrize("size", [(8, 8, 8), (136, 264, 72), (264, 24, 520), (16, 40, 0), (0, 64, 32)])
def test_right_at_edges(number: int, consts: dict[str, Any], size: tuple[int, int, int]) -> None:
    """One tile and several, whole and in part; more steps than stages, and none: K = 0 gives zeros."""
    assert _right(number, *random_problem(*size, format="bf16"), **consts)


@pytest.mark.parametrize(("number", "consts"), CASES)
@pytest.mark.parametrize("orders", ["NT", "TN", "TT"])
def test_every_orientation(number: int, consts: dict[str, Any], orders: str) -> None:
    A, B, C = random_problem(136, 272, 200, format="f16")
    given = [np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), orders, strict=True)]
    assert _right(number, *given, C, format="f16", **consts)


@pytest.mark.parametrize(("number", "consts"), CASES)
def test_no_hazard(number: int, consts: dict[str, Any]) -> None:
    """The emulator's checks: every access is ordered, every copy waited for, every fence in its place."""
    kernel = _load(number)
    kernel.check(*as_given(kernel, *random_problem(200, 264, 392, format="bf16")), **consts)


@pytest.mark.parametrize(("number", "consts"), CASES)
@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_nothing_is_spilled(number: int, consts: dict[str, Any], format: str) -> None:
    """No spills and no stack; a remark of ptxas would be an error."""
    kernel = _load(number)
    used = kernel.compile(**dtypes(kernel, format), **consts).resources
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


def test_a_ladder_step_refuses_what_tma_cannot_take() -> None:
    A, B, C = random_problem(16, 20, 12, format="bf16")
    with pytest.raises(CompileErrors, match="multiples of 16 bytes"):
        _load(0)(A, B, C, device="emulator")


# -- the tuned kernel ------------------------------------------------------------------------------


def _batches(count: int, *size: int) -> tuple[Any, Any, Any]:
    problems = [random_problem(*size, seed, "bf16") for seed in range(count)]
    A, B, C = (np.stack(x) for x in zip(*problems, strict=True))
    return A, B, C


def test_every_choice() -> None:
    """Tiles of all widths, with B along k as they need it. Two processors have several tiles each, so that the result's
    buffers are used again by the next tile: of as many pieces as there are buffers, and of others."""
    from hopper_fastest import CHOICES

    kernel = _load(FASTEST)
    for consts in (choice.consts for choice in CHOICES):
        A, B, C = random_problem(136, 376, 72, format="bf16")
        given = as_given(kernel, A, np.asfortranarray(B), C)
        kernel._emulated(given, consts, checks=True, processors=2)
        error, bound = worst_error(C, A, B, format="bf16")
        assert error <= bound, consts


@pytest.mark.parametrize("plain", [True, False])
def test_no_choice_spills(plain: bool) -> None:
    from hopper_fastest import CHOICES, add_bias, choose
    from hopper_fastest import plain as as_it_is

    kernel = _load(FASTEST)
    for n in (128, 144, 256, 576, 2112):
        consts = choose(4096, n, 4096, plain=plain)
        assert any(c.consts == consts for c in CHOICES)
        function = as_it_is if plain else add_bias
        used = kernel.compile(D="bf16", E="bf16", EPILOGUE=function, **consts).resources
        assert (used.spill_stores, used.stack) == (0, 0)


@pytest.mark.parametrize(
    "consts", [{"CLUSTER": (2, 1)}, {"CLUSTER": (1, 2)}, {"CLUSTER": (2, 2)}, {"INSTANCES": 2, "BN": 128}]
)
def test_batches(consts: dict[str, Any]) -> None:
    A, B, C = _batches(3, 200, 264, 136)
    _load(FASTEST)(A, B, C, device="emulator", **consts)
    for i in range(3):
        error, bound = worst_error(C[i], A[i], B[i], format="bf16")
        assert error <= bound


def test_scaled_with_a_bias() -> None:
    from hopper_fastest import add_bias

    A, B, C = _batches(1, 136, 264, 72)
    C[:] = 1
    bias = np.linspace(-2, 2, 264, dtype=np.float32)
    _load(FASTEST)(A, B, C, 0.5, -1.5, bias, device="emulator", ADD_C=True, EPILOGUE=add_bias)
    exact = 0.5 * (A[0].astype(np.float64) @ B[0].astype(np.float64)) - 1.5 + bias
    bound = error_bound(A[0], B[0], exact, format="bf16") + 2.0**-22 * (np.abs(exact) + 4)
    assert (np.abs(C[0].astype(np.float64) - exact) <= bound).all()


def test_the_tuned_kernel_is_short() -> None:
    """At most 80 lines that are neither blank nor comment nor documentation, its epilogue functions apart."""
    from ast import FunctionDef, get_docstring, parse

    count = 0
    for name, wanted in (("hopper_fastest.py", {"hopper_fastest", "finished"}), ("hopper_tiles.py", None)):
        source = (GEMM / name).read_text()
        for node in parse(source).body:
            if isinstance(node, FunctionDef) and (wanted is None or node.name in wanted):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                lines = source.splitlines()[first - 1 : node.end_lineno]
                count += len([line for line in lines if line.strip() and not line.strip().startswith("#")])
                count -= len((get_docstring(node, clean=False) or "").splitlines())
    assert count <= 80


# -- any product -----------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", ["NNN", "NTN", "TTT"])
@pytest.mark.parametrize("size", [(133, 217, 129), (264, 296, 200), (128, 128, 4096)])
def test_gemm_takes_anything(size: tuple[int, int, int], orders: str) -> None:
    """Rows that TMA cannot take are padded; a deep and small product is cut along k."""
    from hopper_gemm import gemm

    problem = random_problem(*size, format="bf16")
    A, B, C = (np.asfortranarray(X) if order == "T" else X for X, order in zip(problem, orders, strict=True))
    gemm(A, B, C, device="emulator")
    error, bound = worst_error(C, A, B, format="bf16")
    assert error <= bound


@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        (((8,), (8, 8), (8,)), "float16", r"\(1, 2, 1\) axes; expected 2 each, or 3 with a batch"),
        (((1, 1, 8, 8),) * 3, "float16", r"\(4, 4, 4\) axes"),
        (((1, 8, 8), (8, 8), (1, 8, 8)), "float16", r"\(3, 2, 3\) axes"),
        (((8, 8),) * 3, "float32", "A is float32; expected bf16 or f16"),
    ],
)
def test_gemm_refuses(shapes: Any, dtype: str, message: str) -> None:
    from hopper_gemm import gemm

    A, B, C = (np.ones(shape, dtype) for shape in shapes)
    with pytest.raises(KernelArgumentError, match=message):
        gemm(A, B, C, device="emulator")


@pytest.mark.parametrize("size", [(133, 217, 129), (128, 128, 4096)])
def test_gemm_scales_and_adds(size: tuple[int, int, int]) -> None:
    from hopper_gemm import gemm

    A, B, C = random_problem(*size, format="bf16")
    C[:] = 1
    gemm(A, B, C, 0.5, 2.0, device="emulator")
    exact = 0.5 * (A.astype(np.float64) @ B.astype(np.float64)) + 2
    bound = error_bound(A, B, exact, format="bf16") + 2.0**-22 * (np.abs(exact) + 2)
    assert (np.abs(C.astype(np.float64) - exact) <= bound).all()

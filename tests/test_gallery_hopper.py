"""The Hopper kernels of the gallery are right on the emulator at any size that TMA takes; `gemm` takes every other."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl import tile_function
from tiledsl.errors import CompileErrors
from tiledsl.gemm.choice import CLUSTERS, WHOLE, Variant

GEMM = Path(__file__).parent.parent / "examples" / "gemm"
LIBRARY = Path(__file__).parent.parent / "tiledsl" / "gemm"
sys.path.insert(0, str(GEMM))

from gallery import HOPPER, as_given, dtypes, load  # noqa: E402
from reference import error_bound, random_problem, worst_error  # noqa: E402

CASES = [(number, consts) for number, entry in enumerate(HOPPER) for consts in entry.variants]
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
@pytest.mark.parametrize("orders", ["NT", "TN"])
def test_every_orientation(number: int, consts: dict[str, Any], orders: str) -> None:
    """Of each operand; no operand's copies depend on the other's."""
    A, B, C = random_problem(136, 272, 200, format="f16")
    given = [np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), orders, strict=True)]
    assert _right(number, *given, C, format="f16", **consts)


@pytest.mark.parametrize(("number", "consts"), CASES)
def test_no_hazard(number: int, consts: dict[str, Any]) -> None:
    """The emulator's checks: every access is ordered, every copy waited for, every fence in its place."""
    kernel = _load(number)
    kernel.check(*as_given(kernel, *random_problem(200, 264, 392, format="bf16")), **consts)


@pytest.mark.parametrize(("number", "consts"), CASES)
def test_nothing_is_spilled(number: int, consts: dict[str, Any]) -> None:
    """No spills and no stack; a remark of ptxas would be an error."""
    kernel = _load(number)
    used = kernel.compile(**dtypes(kernel, "bf16"), **consts).resources
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
    """Tiles of all sizes, with B along k as they need it. Two processors have several tiles each, so that the result's
    buffers are used again by the next tile: of as many pieces as there are buffers, and of others. Of a wide tile there
    are two in a row, of others three; the last one is cut off."""
    kernel = _load(FASTEST)
    for number, tile in enumerate(WHOLE):
        along_m, along_n = CLUSTERS[number % len(CLUSTERS)]
        along_m = along_m if tile[1] % (8 * along_m) == 0 else 1
        consts = Variant(tile, along_m=along_m, along_n=along_n).consts()
        n = min(376, 3 * along_n * tile[1] - (8 if along_n * tile[1] > 8 else 0))
        A, B, C = random_problem(136, n, 72, format="bf16")
        given = as_given(kernel, A, np.asfortranarray(B), C)
        kernel._emulated(given, {"EARLY": True, **consts}, checks=True, processors=max(2, along_m * along_n))
        error, bound = worst_error(C, A, B, format="bf16")
        assert error <= bound, consts


@tile_function
def no_bias(x: Any, bias: Any, column: Any) -> Any:
    """Leave out the bias, which kernels have that are compiled without arguments."""
    return x


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_no_choice_spills(behind: int) -> None:
    """Neither alone, nor with an epilogue function, nor with that and C to add."""
    from tiledsl.gemm.epilogue import add_bias

    kernel, function = _load(FASTEST), add_bias if behind else no_bias
    small = [Variant(tile, by_rows=True) for tile in WHOLE if tile[1] % 32 == 0]
    for rows, instances in ((64, 2), (128, 1), (128, 2)):
        of_kind = (v for v in small if v.tile[::2] == (rows, instances) and v.has_registers(behind))
        consts = max(of_kind, key=lambda v: v.tile[1]).consts()
        used = kernel.compile(D="bf16", F="bf16", E="bf16", ADD_C=behind == 2, EPILOGUE=function, **consts).resources
        assert (used.spill_stores, used.stack) == (0, 0)


@pytest.mark.parametrize(
    ("consts", "order"),
    [
        ({}, "C"),
        ({"INSTANCES": 2, "BN": 128}, "F"),
        ({"BN": 144, "STAGES": 5}, "C"),
        ({"BM": 64, "BN": 64, "INSTANCES": 2}, "C"),
    ],
)
def test_stores_where_tma_cannot(consts: dict[str, Any], order: str) -> None:
    """Along rows and along columns, at edges that are multiples of nothing; no access is early."""
    A, B, _ = random_problem(197, 164, 72, format="bf16")
    A, B = A[:133], np.asfortranarray(B)[:, :163]
    C = np.full((133, 163), np.nan, A.dtype, order=order)  # type: ignore[call-overload]
    kernel = _load(FASTEST)
    kernel._emulated(as_given(kernel, A, B, C), consts, checks=True, processors=2)
    error, bound = worst_error(C, A, B, format="bf16")
    assert error <= bound


@pytest.mark.parametrize(
    ("variant", "exchanged"),
    [
        (Variant((64, 16, 2), by_rows=True), False),
        (Variant((64, 16, 2), by_rows=True), True),
        (Variant((64, 48, 2), along_m=2, by_rows=True), False),
        (Variant((64, 96, 2), along_m=4, by_rows=True), False),
        (Variant((64, 96, 2), along_m=4, by_rows=True), True),
        (Variant((128, 144, 1), by_rows=True), True),
        (Variant((128, 176, 2), by_rows=True), False),
        (Variant((128, 192, 2), by_rows=True), False),
        (Variant((128, 240, 1), by_rows=True), False),
        (Variant((128, 240, 1), by_rows=True), True),
    ],
)
def test_widths_of_a_part_of_a_panel(variant: Any, exchanged: bool) -> None:
    """The kernel's B is in row order, of batches: whole panels are loaded, across the edge and of the next tile."""
    m, n = 200, 136 if variant.tile[1] < 64 else 376
    A, B, C = _batches(2, *((n, m) if exchanged else (m, n)), 136)
    if exchanged:
        A, B, C = (X.swapaxes(1, 2).copy().swapaxes(1, 2) for X in (A, B, C))
        A, B, C = B.swapaxes(1, 2), A.swapaxes(1, 2), C.swapaxes(1, 2)
    C[...] = np.nan
    consts = {**variant.consts(), "EXCHANGED": exchanged}
    _load(FASTEST)._emulated((A, B, C), consts, checks=True, processors=3 * variant.along_m)
    for i in range(2):
        error, bound = worst_error(C[i], A[i], B[i], format="bf16")
        assert error <= bound


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("tile", "out"), [((64, 112, 2), "float32"), ((128, 112, 1), "bfloat16"), ((64, 96, 2), "float8_e4m3fn")]
)
def test_what_wide_pieces_leave_is_stored_in_narrow_ones(tile: Any, out: str, order: str) -> None:
    """Each piece is also read from C; narrow ones have shared memory of their own where C is in row order."""
    dtype = np.dtype(out)
    A, B, _ = random_problem(144, 2 * tile[1], 72, format="bf16")
    C = np.asarray(np.ones((144, 2 * tile[1]), dtype), order=order)  # type: ignore[call-overload]
    consts = Variant(tile).consts(72, dtype.itemsize) | {"STAGES": 2, "ADD_C": True}
    _load(FASTEST)._emulated((A[None], B[None], C[None], 1.0, -2.0), consts, checks=True, processors=3)
    exact = A.astype(np.float64) @ B.astype(np.float64) - 2
    rounding = np.maximum(np.abs(exact) * 2.0**-4, 2.0**-10) if dtype.itemsize == 1 else 2.0**-22
    assert (np.abs(C.astype(np.float64) - exact) <= error_bound(A, B, exact, format="bf16") + rounding).all()


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
    from tiledsl.gemm.epilogue import add_bias

    A, B, C = _batches(1, 136, 264, 72)
    C[:] = 1
    bias = np.linspace(-2, 2, 264, dtype=np.float32)
    _load(FASTEST)(A, B, C, 0.5, -1.5, bias, device="emulator", ADD_C=True, EPILOGUE=add_bias)
    exact = 0.5 * (A[0].astype(np.float64) @ B[0].astype(np.float64)) - 1.5 + bias
    bound = error_bound(A[0], B[0], exact, format="bf16") + 2.0**-22 * (np.abs(exact) + 4)
    assert (np.abs(C[0].astype(np.float64) - exact) <= bound).all()


def test_the_tuned_kernel_is_short() -> None:
    """At most 200 lines that are neither blank nor comment nor documentation, epilogue functions, parts of k, promoted
    and scaled sums apart; its role that orders lines included."""
    from ast import FunctionDef, get_docstring, parse

    count = 0
    counted = {"hopper.py": {"hopper_fastest"}, "hopper_stores.py": {"store_lines"}, "hopper_tiles.py": None}
    for name, wanted in counted.items():
        source = (LIBRARY / name).read_text()
        for node in parse(source).body:
            if isinstance(node, FunctionDef) and (wanted is None or node.name in wanted):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                lines = source.splitlines()[first - 1 : node.end_lineno]
                count += len([line for line in lines if line.strip() and not line.strip().startswith("#")])
                count -= len((get_docstring(node, clean=False) or "").splitlines())
    assert count <= 200


# -- any product -----------------------------------------------------------------------------------


SIZES = {
    "pairs of tiles": (264, 296, 200),
    "three rows of tiles, in pairs": (300, 136, 72),
    "stored by lines": (133, 217, 129),
    "narrow": (200, 40, 72),
    "narrow, by lines": (77, 43, 19),
    "few tiles in parts": (128, 128, 2048),
    "more tiles in parts": (270, 70, 2048),
    "in parts that are not many": (70, 30, 3 * 64 * 11),
    "nothing": (0, 40, 2048),
    "a sum of nothing": (40, 43, 0),
}


ALONG_K = ("pairs of tiles", "stored by lines", "few tiles in parts")


@pytest.mark.parametrize(
    ("name", "orders"), [*((n, orders) for n in SIZES for orders in ("NNN", "TTT")), *((n, "NTN") for n in ALONG_K)]
)
def test_gemm_takes_anything(name: str, orders: str) -> None:
    """Rows that TMA cannot take are padded; a deep and small product is cut along k. What C was does not matter."""
    from tiledsl.gemm import gemm

    problem = random_problem(*SIZES[name], format="bf16")
    A, B, C = (np.asfortranarray(X) if order == "T" else X for X, order in zip(problem, orders, strict=True))
    C[...] = np.nan
    gemm(A, B, C, device="emulator")
    error, bound = worst_error(C, A, B, format="bf16")
    assert error <= bound


@pytest.mark.parametrize("size", [(40, 60, 72), (40, 60, 2048)])
def test_gemm_takes_any_strides(size: tuple[int, int, int]) -> None:
    """Gaps, other steps, backwards; and of C nothing else is written."""
    from tiledsl.gemm import gemm

    m, n, k = size
    A, B, _ = random_problem(m, 2 * n, k, format="bf16")
    room = np.full((m + 2, 2 * n + 9), 7, A.dtype)
    for at in (room[1:-1, 8 : 8 + n], room[1:-1, 3 : 3 + n], room[1:-1, 3 : 3 + 2 * n : 2]):
        room[...] = 7
        gemm(A[::-1], B[:, ::2], at, device="emulator")
        error, bound = worst_error(at, A[::-1], B[:, ::2], format="bf16")
        assert error <= bound
        at[...] = 7
        assert (room == 7).all()


@pytest.mark.parametrize("shape", [(1, 9, 19), (3, 17, 300), (2, 1, 1)])
def test_copies_have_aligned_rows(shape: tuple[int, int, int]) -> None:
    from tiledsl.gemm.pad import pad, pad_both

    X, Z = (np.arange(np.prod(s)).reshape(s).astype(np.float16) for s in (shape, (shape[0], 12, 7)))
    Y, W = (np.full((*x.shape[:2], -(-x.shape[2] // 8) * 8), np.nan, np.float16) for x in (X, Z))
    for early in (False, True):
        pad.check(X, Y, EARLY=early)
        pad_both.check(X, Y, Z, W, EARLY=early)
        pad(X, Y, device="emulator", EARLY=early)
        assert (Y[:, :, : X.shape[2]] == X).all() and not Y[:, :, X.shape[2] :].any()
        Y[...] = np.nan
        pad_both(X, Y, Z, W, device="emulator", EARLY=early)
        assert (Y[:, :, : X.shape[2]] == X).all() and (W[:, :, :7] == Z).all() and not W[:, :, 7:].any()


@pytest.mark.parametrize("size", [(133, 217, 129), (130, 130, 72), (128, 130, 2048)])
def test_gemm_scales_and_adds(size: tuple[int, int, int]) -> None:
    """By lines, by TMA and of parts; with an epilogue function of its columns, of which the parts know nothing."""
    from tiledsl.gemm import gemm
    from tiledsl.gemm.epilogue import add_bias

    A, B, C = random_problem(*size, format="bf16")
    C[:] = 1
    bias = np.linspace(-2, 2, size[1], dtype=np.float32)
    gemm(A, B, C, 0.5, 2.0, bias, add_bias, device="emulator")
    exact = 0.5 * (A.astype(np.float64) @ B.astype(np.float64)) + 2 + bias
    bound = error_bound(A, B, exact, format="bf16") + 2.0**-22 * (np.abs(exact) + 4)
    assert (np.abs(C.astype(np.float64) - exact) <= bound).all()

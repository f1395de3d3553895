"""Grouped and masked products: every tile is right with all checks of the emulator, nothing but the groups' rows is
written, wrong offsets are errors there and harmless without checks."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import relu, tile_function
from tiledsl.errors import KernelArgumentError, TileError
from tiledsl.gemm import grouped_gemm, masked_gemm
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.grouped import hopper_grouped
from tiledsl.gemm.grouped_call import ROOM, TILES, choose_grouped

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
UNTOUCHED = 77


def small(*shape: int, seed: int = 0, dtype: Any = BF16) -> Array:
    """Integers, so that sums are exact in any order."""
    return np.random.default_rng([*shape, seed]).integers(-3, 4, shape).astype(dtype)


def matrices(groups: int, k: int, n: int, order: str, dtype: Any = BF16) -> Array:
    """B, contiguous along n ("N") or along k ("K")."""
    return small(groups, k, n, dtype=dtype) if order == "N" else small(groups, n, k, dtype=dtype).swapaxes(1, 2)


def product(a: Array, b: Array) -> Array:
    return a.astype(np.float32) @ b.astype(np.float32)


def grouped(sizes: list[int], k: int, n: int, order: str, bounds: Any = np.int32, dtype: Any = BF16) -> list[Array]:
    """A, B, C, offsets and the expected C; two rows before the groups and three behind are of none."""
    rows, offsets = sum(sizes) + 5, np.cumsum([2, *sizes]).astype(bounds)
    A, B = small(rows, k, dtype=dtype), matrices(len(sizes), k, n, order, dtype)
    C = np.full((rows, n), UNTOUCHED, dtype)
    expected = C.copy()
    for g, (first, last) in enumerate(pairwise(offsets)):
        expected[first:last] = product(A[first:last], B[g])
    return [A, B, C, offsets, expected]


def masked(sizes: list[int], k: int, n: int, order: str, bounds: Any = np.int32, dtype: Any = BF16) -> list[Array]:
    """A, B, C, counts and the expected C; what A has behind the counts is NaN."""
    most = max(sizes) + 4
    A, B = small(len(sizes), most, k, dtype=dtype), matrices(len(sizes), k, n, order, dtype)
    C = np.full((len(sizes), most, n), UNTOUCHED, dtype)
    expected = C.copy()
    for g, size in enumerate(sizes):
        A[g, size:] = np.nan
        expected[g, :size] = product(A[g, :size], B[g])
    return [A, B, C, np.array(sizes, bounds), expected]


def run(problem: list[Array], processors: int = 2, **consts: Any) -> None:
    """The kernel with all checks; few blocks have several tiles each, so that buffers are used again."""
    A, B, C, bounds, expected = problem
    is_masked = A.ndim == 3
    arrays = (A, B, C) if is_masked else (A[None], B, C[None])
    consts = {"MASKED": is_masked, "CHECK": True, **consts}
    hopper_grouped._emulated((*arrays, bounds), consts, checks=True, processors=processors)
    np.testing.assert_array_equal(C, expected)


SIZES = [3, 0, 0, 150, 64, 1, 128, 0]


@pytest.mark.parametrize(("make", "order", "bounds"), [(grouped, "N", np.int32), (masked, "K", np.int64)])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(tile: Any, order: str, bounds: Any, make: Any) -> None:
    """Groups of none, one, some rows, half a tile, a whole one and several; columns and k that tiles do not divide."""
    sizes = [3, 0, 0, tile.rows + 22, tile.rows // 2, 1, tile.rows, 0]
    run(make(sizes, 136 if order == "N" else 72, tile.columns + 8, order, bounds), **tile.consts(len(sizes)))


@pytest.mark.parametrize(
    "consts",
    [
        {"BM": 64, "BN": 256, "INSTANCES": 2},
        {"BM": 64, "BN": 128, "INSTANCES": 2, "BK": 128, "STAGES": 2, "GROUP": 1},
        {"BM": 32, "BN": 128, "EXCHANGED": True, "STAGES": 10},
        {"BM": 8, "BN": 64, "EXCHANGED": True, "INSTANCES": 2, "EARLY": True},
        {"BM": 176, "BN": 128, "EXCHANGED": True, "INSTANCES": 2},
    ],
    ids=str,
)
def test_consts_that_are_never_chosen(consts: dict[str, Any]) -> None:
    run(grouped([3, 0, consts["BM"] + 24, 64, 1], 136, consts["BN"] + 8, "N"), GROUPS=32, **consts)


@pytest.mark.parametrize("sizes", [[0], [0, 0, 0], [1], [300]], ids=str)
@pytest.mark.parametrize("make", [grouped, masked])
def test_few_groups(make: Any, sizes: list[int]) -> None:
    run(make(sizes, 72, 72, "N"), **TILES[2].consts(len(sizes)))


@pytest.mark.parametrize("groups", [33, 384, 385, 800])
def test_many_groups(groups: int) -> None:
    """More than a warp counts at once, and more than all warps of a block do."""
    sizes = [(7 * g) % 3 if g % 5 == 0 else 0 for g in range(groups)]
    sizes[-1] = 17
    run(grouped(sizes, 8, 8, "N"), **TILES[0].consts(groups))


def test_no_products_are_zeros() -> None:
    run(grouped([3, 0, 70], 0, 72, "N"), **TILES[1].consts(3))


@pytest.mark.parametrize("n", [100, 7])
def test_columns_that_vectors_do_not_divide(n: int) -> None:
    """Of a wider C, nothing behind the last column is written."""
    A, B, _, offsets, expected = grouped([9, 40], 72, n, "K")
    for tile in TILES:
        wide = np.full((len(A), 104), UNTOUCHED, BF16)
        run([A, B, wide[:, :n], offsets, expected], **tile.consts(2))
        assert (wide[:, n:] == UNTOUCHED).all()


# -- the calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_calls(dtype: Any) -> None:
    """On the emulator where there is no GPU; C is made if it is left out."""
    A, B, C, offsets, expected = grouped(SIZES, 64, 128, "K", dtype=dtype)
    assert grouped_gemm(A, B, offsets, C, device="emulator") is C
    np.testing.assert_array_equal(C, expected)
    made = grouped_gemm(A, B, offsets, device="emulator")
    np.testing.assert_array_equal(made[2:-3], expected[2:-3])
    A, B, C, counts, expected = masked(SIZES, 64, 128, "K", np.int64, dtype)
    assert masked_gemm(A, B, counts, C, device="emulator", expected=3) is C
    np.testing.assert_array_equal(C, expected)


@tile_function
def relu_of_bias(x: Any, bias: Any, column: Any) -> Any:
    return relu(add_bias(x, bias, column))


@pytest.mark.parametrize("expected", [2, 200])
def test_scaled_with_a_bias_for_each_group(expected: int) -> None:
    """Of either orientation."""
    A, B, C, counts, exact = masked([5, 0, 130], 64, 128, "N")
    bias = small(3, 128, dtype=np.float32)
    for g, count in enumerate(counts):
        exact[g, :count] = np.maximum(0.5 * product(A[g, :count], B[g]) + bias[g], 0)
    masked_gemm(A, B, counts, C, 0.5, bias, relu_of_bias, device="emulator", expected=expected)
    np.testing.assert_array_equal(C, exact)


@pytest.mark.parametrize("expected", [2, 200])
@pytest.mark.parametrize("make", [grouped, masked])
@pytest.mark.parametrize("order", ["N", "K"])
def test_any_strides(order: str, make: Any, expected: int) -> None:
    """Rows of odd lengths, gaps, other steps, A and C by columns; nothing else of what C is a part of is written."""
    A, B, C, bounds, exact = make([5, 0, 133], 67, 101, order)
    options = {"expected": expected} if make is masked else {}
    call = masked_gemm if make is masked else grouped_gemm
    gaps = np.zeros((*A.shape[:-1], 3 * A.shape[-1]), A.dtype)[..., ::3]
    gaps[...] = A
    by_columns = np.full((*C.shape[:-2], 108, C.shape[-2]), UNTOUCHED, C.dtype).swapaxes(-1, -2)
    wide = np.full((*C.shape[:-1], 300), UNTOUCHED, C.dtype)
    turned = A.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    for a, b, c in (
        (A, B, C),
        (gaps, B[:, ::-1][:, ::-1], by_columns[..., 3:104]),
        (A, B, wide[..., 5:207:2]),
        (turned, B, C),
    ):
        call(a, b, bounds, c, device="emulator", **options)
        np.testing.assert_array_equal(c, exact)
    assert (by_columns[..., :3] == UNTOUCHED).all() and (by_columns[..., 104:] == UNTOUCHED).all()
    wide[..., 5:207:2] = UNTOUCHED
    assert (wide == UNTOUCHED).all()


@pytest.mark.parametrize("expected", [2, 64, 200])
def test_a_by_columns(expected: int) -> None:
    """Aligned, so that it is read where it is, and a tile of few rows is a part of the panel that is staged."""
    A, B, C, counts, exact = masked([5, 0, 133], 64, 128, "N")
    by_columns = np.zeros((3, 64, 144), A.dtype).swapaxes(1, 2)[:, :137]
    by_columns[...] = A
    masked_gemm(by_columns, B, counts, C, device="emulator", expected=expected)
    np.testing.assert_array_equal(C, exact)


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("groups", [0, 2])
def test_nothing(groups: int, rows: int) -> None:
    C = np.full((rows, 64), UNTOUCHED, BF16)
    offsets = np.zeros(groups + 1, np.int32)
    grouped_gemm(small(rows, 64), small(groups, 64, 64), offsets, C, device="emulator")
    assert (C == UNTOUCHED).all()


def test_the_choice() -> None:
    """Few rows have few-row tiles, launched early; many have the largest; a table for all groups always fits."""
    few, many = choose_grouped(8, 2, 1024, 1024), choose_grouped(8, 4096, 8192, 8192)
    assert few["BM"] <= 32 and few["EXCHANGED"] and few["EARLY"]
    assert many["BM"] == 128 and many["BN"] == 256 and not many["EARLY"]
    assert all(tile.consts(groups)["STAGES"] >= 3 for tile in TILES for groups in ROOM)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_tile_spills(tile: Any) -> None:
    """In either order of B, of 32-bit and 64-bit indices, with a bias for each group."""
    for unit, bits, room in ((1, 32, ROOM[-1]), (2, 64, 256)):
        consts = {**tile.consts(room), "EARLY": True, "EPILOGUE": add_bias}
        spec, target = hopper_grouped.specialized(
            "sm_90a", {"D": "bf16", "F": "bf16", "E": "bf16", "Bound": "i64", **consts}
        )
        tensors = {name: replace(given, unit=unit) if name == "B" else given for name, given in spec.tensors if given}
        spec = replace(spec, tensors=tuple(tensors.items()), index_bits=bits)
        used = hopper_grouped.builds.compiled(spec, target).resources
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


# -- bad input -------------------------------------------------------------------------------------

WRONG = {
    "decreasing": [0, 9, 3, 20],
    "negative": [-5, 3, 4, 20],
    "past the rows": [0, 3, 9, 21],
    "far out": [0, 2**31 + 3, -(2**33), 2**62],
}


@pytest.mark.parametrize("offsets", WRONG.values(), ids=WRONG)
def test_wrong_offsets_are_errors_on_the_emulator(offsets: list[int]) -> None:
    with pytest.raises(TileError, match="offsets do not decrease, from 0 to the rows of A"):
        grouped_gemm(small(20, 64), small(3, 64, 64), np.array(offsets), device="emulator")


@pytest.mark.parametrize("counts", [[0, 8, 9], [-1, 2, 3], [2**40, 0, 0]], ids=str)
def test_wrong_counts_are_errors_on_the_emulator(counts: list[int]) -> None:
    with pytest.raises(TileError, match="counts are from 0 to max_m"):
        masked_gemm(small(3, 8, 64), small(3, 64, 64), np.array(counts), device="emulator")


@pytest.mark.parametrize("tile", [TILES[0], TILES[-1]], ids=str)
@pytest.mark.parametrize("bounds", WRONG.values(), ids=WRONG)
def test_wrong_bounds_access_nothing_outside(bounds: list[int], tile: Any) -> None:
    """Without the check, as on a GPU: the emulator reports every access out of bounds, and what is around C stays."""
    A, B = small(20, 64), small(3, 64, 64)
    room = np.full((60, 64), UNTOUCHED, BF16)
    consts = tile.consts(3)
    hopper_grouped._emulated((A[None], B, room[None, 20:40], np.array(bounds)), consts, processors=3)
    hopper_grouped._emulated(
        (small(3, 8, 64), B, room[24:48].reshape(3, 8, 64), np.array(bounds[1:])), {**consts, "MASKED": True}
    )
    assert (room[:20] == UNTOUCHED).all() and (room[48:] == UNTOUCHED).all()


OFFSETS = np.array([0, 5, 20], np.int32)
BAD_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "A has the shape (1, 20, 64) and B (2, 64, 72); expected [rows, K]": (small(1, 20, 64), small(2, 64, 72), OFFSETS),
    "K is 56 in A, of shape (20, 56), but 64 in B": (small(20, 56), small(2, 64, 72), OFFSETS),
    "A is f32 and B bf16; expected bf16 or f16": (small(20, 64, dtype=np.float32), small(2, 64, 72), OFFSETS),
    "offsets are i32 of shape (2,); expected i32 or i64 of shape (3,)": (small(20, 64), small(2, 64, 72), OFFSETS[1:]),
    "offsets are f32 of shape (3,)": (small(20, 64), small(2, 64, 72), OFFSETS.astype(np.float32)),
    "C is bf16 of shape (20, 64); expected bf16 of shape (20, 72)": (
        small(20, 64),
        small(2, 64, 72),
        OFFSETS,
        small(20, 64),
    ),
    "there are 4097 groups; a call takes 4096 at most": (
        small(20, 8),
        np.broadcast_to(small(1, 8, 8), (4097, 8, 8)),
        OFFSETS,
    ),
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_bad_arguments(message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        grouped_gemm(*BAD_ARGUMENTS[message], device="emulator")
    assert f"grouped_gemm(): {message}" in str(caught.value) and "fix:" in str(caught.value)


def test_bad_arguments_of_masked_products() -> None:
    for A, counts, message in (
        (small(3, 8, 64), OFFSETS[:2], "A has 3 groups, but B 2"),
        (small(2, 8, 64), OFFSETS, r"counts are i32 of shape \(3,\); expected i32 or i64 of shape \(2,\)"),
    ):
        with pytest.raises(KernelArgumentError, match=message):
            masked_gemm(A, small(2, 64, 72), counts, device="emulator")


def test_the_example_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "grouped.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(
        example.replace("offsets)", 'offsets, device="emulator")').replace("counts)", 'counts, device="emulator")'),
        found,
    )
    exact = product(found["A"][0, :4], found["B"][0])
    assert np.abs(found["C"][0, :4].astype(np.float32) - exact).max() < 2**-6 * np.abs(exact).max()

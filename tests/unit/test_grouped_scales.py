"""Grouped products of 8-bit floats, with scales of blocks and without: the bits of `gemm` for each group by itself,
with all checks of the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.errors import KernelArgumentError
from tiledsl.gemm import gemm, grouped_gemm, masked_gemm
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.grouped import hopper_grouped
from tiledsl.gemm.grouped_call import ROOM, SCALED_TILES, TILES, choose_grouped
from tiledsl.lang import cdiv

Array = NDArray[Any]
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
UNTOUCHED = 77
SIZES = [3, 0, 70, 1, 0]
OFFSETS = np.cumsum([2, *SIZES]).astype(np.int32)


class Problem:
    """Two rows before the groups and three behind are of none."""

    def __init__(self, k: int = 272, n: int = 136, dtypes: tuple[Any, Any] = (E4M3, E4M3), sizes: Any = SIZES) -> None:
        draw = np.random.default_rng([k, n])
        self.offsets = np.cumsum([2, *sizes]).astype(np.int32)
        rows, groups, blocks = sum(sizes) + 5, len(sizes), cdiv(k, 128)
        self.A = draw.standard_normal((rows, k)).astype(dtypes[0])
        self.B = draw.standard_normal((groups, n, k)).astype(dtypes[1]).swapaxes(1, 2)
        self.scale_a = draw.uniform(0.5, 2, (rows, blocks)).astype(np.float32)
        self.scale_b = draw.uniform(0.5, 2, (groups, blocks, cdiv(n, 128))).astype(np.float32)

    def expected(self, scaled: bool, out: Any = BF16) -> Array:
        C = np.full((len(self.A), self.B.shape[2]), UNTOUCHED, out)
        for g, (i, j) in enumerate(pairwise(self.offsets)):
            scales = {"scale_a": self.scale_a[i:j], "scale_b": self.scale_b[g]} if scaled else {}
            if i < j:
                gemm(self.A[i:j], self.B[g], C[i:j], device="emulator", **scales)
        return C

    def masked(self) -> tuple[Array, Array, Array]:
        """A, counts and scale_a of `masked_gemm`; what is behind the counts is NaN."""
        most = max(SIZES) + 2
        A, scales = (
            np.full((len(SIZES), most, self.A.shape[1]), np.nan, self.A.dtype),
            np.full((len(SIZES), most, self.scale_a.shape[1]), np.nan, np.float32),
        )
        for g, (i, j) in enumerate(pairwise(self.offsets)):
            A[g, : j - i], scales[g, : j - i] = self.A[i:j], self.scale_a[i:j]
        return A, np.array(SIZES, np.int64), scales


def same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("tile", SCALED_TILES, ids=str)
def test_every_tile(tile: Any) -> None:
    """Groups of none, one, some rows, a tile and more; a last block of k and of columns that is smaller."""
    given = Problem(k=400, n=200, sizes=[3, 0, tile.rows + 22, 1, tile.rows])
    C = np.full((len(given.A), 200), UNTOUCHED, BF16)
    arrays = given.A[None], given.B, C[None], given.offsets, 1.0, None, given.scale_a[None], given.scale_b
    consts = {**tile.consts(5, size=1, scaled=True), "CHECK": True}
    hopper_grouped._emulated(arrays, consts, checks=True, processors=2)
    assert same_bits(C, given.expected(scaled=True))


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3)], ids=["e4m3", "mixed"])
def test_calls(dtypes: Any, scaled: bool) -> None:
    given = Problem(dtypes=dtypes)
    expected = given.expected(scaled)
    scales: Any = {"scale_a": given.scale_a, "scale_b": given.scale_b} if scaled else {}
    C = np.full(expected.shape, UNTOUCHED, BF16)
    assert grouped_gemm(given.A, given.B, given.offsets, C, device="emulator", **scales) is C
    assert same_bits(C, expected)
    A, counts, scale_a = given.masked()
    scales = {"scale_a": scale_a, "scale_b": given.scale_b} if scaled else {}
    made = masked_gemm(A, given.B, counts, device="emulator", **scales)
    assert made.dtype == BF16
    for g, (i, j) in enumerate(pairwise(given.offsets)):
        assert same_bits(made[g, : j - i], expected[i:j])


def test_operands_in_the_other_order_and_odd_rows() -> None:
    """wgmma reads 8-bit floats along k: others are copied."""
    given = Problem(k=603)  # more than a warp copies at once
    scales = {"scale_a": np.asfortranarray(given.scale_a), "scale_b": given.scale_b}
    expected = given.expected(scaled=True, out=np.float16)
    for A in (given.A, np.asfortranarray(given.A)):
        for B in (given.B, np.ascontiguousarray(given.B)):
            C = np.full(expected.shape, UNTOUCHED, np.float16)
            grouped_gemm(A, B, given.offsets, C, device="emulator", **scales)
            assert same_bits(C, expected)


def test_no_k_is_zeros() -> None:
    given = Problem(k=0)
    scales = {"scale_a": given.scale_a, "scale_b": given.scale_b}
    C = np.full((len(given.A), 136), UNTOUCHED, BF16)
    grouped_gemm(given.A, given.B, given.offsets, C, device="emulator", **scales)
    assert not C[2:-3].any() and (C[[0, 1, -3, -2, -1]] == UNTOUCHED).all()


@pytest.mark.parametrize("tile", SCALED_TILES, ids=str)
def test_no_tile_spills(tile: Any) -> None:
    """Or what does is between tiles, where 128 x 256 leaves too few registers for what is kept over the products."""
    consts = {**tile.consts(ROOM[-1], size=1, scaled=True), "EARLY": True, "EPILOGUE": add_bias}
    spec, target = hopper_grouped.specialized(
        "sm_90a", {"D": "e4m3", "F": "e4m3", "E": "bf16", "Bound": "i64", **consts}
    )
    tensors = {name: replace(given, unit=1) if name == "B" else given for name, given in spec.tensors if given}
    built = hopper_grouped.builds.compiled(replace(spec, tensors=tuple(tensors.items())), target)
    used = built.resources
    if consts["HALVES"]:
        products = [at for at, line in enumerate(built.sass.splitlines()) if "GMMA" in line]
        loop = built.sass.splitlines()[products[0] : products[-1]]
        assert not [line for line in loop if re.search(r"\b(LDL|STL)\b", line)] and used.spill_stores < 128
    else:
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


def test_choices() -> None:
    for tile in (*TILES, *SCALED_TILES):
        for groups in ROOM:
            assert tile.consts(groups, size=1, scaled=tile in SCALED_TILES)["STAGES"] >= 3
    few, many = (choose_grouped(8, rows, 4096, 4096, size=1, scaled=True) for rows in (2, 4096))
    assert (few["BM"], few["INSTANCES"], many["BM"], many["BN"]) == (64, 2, 128, 256)


def test_errors() -> None:
    given = Problem()
    scales = {"scale_a": given.scale_a, "scale_b": given.scale_b}

    def refused(match: str, A: Any = given.A, B: Any = given.B, C: Any = None, **changed: Any) -> None:
        with pytest.raises(KernelArgumentError, match=match) as caught:
            grouped_gemm(A, B, given.offsets, C, device="emulator", **{**scales, **changed})
        assert "grouped_gemm()" in str(caught.value) and "fix: " in str(caught.value)

    refused(r"scale_b is left out, .* f32 of shape \(5, 3, 2\), one for each 128 of k", scale_b=None)
    refused(r"scale_a is f32 of shape \(79, 2\); expected f32 of shape \(79, 3\)", scale_a=given.scale_a[:, :2])
    refused(r"scale_a is f64", scale_a=given.scale_a.astype(np.float64))
    refused(
        r"scale_a and scale_b are of 8-bit floats, and A and B are bf16", given.A.astype(BF16), given.B.astype(BF16)
    )
    refused(r"A is e4m3 and B bf16; expected bf16 or f16, of both, or 8-bit floats", B=given.B.astype(BF16))
    refused(r"C is f32 of shape \(79, 136\); expected bf16 or f16 of", C=np.zeros((79, 136), np.float32))

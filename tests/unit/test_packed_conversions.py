"""Two conversions to 16 bits whose results share a word are one instruction, however the word is written."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl import Const, Global, bf16, cdiv, f16, f32, grid, threads, tile_kernel, u16, u32
from tiledsl.dims import N

DTYPES: dict[str, Any] = {"bf16": (bf16, ml_dtypes.bfloat16), "f16": (f16, np.float16)}


@tile_kernel
def packs(X: Global[f32, N], Y: Global[f32, N], W: Global[u32, N], *, KIND: Const[str], HOW: Const[str]):
    i = grid(cdiv(N, 128)) * 128 + threads(128)
    low, high = X.get(i).to(DTYPES[KIND][0]), Y.get(i).to(DTYPES[KIND][0])
    a, b = low.bitcast(u16).to(u32), high.bitcast(u16).to(u32) << 16
    W.put(i, a | b if HOW == "or" else b | a if HOW == "swapped" else a + b)


@pytest.mark.parametrize("how", ["or", "swapped", "sum"])
@pytest.mark.parametrize("kind", DTYPES)
def test_a_word_of_two_is_one_conversion(kind: str, how: str) -> None:
    sass = packs.compile(arch="sm_90a", KIND=kind, HOW=how).sass
    assert len(re.findall(r"\bF2FP\.", sass)) == 1
    assert not re.search(r"\b(F2F|PRMT)\b", sass)


@pytest.mark.parametrize("how", ["or", "sum"])
@pytest.mark.parametrize("kind", DTYPES)
def test_its_bits_are_those_of_both(kind: str, how: str) -> None:
    numbers = np.array([0.0, -0.0, 1.0, -2.5, 1e-40, 3e38, 65519.0, 65520.0, np.inf, -np.inf, 1 / 3, 1e-7], np.float32)
    X, Y = (a.reshape(-1).copy() for a in np.meshgrid(numbers, numbers))
    W = np.zeros(X.size, np.uint32)
    packs(X, Y, W, KIND=kind, HOW=how, device="emulator")
    with np.errstate(over="ignore"):
        low, high = (a.astype(DTYPES[kind][1]).view(np.uint16).astype(np.uint32) for a in (X, Y))
    assert np.array_equal(W, low | high << 16)

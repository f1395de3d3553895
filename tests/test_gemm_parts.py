"""`hopper_fastest` with k in parts, on the emulator: right, without hazards, and with the same bits each time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.errors import CompileErrors
from tiledsl.gemm.choice import Variant
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.hopper import hopper_fastest

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = NDArray[Any]

CASES = {
    "a cluster": (Variant((64, 64, 2), parts=2), 100, 72, 616, 1),
    "clusters": (Variant((64, 64, 2), parts=2, groups=3), 100, 72, 616, 1),
    "groups alone": (Variant((64, 32, 2), parts=1, groups=7), 40, 72, 1240, 1),
    "clusters of tiles": (Variant((64, 64, 2), parts=1, along_m=2, along_n=2, groups=3), 150, 72, 616, 1),
    "two warpgroups a tile": (Variant((128, 64, 1), parts=4, groups=2), 150, 72, 616, 1),
    "neighbours along m": (Variant((64, 64, 2), parts=4, along_m=2), 300, 72, 616, 2),
    "exchanged": (Variant((64, 16, 2), exchanged=True, parts=8, groups=2), 10, 200, 1320, 1),
    "exchanged, in one piece": (Variant((128, 64, 1), exchanged=True), 72, 150, 200, 2),
    "fewer slices than CTAs": (Variant((64, 80, 2), parts=8), 100, 150, 616, 1),
    "a part of a panel": (Variant((64, 96, 2), parts=2, along_m=2, groups=2, by_rows=True), 152, 136, 616, 1),
    "a part of a panel, exchanged": (Variant((64, 32, 2), exchanged=True, parts=4, by_rows=True), 40, 200, 616, 1),
    "more parts than steps": (Variant((64, 32, 2), parts=8, groups=2), 40, 40, 104, 1),
}


def operands(batch: int, m: int, n: int, k: int, order: str) -> tuple[Array, Array, Array, Array]:
    """Small integers, whose sums are exact in any order, and a bias."""
    random = np.random.default_rng(m + n + k)
    A, B = (random.integers(-3, 4, (batch, *shape)).astype(BF16) for shape in ((m, k), (n, k)))
    C = np.full((batch, m, n), np.nan, BF16, order="C")
    if order == "columns":
        C = C.swapaxes(1, 2).copy().swapaxes(1, 2)
    return A, B.swapaxes(1, 2), C, random.integers(-9, 10, n).astype(np.float32)


def workspace(variant: Variant, C: Array) -> dict[str, Any]:
    """As `plan` sizes it, full of what must not be read."""
    if not variant.parts:
        return {"sums": None, "done": None}
    batch, m, n = C.shape
    sums = np.full(variant.workspace(batch * variant.tiles(m, n)), np.nan, np.float32)
    return {"sums": sums, "done": np.zeros(sums.shape[1], np.uint32)}


def multiply(variant: Variant, A: Array, B: Array, C: Array, bias: Array, check: bool = False) -> None:
    room = workspace(variant, C)
    if variant.exchanged:
        A, B, C = B.swapaxes(1, 2), A.swapaxes(1, 2), C.swapaxes(1, 2)
    consts = variant.consts() | {"EXCHANGED": variant.exchanged, "EPILOGUE": add_bias, "EARLY": True}
    if check:
        hopper_fastest.check(A, B, C, bias=bias, **room, **consts)
    else:
        hopper_fastest(A, B, C, bias=bias, device="emulator", **room, **consts)
    assert not variant.parts or not room["done"].any(), "the next launch finds zeros"


BY_COLUMNS = ("clusters", "two warpgroups a tile", "fewer slices than CTAs", "exchanged", "exchanged, in one piece")
"""Each way to store a part of a tile: for these C is stored by columns, too."""


@pytest.mark.parametrize(
    ("name", "order"), [*((name, "rows") for name in CASES), *((name, "columns") for name in BY_COLUMNS)]
)
def test_right_and_without_hazards(name: str, order: str) -> None:
    variant, m, n, k, batch = CASES[name]
    A, B, C, bias = operands(batch, m, n, k, order)
    if variant.by_rows:
        A, B = A.swapaxes(1, 2).copy().swapaxes(1, 2), B.copy()
    multiply(variant, A, B, C, bias, check=True)
    exact = A.astype(np.float64) @ B.astype(np.float64) + bias
    assert (C.astype(np.float64) == exact.astype(BF16).astype(np.float64)).all()


def test_the_same_bits_each_time() -> None:
    """Sums that round: parts are added in their order, whichever comes last."""
    variant, m, n, k, batch = CASES["clusters"]
    A, B, C, bias = operands(batch, m, n, k, "rows")
    random = np.random.default_rng(0)
    A, B = (random.standard_normal(X.shape).astype(BF16) for X in (A, B))
    found = {variant.groups: set[bytes]()}
    for _ in range(3):
        C[...] = np.nan
        multiply(variant, A, B, C, bias)
        found[variant.groups].add(C.tobytes())
    assert len(found[variant.groups]) == 1


def test_a_scaled_sum_without_tma() -> None:
    """Rows of C that no vector fits: elements are stored one by one, and what is beside them stays."""
    variant, m, n, k, batch = CASES["clusters"]
    A, B, _, _ = operands(batch, m, n, k, "rows")
    room = np.full((batch, m, n + 5), 7, BF16)
    C = room[:, :, 3 : n + 3]
    workspaces = workspace(variant, C)
    consts = variant.consts() | {"ADD_C": True}
    hopper_fastest(A, B, C, 2.0, -1.0, None, **workspaces, device="emulator", **consts)
    exact = 2 * (A.astype(np.float64) @ B.astype(np.float64)) - 7
    assert (C.astype(np.float64) == exact.astype(BF16).astype(np.float64)).all()
    room[:, :, 3 : n + 3] = 7
    assert (room == 7).all()


def test_parts_take_the_place_of_the_clusters_other_axis() -> None:
    variant, m, n, k, batch = CASES["a cluster"]
    A, B, C, _ = operands(batch, m, n, k, "rows")
    with pytest.raises(CompileErrors, match=r"SPLIT=2 takes the place of CLUSTER\[1\]=2"):
        hopper_fastest(A, B, C, device="emulator", **workspace(variant, C), **variant.consts() | {"CLUSTER": (1, 2)})


def test_indices_of_parts_stay_narrow() -> None:
    """A slot of a ring of up to 16 stages is known to be small: else all indices of the kernel have 64 bits."""
    consts = Variant((64, 64, 2), parts=8).consts() | {"STAGES": 12}
    text = hopper_fastest.compile(D="bf16", F="bf16", E="bf16", **consts).ptx
    assert "div.u64" not in text and "div.s64" not in text

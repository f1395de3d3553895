"""Grouped and masked products of any sizes are right, by any tile, and write nothing but the groups' rows.

This file under `pytest --hypothesis-profile=explore` tries many more than CI does.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.gemm.grouped import hopper_grouped
from tiledsl.gemm.grouped_call import TILES

ROWS = st.one_of(st.just(0), st.sampled_from([1, 8, 16, 64, 128, 129]), st.integers(0, 300))
EXTENTS = st.integers(0, 25).map(lambda i: 8 * i)
DTYPES = st.sampled_from([ml_dtypes.bfloat16, np.float16])


@pytest.mark.parametrize("tile", TILES, ids=str)
@settings(max_examples=3 if settings.default.max_examples == 100 else settings.default.max_examples)
@given(data=st.data())
def test_products_of_groups(tile: Any, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(ROWS, min_size=1, max_size=6), "sizes")
    n, k = data.draw(EXTENTS.filter(bool), "n"), data.draw(EXTENTS, "k")
    dtype, bounds = data.draw(DTYPES, "dtype"), data.draw(st.sampled_from([np.int32, np.int64]), "bounds")
    masked, along_k = data.draw(st.booleans(), "masked"), data.draw(st.booleans(), "B along k")
    groups, before, behind = len(sizes), *data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)), "rows of no group")
    most = before + sum(sizes) + behind if not masked else max(sizes) + behind
    random = np.random.default_rng(n + k)
    A = random.integers(-3, 4, (groups if masked else 1, max(most, 1), k)).astype(dtype)
    B = random.integers(-3, 4, (groups, n, k) if along_k else (groups, k, n)).astype(dtype)
    B = B.swapaxes(1, 2) if along_k else B
    C = np.full((*A.shape[:2], n), 77, dtype)
    expected, first = C.copy(), 0 if masked else before
    for g, size in enumerate(sizes):
        rows = (g if masked else 0), slice(first, first + size)
        expected[rows] = A[rows].astype(np.float32) @ B[g].astype(np.float32)
        first += 0 if masked else size
    given_bounds = np.array(sizes if masked else np.cumsum([before, *sizes]), bounds)
    consts = {**tile.consts(groups), "MASKED": masked, "CHECK": True}
    hopper_grouped._emulated((A, B, C, given_bounds), consts, checks=True, processors=data.draw(st.integers(1, 4)))
    np.testing.assert_array_equal(C, expected)

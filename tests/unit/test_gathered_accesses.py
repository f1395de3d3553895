"""Accesses whose indices are fragments: results as of NumPy, and no instruction more than they need."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tiledsl import Const, Global, cdiv, coordinates, f32, fragment, grid, mma, store, threads, tile, tile_kernel
from tiledsl.dims import M, N


@tile_kernel
def scaled(
    rows: Global[f32, M],
    columns: Global[f32, N],
    C: Global[f32, M, N],
    *,
    GUARD: Const[bool] = True,
    PUT: Const[bool] = False,
):
    """Each element of a tile of 128 x 128 times one number of its row, plus one of its column."""
    by, bx = grid(cdiv(M, 128), cdiv(N, 128))
    threads(128)
    m, n = tile(by, 128), tile(bx, 128)
    x = fragment((128, 128), f32, mma.m16n8k16.acc(warps=(2, 2)), init=3)
    i, j = coordinates(x)
    i, j = m.start + i, n.start + j
    if GUARD:
        x = x * rows.get(i, other=7) + columns.get(j, other=9)
    else:
        x = x * rows[i] + columns[j]
    if PUT:
        C.put(i, j, x)
    else:
        store(x, C[m, n], vec=8 if C.align >= 8 else 0)


def count(sass: str, what: str) -> int:
    return len(re.findall(rf"\b{what}\b", sass))


@pytest.mark.parametrize("guard", [True, False])
def test_each_element_is_loaded_once(guard: bool) -> None:
    """A thread has 8 rows, and 8 pairs of columns: not 128 of each."""
    compiled = scaled.compile(arch="sm_90a", GUARD=guard)
    assert count(compiled.sass, r"LDG\.E(\.\w+)*") == 16
    assert count(compiled.sass, r"LDG\.E\.64(\.\w+)*") == 8
    assert compiled.resources.spill_stores == 0


def test_neighbours_are_stored_together() -> None:
    compiled = scaled.compile(arch="sm_90a", PUT=True)
    assert count(compiled.sass, r"STG\.E\.64") == 64
    assert count(compiled.sass, r"STG\.E") == 64


@pytest.mark.parametrize("put", [False, True])
@pytest.mark.parametrize("size", [(128, 128), (200, 130), (5, 3), (129, 255)])
def test_edges(size: tuple[int, int], put: bool) -> None:
    m, n = size
    rows, columns = np.arange(m, dtype=np.float32), np.arange(n, dtype=np.float32) / 2
    C = np.full((m, n), np.nan, np.float32)
    scaled(rows, columns, C, PUT=put, device="emulator")
    assert np.array_equal(C, 3 * rows[:, None] + columns)


@tile_kernel
def in_place(X: Global[f32, M, N]):
    """Reads what the kernel has written: loads and stores of one tensor keep their order."""
    grid(1)
    threads(32)
    x = fragment((16, 8), f32, mma.m16n8k16.acc(warps=(1, 1)), init=1)
    i, j = coordinates(x)
    first = X.get(i, j)
    X.put(i, j, first + x)
    second = X.get(i, j)
    X.put(i, j, second * 2)


def test_reads_and_writes_of_one_tensor_keep_their_order() -> None:
    X = np.arange(15 * 7, dtype=np.float32).reshape(15, 7)
    expected = (X + 1) * 2
    in_place(X, device="emulator")
    assert np.array_equal(X, expected)

"""Indices at the ends of their dtype: what a condition says of them, numbers beyond 32 bits, and far constants."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from tiledsl import Global, f32, grid, i8, i32, i64, index, minimum, threads, tile_kernel, u8, u32, where
from tiledsl.dims import K, M, N
from tiledsl.errors import EmulatorError

SPACE = np.arange(3 * 256 * 2, dtype=np.int32).reshape(3, 256, 2)


@tile_kernel
def chosen_i8(X: Global[i8, N], T: Global[i32, Literal[3], Literal[128], Literal[2]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    x = X[i]
    Y[i] = T[1, index(where(x >= 0, x + 100, 0)), 0]


@tile_kernel
def branch_u8(X: Global[u8, N], T: Global[i32, Literal[3], Literal[190], Literal[2]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    x = X[i]
    h = u8(0)
    if x < 200:
        h = x - 10
    Y[i] = T[1, index(h), 0]


@tile_kernel
def scaled_i64(X: Global[i64, N], T: Global[i32, Literal[3], Literal[16], Literal[2]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    x = X[i]
    Y[i] = T[1, index(minimum(where(x >= 0, x * 3, 0), 15)), 0]


@tile_kernel
def near_the_largest(X: Global[i64, N], T: Global[i32, Literal[3], Literal[16], Literal[2]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    x = index(X[i])
    if x >= 0 and x + 5 < 16:
        Y[i] = T[1, x, 0]


@tile_kernel
def beyond(X: Global[i64, N], T: Global[i32, Literal[3], Literal[16], Literal[2]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    Y[i] = T[1, index(X[i]), 0]


@tile_kernel
def beyond_along_one_axis(X: Global[i64, N], T: Global[i32, Literal[16]], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    Y[i] = T[index(X[i])]


@pytest.mark.parametrize(
    ("kernel", "inside", "outside"),
    [
        (chosen_i8, 20, 100),
        (branch_u8, 30, 5),
        (scaled_i64, 4, 6148914691236517205),
        (near_the_largest, 3, (1 << 63) - 2),
        (beyond, 15, (1 << 32) + 15),
        (beyond, 0, -1 << 32),
        (beyond_along_one_axis, 15, 1 << 32),
        (beyond_along_one_axis, 3, 1 << 62),
    ],
)
def test_an_index_that_leaves_its_memory_is_a_finding(kernel: Any, inside: int, outside: int) -> None:
    _, space, _ = kernel.signature.tensors
    extents = list(space.dims)
    array = np.arange(np.prod(extents), dtype=np.int32).reshape(extents)
    X, Y = (
        np.zeros(1, dtype)
        for dtype in ({"i8": "i1", "u8": "u1"}.get(str(kernel.signature.tensors[0].dtype), "i8"), "i4")
    )
    X[0] = inside
    assert kernel.check(X, array, Y)
    X[0] = outside
    with pytest.raises(EmulatorError) as raised:
        kernel.check(X, array, Y)
    assert raised.value.code == "T501"


@tile_kernel
def counted(X: Global[i64, N], Y: Global[i64, N, Literal[2]]):
    i = grid(N) + threads(1)
    x = X[i]
    h = where(x >= 0, x << 40, 0)
    j = index(minimum(h, 15))
    Y[i, 0] = i64(j < 0)
    Y[i, 1] = i64(j // 1000)


def test_a_number_that_wrapped_is_not_taken_for_a_small_one() -> None:
    X, Y = np.array([3 << 22, 1]), np.zeros((2, 2), np.int64)
    counted(X, Y)
    wrapped = (3 << 62) - (1 << 64)
    assert Y.tolist() == [[1, wrapped // 1000], [0, 0]]


@tile_kernel
def guarded(X: Global[i64, N], T: Global[f32, M, K], Y: Global[f32, N]):
    i = grid(N) + threads(1)
    Y[i] = T.get(0, index(X[i]), other=-1)
    T.put(1, index(X[i]) + 1, 7)


@pytest.mark.parametrize("far", [1 << 32, (1 << 32) + 2, -1 << 32, -1 << 63, (1 << 63) - 1, 1 << 31])
def test_a_guard_compares_the_number_not_its_low_bits(far: int) -> None:
    X, T, Y = np.array([far]), np.ones((2, 4), np.float32), np.zeros(1, np.float32)
    guarded(X, T, Y)
    assert Y[0] == -1 and (T == 1).all()


def test_a_guard_on_a_gpu_compares_the_number_too() -> None:
    text = str(guarded.compile(arch="sm_90a").ir("after:expand"))
    assert text.count("arith.max") == text.count("arith.min") == 2 and "index_bits(32)" in text


@tile_kernel
def far_constant(X: Global[i32, N], T: Global[i32, M], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    Y[i] = T[index((X[i] + 20000) * 196608 + 5)]


@tile_kernel
def smallest(X: Global[i32, N], T: Global[i32, M], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    Y[i] = T[index(X[i] + 2147483647)]


@tile_kernel
def unsigned(X: Global[u32, N], T: Global[i32, M], Y: Global[i32, N]):
    i = grid(N) + threads(1)
    Y[i] = T[index(X[i] + 4000000000)]


@pytest.mark.parametrize(("kernel", "x"), [(far_constant, 45536), (smallest, -2147483642), (unsigned, 294967301)])
def test_a_constant_is_not_taken_out_of_a_sum_that_wraps(kernel: Any, x: int) -> None:
    dtype = np.uint32 if kernel is unsigned else np.int32
    X, T, Y = np.array([x], dtype), np.arange(16, dtype=np.int32), np.zeros(1, np.int32)
    kernel(X, T, Y)
    assert Y[0] == 5

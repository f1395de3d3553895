"""The product on the CPU: as three loops to read, in float64 to compare with, and how far off is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "fp32_bound", "matmul_float64", "matmul_loops", "random_problem", "worst_error"]

Array = NDArray[Any]

U32 = 2.0**-24
"""Unit roundoff of fp32: half the distance from 1 to the next number."""


def matmul_loops(A: Array, B: Array, C: Array) -> None:
    """C = A @ B by the definition, one multiply-add at a time. What every kernel here computes."""
    M, K = A.shape
    N = B.shape[1]
    for row in range(M):
        for col in range(N):
            acc = 0.0
            for k in range(K):
                acc += float(A[row, k]) * float(B[k, col])
            C[row, col] = acc


def matmul_float64(A: Array, B: Array) -> NDArray[np.float64]:
    """A @ B in float64: for fp32 inputs its error is 2^-29 of the bound below, so it counts as exact."""
    return A.astype(np.float64) @ B.astype(np.float64)


def fp32_bound(A: Array, B: Array, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest error, per element, of a chain of K fp32 multiply-adds, in any order.

    u |ref| + E(K) |A||B| + the smallest subnormal, with E(K) = K u / (1 - K u) (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.1). It is a bound on each element, not on a norm: a
    wrong corner of a large matrix cannot hide in it.
    """
    K = A.shape[1]
    chain = K * U32 / (1 - K * U32)
    terms = np.abs(A).astype(np.float64) @ np.abs(B).astype(np.float64)
    return U32 * np.abs(exact) + chain * terms + float(np.finfo(np.float32).smallest_subnormal)


def worst_error(C: Array, A: Array, B: Array) -> tuple[float, float]:
    """The error of the element of C that uses most of its bound, and that bound: right if error <= bound.

    A NaN or infinity counts as an infinite error.
    """
    if not C.size:
        return 0.0, 0.0
    exact = matmul_float64(A, B)
    bound = fp32_bound(A, B, exact)
    error = np.nan_to_num(np.abs(C.astype(np.float64) - exact), nan=np.inf)
    worst = np.unravel_index(np.argmax(error / bound), C.shape)
    return float(error[worst]), float(bound[worst])


def random_problem(m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """A (m x k) and B (k x n), random normal fp32, and C (m x n) filled with NaN: every element must be written."""
    random = np.random.default_rng(seed)
    A = random.standard_normal((m, k), dtype=np.float32)
    B = random.standard_normal((k, n), dtype=np.float32)
    return A, B, np.full((m, n), np.nan, np.float32)

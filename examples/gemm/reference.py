"""The product on the CPU: as three loops to read, in float64 to compare with, and how far off is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "fp32_bound", "matmul_float64", "matmul_loops", "random_problem", "scaled_float64", "worst_error"]

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


def fp32_bound(
    A: Array,
    B: Array,
    exact: NDArray[np.float64],
    alpha: float = 1.0,
    beta: float = 0.0,
    old: Array | None = None,
) -> NDArray[np.float64]:
    """The largest error, per element, of a chain of K fp32 multiply-adds, in any order, scaled and added to.

    u |ref| + E(n) (|alpha||A||B| + |beta||old|) + the smallest subnormal, with E(n) = n u / (1 - n u) (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1); n = K, and one more for each of alpha and
    beta. It is a bound on each element, not on a norm: a wrong corner of a large matrix cannot hide in it.
    """
    n = A.shape[1] + (alpha != 1) + (beta != 0)
    chain = n * U32 / (1 - n * U32)
    terms = scaled_float64(np.abs(A), np.abs(B), abs(alpha), abs(beta), None if old is None else np.abs(old))
    return U32 * np.abs(exact) + chain * terms + float(np.finfo(np.float32).smallest_subnormal)


def scaled_float64(
    A: Array, B: Array, alpha: float = 1.0, beta: float = 0.0, old: Array | None = None
) -> NDArray[np.float64]:
    """alpha A B + beta old by the rules of BLAS: what a zero multiplies is not read, so that a NaN there is lost."""
    exact = alpha * matmul_float64(A, B) if alpha else np.zeros((A.shape[0], B.shape[1]))
    return exact if old is None or not beta else exact + beta * old.astype(np.float64)


def worst_error(
    C: Array, A: Array, B: Array, alpha: float = 1.0, beta: float = 0.0, old: Array | None = None
) -> tuple[float, float]:
    """The error of the element of C that uses most of its bound, and that bound: right if error <= bound.

    C should be alpha A B + beta old, alpha and beta being fp32 numbers. A NaN or infinity counts as an
    infinite error.
    """
    if not C.size:
        return 0.0, 0.0
    exact = scaled_float64(A, B, alpha, beta, old)
    bound = fp32_bound(A, B, exact, alpha, beta, old)
    error = np.nan_to_num(np.abs(C.astype(np.float64) - exact), nan=np.inf)
    worst = np.unravel_index(np.argmax(error / bound), C.shape)
    return float(error[worst]), float(bound[worst])


def random_problem(m: int, n: int, k: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """A (m x k) and B (k x n), random normal fp32, and C (m x n) filled with NaN: every element must be written."""
    random = np.random.default_rng(seed)
    A = random.standard_normal((m, k), dtype=np.float32)
    B = random.standard_normal((k, n), dtype=np.float32)
    return A, B, np.full((m, n), np.nan, np.float32)

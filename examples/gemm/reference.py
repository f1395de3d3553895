"""The product on the CPU: as three loops to read, in float64 to compare with, and the error bounds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.measure import PRODUCTS as FORMATS

__all__ = [
    "FORMATS",
    "Array",
    "error_bound",
    "matmul_float64",
    "matmul_loops",
    "random_problem",
    "scaled_float64",
    "worst_error",
]

Array = NDArray[Any]

U32 = 2.0**-24
"""Unit roundoff of fp32: half the distance from 1 to the next number."""


NUMPY: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
}
"""NumPy's names of the dtypes."""


def matmul_loops(A: Array, B: Array, C: Array) -> None:
    """C = A @ B by the definition, one multiply-add at a time: the product that every kernel here computes."""
    M, K = A.shape
    N = B.shape[1]
    for row in range(M):
        for col in range(N):
            acc = 0.0
            for k in range(K):
                acc += float(A[row, k]) * float(B[k, col])
            C[row, col] = acc


def matmul_float64(A: Array, B: Array) -> NDArray[np.float64]:
    """A @ B in float64: for narrower inputs its error is 2^-29 of the bound below or less, so it counts as exact."""
    return A.astype(np.float64) @ B.astype(np.float64)


def error_bound(
    A: Array,
    B: Array,
    exact: NDArray[np.float64],
    alpha: float = 1.0,
    beta: float = 0.0,
    old: Array | None = None,
    format: str = "f32",
) -> NDArray[np.float64]:
    """The largest error, per element, of a product summed as `format` says, then scaled and added to C in fp32.

    u |ref| + (chain(K) + u32 for each of alpha and beta) (|alpha||A||B| + |beta||old|) + the smallest subnormal. It is
    a bound on each element, not on a norm: a wrong corner of a large matrix cannot hide in it.
    """
    kind = FORMATS[format]
    relative = kind.chain(A.shape[1]) + ((alpha != 1) + (beta != 0)) * (kind.roundoff and 2 * U32)
    terms = scaled_float64(_size(A), _size(B), abs(alpha), abs(beta), None if old is None else _size(old))
    finfo: Any = ml_dtypes.finfo
    smallest = float(finfo(NUMPY[kind.result]).smallest_subnormal) if kind.roundoff else 0.0
    return kind.roundoff * np.abs(exact) + relative * terms + smallest


def _size(X: Array) -> NDArray[np.float64]:
    return np.abs(X.astype(np.float64))


def scaled_float64(
    A: Array, B: Array, alpha: float = 1.0, beta: float = 0.0, old: Array | None = None
) -> NDArray[np.float64]:
    """alpha A B + beta old by the rules of BLAS: a matrix scaled by zero is not read, so that its NaNs are lost."""
    exact = alpha * matmul_float64(A, B) if alpha else np.zeros((A.shape[0], B.shape[1]))
    return exact if old is None or not beta else exact + beta * old.astype(np.float64)


def worst_error(
    C: Array,
    A: Array,
    B: Array,
    alpha: float = 1.0,
    beta: float = 0.0,
    old: Array | None = None,
    format: str = "f32",
) -> tuple[float, float]:
    """The largest error of C relative to its bound, and the bound of that element: right if error <= bound.

    C should be alpha A B + beta old, alpha and beta being fp32 numbers. A NaN or infinity counts as an
    infinite error.
    """
    if not C.size:
        return 0.0, 0.0
    exact = scaled_float64(A, B, alpha, beta, old)
    bound = error_bound(A, B, exact, alpha, beta, old, format)
    error = np.nan_to_num(np.abs(C.astype(np.float64) - exact), nan=np.inf)
    worst = np.unravel_index(np.argmax(error / np.maximum(bound, 2.0**-1074)), C.shape)
    return float(error[worst]), float(bound[worst])


def random_problem(m: int, n: int, k: int, seed: int = 0, format: str = "f32") -> tuple[Array, Array, Array]:
    """A (m x k) and B (k x n), random normal (integers: of all values), and C (m x n) filled with NaN, or with -1:
    every element must be written."""
    random = np.random.default_rng(seed)
    kind = FORMATS[format]
    operand, result = NUMPY[kind.operand], NUMPY[kind.result]

    def draw(*shape: int) -> Array:
        if not kind.roundoff:
            limits = np.iinfo(operand)
            return random.integers(limits.min, limits.max, shape, operand, endpoint=True)
        return random.standard_normal(shape, np.float64 if operand == np.float64 else np.float32).astype(operand)

    return draw(m, k), draw(k, n), np.full((m, n), np.nan if kind.roundoff else -1, result)

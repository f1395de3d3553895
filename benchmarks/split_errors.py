"""Errors of f32 products by tensor cores, for ways to split f32 into planes: relative to those of a chain of FFMAs.

    python -m benchmarks.split_errors    # half a minute, without a GPU

By the emulator's definition of wgmma, which has an H200's bits. A way: the dtype of the planes, how many, the products
of planes i and j with i + j up to a limit, smallest first, and how many of k wgmma adds up before the sum is added in
f32. Inputs are scaled into the range of f16, so that this plays no role.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.ir import tensor_core
from tiledsl.layout.wgmma import WGMMA
from tiledsl.tables import table

__all__ = ["main"]

Array = NDArray[Any]
ROWS = {row.a: row for row in WGMMA if row.acc == "f32" and row.a == row.b}
SIZE = 32


class Way(NamedTuple):
    dtype: str
    planes: int
    limit: int
    depth: int


WAYS = {
    "bf16 x 6": Way("bf16", 3, 2, 32),
    "by 64": Way("bf16", 3, 2, 64),
    "bf16 x 9": Way("bf16", 3, 4, 32),
    "bf16 x 3": Way("bf16", 2, 1, 32),
    "f16 x 3": Way("f16", 2, 1, 64),
    "by 32": Way("f16", 2, 1, 32),
    "f16 x 4": Way("f16", 2, 2, 64),
    "tf32 x 3": Way("tf32", 2, 1, 32),
}


def rounded(x: Array, dtype: str) -> Array:
    if dtype == "tf32":  # to nearest even
        bits = x.view(np.uint32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    return x.astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float16)


def planes(x: Array, way: Way) -> list[Array]:
    found: list[Array] = []
    for _ in range(way.planes):
        found.append(rounded(x, way.dtype))
        x = x - found[-1].astype(np.float32)
    return found


def product(a: Array, b: Array, way: Way) -> Array:
    """a b^T."""
    left, right, total = planes(a, way), planes(b, way), np.zeros((SIZE, SIZE), np.float32)
    pairs = [(i, s - i) for s in range(way.limit, -1, -1) for i in range(s + 1) if max(i, s - i) < way.planes]
    for first in range(0, a.shape[1], way.depth):
        step, part = slice(first, first + way.depth), np.zeros((1, SIZE, SIZE), np.float32)
        for i, j in pairs:
            part = tensor_core.wgmma(ROWS[way.dtype], left[i][None, :, step], right[j][None, :, step], part)
        total += part[0]
    return total


def ffma(a: Array, b: Array) -> Array:
    """The same; products and sums of f32 are exact in f64, but for sums whose rounding there hardly ever matters."""
    total = np.zeros((SIZE, SIZE), np.float32)
    for x, y in zip(a.astype(np.float64).T, b.astype(np.float64).T, strict=True):
        total = (x[:, None] * y + total).astype(np.float32)
    return total


def inputs(kind: str, k: int) -> tuple[Array, Array]:
    """Of well-conditioned sums, and of sums that cancel or whose terms differ much in size."""
    random = np.random.default_rng(1)
    a, b = random.standard_normal((SIZE, k)), random.standard_normal((SIZE, k))
    if kind == "uniform":
        a, b = random.random((SIZE, k)), random.random((SIZE, k))
    if kind == "halves cancel":
        a[:, k // 2 :] = a[:, : k // 2] * (1 + 1e-6 * random.standard_normal((SIZE, k // 2)))
        b[:, k // 2 :] = -b[:, : k // 2]
    if kind == "neighbours cancel":
        a[:, 1::2] = a[:, ::2] * (1 + 1e-3 * random.standard_normal((SIZE, k // 2)))
        b[:, 1::2] = -b[:, ::2]
    if kind == "of all sizes":
        a, b = a * 2.0 ** random.integers(-10, 11, a.shape), b * 2.0 ** random.integers(-10, 11, b.shape)
    return (16 * a).astype(np.float32), (16 * b).astype(np.float32)


def main() -> None:
    rows: list[tuple[str, ...]] = []
    for kind in ("normal", "uniform", "halves cancel", "neighbours cancel", "of all sizes"):
        for k in (32, 128, 512, 2048):
            a, b = inputs(kind, k)
            exact, sizes = a.astype(np.float64) @ b.T, np.abs(a).astype(np.float64) @ np.abs(b.T)

            def errors(c: Array, exact: Array = exact, sizes: Array = sizes) -> tuple[float, float]:
                share = np.abs(c - exact) / sizes * 2.0**24
                return float(share.max()), float(np.sqrt((share**2).mean()))

            base = errors(ffma(a, b))
            found = [errors(product(a, b, way)) for way in WAYS.values()]
            cells = [f"{worst / base[0]:.2f} {mean / base[1]:.2f}" for worst, mean in found]
            rows.append((kind, str(k), f"{base[0]:.2f} {base[1]:.2f}", *cells))
    print("largest and mean error: of FFMA in units of 2^-24 |A| |B|, of the others relative to FFMA's\n")
    print(table(("inputs", "k", "FFMA", *WAYS), rows, {0}))


if __name__ == "__main__":
    main()

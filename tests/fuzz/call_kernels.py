"""The kernels that `calls` calls, each with what NumPy makes of the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np

from tiledsl import (
    Const,
    Global,
    Scalar,
    barrier,
    bf16,
    boolean,
    cdiv,
    const,
    f16,
    f32,
    f64,
    grid,
    i8,
    i32,
    i64,
    index,
    shared,
    threads,
    tile_kernel,
    u64,
)
from tiledsl.dims import K, M, N

__all__ = ["EXPECTED", "KERNELS"]

D = TypeVar("D", bound=Scalar)


@tile_kernel
def scale(X: Global[f32, M, N], Y: Global[f32, M, N], alpha: f32 = 1.0, n: i32 = 0, *, T: const = 32):
    bx, row = grid(cdiv(N, T), M)
    col = bx * T + threads(T)
    Y.put(row, col, X.get(row, col) * alpha + f32(n))


@tile_kernel
def add_one(X: Global[f32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    X.put(i, X.get(i) + 1.0)


@tile_kernel
def move(X: Global[D, M], Y: Global[D, M] | None = None):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    if Y is not None:
        Y.put(i, X.get(i))


@tile_kernel
def scalars(Y: Global[f64, 8], a: f64, b: f16, c: bf16, d: i8, e: u64, f: i64, g: boolean):
    grid(1)
    threads(1)
    Y[0] = a
    Y[1], Y[2] = f64(b), f64(f32(c))
    Y[3], Y[4], Y[5] = f64(d), f64(e), f64(f)
    Y[6] = f64(i32(g))


@tile_kernel
def blocks(X: Global[f32, M], n: i32):
    i = grid(cdiv(M, index(n))) * 32 + threads(32)
    X.put(i, 1.0)


@tile_kernel
def modes(X: Global[f32, M], *, mode: Const[Literal["a", "b"]] = "a", s: Const[float] = 1.0, flag: Const[bool] = True):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    X.put(i, s if mode == "a" else f32(flag))


@tile_kernel
def fixed(X: Global[f32, 4, 4], Y: Global[f32, 4, K]):
    grid(1)
    i = threads(4)
    for j in range(4):
        Y.put(i, j, X[i, j])


@tile_kernel
def past_the_end(X: Global[f32, M], n: i32):
    grid(1)
    X[threads(32) * n] = 1.0


@tile_kernel
def reverse(X: Global[f32, M], *, T: const = 32):
    grid(1)
    i = threads(T)
    S = shared((T,), f32)
    S[i] = X.get(i)
    barrier()
    X.put(i, S[T - 1 - i])


KERNELS = {k.name: k for k in (scale, add_one, move, scalars, blocks, modes, fixed, past_the_end, reverse)}


def _scaled(X: Any, alpha: Any, n: Any) -> Any:
    with np.errstate(all="ignore"):
        # One rounding of the product and the sum: exact in f64, for what the tests pass.
        return (X.astype(np.float64) * float(np.float32(float(alpha))) + float(np.float32(n))).astype(np.float32)


EXPECTED: dict[str, Callable[..., dict[str, Any]]] = {
    "scale": lambda X, Y, alpha, n, T: {"Y": _scaled(X, alpha, n)},
    "add_one": lambda X: {"X": X + np.float32(1)},
    "move": lambda X, Y: {} if Y is None else {"Y": X},
    "modes": lambda X, mode, s, flag: {"X": np.full_like(X, s if mode == "a" else flag)},
}
"""By kernel: the tensors that it writes, from its arguments and consts by name."""

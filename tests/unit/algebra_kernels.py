"""Products with faults that only some terms of the sum show, and what exact arithmetic cannot do."""

from __future__ import annotations

from typing import Any, TypeVar

from tiledsl import (
    Const,
    Global,
    bf16,
    cdiv,
    e4m3,
    f32,
    grid,
    i32,
    maximum,
    shuffle_xor,
    threads,
    tile_kernel,
    u32,
    unroll,
)
from tiledsl.dims import K, M, N

T = TypeVar("T")


def product(A: Any, B: Any, C: Any, *more: Any) -> Any:
    return A @ B


def scaled(A: Any, B: Any, C: Any, alpha: Any, beta: Any) -> Any:
    return alpha * (A @ B) + beta * C


@tile_kernel
def faulty(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, FAULT: Const[str] = ""):
    """Adds up from both ends; FAULT: what is done to the term k = 7."""
    (m, n), t = grid(M, cdiv(N, 32)), threads(32)
    column = n * 32 + t
    low, high = f32(0), f32(0)
    if column < N:
        for k in range(K):
            at = k
            if FAULT == "misplaced":
                at = k + 1 if k == 7 else k
            term = A[m, k] * B[at, column]
            if FAULT == "lost":
                term = term if k != 7 else f32(0)
            if FAULT == "twice":
                term = term if k != 7 else term + term
            if FAULT == "negated":
                term = term if k != 7 else -term
            if k % 2 == 0:
                low += term
            else:
                high += term
        C[m, column] = low + high


@tile_kernel
def converted(A: Global[T, M, K], B: Global[T, K, N], C: Global[bf16, M, N], alpha: f32, beta: f32):
    """Widened, and narrowed to 16 bits at the end; beta is compared with 0."""
    (m, n), t = grid(M, cdiv(N, 32)), threads(32)
    column = n * 32 + t
    if column < N:
        total = f32(0)
        for k in range(K):
            total += A[m, k].to(f32) * B[k, column].to(f32)
        total *= alpha
        if beta != f32(0):
            total += beta * C[m, column].to(f32)
        C[m, column] = total.to(bf16)


@tile_kernel
def atomically(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, ADD: Const[bool] = True):
    """A block for each term, in whatever order; without ADD, one reads and writes C itself."""
    (m, n, k), t = grid(M, cdiv(N, 32), K), threads(32)
    column = n * 32 + t
    if column < N:
        term = A[m, k] * B[k, column]
        if ADD:
            C.atomic_add(m, column, term)
        else:
            C[m, column] = C[m, column] + term


@tile_kernel
def counted(X: Global[i32, M], Y: Global[f32, M], Z: Global[i32, M]):
    """Integers stay what they are, and become residues where they are converted."""
    t = grid(cdiv(M, 32)) * 32 + threads(32)
    if t < M:
        Y[t] = X[t].to(f32) * f32(0.375) - f32(1)
        Z[t] = X[t] // 3


@tile_kernel
def by_shuffles(A: Global[f32, M], Y: Global[f32, 1]):
    """A sum over a warp."""
    t = grid(1) + threads(32)
    total = A[t]
    for step in unroll(5):
        total += shuffle_xor(total, 1 << step)
    if t == 0:
        Y[0] = total


@tile_kernel
def not_exact(A: Global[f32, M], Y: Global[f32, M], Z: Global[e4m3, M], *, WHAT: Const[str]):
    t = grid(1) + threads(32)
    if WHAT == "max":
        Y[t] = maximum(A[t], f32(0))
    elif WHAT == "lt":
        Y[t] = A[t] if A[t] < f32(1) else f32(1)
    elif WHAT == "div":
        Y[t] = A[t] / f32(3)
    elif WHAT == "bits":
        Y[t] = (A[t].bitcast(u32) & u32(0xFFFF0000)).bitcast(f32)
    elif WHAT == "i32":
        Y[t] = A[t].to(i32).to(f32)
    else:
        Z[t] = A[t].to(e4m3)

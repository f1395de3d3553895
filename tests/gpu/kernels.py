"""Kernels that the GPU tests run: each small, and together most of what the SIMT language has."""

from __future__ import annotations

from typing import TypeVar

from tiledsl import (
    Global,
    Scalar,
    assert_,
    barrier,
    cdiv,
    const,
    exp,
    f16,
    f32,
    f64,
    gelu,
    grid,
    i32,
    i64,
    index,
    shared,
    shuffle_xor,
    sqrt,
    tanh,
    threads,
    tile_kernel,
    u32,
    unroll,
    where,
)
from tiledsl.dims import K, M, N

T = TypeVar("T", bound=Scalar)


@tile_kernel
def gemm(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 = 1.0,
    beta: f32 = 0.0,
    *,
    T: const = 16,
):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    As, Bs = shared((T, T), f32), shared((T, T), f32)
    acc = f32(0)
    for k0 in range(0, K, T):
        As[ty, tx] = A.get(row, k0 + tx)
        Bs[ty, tx] = B.get(k0 + ty, col)
        barrier()
        for k in unroll(T):
            acc += As[ty, k] * Bs[k, tx]
        barrier()
    if beta != 0:
        acc = alpha * acc + beta * C.get(row, col)
    else:
        acc = alpha * acc
    C.put(row, col, acc)


@tile_kernel
def fill(X: Global[f32, N], value: f32):
    b = grid(cdiv(N, 256))
    t = threads(256)
    X.put(b * 256 + t, value)


@tile_kernel
def copy_2d(X: Global[T, M, N], Y: Global[T, M, N]):
    bx, by = grid(cdiv(N, 32), cdiv(M, 8))
    tx, ty = threads(32, 8)
    row, col = by * 8 + ty, bx * 32 + tx
    if row < M and col < N:
        Y[row, col] = X[row, col]


@tile_kernel
def last_element(X: Global[f32, M, N], Y: Global[f32, K]):
    grid(1)
    t = threads(32)
    if t == 0:
        Y[0] = X[M - 1, N - 1]
        X[M - 1, N - 1] = f32(7)


@tile_kernel
def out_of_bounds(X: Global[f32, N], far: i64):
    grid(1)
    t = threads(32)
    X[index(far) + t] = f32(1)


@tile_kernel
def asserting(X: Global[f32, N]):
    grid(1)
    t = threads(32)
    assert_(X[t] > 0, "X is positive")


@tile_kernel
def printing(X: Global[T, N]):
    i = grid(cdiv(N, 128)) * 128 + threads(128)
    if i < N:
        print("first", i, X[i])
        print("second", i, "of", N, X[i] == X[0])


@tile_kernel
def one_line_each(X: Global[f32, N], step: i32):
    i = grid(cdiv(N, 128)) * 128 + threads(128)
    if i < N:
        print("line", i, "of step", step)


@tile_kernel
def another_line_each(X: Global[f32, N], step: i32):
    i = grid(cdiv(N, 128)) * 128 + threads(128)
    if i < N:
        print("another line", i, "of step", step)


@tile_kernel
def printing_then_waiting(flag: Global[i32, N]):
    t = grid(1) + threads(1)
    print("waits", t)
    while flag.atomic_load(0, order="acquire", scope="sys") == 0:
        pass
    print("goes on", t)


@tile_kernel
def printing_then_asserting(X: Global[f32, N]):
    t = grid(1) + threads(32)
    print("looks at", X[t])
    assert_(X[t] > 0, "X is positive")


@tile_kernel
def big_shared(X: Global[f32, N], *, S: const = 16384):
    grid(1)
    t = threads(256)
    tile = shared((S,), f32)
    for i in range(t, S, 256):
        tile[i] = f32(1)
    barrier()
    if t == 0:
        total = f32(0)
        for i in range(S):
            total += tile[i]
        X[0] = total


@tile_kernel
def functions(X: Global[f32, N], Y: Global[f32, K, N]):
    b = grid(cdiv(N, 128))
    t = threads(128)
    i = b * 128 + t
    if i < N:
        x = X[i]
        Y[0, i] = exp(x)
        Y[1, i] = tanh(x)
        Y[2, i] = gelu(x)
        Y[3, i] = sqrt(where(x < 0, -x, x))
        Y[4, i] = x / (x + 3)
        Y[5, i] = f32(f16(x))
        Y[6, i] = f32(i32(x * 1000) // 7) + f32(u32(x) >> 3)
        Y[7, i] = f32(f64(x) * f64(x))


@tile_kernel
def warp_sums(X: Global[i32, N], Y: Global[i32, N], total: Global[i32, K]):
    b = grid(cdiv(N, 64))
    t = threads(64)
    i = b * 64 + t
    v = X.get(i)
    for d in unroll(5):
        v = v + shuffle_xor(v, 1 << d)
    Y.put(i, v)
    total.atomic_add(0, X.get(i))


@tile_kernel
def vectors(X: Global[f32, M, N], Y: Global[f32, M, N]):
    bx, by = grid(cdiv(N, 128), M)
    t = threads(32)
    v = X.get(by, bx * 128 + t * 4, vec=16)
    for j in unroll(4):
        v[j] = v[j] * 2 + 1
    Y.put(by, bx * 128 + t * 4, v)


FACTORS = [2.0]


def factor() -> float:
    return FACTORS[0]


@tile_kernel
def scaled(X: Global[f32, N], Y: Global[f32, N]):
    i = grid(cdiv(N, 64)) * 64 + threads(64)
    Y.put(i, X.get(i) * factor())

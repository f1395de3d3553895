# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Kernels for type checkers: pyright must accept all of it, infer what `assert_type` says, and see an
error wherever an ignore comment stands. tests/unit/test_lang_typing.py also compiles them."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, assert_type

from tiledsl import (
    Const,
    Float,
    Fragment,
    Global,
    Layout,
    Memory,
    Range,
    SharedTile,
    TileFunction,
    View,
    barrier,
    boolean,
    cdiv,
    const,
    copy,
    e4m3,
    exp,
    f16,
    f32,
    f64,
    fma,
    fragment,
    gelu,
    grid,
    i32,
    index,
    lane_id,
    maximum,
    minimum,
    outer_fma,
    padded,
    ptx,
    rcp_approx,
    relu,
    shared,
    shuffle_xor,
    sqrt,
    swizzled,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    u32,
    unroll,
    vote_all,
    where,
)
from tiledsl.dims import Dim, K, M, N

D = TypeVar("D", bound=Float)


class Points(Dim):
    """Rows of a point cloud."""


@tile_kernel
def naive(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N]):
    bx, by = grid(cdiv(N, 16), cdiv(M, 16))
    tx, ty = threads(16, 16)
    row, col = by * 16 + ty, bx * 16 + tx
    if row < M and col < N:
        acc = f32(0)
        for k in range(K):
            acc += A[row, k] * B[k, col]
        C[row, col] = acc


@tile_kernel
def tiled(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, T: const = 16):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    As, Bs = shared((T, T), f32), shared((T, T), f32)
    acc = f32(0)
    for k0 in range(0, K, T):
        As[ty, tx] = A.get(row, k0 + tx, other=0)
        Bs[ty, tx] = B.get(k0 + ty, col, other=0)
        barrier()
        for k in unroll(T):
            acc += As[ty, k] * Bs[k, tx]
        barrier()
    C.put(row, col, acc)


@tile_function
def dot(a: Fragment[D], b: Fragment[D], acc: f32) -> f32:
    for i in unroll(a.shape[0]):
        acc = fma(a[i].to(f32), b[i].to(f32), acc)
    return acc


@tile_kernel
def epilogues(
    A: Global[D, M, K],
    B: Global[D, N, K],
    C: Global[D, M, N],
    bias: Global[f32, N] | None,
    alpha: f32,
    *,
    BM: const = 4,
    activation: Const[TileFunction[[f32], f32]] = relu,
):
    bx, by = grid(cdiv(N, 32), cdiv(M, BM))
    col = bx * 32 + threads(32)
    acc = fragment((BM,), f32)
    width = max(A.dtype.ir.bytes, 4)
    step = width // A.dtype.ir.bytes
    for k in range(0, K, step):
        b = B.get(col, k, vec=width)
        for i in unroll(BM):
            a = A.get(by * BM + i, k, vec=width)
            acc[i] = dot(a, b, acc[i])
    scaled = acc * alpha
    for i in unroll(BM):
        value = scaled[i]
        if bias is not None:
            value += bias.get(col)
        value = activation(value)
        C.put(by * BM + i, col, value.to(C.dtype))


@tile_kernel
def formats(X: Global[f32, N], A: Global[tf32, N], Q: Global[e4m3, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    x = X.get(i)
    A.put(i, tf32(x))
    A[i] = x.bitcast(tf32)
    Q.put(i, (Q.get(i).to(f32) + x).to(e4m3))
    held = fragment((4,), e4m3)
    held[0] = e4m3(0.5)


@tile_kernel
def norms(X: Global[f32, Points, Literal[4]], out: Global[f64, Points], big: Global[i32, Points], n: i32):
    row = grid(cdiv(Points, 64)) * 64 + threads(64)
    inside = row < Points
    if inside:
        xyzw = X.load(row, 0, vec=4)
        total = f64(0)
        for i in unroll(1):
            total += xyzw[i].to(f64) * xyzw[i].to(f64)
        out[row] = total
        big.atomic_add(row, where(total > 1, n, 0))


@tile_function
def accumulate(As: View[D], Bs: Memory[D], acc: Fragment[D], tx: index, ty: index) -> Fragment[D]:
    """acc + the product of one stage; As and Bs are K-major views."""
    a, b = fragment((8,), As.dtype), fragment((8,), Bs.dtype)
    for k in unroll(As.shape[0]):
        for half in unroll(tiles(8, 4)):
            a[half] = As.load(k, 8 * ty + half.start)
            b[0:4] = Bs.load(k, 8 * tx, vec=16)
            b[4:] = Bs.load(k, 8 * tx + 4, vec=16)
        acc = outer_fma(acc, a, b, "serpentine")
    return acc


@tile_kernel
def staged(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    layout: Const[Layout | None] = None,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    tx, ty = threads(BN // 8, BM // 8)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = shared((2, 8, BM), f32, layout=layout), shared((2, 8, BN), f32)
    acc = fragment((8, 8), f32)
    stage = index(0)
    copy(A[m, 0:8], As[0, :, :].T, vec=min(A.align, 16))
    copy(B[0:8, n], Bs[0, :, :], vec=min(B.align, 16))
    for k in unroll(tiles(K, 8), by=2):
        barrier()
        copy(A[m, k + 8], As[1 - stage, :, :].T)
        copy(B[k + 8, n], Bs[1 - stage, :, :])
        acc = accumulate(As[stage, :, :], Bs[stage, :, :], acc, tx, ty)
        stage = 1 - stage
    rest = exp(acc * 0.5) + where(acc > 0, acc, 0)
    for i in unroll(8):
        C[m, n].put(8 * ty + i, 8 * tx, rest[i, 0:4])


@tile_function
def types(x: f32, h: f16, i: i32, p: boolean, S: SharedTile[f32], F: Fragment[f32], A: Global[D, M, K]) -> f32:
    """Every line is about its types only."""
    assert_type(lane_id() * 16 + 3, index)
    assert_type(F * x, Fragment[f32])
    assert_type(F.to(e4m3)[0].to(f16), f16)
    assert_type(fragment((4,), e4m3), Fragment[e4m3])
    assert_type(x.bitcast(tf32), tf32)
    assert_type(F[0], f32)
    assert_type(F[0, 1], f32)
    assert_type(F[0:4], Fragment[f32])
    assert_type(F[0:4, 2], Fragment[f32])
    assert_type(F > 0, Fragment[boolean])
    assert_type(F == F, Fragment[boolean])
    assert_type(abs(F), Fragment[f32])
    assert_type(exp(F), Fragment[f32])
    assert_type(exp(x), f32)
    assert_type(sqrt(F), Fragment[f32])
    assert_type(rcp_approx(F), Fragment[f32])
    assert_type(fma(F, x, 1.0), Fragment[f32])
    assert_type(fma(2.0, x, F), Fragment[f32])
    assert_type(fma(x, x, 1.0), f32)
    assert_type(maximum(F, 0.0), Fragment[f32])
    assert_type(minimum(x, F), Fragment[f32])
    assert_type(where(F > 0, F, 0), Fragment[f32])
    assert_type(where(p, 0.0, F), Fragment[f32])
    assert_type(where((F > 0) & (F < 1), x, 0), Fragment[f32])
    assert_type(F.to(i32) // 2 % 3 << 1, Fragment[i32])
    assert_type(outer_fma(F, F, F, order="spiral"), Fragment[f32])
    assert_type(tile(lane_id(), 16), Range)
    assert_type(tile(0, 16).start, index)
    assert_type(tile(0, 16) + M, Range)
    assert_type(S[tile(0, 16), :], View[f32])
    assert_type(A[0, 2:6], View[D])
    assert_type(A[tile(0, 4), 2:6].T[0, 1], D)
    assert_type(S.T.load(0, 0), Fragment[f32])
    assert_type(A[0, :].get(lane_id()), D)
    assert_type(2 * F.to(f16) + h, Fragment[f16])
    assert_type(A[0, 1].to(A.dtype), D)
    assert_type(A.dtype(0) * A[0, 1] + 1, D)
    assert_type(A.load(0, 0), Fragment[D])
    assert_type(A.atomic_add(0, 0, 1), D)
    assert_type(A.atomic_load(0, 0, order="acquire", scope="sys"), D)
    assert_type(A.atomic_exchange(0, 0, A[0, 1], order="acq_rel"), D)
    A.atomic_store(0, 0, A[0, 1], order="release", scope="cta")
    assert_type(A.shape[0], index)
    assert_type(i.bitcast(u32) >> 3, u32)
    assert_type(i // 2 % 3 & 1, i32)
    assert_type(2 * x - 1, f32)
    assert_type(-abs(x) / 3, f32)
    assert_type(1 / x, f32)
    assert_type(x < 1.5, boolean)
    assert_type(x == x, boolean)
    assert_type((x < 1) & p | (i != 0), boolean)
    assert_type(~p, boolean)
    assert_type(index(i) + 3, index)
    assert_type(M * 2 + lane_id(), index)
    assert_type(2 * M % 4, index)
    assert_type(lane_id() * K - N, index)
    assert_type(lane_id() < M, boolean)
    assert_type(cdiv(M, 8), index)
    assert_type(cdiv(9, 8), int)
    assert_type(minimum(lane_id() + 4, M), index)
    assert_type(minimum(x, 1.0), f32)
    assert_type(maximum(0, i), i32)
    assert_type(where(p, h, 0), f16)
    assert_type(shuffle_xor(x, 16), f32)
    assert_type(vote_all(p), boolean)
    assert_type(gelu(x), f32)
    assert_type(S.get(0, lane_id(), vec=8), Fragment[f32])
    assert_type(S.get(0, lane_id()), f32)
    assert_type(S.shape, tuple[int, ...])
    assert_type(ptx.inline("abs.f32 $0, $1;", f32, x), f32)
    assert_type(ptx.inline("mov.b32 $0, $2; mov.b32 $1, $2;", (u32, f32), x), tuple[u32, f32])
    return x


@tile_function
def refused(x: f32, h: f16, i: i32, p: boolean, t: tf32, S: SharedTile[f32], F: Fragment[f32]) -> None:
    """Every line is an error for a type checker, as it is for the compiler."""
    x + h  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x * i  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    lane_id() + i  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    i / 2  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x // 2  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x & 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    p + 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    t + t  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    assert -t  # pyright: ignore[reportOperatorIssue]
    assert t == h  # pyright: ignore[reportOperatorIssue]
    assert t < t  # pyright: ignore[reportOperatorIssue]
    e4m3(i)  # pyright: ignore[reportArgumentType]
    assert x < h  # pyright: ignore[reportOperatorIssue]
    assert x == h  # pyright: ignore[reportOperatorIssue]
    F[lane_id()]  # pyright: ignore[reportArgumentType, reportCallIssue]
    gelu(h)  # pyright: ignore[reportArgumentType, reportCallIssue]
    sqrt(i)  # pyright: ignore[reportArgumentType]
    copy(S, F)  # pyright: ignore[reportArgumentType]
    tile(0, lane_id())  # pyright: ignore[reportArgumentType]
    outer_fma(F, F, F, "diagonal")  # pyright: ignore[reportArgumentType]
    S[0:4, 0] = x  # pyright: ignore[reportArgumentType, reportCallIssue]
    shared((lane_id(), 4), f32)  # pyright: ignore[reportArgumentType]
    S[0, 0] = h  # pyright: ignore[reportArgumentType, reportCallIssue]
    S.put(0, lane_id(), h)  # pyright: ignore[reportArgumentType]
    shared((4, 4), f32, layout="row")  # pyright: ignore[reportArgumentType]
    unroll(lane_id())  # pyright: ignore[reportArgumentType, reportCallIssue]


def host(a: Any, c: object) -> None:
    """On the host a kernel takes arrays of any library."""
    naive(a, a, c)
    tiled(a, a, c, T=32)
    epilogues(a, a, c, None, 1.0, BM=8, activation=gelu)
    staged(a, a, c, layout=padded(68))
    staged(a, a, c, layout=swizzled(4, 8))

"""Wrong loads, stores and products of matrix fragments, and wrong raw instructions.

One error each, at the line that carries ``# error: <text>``; a kernel may hold several such lines.
"""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Const,
    Global,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    fragment,
    grid,
    i8,
    load_fragment,
    load_matrix,
    mma,
    ptx,
    shared,
    store,
    store_matrix,
    tf32,
    threads,
    tile_kernel,
    u32,
)
from tiledsl.dims import K, M, N

bad = Refused()

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

WARPS = (2, 2)
ACC: Any = mma.m16n8k16.acc(warps=WARPS)
ACC8: Any = mma.m16n8k8.acc(warps=WARPS)
ACC32: Any = mma.m16n8k32.acc(warps=WARPS)
ACC_F64: Any = mma.m8n8k4.acc(warps=WARPS)


# -- loads and stores ------------------------------------------------------------------------------


@bad("copy it to a shared tile first, or use load_fragment(src, layout), which reads elements")
@tile_kernel
def ldmatrix_from_global_memory(A: Global[f16, M, K], D: Global[f64, M, K]):
    grid(1)
    threads(128)
    a = load_matrix(A[0:64, 0:16], ACC.a)  # error: load_matrix() reaches shared memory only, A is global<f16
    b = load_matrix(D, ACC.a)  # error: load_matrix() of D, whose shape M x K is only known at run time
    store(a, A[0:64, 0:16])
    store(b, A[0:64, 0:16])


@bad("take a view of two axes: a number drops an axis, as in S[stage, :, :]")
@tile_kernel
def ldmatrix_of_three_axes(A: Global[f16, M, K]):
    grid(1)
    threads(128)
    S = shared((2, 64, 16), f16)
    a = load_matrix(S, ACC.a)  # error: load_matrix() takes rows and columns, src has 3 axes
    b = load_fragment(A[0, 0:64], ACC.a)  # error: load_fragment() takes rows and columns, src has 1 axes
    c = load_matrix(ACC, ACC.a)  # error: load_matrix() takes memory as src, got a compile-time FragmentLayout
    store(a + b + c, S[0, :, :])


@bad("use 32 or 16 there")
@tile_kernel
def ldmatrix_of_extents_that_do_not_fit(A: Global[f16, M, K]):
    grid(1)
    threads(128)
    S = shared((64, 24), f16)
    a = load_matrix(S, ACC.a)  # error: 64 x 24 held as mma.m16n8k16.a(2, 2): columns come in multiples of 16
    store(a, S)


@bad("store the tile transposed, or use load_fragment")
@tile_kernel
def ldmatrix_that_transposes_other_widths(A: Global[tf32, M, K], B: Global[i8, K, N]):
    grid(1)
    threads(128)
    As, Bs = shared((8, 64), tf32), shared((32, 64), i8)
    a = load_matrix(As.T, ACC8.a)  # error: load_matrix() of tf32 held as mma.m16n8k8.a(2, 2): the elements of a row
    b = load_matrix(Bs, ACC32.b)  # error: load_matrix() of i8 held as mma.m16n8k32.b(2, 2): the elements of a column
    store(a, As.T)
    store(b, Bs)


@bad("use load_fragment(src, layout), which reads elements")
@tile_kernel
def ldmatrix_of_other_dtypes(A: Global[f64, M, K]):
    grid(1)
    threads(128)
    S, T, P = shared((16, 4), f64), shared((64, 64), f32), shared((64, 32), boolean)
    a = load_matrix(S, ACC_F64.a)  # error: load_matrix() of f64 held as mma.m8n8k4.a(2, 2): the instruction moves
    b = load_matrix(T, ACC)  # error: the instruction moves elements of 16 bits
    c = load_matrix(P, ACC32.a)  # error: load_matrix() of bool held as mma.m16n8k32.a(2, 2)
    store(a, S)
    store(b, T)
    store(c, P)


@bad("take a view that keeps it")
@tile_kernel
def ldmatrix_along_a_dropped_axis(A: Global[f16, M, K]):
    grid(1)
    threads(128)
    S = shared((64, 16, 8), f16)
    a = load_matrix(S[:, :, 0], ACC.a)  # error: this view has dropped the axis of stride 1
    store(a, S[:, :, 1])


@bad("possible widths, in bytes: 2, 4, 8, 16")
@tile_kernel
def widths_of_parts_of_elements(A: Global[f16, M, K], C: Global[f64, M, N]):
    grid(1)
    threads(128)
    a = load_fragment(A[0:64, 0:16], ACC.a, vec=4)
    b = load_fragment(A[0:64, 0:16], ACC.a, vec=3)  # error: load_fragment() with vec=3 on elements of 2 bytes
    store(b, A[0:64, 0:16])
    store(a, A[0:64, 0:16], vec=1)  # error: store() with vec=1 on elements of 2 bytes


@bad("transpose one side: dst.T")
@tile_kernel
def stored_to_another_shape(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 32), f32, ACC)
    store(acc, C[0:32, 0:64])  # error: store() between different shapes: 64 x 32 and 32 x 64
    store(acc, C[0:64, 0:64])  # error: store() between different shapes: 64 x 32 and 64 x 64


@bad("convert it: x.to(f16)")
@tile_kernel
def stored_as_another_dtype(C: Global[f16, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 32), f32, ACC)
    store(acc, C[0:64, 0:32])  # error: store() of f32 elements to C of f16
    S = shared((64, 32), f16)
    store(acc, C[0:64, 0:32], via=S)  # error: store() of f32 elements to S of f16


@bad("pass via=shared((64, 32), f32), which may lie over= tiles that are done with")
@tile_kernel
def via_something_else(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 32), f32, ACC)
    store(acc, C[0:64, 0:32], via=C[64:128, 0:32])  # error: store() takes a shared tile as via, got a view of 64 x 32
    store(acc, C[0:64, 0:32], via=True)  # error: store() takes a shared tile as via, got the compile-time value True
    store(acc, C[0:64, 0:32], via=shared((32, 64), f32))  # error: store() between different shapes: 64 x 32 and 32 x 64


@bad("a thread's own is written with t.store(i, j, x) or t.put(i, j, x)")
@tile_kernel
def store_of_a_threads_own(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x = fragment((4,), f32)
    store(x, C[0:64, 0:32])  # error: store() takes a fragment with a layout as fragment, got fragment<f32, [4]>


@bad("use store(x, dst), which writes elements")
@tile_kernel
def stmatrix_of_other_widths(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc, S = fragment((64, 32), f32, ACC), shared((64, 32), f32)
    store_matrix(acc, S)  # error: the instruction moves elements of 16 bits
    store_matrix(acc.to(f16), C[0:64, 0:32])  # error: store_matrix() of f16 elements to C of f32


@bad("copy it to a shared tile first, or use store(x, dst)")
@tile_kernel
def stmatrix_to_global_memory(C: Global[f16, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 32), f32, ACC)
    store_matrix(acc.to(f16), C[0:64, 0:32])  # error: store_matrix() reaches shared memory only, C is global<f16


# -- products --------------------------------------------------------------------------------------


@bad("load it: load_matrix(As[:, kk], acc.a)")
@tile_kernel
def product_of_tiles(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    As, Bs = shared((64, 16), f16), shared((16, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    acc = mma(As, load_matrix(Bs, acc.b), acc)  # error: mma() takes a fragment with a layout as a, got the tile As
    store(acc, C[0:64, 0:64])


@bad("make it with one: fragment(shape, f32, mma.m16n8k16.acc(warps=(2, 2)))")
@tile_kernel
def product_into_a_threads_own(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    As, Bs = shared((64, 16), f16), shared((16, 64), f16)
    acc = fragment((8, 8), f32)
    acc = mma(load_matrix(As, ACC.a), load_matrix(Bs, ACC.b), acc)  # error: mma() takes a fragment with a layout as acc
    C[0, 0] = acc[0, 0]


@bad("load it with acc.b: load_matrix(..., acc.b)")
@tile_kernel
def operands_the_wrong_way_round(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    a, b = load_matrix(S, acc.a), load_matrix(S, acc.b)
    x = mma(b, a, acc)  # error: mma() with a held as mma.m16n8k16.b(2, 2), for this acc it is mma.m16n8k16.a(2, 2)
    y = mma(a, a, acc)  # error: mma() with b held as mma.m16n8k16.a(2, 2), for this acc it is mma.m16n8k16.b(2, 2)
    z = mma(a, b, a)  # error: mma() takes an accumulator, acc is held as mma.m16n8k16.a(2, 2), a left operand
    store(x + y, C[0:64, 0:64])
    store(z, S)


@bad("convert(x, acc.a) where each thread holds what it needs, else store it to a shared tile")
@tile_kernel
def accumulator_as_an_operand(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    acc = mma(acc.to(f16), load_matrix(S, acc.b), acc)  # error: mma() with a held as mma.m16n8k16.acc(2, 2)
    store(acc, C[0:64, 0:64])


@bad("load it with acc.a: load_matrix(..., acc.a)")
@tile_kernel
def layouts_of_other_warps(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc, other = fragment((64, 64), f32, ACC), mma.m16n8k16.acc(warps=(4, 1))
    acc = mma(load_matrix(S, other.a), load_matrix(S, acc.b), acc)  # error: a held as mma.m16n8k16.a(4, 1)
    store(acc, C[0:64, 0:64])


@bad("x.to(tf32) rounds, x.bitcast(tf32) leaves off the low bits")
@tile_kernel
def product_of_f32(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f32)
    acc = fragment((64, 64), f32, ACC8)
    acc = mma(load_matrix(S, acc.a), load_matrix(S.T, acc.b), acc)  # error: no product m16n8k8 of f32 x f32 into f32
    store(acc, C[0:64, 0:64])


@bad("there are m16n8k8 f16 x f16 -> f32, m16n8k8 f16 x f16 -> f16, m16n8k16 f16 x f16 -> f32")
@tile_kernel
def product_of_another_shape(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC32)
    acc = mma(load_matrix(S, acc.a), load_matrix(S, acc.b), acc)  # error: no product m16n8k32 of f16 x f16 into f32
    store(acc, C[0:64, 0:64])


@bad("there are f16 x f16, bf16 x bf16, tf32 x tf32, e4m3 x e4m3, e4m3 x e5m2")
@tile_kernel
def product_of_two_dtypes(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S, T = shared((64, 64), f16), shared((64, 64), bf16)
    acc = fragment((64, 64), f32, ACC)
    acc = mma(load_matrix(S, acc.a), load_matrix(T, acc.b), acc)  # error: no product m16n8k16 of f16 x bf16 into f32
    store(acc, C[0:64, 0:64])


@bad("there are m16n8k8 bf16 x bf16 -> f32, m16n8k16 bf16 x bf16 -> f32")
@tile_kernel
def product_into_another_dtype(C: Global[bf16, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16)
    acc = fragment((64, 64), bf16, ACC)
    acc = mma(load_matrix(S, acc.a), load_matrix(S, acc.b), acc)  # error: no product m16n8k16 of bf16 x bf16 into bf16
    store(acc, C[0:64, 0:64])


@bad("a has as many columns as b has rows")
@tile_kernel
def shapes_that_do_not_multiply(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    a, b = load_matrix(S, acc.a), load_matrix(S[0:32, :], acc.b)
    x = mma(a, b, acc)  # error: mma() of 64 x 64 times 32 x 64 into 64 x 64
    y = mma(load_matrix(S[0:32, :], acc.a), load_matrix(S, acc.b), acc)  # error: of 32 x 64 times 64 x 64 into 64 x 64
    store(x + y, C[0:64, 0:64])


@bad("assign it: x = mma(...)")
@tile_kernel
def product_dropped(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    mma(load_matrix(S, acc.a), load_matrix(S, acc.b), acc)  # error: mma() gives a new fragment, which is dropped here


# -- raw instructions ------------------------------------------------------------------------------


@bad("one of 'm16n8k8', 'm16n8k16'")
@tile_kernel
def raw_product_of_no_shape(X: Global[u32, M], *, shape: Const[Any] = "m16n8k12"):
    grid(1)
    threads(32)
    a, b, c = fragment((4,), u32), fragment((2,), u32), fragment((4,), f32)
    x = ptx.mma_sync(shape, a, b, c, dtypes=(f16, f16, f32))  # error: ptx.mma_sync() has no shape 'm16n8k12'
    y = ptx.mma_sync("m16n8k16", a, b, c, dtypes=(f16, f32))  # error: ptx.mma_sync(): dtypes= is a tuple of length 2
    z = ptx.mma_sync("m16n8k16", a, b, c, dtypes=(f16, bf16, f32))  # error: no product m16n8k16 of f16 x bf16 into f32
    w = ptx.mma_sync("m16n8k16", b, b, c, dtypes=(f16, f16, f32))  # error: takes 4 u32 as a of this product
    v = ptx.mma_sync("m16n8k16", a, b, a, dtypes=(f16, f16, f16))  # error: takes 2 u32 as c of this product
    X[0] = (x + y + z + w)[0].bitcast(u32) + v[0]


@bad("raw instructions take one thread's registers")
@tile_kernel
def raw_product_of_layouts(X: Global[u32, M]):
    grid(1)
    threads(128)
    S = shared((64, 64), f16)
    acc = fragment((64, 64), f32, ACC)
    a, b = load_matrix(S, acc.a), load_matrix(S, acc.b)
    x = ptx.mma_sync("m16n8k16", a, b, acc, dtypes=(f16, f16, f32))  # error: takes a fragment of registers as a, got
    X[0] = x[0].bitcast(u32)


@bad("leave trans out")
@tile_kernel
def raw_loads(A: Global[f32, M, K], X: Global[u32, M]):
    grid(1)
    t = threads(32)
    S, H = shared((32, 32), f32), shared((32, 32), f16)
    x = ptx.ldmatrix(A, t, 0)  # error: ptx.ldmatrix() takes a shared tile as src, got the tile A (global<f32, [M, K],
    y = ptx.ldmatrix(S, t, 0, trans=True)  # error: ptx.ldmatrix() with trans=True of f32: only 16-bit elements
    z = ptx.ldmatrix(H, t, 0, num=3)  # error: ptx.ldmatrix() moves 1, 2 or 4 matrices, got 3
    w = ptx.ldmatrix(H[:, 0], t)  # error: which this view has dropped
    v = ptx.ldmatrix(H, t)  # error: H has 2 axes, got 1 indices
    ptx.ldmatrix(H, t, 0)  # error: ptx.ldmatrix() gives a new fragment, which is dropped here
    X[0] = x[0] + y[0] + z[0] + w[0] + v[0]


@bad("x.bitcast(u32) of 32-bit elements")
@tile_kernel
def raw_stores(X: Global[u32, M]):
    grid(1)
    t = threads(32)
    H = shared((32, 32), f16)
    ptx.stmatrix(H, t, 0, fragment((4,), f32))  # error: ptx.stmatrix() takes u32 words, got fragment<f32, [4]>
    ptx.stmatrix(H, t, 0, fragment((3,), u32))  # error: ptx.stmatrix() moves 1, 2 or 4 matrices, got 3
    ptx.stmatrix(H, t, fragment((4,), u32))  # error: ptx.stmatrix() on a tile of 2 axes takes (i, j, words)


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_error_at_its_line(kernel: Any, fix: str) -> None:
    check(kernel, fix)

"""Wrong layouts of fragments, what a fragment with a layout cannot do, and wrong indices.

One error each, at the line that carries ``# error: <text>``; a kernel may hold several such lines.
"""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Global,
    assert_,
    coordinates,
    copy,
    f16,
    f32,
    fragment,
    grid,
    i8,
    i32,
    load_fragment,
    load_matrix,
    mma,
    outer_fma,
    row_major,
    shared,
    shuffle_xor,
    store,
    tf32,
    threads,
    tile_kernel,
    where,
)
from tiledsl.dims import K, M, N

bad = Refused()

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

WARPS = (2, 2)
ACC: Any = mma.m16n8k16.acc(warps=WARPS)
ACC8: Any = mma.m16n8k8.acc(warps=WARPS)


# -- layouts ---------------------------------------------------------------------------------------


@bad("pass mma.m16n8k16.acc(warps=(2, 2)), or acc.a, acc.b or acc.layout of an accumulator")
@tile_kernel
def shape_instead_of_a_layout(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    fragment((64, 64), f32, mma.m16n8k16)  # error: fragment() takes a layout of a fragment, got a compile-time Product


@bad("the value of the elements is init=")
@tile_kernel
def number_instead_of_a_layout(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x = fragment((8,), f32, 1.0)  # error: fragment() takes a layout of a fragment, got the compile-time value 1.0
    C[0, 0] = x[0]


@bad("pass mma.m16n8k16.acc(warps=(2, 2))")
@tile_kernel
def layout_of_shared_tiles(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x = fragment((8, 8), f32, row_major)  # error: fragment() takes a layout of a fragment, got a compile-time Layout
    store(x, C[0:8, 0:8])


@bad("acc.a, acc.b or acc.layout of an accumulator")
@tile_kernel
def fragment_instead_of_its_layout(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    S = shared((64, 16), f16)
    a = load_matrix(S, acc)  # error: load_matrix() takes a layout of a fragment, got fragment<f32, [64, 64], mma
    store(a, S)


@bad("the shapes are m16n8k8, m16n8k16")
@tile_kernel
def shape_that_does_not_exist(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, mma.m16n16k16.acc(warps=WARPS))  # error: mma has no m16n16k16
    store(acc, C[0:64, 0:64])


@bad("how many are along m and along n: warps=(2, 2)")
@tile_kernel
def warps_of_another_kind(C: Global[f32, M, N]):
    grid(1)
    t = threads(128)
    a = fragment((64, 64), f32, mma.m16n8k16.acc(4))  # error: acc(): warps= is 2 positive compile-time ints, got 4
    b = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 0)))  # error: compile-time ints, got (2, 0)
    c = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, t)))  # error: compile-time ints, got a tuple of length 2
    store(a + b + c, C[0:64, 0:64])


@bad("use 64 or 32 there, or another grid of warps")
@tile_kernel
def rows_that_warps_do_not_divide(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((48, 64), f32, ACC)  # error: rows come in multiples of 32 = 2 warps x 16
    store(acc, C[0:48, 0:64])


@bad("such a fragment is rows by columns")
@tile_kernel
def one_axis(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64,), f32, ACC)  # error: a fragment of 1 axes held as mma.m16n8k16.acc(2, 2)
    store(acc, C[0:64, 0])


@bad("write threads(128), or take another grid of warps")
@tile_kernel
def threads_that_do_not_fit(C: Global[f32, M, N]):
    grid(1)
    threads(256)
    acc = fragment((64, 64), f32, ACC)  # error: mma.m16n8k16.acc(2, 2) is held by 128 threads (2 x 2 warps), the block
    store(acc, C[0:64, 0:64])


@bad("write threads(128), or take another grid of warps")
@tile_kernel
def threads_that_come_later(C: Global[f32, M, N]):
    acc = fragment((64, 64), f32, ACC)  # error: is held by 128 threads (2 x 2 warps), the block has 64
    grid(1)
    threads(8, 8)
    store(acc, C[0:64, 0:64])


@bad("spread it over more warps, or make it smaller")
@tile_kernel
def more_registers_than_there_are(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((256, 128), f32, ACC)  # error: is 256 registers a thread, of which there are 255
    store(acc, C[0:256, 0:128])


@bad("layout=mma.m16n8k16.acc(...) has the block hold it together")
@tile_kernel
def fragment_of_a_thread_that_is_a_tile(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32)  # error: a fragment of 4096 elements; a thread has 255 registers
    C[0, 0] = acc[0, 0]


@bad("take a shape that multiplies this dtype")
@tile_kernel
def elements_too_narrow_for_the_shape(A: Global[i8, M, K]):
    grid(1)
    threads(128)
    S = shared((64, 16), i8)
    a = load_matrix(S[:, 0:8], ACC8.a)  # error: 8-bit elements held as mma.m16n8k8.a(2, 2): along k
    store(a, S[:, 8:16])


# -- what a fragment with a layout cannot do -------------------------------------------------------


@bad("rows, columns = coordinates(acc)")
@tile_kernel
def element_of_a_fragment_with_a_layout(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x, y, z = (fragment((64, 64), f32, ACC) for _ in range(3))
    x[0, 0] = 1  # error: is held by 128 threads together and has no indices
    C[0, 0] = y[0, 0]  # error: is held by 128 threads together and has no indices
    z[0:16, :] += 1  # error: is held by 128 threads together and has no indices


@bad("convert(x, y.layout) where each thread holds what it needs, else go through a shared tile")
@tile_kernel
def layouts_that_differ(A: Global[f16, M, K]):
    grid(1)
    threads(128)
    x, y = fragment((64, 64), f16, ACC), load_fragment(A[0:64, 0:64], ACC.a)
    z = x + y  # error: + of fragments of different layouts: mma.m16n8k16.acc(2, 2) and mma.m16n8k16.a(2, 2)
    w = where(x > 0, y, 0)  # error: where() of fragments of different layouts
    store(z, A[0:64, 0:64])
    store(w, A[0:64, 0:64])


@bad("give both one layout: fragment(shape, dtype, mma.m16n8k16.acc(2, 2))")
@tile_kernel
def with_and_without_a_layout(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x, y = fragment((32, 16), f32, ACC), fragment((32, 16), f32)
    store(x * y, C[0:32, 0:16])  # error: mma.m16n8k16.acc(2, 2) and each thread's own


@bad("on the accumulator, or before it is loaded")
@tile_kernel
def width_of_an_operand_changed(A: Global[f32, M, K]):
    grid(1)
    threads(128)
    S = shared((64, 16), f32)
    a = load_matrix(S, ACC8.a)
    b = a.to(f16)  # error: conversion of f32 elements held as mma.m16n8k8.a(2, 2) gives f16, which has other threads
    c = a > 0  # error: > of f32 elements held as mma.m16n8k8.a(2, 2) gives bool
    store(a.to(tf32).to(f32), S)
    store(b, S)
    store(c, S)


@bad("make it with one: fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))")
@tile_kernel
def layout_of_a_fragment_without_one(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    x = fragment((8, 8), f32)
    y = load_fragment(C[0:64, 0:16], x.a)  # error: .a of fragment<f32, [8, 8]>, which is each thread's own
    store(y, C[0:64, 0:16])


@bad("mma(a, b, acc) is the product of fragments with a layout")
@tile_kernel
def outer_product_of_layouts(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    acc = outer_fma(acc, fragment((64,), f32), fragment((64,), f32))  # error: outer_fma() takes one thread's fragment
    store(acc, C[0:64, 0:64])


@bad("a fragment with a layout moves with load_matrix(), load_fragment() and store()")
@tile_kernel
def copy_of_a_fragment(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    copy(fragment((64, 64), f32, ACC), C[0:64, 0:64])  # error: copy() takes memory as src, got fragment<f32, [64, 64],


@bad("where(condition, a, b) chooses for each")
@tile_kernel
def condition_with_many_elements(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    rows, columns = coordinates(acc)
    if rows < columns:  # error: a condition must be a bool, it is fragment<bool, [64, 64], mma.m16n8k16.acc(2, 2)>
        C[0, 0] = 1
    inside = rows < M and columns < N  # error: a condition must be a bool, it is fragment<bool, [64, 64], mma
    print(acc)  # error: print() of fragment<f32, [64, 64], mma.m16n8k16.acc(2, 2)>
    store(where(inside, acc, 0), C[0:64, 0:64])


@bad("store(x, C[m, n]); or name a place for each element")
@tile_kernel
def fragment_at_one_place(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    C.put(0, 0, acc)  # error: put() at one place of fragment<f32, [64, 64], mma.m16n8k16.acc(2, 2)>, which the block
    C.store(0, 0, acc)  # error: store() at one place of fragment<f32, [64, 64], mma.m16n8k16.acc(2, 2)>


@bad("use another name in the body, or convert to one dtype")
@tile_kernel
def changed_type_in_a_loop(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    for _ in range(4):  # error: acc is fragment<f32, [64, 64], mma.m16n8k16.acc(2, 2)> before the loop
        acc = acc.to(f16)
    store(acc, C[0:64, 0:64])


@bad("store it, and check what arrived")
@tile_kernel
def many_conditions(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    assert_(acc > 0)  # error: the condition of assert_() is one bool, got fragment<bool, [64, 64], mma
    assert_(C.load(0, 0, vec=8) > 0)  # error: the condition of assert_() is one bool, got fragment<bool, [2]>


@bad("`&`, `|` and `~` join conditions")
@tile_kernel
def a_negated_fragment(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    acc = where(not (acc > 0), acc, 0)  # error: a condition must be a bool, it is fragment<bool, [64, 64], mma


@bad("go through a shared tile: store(x, S)")
@tile_kernel
def shuffled(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    acc += shuffle_xor(acc, 1)  # error: shuffle_xor() shuffles a run-time scalar, got fragment<f32, [64, 64], mma


# -- registers -------------------------------------------------------------------------------------


@bad("each thread holds 32 f32 of it: pass what x.registers() gives")
@tile_kernel
def registers_of_another_size(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 32), f32, ACC)
    more = fragment((64, 64), f32, ACC, init=acc.registers())  # error: from fragment<f32, [16]>
    few = fragment((64, 64), f32, ACC, init=fragment((32,), f16))  # error: from fragment<f16, [32]>
    store(more + few, A[0:64, 0:64])


@bad("")
@tile_kernel
def registers_without_a_layout(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    own = fragment((32,), f32).registers()  # error: registers() takes a fragment with a layout as self
    A[0, 0] = own[0]


# -- coordinates and indices -----------------------------------------------------------------------


@bad("make acc with mma.m16n8k16.acc(2, 2)")
@tile_kernel
def coordinates_of_an_operand(A: Global[f16, M, K]):
    grid(1)
    threads(128)
    a = load_fragment(A[0:64, 0:16], ACC.a)
    rows, columns = coordinates(a)  # error: takes an accumulator, acc is held as mma.m16n8k16.a(2, 2), a left
    A.put(rows, columns, a)


@bad("convert it: x.to(index)")
@tile_kernel
def indices_that_are_none(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    rows, columns = coordinates(acc)
    A.put(rows.to(i32), columns, acc)  # error: an index must be index, it is fragment<i32, [64, 64], mma
    acc += A[acc, columns]  # error: an index must be index, it is fragment<f32, [64, 64], mma


@bad("leave vec out")
@tile_kernel
def gather_of_vectors(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    rows, columns = coordinates(acc)
    acc += A.get(rows, columns, vec=8)  # error: get() with vec= and fragments of indices, which name single elements


@bad("convert it: x.to(f32)")
@tile_kernel
def scatter_of_another_shape(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc, other = fragment((64, 64), f32, ACC), fragment((32, 64), f32, ACC)
    rows, columns = coordinates(acc)
    A.put(rows, columns, other)  # error: value and indices of fragments of different shapes: (32, 64) and (64, 64)
    A[rows, columns] = acc.to(f16)  # error: the value stored to A must be f32, it is fragment<f16, [64, 64], mma
    A[rows, columns] = 0.1  # error: 0.1 is not exact in f32


@bad("")
@tile_kernel
def gather_with_a_slice(A: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    rows, _ = coordinates(acc)
    A.put(rows, A[0:4, :], acc)  # error: the index of axis 1 must be index, it is a view of 4 x N elements of A


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_error_at_its_line(kernel: Any, fix: str) -> None:
    check(kernel, fix)

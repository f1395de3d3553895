"""Wrong views, ranges, copies, fragments and loops: one error each, at the line that carries ``# error: <text>``.

Compiled as a whole, since what the threads of a block can share out is known to a pass only.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
from refused import Refused, check

from tiledsl import (
    Const,
    Global,
    Layout,
    barrier,
    const,
    copy,
    f16,
    f32,
    fragment,
    grid,
    i32,
    index,
    outer_fma,
    padded,
    row_major,
    shared,
    swizzled,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N

bad = Refused()


# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false


@bad("both sides have one shape")
@tile_kernel
def shapes_differ(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    copy(A[0:16, 0:16], S)  # error: copy() between different shapes: 16 x 16 and 16 x 8


@bad("transpose one side: dst.T")
@tile_kernel
def shapes_are_transposed(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    copy(A[0:8, 0:16], S)  # error: copy() between different shapes: 8 x 16 and 16 x 8


@bad("an axis indexed with a number is dropped")
@tile_kernel
def ranks_differ(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((2, 16, 8), f32)
    copy(A[0:16, 0:8], S)  # error: copy() between different shapes: 16 x 8 and 2 x 16 x 8


@bad("convert elements one by one")
@tile_kernel
def dtypes_differ(A: Global[f16, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    copy(A[0:16, 0:8], S)  # error: copy() from f16 to f32


@bad("use vec=4, or 32 or 96 threads")
@tile_kernel
def threads_do_not_divide(A: Global[f32, M, N]):
    grid(1)
    threads(64, 2)
    S = shared((32, 12), f32)
    copy(A[0:32, 0:12], S)  # error: copy() of 32 x 12 f32 is 96 accesses of 16 bytes, which 128 threads cannot


@bad("use vec=4 or 8")
@tile_kernel
def vectors_longer_than_rows(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((32, 6), f32)
    copy(A[0:32, 0:6], S)  # error: rows of 6 f32 (axis 1 of 32 x 6) are not a multiple of 4 elements


@bad("write it as 4 * something, or use vec=8")
@tile_kernel
def vectors_of_a_run_time_start(A: Global[f32, M, N], n: i32):
    grid(1)
    threads(32)
    S = shared((32, 8), f32)
    copy(A[0:32, tile(index(n), 8) + 4], S)
    copy(A[0:32, tile(index(n), 8) + 2], S)  # error: this one is only known to be a multiple of 2


@bad("begin it where the block's tile begins")
@tile_kernel
def view_of_a_thread(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    S = shared((32, 8), f32)
    copy(A[tile(t, 32), 0:8], S)  # error: may differ from thread to thread: it depends on the thread index along x


@bad("use vec=4")
@tile_kernel
def vectors_along_a_dropped_axis(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((32, 8), f32)
    copy(A[0:32, 3], S[:, 0])  # error: neither side has its axis of stride 1 among the copied axes


@bad("possible widths, in bytes: 4, 8, 16")
@tile_kernel
def width_of_half_an_element(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((32, 8), f32)
    copy(A[0:32, 0:8], S, vec=2)  # error: copy() with vec=2 on elements of 4 bytes


@bad("move copy() out of the if")
@tile_kernel
def copy_under_a_condition(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    S = shared((16, 8), f32)
    if t < 16:
        copy(A[0:16, 0:8], S)  # error: copy() must be reached by all threads of the block


@bad("take a part of compile-time shape")
@tile_kernel
def copy_of_a_whole_tensor(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    copy(A, S)  # error: copy() of A, whose shape M x N is only known at run time


@bad("fragments move with .load() and .store()")
@tile_kernel
def copy_of_a_fragment(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    copy(A[0:16, 0:8], fragment((16, 8), f32))  # error: copy() takes memory as dst, got fragment<f32, [16, 8]>


@bad("it is not clipped")
@tile_kernel
def slice_outside(A: Global[f32, M, Literal[8]]):
    grid(1)
    threads(32)
    S = shared((16, 8), f32)
    x = A[0:4, 4:12]  # error: elements 4 to 12 are outside axis 1 of A, whose extent is 8
    y = S[8:, 0:4][0:9, :]  # error: elements 0 to 9 are outside axis 0 of S, whose extent is 8
    z = S[tile(2, 8), :]  # error: elements 16 to 24 are outside axis 0 of S, whose extent is 16
    w = S[16, :]  # error: index 16 is outside axis 0 of S, whose extent is 16
    v = S[4:4, :]  # error: the slice 4:4 is empty
    u = S[-4:8, :]  # error: the slice -4:8
    q = S[tile(1, 4) - 8, :]  # error: elements -4 to 0 are outside axis 0 of S
    A[x[0, 0].to(i32), 0] = y[0, 0] + z[0, 0] + w[0] + v[0, 0] + u[0, 0] + q[0, 0]


@bad("leave the step out")
@tile_kernel
def slice_with_a_step(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    A[0, 0] = A[0:8:2, :][0, 0]  # error: a slice with step 2


@bad("tile(i, B) is a range of B elements that may begin anywhere")
@tile_kernel
def slice_of_run_time_length(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    A[0, 0] = A[t : t + 4, :][0, 0]  # error: a slice with run-time bounds: its length is not known


@bad("take the whole axis with `:`")
@tile_kernel
def slice_up_to_a_run_time_end(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    A[0, 0] = A[4:, :][0, 0]  # error: a slice up to M, which is only known at run time


@bad("use a const parameter")
@tile_kernel
def range_of_run_time_length(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    x = A[tile(0, t), :]  # error: tile(): size is a compile-time int of 1 or more, got index
    for k in tiles(M, t):  # error: tiles(): size is a compile-time int of 1 or more, got index
        x = A[k, :]
    A[0, 0] = x[0, 0]


@bad("assign elements, store a vector with .store(), or copy(src, dst)")
@tile_kernel
def assignment_to_a_view(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    A[0:4, 0] = 1  # error: a part of A is not an element


@bad("index each axis with a number")
@tile_kernel
def element_at_a_range(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    A[0, 0] = A.get(tile(0, 4), 0)  # error: a range of 4 elements from 0 on is not the index of an element


@bad("a view that keeps that axis")
@tile_kernel
def vector_along_a_dropped_axis(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    x = A[:, 0].load(4 * t)  # error: 16 bytes at once along the axis of stride 1 of A, which this view has dropped
    A[0, 0] = x[0]


@bad("read an element of it")
@tile_kernel
def arithmetic_on_a_view(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    x = A[0:4, 0:4] * 2  # error: * is not defined for a view of 4 x 4 elements of A
    A[0, 0] = x[0, 0]


@bad("use its start")
@tile_kernel
def arithmetic_on_a_range(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    A[tile(t, 4) * 2, 0] = 0  # error: * is not defined for a range of 4 elements at a run-time position


@bad("carry an index of one tile, as in S[stage, i]")
@tile_kernel
def view_chosen_at_run_time(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    V = A[0:4, :]
    if t < 4:
        V = A[4:8, :]
    A[0, t] = V[0, t]  # error: V is a view of 4 x N elements of A


@bad("control flow cannot carry memory")
@tile_kernel
def view_changed_in_a_loop(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    V = A[0:4, :]
    for i in range(3):  # error: V is a view of 4 x N elements of A
        A[0, t] = V[0, t]
        V = A[tile(i, 4), :]


@bad("ask the tensor or tile itself")
@tile_kernel
def alignment_of_a_view(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    copy(A[0:4, 0:8], A[4:8, 0:8], vec=A[0:4, 0:8].align)  # error: .align of a view of 4 x 8 elements of A


@bad("there are no negative indices")
@tile_kernel
def slice_of_a_fragment_outside(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    f = fragment((8,), f32)
    f[4:9] = 1  # error: the slice 4:9 is outside a fragment of shape (8,)


@bad("both sides of an assignment have one shape")
@tile_kernel
def slice_of_a_fragment_of_another_shape(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    f = fragment((8, 2), f32)
    f[0:4, 1] = f[0:2, 0]  # error: fragment<f32, [2]> assigned to a slice of shape (4,) of f32
    A[0, 0] = f[0, 0]


@bad("loop with unroll() instead of range()")
@tile_kernel
def slice_of_a_fragment_at_run_time(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    f = fragment((8,), f32)
    for k in tiles(8, 4):
        f[k] = 1  # error: a fragment lives in registers and takes compile-time indices, got index


@bad("make the extents multiples of 8 and 8, or use order='serpentine'")
@tile_kernel
def spiral_that_does_not_fit(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc = fragment((8, 4), f32)
    acc = outer_fma(acc, fragment((8,), f32), fragment((4,), f32), "spiral")  # error: blocks of 8 x 8, and acc is 8 x 4
    A[0, 0] = acc[0, 0]


@bad("make the extents multiples of 2 and 1, or use order='serpentine'")
@tile_kernel
def pairs_of_an_odd_number_of_rows(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc = fragment((7, 4), f32)
    acc = outer_fma(acc, fragment((7,), f32), fragment((4,), f32), "pairs")  # error: blocks of 2 x 1, and acc is 7 x 4
    A[0, 0] = acc[0, 0]


@bad("make the extents multiples of 1 and 2, or use order='serpentine'")
@tile_kernel
def column_pairs_of_an_odd_number_of_columns(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc, a, b = fragment((4, 7), f32), fragment((4,), f32), fragment((7,), f32)
    acc = outer_fma(acc, a, b, "column_pairs")  # error: blocks of 1 x 2, and acc is 4 x 7
    A[0, 0] = acc[0, 0]


@bad("make the extents multiples of 1 and 4, or use order='serpentine'")
@tile_kernel
def column_quads_of_six_columns(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc, a, b = fragment((4, 6), f32), fragment((4,), f32), fragment((6,), f32)
    acc = outer_fma(acc, a, b, "column_quads")  # error: blocks of 1 x 4, and acc is 4 x 6
    A[0, 0] = acc[0, 0]


@bad("a is a fragment of 8 and b one of 4 f32")
@tile_kernel
def outer_product_of_other_shapes(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc = fragment((8, 4), f32)
    acc = outer_fma(acc, fragment((4,), f32), fragment((8,), f32))  # error: outer_fma() on acc fragment<f32, [8, 4]>
    A[0, 0] = acc[0, 0]


@bad("one of 'rows', 'serpentine', 'spiral', 'pairs', 'column_pairs', 'column_quads'")
@tile_kernel
def order_unknown(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc = fragment((2, 2), f32)
    acc = outer_fma(acc, acc[0, :], acc[1, :], order="columns")  # error: outer_fma() has no order 'columns'
    A[0, 0] = acc[0, 0]


@bad("assign it: x = outer_fma(...)")
@tile_kernel
def outer_product_dropped(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    acc = fragment((2, 2), f32)
    outer_fma(acc, acc[0, :], acc[1, :])  # error: outer_fma() gives a new fragment, which is dropped here
    A[0, 0] = acc[0, 0]


@bad("unroll(range(n), by=4)")
@tile_kernel
def unroll_of_a_range_alone(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    for i in unroll(range(M)):  # error: unroll() needs compile-time ints, got a loop at run time
        A[i, t] = 0


@bad("unroll(range(n), by=4)")
@tile_kernel
def unroll_by_a_run_time_number(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    for i in unroll(range(M), by=M):  # error: unroll(): by is a compile-time int from 1 to 4096, got index
        A[i, t] = 0


@bad("give the range a constant step")
@tile_kernel
def unroll_with_a_run_time_step(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    for i in unroll(range(0, M, N), by=2):  # error: by= needs a step that is known at compile time
        A[i, t] = 0


@bad("leave unroll() out")
@tile_kernel
def unroll_of_a_loop_that_breaks(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    for i in unroll(range(M), by=2):  # error: unroll() on a loop that `break` or `return` may leave
        if A[i, t] > 0:
            break


@bad("unroll(tiles(K, BK), by=2)")
@tile_kernel
def unroll_of_run_time_tiles(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    for k in unroll(tiles(M, 8)):  # error: unroll() of tiles() over an extent that is only known at run time
        A[k.start, 0] = 0


@bad("pass 8 or more; padded(n) counts the elements of a whole row")
@tile_kernel
def layouts_that_do_not_fit(A: Global[f32, M, N], *, L: Const[Layout] = row_major, T: const = 8):
    grid(1)
    t = threads(32)
    S = shared((16, T), f32, layout=padded(4))  # error: padded(4) makes rows of 4 elements, but a row of the tile has 8
    R = shared((16, T), f32, layout=swizzled(4, 4))  # error: 16 elements, and a row of 8 is no
    Q = shared((16, T), f32, layout=t)  # error: layout= takes a layout, got index
    copy(A[0:16, 0:8], S)
    copy(A[0:16, 0:8], R)
    copy(A[0:16, 0:8], Q)
    barrier()


@bad("use its start: r.start")
@tile_kernel
def print_of_a_view(A: Global[f32, M, K]):
    grid(1)
    threads(32)
    print(A[0:4, :])  # error: print() of a view of 4 x K elements of A
    print("at", tile(M, 4))  # error: print() of a range of 4 elements at a run-time position


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_error_at_its_line(kernel: Any, fix: str) -> None:
    check(kernel, fix)

"""What passes and targets refuse of matrix fragments and asynchronous copies.

One error each, at the line that carries ``# error: <text>``; a kernel may hold several such lines.
"""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Global,
    copy_async,
    e4m3,
    f16,
    f32,
    fragment,
    grid,
    load_fragment,
    load_matrix,
    mma,
    padded,
    pipelined,
    shared,
    store,
    store_matrix,
    threads,
    tile,
    tile_kernel,
    tiles,
    wait,
)
from tiledsl.dims import M, N

bad, old = Refused(), Refused()

# pyright: basic, reportArgumentType=false, reportCallIssue=false

ACC: Any = mma.m16n8k16.acc(warps=(2, 2))
THREE: Any = mma.m16n8k16.acc(warps=(3, 1))


# -- shares ----------------------------------------------------------------------------------------


@bad("use vec=2 or 4 or 8")
@tile_kernel
def staged_store_that_does_not_divide(C: Global[f16, M, N]):
    grid(1)
    threads(96)
    acc, S = fragment((48, 40), f16, THREE), shared((48, 40), f16)
    store(acc, C[0:48, 0:40], via=S)  # error: copy() of 48 x 40 f16 is 240 accesses of 16 bytes, which 96 threads


@bad("use vec=2 or 4 or 8")
@tile_kernel
def staged_store_of_short_rows(C: Global[f16, M, N]):
    grid(1)
    threads(96)
    acc, S = fragment((48, 8), f16, THREE), shared((8, 48), f16)
    store(acc, C[0:48, 0:8], via=S.T)  # error: which 96 threads cannot share equally


@bad("use 32 or 64 threads")
@tile_kernel
def async_copy_that_does_not_divide(A: Global[f32, M, N]):
    grid(1)
    threads(96)
    S = shared((16, 16), f32)
    wait(copy_async(A[0:16, 0:16], S))  # error: copy_async() of 16 x 16 f32 is 64 accesses of 16 bytes, which 96


@bad("use copy(), which transposes through registers")
@tile_kernel
def async_copy_that_transposes(A: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((16, 16), f32)
    wait(copy_async(A[0:16, 0:16], S.T))  # error: neighbours in A are not neighbours in S


@bad("use vec=2 or 4")
@tile_kernel
def wider_than_what_lanes_hold(A: Global[f16, M, N]):
    grid(1)
    threads(128)
    a = load_fragment(A[0:64, 0:16], ACC.a, vec=8)  # error: of mma.m16n8k16.a(2, 2) a lane holds 2 f16 side by side in
    b = load_fragment(A[0:16, 0:64], ACC.b, vec=4)  # error: a lane holds single elements side by side in A
    store(a, A[0:64, 0:16], vec=4)
    store(b, A[0:16, 0:64].T.T, vec=16)  # error: store() with vec=16: of mma.m16n8k16.b(2, 2) a lane holds single


# -- alignment -------------------------------------------------------------------------------------


@bad("write it as 8 * something, or use vec=4")
@tile_kernel
def staged_store_to_the_middle_of_vectors(C: Global[f16, M, N]):
    i = grid(1)
    threads(128)
    acc, S = fragment((64, 48), f16, ACC), shared((64, 48), f16)
    store(acc, C[0:64, tile(i, 48) + 2], via=S)  # error: index along axis 1 of C that is a multiple of 8; this one is


@bad("write it as 4 * something, or use vec=4")
@tile_kernel
def async_copy_of_the_middle_of_vectors(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    S, T = shared((16, 16), f32), shared((16, 16), f32, layout=padded(17))
    wait(copy_async(A[0:16, tile(i, 16) + 1], S))  # error: 16 bytes at once need an index along
    wait(copy_async(A[0:16, tile(i, 16)], T))  # error: 16 bytes at once from T, but with its


@bad("pad S to a multiple of 8, or leave its layout to the compiler")
@tile_kernel
def rows_that_ldmatrix_cannot_read(A: Global[f16, M, N]):
    grid(1)
    threads(128)
    S, T = shared((64, 16), f16, layout=padded(18)), shared((64, 64), f16)
    store(load_matrix(S, ACC.a), A[0:64, 0:16])  # error: 16 bytes at once from S, but with its layout padded(18)
    store(load_matrix(T[:, 4:20], ACC.a), A[0:64, 0:16])  # error: index along axis 1 of T that is a multiple of 8


# -- uniformity ------------------------------------------------------------------------------------


@bad("move mma() out of the if")
@tile_kernel
def product_of_some_lanes(A: Global[f16, M, N], C: Global[f32, M, N]):
    grid(1)
    t = threads(128)
    acc = fragment((64, 64), f32, ACC)
    a, b = load_fragment(A[0:64, 0:16], ACC.a), load_fragment(A[0:16, 0:64], ACC.b)
    if t < 16:
        acc = mma(a, b, acc)  # error: mma() must be reached by all 32 lanes of the warp
    store(acc, C[0:64, 0:64])


@bad("begin it where the block's tile begins")
@tile_kernel
def view_of_a_thread(A: Global[f16, M, N]):
    grid(1)
    t = threads(128)
    S = shared((64, 256), f16)
    a = load_matrix(S[:, tile(t // 16, 16)], ACC.a)  # error: load_matrix() moves one view by all threads of the block
    store(a, A[0:64, 0:16])


@bad("move copy_async() out of the if")
@tile_kernel
def async_copy_by_some_threads(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    S = shared((16, 16), f32)
    if t < 16:
        wait(copy_async(A[0:16, 0:16], S))  # error: copy_async() must be reached by all threads of the block


# -- tokens and pipelined loops ----------------------------------------------------------------------


@bad("whichever way the kernel takes")
@tile_kernel
def never_waited_for(A: Global[f32, M, N]):
    i = grid(1)
    threads(32)
    S, T = shared((16, 16), f32), shared((16, 16), f32)
    _ = copy_async(A[0:16, 0:16], S)  # error: this copy_async() is never waited for
    sometimes = copy_async(A[0:16, 0:16], T)  # error: so its tile cannot be read
    if i > 0:
        wait(sometimes)


@bad("copy_async() what an iteration needs to a shared tile, or write a plain for")
@tile_kernel
def nothing_to_copy(A: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    for k in pipelined(tiles(N, 4), stages=2):  # error: a pipelined loop that copies nothing to a shared tile
        A.put(t, k.start, 0)


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_error_at_its_line(kernel: Any, fix: str) -> None:
    check(kernel, fix)


# -- targets ---------------------------------------------------------------------------------------


@old("store() writes a fragment with plain accesses")
@tile_kernel
def stmatrix_before_sm_90(A: Global[f16, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 16), f16)
    store_matrix(load_fragment(A[0:64, 0:16], ACC.a), S)  # error: stmatrix needs one of


@old("sm_90a")
@tile_kernel
def fp8_before_sm_89(A: Global[e4m3, M, N], C: Global[f32, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, mma.m16n8k32.acc(warps=(2, 2)))
    a, b = load_fragment(A[0:64, 0:32], acc.a), load_fragment(A[0:32, 0:64], acc.b)
    store(mma(a, b, acc), C[0:64, 0:64])  # error: the product m16n8k32 e4m3 x e4m3 -> f32 needs


@pytest.mark.parametrize(("kernel", "fix"), old.cases, ids=old.names)
def test_targets_that_lack_an_instruction(kernel: Any, fix: str) -> None:
    check(kernel, fix, arch="sm_80")

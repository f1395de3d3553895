# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""Kernels with matrix fragments and asynchronous copies for type checkers: as in kernels.py, pyright must accept all of
it but the lines with an ignore comment, and tests/unit/test_lang_typing.py compiles them."""

from __future__ import annotations

from typing import Any, TypeVar, assert_type

from tiledsl import (
    Const,
    Fragment,
    FragmentLayout,
    Global,
    Memory,
    Scalar,
    SharedTile,
    Token,
    barrier,
    boolean,
    cdiv,
    const,
    convert,
    coordinates,
    copy_async,
    f16,
    f32,
    fragment,
    grid,
    index,
    lane_id,
    load_fragment,
    load_matrix,
    mma,
    pipelined,
    ptx,
    shared,
    store,
    store_matrix,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    u32,
    unroll,
    wait,
    where,
)
from tiledsl.dims import K, M, N

D = TypeVar("D", bound=Scalar)
FOUR_WARPS = mma.m16n8k16.acc(warps=(2, 2))


@tile_kernel
def multiply(
    A: Global[f16, M, K],
    B: Global[f16, K, N],
    C: Global[f16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 32,
    STAGES: const = 3,
    layout: Const[FragmentLayout] = FOUR_WARPS,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(layout.threads)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = shared((BM, BK), f16), shared((BK, BN), f16)
    acc = fragment((BM, BN), f32, layout)
    for k in pipelined(tiles(K, BK), stages=STAGES):
        copy_async(A[m, k], As)
        copy_async(B[k, n], Bs, vec=16)
        for kk in unroll(tiles(BK, 16)):
            acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(acc.to(f16), C[m, n], via=shared((BM, BN), f16, over=(As, Bs)))


@tile_function
def finished(
    acc: Fragment[f32], bias: Global[f32, N], rows: Fragment[index], columns: Fragment[index]
) -> Fragment[f32]:
    shifted = acc + bias.get(columns)
    return where((columns < 64) & (rows >= 2), shifted, 0)


@tile_kernel
def with_tokens(A: Global[f32, M, K], C: Global[f32, M, N], bias: Global[f32, N], *, BM: const = 64):
    m = tile(grid(cdiv(M, BM)), BM)
    threads(128)
    As = shared((2, BM, 8), f32)
    acc = fragment((BM, 64), f32, mma.m16n8k8.acc(warps=(2, 2)), init=1)
    token = copy_async(A[m, 0:8], As[0, :, :])
    stage = index(0)
    for k in tiles(K, 8):
        wait(token)
        barrier()
        token = copy_async(A[m, k + 8], As[1 - stage, :, :])
        a = load_matrix(As[stage, :, :], acc.a).to(tf32)
        b = load_fragment(C[0:8, 0:64], acc.b).to(tf32)
        acc = mma(a, b, acc)
        stage = 1 - stage
        barrier()
    wait(token)
    rows, columns = coordinates(acc)
    C.put(m.start + rows, columns, finished(acc, bias, rows, columns))


@tile_function
def types(S: SharedTile[f16], T: Memory[D], A: Global[f32, M, K], F: Fragment[f32], W: Fragment[u32]) -> None:
    """Every line is about its types only."""
    assert_type(mma.m16n8k16.acc(warps=(2, 2)), FragmentLayout)
    assert_type(mma.m16n8k8.a(warps=(4, 1)).threads, int)
    assert_type(F.a, FragmentLayout)
    assert_type(F.layout.b, FragmentLayout)
    assert_type(fragment((64, 64), f32, F.layout), Fragment[f32])
    assert_type(fragment((4,), f32, init=1), Fragment[f32])
    assert_type(load_matrix(S[:, 0:16], F.a), Fragment[f16])
    assert_type(load_matrix(S.T, F.b), Fragment[f16])
    assert_type(load_fragment(T, F.a, vec=4), Fragment[D])
    assert_type(mma(load_matrix(S, F.a), load_matrix(S, F.b), F), Fragment[f32])
    assert_type(convert(F.to(f16), F.a), Fragment[f16])
    rows, columns = coordinates(F)
    assert_type(rows, Fragment[index])
    assert_type(rows + 1, Fragment[index])
    assert_type(lane_id() + rows, Fragment[index])
    assert_type(tile(0, 4).start + rows, Fragment[index])
    assert_type(rows < columns, Fragment[boolean])
    assert_type((rows < M) & (columns + 1 >= N), Fragment[boolean])
    assert_type(M - rows // 2 * K, Fragment[index])
    assert_type(A[rows, columns], Fragment[f32])
    assert_type(A[rows, 0], Fragment[f32])
    assert_type(A.get(rows, columns), Fragment[f32])
    assert_type(A.get(lane_id(), columns, other=F), Fragment[f32])
    assert_type(A.atomic_add(rows, columns, F), Fragment[f32])
    assert_type(A.atomic_exchange(rows, columns, F, scope="sys"), Fragment[f32])
    assert_type(A.atomic_load(rows, columns, order="acquire"), Fragment[f32])
    A.atomic_store(rows, columns, F, order="release")
    A.put(rows, columns, F)
    A[rows, columns] = F
    A[rows, columns] = 0
    token = copy_async(A[0:4, 0:4], shared((4, 4), f32), vec=8)
    assert_type(token, Token)
    wait(token, token)
    for i in pipelined(range(4), stages=2, fragments=1):
        assert_type(i, int)
    assert_type(ptx.ldmatrix(S, lane_id(), 0, num=2, trans=True), Fragment[u32])
    assert_type(ptx.mma_sync("m16n8k16", W, W, F, dtypes=(f16, f16, f32)), Fragment[f32])
    ptx.stmatrix(S, lane_id(), 0, W)
    ptx.cp_async(S, (lane_id(), 0), S, (0, M), bytes=16)
    ptx.commit_group()
    ptx.wait_group(1)


@tile_function
def refused(S: SharedTile[f16], A: Global[f32, M, K], F: Fragment[f32], token: Token) -> None:
    """Every line is an error for a type checker, as it is for the compiler."""
    fragment((64, 64), f32, 1)  # pyright: ignore[reportArgumentType]
    fragment((64, 64), f32, mma.m16n8k16)  # pyright: ignore[reportArgumentType]
    _ = mma.m16n16k16  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    mma.m16n8k16.acc(4)  # pyright: ignore[reportArgumentType]
    mma(S, S, F)  # pyright: ignore[reportArgumentType]
    load_matrix(S, F)  # pyright: ignore[reportArgumentType]
    store(F, S)  # pyright: ignore[reportArgumentType]
    store(F.to(f16), S, via=A)  # pyright: ignore[reportArgumentType]
    store_matrix(F, S)  # pyright: ignore[reportArgumentType]
    copy_async(A, S)  # pyright: ignore[reportArgumentType]
    wait(F)  # pyright: ignore[reportArgumentType]
    token + 1  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    pipelined(tiles(K, 16))  # pyright: ignore[reportCallIssue]
    pipelined(A, stages=2)  # pyright: ignore[reportArgumentType, reportCallIssue]
    A.put(F, F, F)  # pyright: ignore[reportArgumentType]


def host(a: Any) -> None:
    multiply(a, a, a, STAGES=2, layout=mma.m16n8k16.acc(warps=(4, 1)))

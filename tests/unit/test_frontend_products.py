"""Matrix fragments, asynchronous copies and pipelined loops as a user writes them, against NumPy on the emulator.

Inputs are small integers, so that every sum is exact in whatever order and format it is computed.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import ml_dtypes
import numpy as np
import pytest
from refused import check

from tiledsl import (
    Const,
    FragmentLayout,
    Global,
    HazardError,
    Scalar,
    barrier,
    cdiv,
    const,
    convert,
    coordinates,
    copy,
    copy_async,
    f16,
    f32,
    fragment,
    grid,
    i32,
    index,
    load_fragment,
    load_matrix,
    mma,
    pipelined,
    shared,
    store,
    store_matrix,
    tf32,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tiles,
    unroll,
    wait,
    where,
)
from tiledsl.dims import K, M, N
from tiledsl.layout.mma import TABLE, MmaRow

RNG = np.random.default_rng(11)
ARRAYS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "i8": np.int8, "u8": np.uint8, "i32": np.int32,
}  # fmt: skip
FOUR_WARPS = mma.m16n8k16.acc(warps=(2, 2))
P, Q, R = TypeVar("P", bound=Scalar), TypeVar("Q", bound=Scalar), TypeVar("R", bound=Scalar)


def small(*shape: int, dtype: Any = np.float16) -> Any:
    return RNG.integers(0 if dtype == np.uint8 else -3, 4, shape).astype(dtype)


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64)


def run(kernel: Any, *arguments: Any, **settings: Any) -> None:
    """At thread level, after all passes, with the hazard checks on."""
    kernel.check(*arguments, **settings)


# -- every product of the table ----------------------------------------------------------------------


@tile_kernel
def product(
    A: Global[P, M, K],
    B: Global[Q, N, K],
    C: Global[R, M, N],
    *,
    shape: Const[Any],
    rounded: Const[bool] = False,
    BM: const = 32,
    BN: const = 16,
    BK: const = 32,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(64)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = shared((BM, BK), A.dtype), shared((BN, BK), B.dtype)
    acc = fragment((BM, BN), C.dtype, shape.acc(warps=(2, 1)))
    load = load_fragment if A.dtype.ir.bytes == 8 else load_matrix
    for k in tiles(K, BK):
        copy(A[m, k], As, vec=min(A.align, 8))
        copy(B[n, k], Bs, vec=min(B.align, 8))
        barrier()
        for kk in unroll(tiles(BK, shape.shape.k)):
            a, b = load(As[:, kk], acc.a), load(Bs[:, kk].T, acc.b)
            acc = mma(a.to(tf32), b.to(tf32), acc) if rounded else mma(a, b, acc)
        barrier()
    store(acc, C[m, n])


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_product_of_the_table(row: MmaRow) -> None:
    a, b = small(37, 72, dtype=ARRAYS[row.a]), small(20, 72, dtype=ARRAYS[row.b])
    c = np.zeros((37, 20), ARRAYS[row.acc])
    run(product, a, b, c, shape=getattr(mma, str(row.shape)), rounded=row.a == "tf32")
    assert np.array_equal(c.astype(np.float64), exact(a, b.T))


# -- loads and stores ------------------------------------------------------------------------------


@tile_kernel
def orders(
    A: Global[f16, M, K],
    B: Global[f16, K, N],
    C: Global[f16, M, N],
    *,
    layout: Const[FragmentLayout] = FOUR_WARPS,
    a_across: Const[bool] = False,
    b_across: Const[bool] = False,
    out: Const[str] = "plain",
):
    """Tiles in either order of axes, and every way out."""
    bx, by = grid(cdiv(N, 32), cdiv(M, 64))
    threads(128)
    m, n = tile(by, 64), tile(bx, 32)
    As = shared((32, 64), f16).T if a_across else shared((64, 32), f16)
    Bs = shared((32, 32), f16) if b_across else shared((32, 32), f16).T
    acc = fragment((64, 32), f32, layout)
    for k in tiles(K, 32):
        copy(A[m, k], As, vec=8)
        copy(B[k, n], Bs, vec=8)
        barrier()
        acc = mma(load_matrix(As, acc.a), load_matrix(Bs, acc.b), acc)
        barrier()
    result = acc.to(f16)
    S = shared((64, 32), f16)
    if out == "plain":
        store(result, C[m, n])
    elif out == "pairs":
        store(result, C[m, n], vec=4)
    elif out == "via":
        store(result, C[m, n], via=S, vec=4)
    elif out == "matrix":
        store_matrix(result, S)
        barrier()
        copy(S, C[m, n], vec=4)
    else:
        T = shared((32, 64), f16)
        store_matrix(result, T.T)
        barrier()
        store(load_matrix(T.T, result.layout), C[m, n])


@pytest.mark.parametrize("out", ["plain", "pairs", "via", "matrix", "back"])
@pytest.mark.parametrize(("a_across", "b_across"), [(False, False), (True, False), (False, True), (True, True)])
def test_orders_of_axes(a_across: bool, b_across: bool, out: str) -> None:
    a, b, c = small(100, 40), small(40, 36), np.full((100, 36), 7, np.float16)
    run(orders, a, b, c, a_across=a_across, b_across=b_across, out=out)
    assert np.array_equal(c, exact(a, b))


@pytest.mark.parametrize("warps", [(1, 4), (4, 1), (2, 2)])
@pytest.mark.parametrize("shape", [mma.m16n8k8, mma.m16n8k16], ids=repr)
def test_grids_of_warps(shape: Any, warps: tuple[int, int]) -> None:
    a, b, c = small(64, 32), small(32, 32), np.zeros((64, 32), np.float16)
    run(orders, a, b, c, layout=shape.acc(warps=warps))
    assert np.array_equal(c, exact(a, b))


@tile_kernel
def plain_loads(A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, vec: const = 0):
    """From global memory, past the edges."""
    bx, by = grid(cdiv(N, 16), cdiv(M, 32))
    threads(64)
    m, n = tile(by, 32), tile(bx, 16)
    acc = fragment((32, 16), f32, mma.m16n8k16.acc(warps=(2, 1)))
    for k in tiles(K, 16):
        acc = mma(load_fragment(A[m, k], acc.a, vec=vec), load_fragment(B[n, k].T, acc.b, vec=vec), acc)
    store(acc + load_fragment(C[m, n], acc.layout, vec=8), C[m, n], vec=8)


@pytest.mark.parametrize("vec", [0, 4])
def test_plain_loads_guard_the_edges(vec: int) -> None:
    a, b, c = small(45, 22), small(18, 22), small(45, 18, dtype=np.float32)
    expected = c + exact(a, b.T)
    run(plain_loads, a, b, c, vec=vec)
    assert np.array_equal(c, expected)


# -- element by element ------------------------------------------------------------------------------


@tile_function
def clipped(x: Any) -> Any:
    return where(x > 4, 4, where(x < -4, -4, x))


@tile_kernel
def elementwise(X: Global[f32, M, N], bias: Global[f32, N], C: Global[f32, M, N], sums: Global[f32, N]):
    bx, by = grid(cdiv(N, 16), cdiv(M, 32))
    threads(64)
    m, n = tile(by, 32), tile(bx, 16)
    acc = load_fragment(X[m, n], mma.m16n8k16.acc(warps=(2, 1)))
    rows, columns = coordinates(acc)
    i, j = m.start + rows, n.start + columns
    acc = clipped(acc * 2 + 1).to(f16).to(f32) + bias.get(j) - X.get(j, 0)
    acc = where(i >= j, acc, where((i + j) % 3 == 0, (i // 2).to(f32), 0.5))
    C.put(i, j, acc)
    if N > 16:
        sums.atomic_add(j % 16, where((i < M) & (j < N), acc, 0))


def test_arithmetic_and_coordinates() -> None:
    x, bias = small(50, 30, dtype=np.float32), small(30, dtype=np.float32)
    c, sums = np.zeros((50, 30), np.float32), np.zeros(30, np.float32)
    run(elementwise, x, bias, c, sums)
    i, j = np.indices((50, 30))
    expected = np.clip(x * 2 + 1, -4, 4) + bias - x[j, 0]
    expected = np.where(i >= j, expected, np.where((i + j) % 3 == 0, i // 2, 0.5))
    assert np.array_equal(c, expected)
    folded = [expected[:, column::16].sum() for column in range(16)]
    assert np.array_equal(sums[:16], folded)


@tile_kernel
def indexed(X: Global[f32, M, N], C: Global[f32, M, N]):
    """Unguarded reads, writes and updates, of shared and global memory."""
    grid(1)
    threads(64)
    S = shared((32, 16), f32)
    acc = load_fragment(X[0:32, 0:16], mma.m16n8k8.acc(warps=(2, 1)))
    rows, columns = coordinates(acc)
    S[rows, columns] = 1
    S[rows, 15 - columns] += acc
    barrier()
    C[rows, columns] = S[31 - rows, columns] * 2


def test_indices_may_be_fragments() -> None:
    x, c = small(32, 16, dtype=np.float32), np.zeros((32, 16), np.float32)
    kernel = indexed
    with pytest.raises(HazardError, match="race"):
        run(kernel, x, c)
    kernel(x, c, device="emulator")
    assert np.array_equal(c, (x[::-1, ::-1] + 1) * 2)


# -- conversion ------------------------------------------------------------------------------------


@tile_kernel
def chained(A: Global[f16, M, K], B: Global[f16, K, K], C: Global[f32, M, K], *, STEPS: const = 3):
    """A B B B: each product's accumulator is the left operand of the next."""
    m = tile(grid(cdiv(M, 32)), 32)
    threads(64)
    Bs = shared((32, 32), f16)
    copy(B[0:32, 0:32], Bs, vec=8)
    barrier()
    zero = fragment((32, 32), f32, mma.m16n8k16.acc(warps=(2, 1)))
    a, b = load_fragment(A[m, 0:32], zero.a), load_matrix(Bs, zero.b)
    acc = zero
    for _ in unroll(STEPS):
        acc = mma(a, b, zero)
        a = convert(acc.to(f16), zero.a)
    store(acc, C[m, 0:32])


def test_an_accumulator_becomes_an_operand() -> None:
    a, b, c = small(50, 32), (small(32, 32) > 2).astype(np.float16), np.zeros((50, 32), np.float32)
    run(chained, a, b, c)
    assert np.array_equal(c, exact(exact(exact(a, b), b), b))


@tile_kernel
def impossible(A: Global[f16, M, K], C: Global[f16, M, K]):
    grid(1)
    threads(64)
    acc = mma.m16n8k16.acc(warps=(1, 2))
    a = load_fragment(A[0:32, 0:32], acc)
    store(convert(a, acc.a), C[0:32, 0:32])  # error: a thread does not hold all elements of mma.m16n8k16.a(1, 2)


def test_conversions_move_nothing_between_threads() -> None:
    check(impossible, "go through shared memory: store() the fragment into a tile, barrier(), load_matrix() it")


# -- tokens ----------------------------------------------------------------------------------------


@tile_kernel
def staged(A: Global[f32, M, K], C: Global[f32, M], *, STAGES: const = 3, BK: const = 8):
    """Tokens in a list, carried by the loop; one more stage copied on one of two paths."""
    m = tile(grid(cdiv(M, 32)), 32)
    t = threads(32)
    As, Last = shared((STAGES, 32, BK), f32), shared((32, BK), f32)
    last = copy_async(A[m, 0:BK], Last)
    if M > 40:
        other = copy_async(A[m, 0:BK], As[STAGES - 1, :, :])
    else:
        other = copy_async(A[m, BK : 2 * BK], As[STAGES - 1, :, :])
    wait(other, last)
    barrier()
    total = Last[t, 0] + As[STAGES - 1, t, 0]
    barrier()
    tokens = [copy_async(A[m, tile(s, BK)], As[s, :, :], vec=8) for s in range(STAGES - 1)]
    stage = index(0)
    for k in tiles(K, BK):
        wait(tokens[0])
        barrier()
        ahead = copy_async(A[m, k + (STAGES - 1) * BK], As[(stage + STAGES - 1) % STAGES, :, :], vec=8)
        tokens = tokens[1:] + [ahead]  # noqa: RUF005 - no * in a kernel
        for kk in unroll(BK):
            total += As[stage, t, kk]
        barrier()
        stage = (stage + 1) % STAGES
    wait(*tokens)
    C.put(m.start + t, total)


@pytest.mark.parametrize("rows", [40, 50])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_tokens(stages: int, rows: int) -> None:
    a, c = small(rows, 44, dtype=np.float32), np.zeros(rows, np.float32)
    run(staged, a, c, STAGES=stages)
    assert np.array_equal(c, a.sum(axis=1) + a[:, 0] + a[:, 0 if rows > 40 else 8])


@tile_kernel
def unwaited_barrier(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((32, 8), f32)
    token = copy_async(A[0:32, 0:8], S)
    wait(token)
    C.put(t, S[t, 0])


def test_a_wait_without_a_barrier_is_found() -> None:
    with pytest.raises(HazardError):
        run(unwaited_barrier, small(32, 8, dtype=np.float32), np.zeros(32, np.float32))


# -- pipelined loops -------------------------------------------------------------------------------


@tile_kernel
def gemm(
    A: Global[f16, M, K],
    B: Global[f16, K, N],
    C: Global[f16, M, N],
    *,
    BM: const = 32,
    BN: const = 32,
    BK: const = 32,
    STAGES: const = 3,
    FRAGMENTS: Const[Literal[0, 1, 2]] = 0,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(64)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = shared((BM, BK), f16), shared((BK, BN), f16)
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(1, 2)))
    for k in pipelined(tiles(K, BK), stages=STAGES, fragments=FRAGMENTS):
        copy_async(A[m, k], As)
        copy_async(B[k, n], Bs)
        for kk in unroll(tiles(BK, 16)):
            acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(acc.to(f16), C[m, n], via=shared((BM, BN), f16, over=(As, Bs)))


@pytest.mark.parametrize("k", [0, 16, 64, 72, 160])
@pytest.mark.parametrize(("stages", "fragments"), [(1, 1), (1, 0), (2, 1), (2, 2), (3, 0), (4, 2)])
def test_pipelined_products(stages: int, fragments: int, k: int) -> None:
    a, b, c = small(40, k), small(k, 40), np.ones((40, 40), np.float16)
    run(gemm, a, b, c, STAGES=stages, FRAGMENTS=fragments)
    assert np.array_equal(c, exact(a, b))


@tile_kernel
def summed(A: Global[f32, M, K], C: Global[f32, M], first: i32, last: i32, *, STAGES: const = 2):
    """One thread's code, over a range with a run-time start and end, copied by `copy`."""
    m = tile(grid(cdiv(M, 32)), 32)
    t = threads(32)
    S = shared((32, 4), f32)
    total = f32(0)
    for k in pipelined(range(first, last, 4), stages=STAGES):
        copy(A[m, tile(index(k) // 4, 4)], S)
        total += S[t, 0] + S[t, 1] + S[t, 2] + S[t, 3]
    C.put(m.start + t, total)


@pytest.mark.parametrize(("first", "last"), [(0, 24), (8, 12), (8, 8), (12, 30)])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_pipelined_ranges(first: int, last: int, stages: int) -> None:
    a, c = small(40, 32, dtype=np.float32), np.zeros(40, np.float32)
    run(summed, a, c, first, last, STAGES=stages)
    assert np.array_equal(c, a[:, first : -(-last // 4) * 4].sum(axis=1))

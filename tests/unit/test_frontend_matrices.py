"""What the frontend makes of matrix fragments and asynchronous copies: types, ops and their attributes."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

import tiledsl
from tiledsl import (
    Const,
    FragmentLayout,
    Global,
    Memory,
    Scalar,
    barrier,
    boolean,
    cdiv,
    const,
    convert,
    coordinates,
    copy_async,
    f16,
    f32,
    f64,
    fragment,
    grid,
    i8,
    i32,
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
from tiledsl.frontend import build
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import async_copy, control, gpu, matrix
from tiledsl.ir.ops import ptx as ptx_ops
from tiledsl.ir.ops import tile as tile_ops
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import DTYPES, FragmentType
from tiledsl.ir.verifier import verify
from tiledsl.layout.mma import TABLE
from tiledsl.signatures.specialize import assumed, check_consts

D = TypeVar("D", bound=Scalar)
ACC = mma.m16n8k16.acc(warps=(2, 2))


def ir(kernel: Any, dtypes: dict[str, Any] | None = None, **consts: Any) -> Kernel:
    """The tile-level IR of a kernel: valid, and the same when its text is read back."""
    signature = kernel.signature
    spec = assumed(signature, dtypes or {}, check_consts(signature, consts))
    built = build(signature, spec, "sm_90a")
    verify(built)
    text = print_kernel(built)
    assert print_kernel(parse_kernel(text)) == text
    return built


def ops(kernel: Kernel, *classes: type[Op]) -> list[Any]:
    return [op for op in kernel.body.walk() if type(op) in classes]


# -- a whole product -------------------------------------------------------------------------------


@tile_kernel
def product(
    A: Global[f16, M, K],
    B: Global[f16, K, N],
    C: Global[f16, M, N],
    *,
    BM: const = 64,
    BN: const = 64,
    BK: const = 32,
    layout: Const[FragmentLayout] = ACC,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(layout.threads)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = shared((BM, BK), f16), shared((BK, BN), f16)
    acc = fragment((BM, BN), f32, layout)
    for k in pipelined(tiles(K, BK), stages=3, fragments=2):
        copy_async(A[m, k], As, vec=16)
        copy_async(B[k, n], Bs, vec=16)
        for kk in unroll(tiles(BK, 16)):
            acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(acc.to(f16), C[m, n], via=shared((BM, BN), f16, over=(As, Bs)))


def test_a_product_of_tiles() -> None:
    kernel = ir(product)
    (loop,) = ops(kernel, control.For)
    assert (loop.stages, loop.fragments) == (3, 2)
    assert [type(op) for op in loop.body.ops if not op.is_pure or isinstance(op, matrix.Mma)] == [
        async_copy.Copy, async_copy.Copy,
        matrix.Load, matrix.Load, matrix.Mma,
        matrix.Load, matrix.Load, matrix.Mma,
        control.Yield,
    ]  # fmt: skip
    loads = ops(kernel, matrix.Load)
    assert [str(op.type) for op in loads[:2]] == [
        "fragment<f16, [64, 16], mma.m16n8k16.a(2, 2)>",
        "fragment<f16, [16, 64], mma.m16n8k16.b(2, 2)>",
    ]
    assert {op.vec for op in loads} == {0}
    (result,) = loop.results
    assert result.type == FragmentType(DTYPES["f32"], (64, 64), ACC)


def test_a_layout_may_be_a_const() -> None:
    kernel = ir(product, layout=mma.m16n8k16.acc(warps=(4, 2)), BM=128)
    assert kernel.threads == (256,)
    assert str(ops(kernel, matrix.Mma)[0].result.type) == "fragment<f32, [128, 64], mma.m16n8k16.acc(4, 2)>"


def test_store_by_way_of_a_tile() -> None:
    kernel = ir(product)
    tail = ops(kernel, gpu.Barrier, matrix.Store, tile_ops.Copy)
    assert [type(op) for op in tail] == [gpu.Barrier, matrix.Store, gpu.Barrier, tile_ops.Copy]
    assert tail[1].vec == 4  # two f16 of a row, all that a lane has side by side
    assert tail[3].vec == 16
    assert {op.loc.line for op in tail} == {tail[0].loc.line}


# -- every product of the table ----------------------------------------------------------------------


@tile_kernel
def one_product(C: Global[f32, M, N], *, a: Const[Any], b: Const[Any], c: Const[Any], shape: Const[Any]):
    grid(1)
    threads(32)
    layout = shape.acc(warps=(1, 1))
    m, n, k = shape.shape.m, shape.shape.n, shape.shape.k
    As, Bs = shared((m, k), a), shared((n, k), b)
    acc = fragment((m, n), c, layout)
    if a.ir.bits <= 32:
        acc = mma(load_matrix(As, acc.a), load_matrix(Bs.T, acc.b), acc)
    else:
        acc = mma(load_fragment(As, acc.a), load_fragment(Bs.T, acc.b), acc)
    store(acc, shared((m, n), c))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_product_of_the_table(row: Any) -> None:
    shape = getattr(mma, str(row.shape))
    dtypes = {name: getattr(tiledsl, dtype) for name, dtype in (("a", row.a), ("b", row.b), ("c", row.acc))}
    (op,) = ops(ir(one_product, shape=shape, **dtypes), matrix.Mma)
    assert op.row == row


# -- loads and stores ------------------------------------------------------------------------------


@tile_kernel
def moves(A: Global[f16, M, K], F: Global[f32, M, K], D: Global[f64, M, K]):
    grid(1)
    threads(128)
    S, T = shared((2, 64, 64), f16), shared((64, 64), f32)
    acc = fragment((64, 64), f32, ACC, init=1)
    a = load_matrix(S[1, :, 16:32].T[0:16, :].T, acc.a)
    b = load_matrix(S[0, :, 0:16].T, acc.b)
    c = load_fragment(A[0:64, 0:64], acc.layout, vec=4)
    d = load_fragment(A[0:64, 16:32], acc.a)
    e = load_fragment(D[0:64, 0:64], acc.layout)
    store(a, S[1, :, 0:16])
    store(b, A[0:64, 0:16].T)
    store(acc, T, vec=8)
    store_matrix(c, S[0, :, :])
    store(d, A[0:64, 16:32], vec=4)
    store(e, D[0:64, 0:64], vec=16)
    store(acc, F[0:64, 0:64], via=T.T, vec=4)


def test_where_fragments_come_from_and_go() -> None:
    kernel = ir(moves)
    loads, stores = ops(kernel, matrix.Load), ops(kernel, matrix.Store)
    assert [(op.vec, op.axes) for op in loads] == [(0, (1, 2)), (0, (2, 1)), (4, (0, 1)), (2, (0, 1)), (8, (0, 1))]
    # The last one: a transposed tile has no two elements of a row side by side.
    assert [(op.vec, op.axes) for op in stores] == [
        (2, (1, 2)), (2, (1, 0)), (8, (0, 1)), (0, (1, 2)), (4, (0, 1)), (16, (0, 1)), (4, (1, 0)),
    ]  # fmt: skip


# -- element by element ------------------------------------------------------------------------------


@tile_function
def relu_of(x: Any) -> Any:
    return where(x > 0, x, 0)


@tile_kernel
def elementwise(C: Global[f32, M, N], bias: Global[f32, N], sums: Global[f32, N], flags: Global[boolean, M, N]):
    grid(1)
    threads(128)
    acc = fragment((64, 64), f32, ACC)
    rows, columns = coordinates(acc)
    half = relu_of(acc * 2 + 1).to(f16).to(f32)
    masked = where(rows >= columns, half, fragment((64, 64), f32, acc.layout))
    below = C.get(rows + 64, columns, other=masked) + bias[columns] + C.get(rows, 0)
    flags.put(rows, columns, (rows < M) & (columns < N))
    C[rows, columns] += below
    C.put(rows, columns, 0)
    sums.atomic_add(columns, below)
    store(masked.bitcast(i32).to(f32), C[0:64, 0:64])


def test_a_layout_stays_through_arithmetic() -> None:
    kernel = ir(elementwise)
    packs = [op.type for op in ops(kernel, tile_ops.Pack)]
    assert {type_.layout for type_ in packs} == {ACC}
    assert {type_.dtype.name for type_ in packs} == {"f32", "f16", "i32", "bool", "index"}
    axes = [op.axis for op in ops(kernel, matrix.Coordinates)]
    assert axes == [0, 1]


def test_fragments_of_indices_gather_and_scatter() -> None:
    kernel = ir(elementwise)
    each = FragmentType(DTYPES["f32"], (64, 64), ACC).size
    counts = {name: len(ops(kernel, getattr(tile_ops, name))) for name in ("Get", "Put", "Load", "Store")}
    assert counts == {"Get": 2 * each, "Put": 2 * each, "Load": 2 * each, "Store": each}
    assert sum(op.name == "tile.atomic_add" for op in kernel.walk()) == each


@tile_kernel
def gather_of_a_threads_own(X: Global[f32, M], at: Global[i32, N], Y: Global[f32, N]):
    i = grid(1) + 4 * threads(32)
    Y.put(i, X.get(at.load(i, vec=16).to(index)))


def test_a_threads_own_indices_gather_too() -> None:
    kernel = ir(gather_of_a_threads_own)
    assert len(ops(kernel, tile_ops.Get)) == 4
    (put,) = ops(kernel, tile_ops.Put)
    assert put.vec == 4


def test_booleans_are_not_packed() -> None:
    """A comparison on an accumulator has a register an element, whatever the shape."""
    for name, size in (("f16", 2), ("i8", 4), ("bool", 1), ("index", 1), ("f64", 1)):
        type_ = FragmentType(DTYPES[name], (16, 8), mma.m16n8k16.acc(warps=(1, 1)))
        assert (type_.per_register, len(type_.registers)) == (size, 4 // size)
    odd = FragmentType(DTYPES["i8"], (8, 8), mma.m8n8k4.acc(warps=(1, 1)))
    assert (odd.per_register, len(odd.registers)) == (1, 2)  # two elements do not fill a word


@tile_kernel
def converted(C: Global[f32, M, N]):
    grid(1)
    threads(32)
    S = shared((32, 32), f16)
    acc = fragment((32, 32), f32, mma.m16n8k16.acc(warps=(1, 1)))
    acc = mma(convert(acc.to(f16), acc.a), load_matrix(S, acc.b), acc)
    assert convert(acc, acc.layout) is acc
    assert acc.shape == (32, 32) and acc.rank == 2 and acc.dtype is f32 and acc.layout.acc == acc.layout
    store(acc, C[0:32, 0:32])


def test_convert() -> None:
    (op,) = ops(ir(converted), matrix.Convert)
    assert str(op.result.type) == "fragment<f16, [32, 32], mma.m16n8k16.a(1, 1)>"


# -- asynchronous copies ---------------------------------------------------------------------------


@tile_function
def fetch(A: Memory[f32], S: Memory[f32]) -> Any:
    return copy_async(A, S, vec=4), copy_async(A, S, vec=8)


@tile_kernel
def tokens(A: Global[f32, M, K], C: Global[f32, M, K]):
    i = grid(cdiv(M, 32))
    t = threads(32)
    S, T = shared((2, 32, 8), f32), shared((32, 8), f32)
    first = copy_async(A[tile(i, 32), 0:8], S[0, :, :])
    if i > 0:
        other = copy_async(A[tile(i, 32), 0:8], T)
    else:
        other = copy_async(A[tile(i, 32), 8:16], T)
    now = index(0)
    for k in tiles(K, 8):
        wait(first)
        barrier()
        first = copy_async(A[tile(i, 32), k + 8], S[1 - now, :, :])
        C.put(t, k.start, S[now, t, 0])
        barrier()
        now = 1 - now
    wait(first, other, first)
    wait(*fetch(A[tile(i, 32), 0:8], T))


def test_tokens_go_through_loops_and_branches() -> None:
    kernel = ir(tokens)
    (loop,), (branch,) = ops(kernel, control.For), ops(kernel, control.If)
    assert [str(r.type) for r in loop.results] == ["token", "index"]
    assert [str(r.type) for r in branch.results] == ["token"]
    assert [len(op.operands) for op in ops(kernel, async_copy.Wait)] == [1, 2, 2]
    assert {op.grouped for op in ops(kernel, async_copy.Copy)} == {False}
    assert [op.vec for op in ops(kernel, async_copy.Copy)][-2:] == [4, 8]


@tile_kernel
def own_groups(A: Global[f32, M, K], C: Global[f32, M, K]):
    grid(1)
    t = threads(32)
    S, T = shared((32, 8), f32), shared((32, 8), f32)
    copy_async(A[0:32, 0:8], S)
    ptx.commit_group()
    ptx.cp_async(T, (t, 0), A[:, 8:16], (t, 0))
    ptx.cp_async(T[t, :], 4, A, (t, 4), bytes=8)
    ptx.commit_group()
    ptx.wait_group(0)
    barrier()
    C.put(t, 0, S[t, 0] + T[t, 0])


def test_the_author_may_place_groups() -> None:
    kernel = ir(own_groups)
    (copy,) = ops(kernel, async_copy.Copy)
    assert copy.grouped
    assert [op.vec for op in ops(kernel, async_copy.Cp)] == [4, 2]
    assert [op.pending for op in ops(kernel, async_copy.WaitGroup)] == [0]
    assert len(ops(kernel, async_copy.CommitGroup)) == 2


@tile_kernel
def pipelined_range(A: Global[f32, M, K], C: Global[f32, M, K], n: i32):
    grid(1)
    t = threads(32)
    S = shared((32, 8), f32)
    for k in pipelined(range(0, n, 8), stages=2):
        _ = copy_async(A[0:32, tile(index(k) // 8, 8)], S)
        C.put(t, index(k), S[t, 0])
    for k in tiles(K, 8):
        for j in pipelined(range(4), stages=1, fragments=1):
            copy_async(A[0:32, k], S)
            C.put(t, j, S[t, 0])


def test_pipelined_loops() -> None:
    loops = ops(ir(pipelined_range), control.For)
    assert [(op.stages, op.fragments, str(op.lo.type)) for op in loops] == [
        (2, 0, "i32"),
        (0, 0, "index"),
        (1, 1, "index"),
    ]


# -- raw instructions ------------------------------------------------------------------------------


@tile_kernel
def raw(C: Global[f32, M, N], X: Global[tf32, M]):
    grid(1)
    threads(32)
    S, W = shared((16, 16), f16), shared((8, 16), i8)
    lane = lane_id()
    a = ptx.ldmatrix(S, lane % 16, lane // 16 * 8)
    b = ptx.ldmatrix(S.T, lane // 8 * 8, lane % 8, num=2, trans=True)
    c = ptx.mma_sync("m16n8k16", a, b, fragment((4,), f32), dtypes=(f16, f16, f32))
    d = ptx.mma_sync("m16n8k4", X.load(0, vec=8), b[0:1], c, dtypes=(tf32, tf32, f32))
    e = ptx.mma_sync("m16n8k16", a, b, fragment((2,), u32), dtypes=(f16, f16, f16))
    ptx.stmatrix(S, lane % 16, 0, e)
    f = ptx.ldmatrix(W, lane % 8, 0, num=1)
    C[0, 0] = d[0] + f32(f[0])


def test_raw_instructions() -> None:
    kernel = ir(raw)
    assert [(op.num, op.trans, op.vec) for op in ops(kernel, matrix.LdMatrix)] == [
        (4, False, 8),
        (2, True, 8),
        (1, False, 16),
    ]
    rows = [str(op.row) for op in ops(kernel, ptx_ops.MmaSync)]
    assert rows == ["m16n8k16 f16 x f16 -> f32", "m16n8k4 tf32 x tf32 -> f32", "m16n8k16 f16 x f16 -> f16"]
    (stored,) = ops(kernel, matrix.StMatrix)
    assert (stored.num, stored.trans) == (2, False)

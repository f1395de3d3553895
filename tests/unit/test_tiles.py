"""Ranges, views, copies, fragment slices, outer products and partly unrolled loops, against NumPy on the emulator."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tiledsl import (
    Const,
    Fragment,
    Global,
    HazardError,
    Layout,
    Memory,
    Range,
    View,
    barrier,
    cdiv,
    const,
    copy,
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
    tile_function,
    tile_kernel,
    tiles,
    unroll,
    where,
)
from tiledsl.dims import B, K, M, N
from tiledsl.layout.orders import ORDERS

RNG = np.random.default_rng(3)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def run(kernel: Any, *arguments: Any, **settings: Any) -> None:
    """At thread level, after all passes, with the hazard checks on."""
    kernel.check(*arguments, **settings)


# -- views -----------------------------------------------------------------------------------------


@tile_kernel
def elements_of_views(A: Global[f32, M, N], C: Global[f32, M, N], *, T: const = 4):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    x, y = threads(T, T)
    source, target = A[tile(by, T), tile(bx, T)], C[tile(by, T), tile(bx, T)].T
    S = shared((3, T, T), f32)
    plane = S[1, :, 0:T]
    plane[y, x] = source.get(y, x, other=-1)
    barrier()
    assert (plane.unit, target.unit, S[:, :, 0].unit) == (1, 0, -1)
    assert plane.shape == (T, T) and plane.T.strides == (1, T) and target.rank == 2 and source.dtype is f32
    target.put(x, y, plane.T[x, y] * 2)


@pytest.mark.parametrize("shape", [(8, 8), (7, 9), (1, 5)])
def test_elements_of_views(shape: tuple[int, int]) -> None:
    a, c = floats(*shape), floats(*shape)
    run(elements_of_views, a, c)
    assert np.array_equal(c, 2 * a)


@tile_function
def scaled(src: Memory[f32], dst: View[f32], i: index, by: float) -> None:
    for j in unroll(0, dst.shape[0], 4):
        dst.store(j, src.load(i, j) * by)


@tile_kernel
def rows_of_views(A: Global[f32, M, Literal[16]], C: Global[f32, M, Literal[16]], *, BY: Const[float] = 2.0):
    """Views as arguments, chosen at compile time, of views; vectors along their unit axis."""
    first = grid(cdiv(M, 32)) * 32
    t = threads(32)
    if first + t < M:
        rows = A[tile(first // 32, 32), :]
        half = rows[:, 8:16] if BY > 1 else rows[:, 0:8]
        scaled(half, C[first + t, 4:12], t, BY)


@pytest.mark.parametrize("by", [2.0, 0.5])
def test_views_are_arguments(by: float) -> None:
    a, c = floats(40, 16), np.zeros((40, 16), np.float32)
    run(rows_of_views, a, c, BY=by)
    assert np.array_equal(c[:, 4:12], (a[:, 8:] if by > 1 else a[:, :8]) * np.float32(by))
    assert not c[:, :4].any()


@tile_kernel
def the_same_view_on_both_paths(A: Global[f32, M, N], C: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    v = A[0:4, 0:32].T
    if t < 16:
        w = v
        r = tile(1, 2)
    else:
        w = v
        r = tile(1, 2)
    for _ in range(2):
        v = A[0:4, 0:32].T
    C[r.start, t] = w[t, 1] + v[t, 2]


def test_equal_views_pass_through_control_flow() -> None:
    a, c = floats(4, 32), np.zeros((4, 32), np.float32)
    run(the_same_view_on_both_paths, a, c)
    assert np.array_equal(c[2], a[1] + a[2])


@tile_kernel
def whole_axes(X: Global[f32, B, M, N], y: Global[f32, B]):
    b = grid(B)
    t = threads(32)
    matrix = X[b, :, :]
    rows, columns = matrix.T.shape[::-1]
    total = f32(0)
    for i in range(t, rows, 32):
        for j in range(columns):
            total += matrix[i, j]
    y.atomic_add(b, total)


def test_a_view_keeps_run_time_extents_of_whole_axes() -> None:
    x = RNG.integers(-9, 9, (3, 37, 5)).astype(np.float32)
    y = np.zeros(3, np.float32)
    run(whole_axes, x, y)
    assert np.array_equal(y, x.sum((1, 2)))


@tile_kernel
def moved_ranges(x: Global[i32, N], y: Global[i32, Literal[12]]):
    grid(1)
    threads(1)
    r = tile(index(x[0]), 4)
    fixed = tile(1, 4)
    back = fixed - 3
    y[0] = i32(r.start)
    y[1] = i32(r.size)
    y[2] = i32((r + 4).start)
    y[3] = i32((r - index(x[1])).start)
    y[4] = i32(back.start)
    y[5] = x[r + back.start][0]
    fixed += 4
    y[6] = x[fixed][3]
    for p in tiles(N, 5):
        y[7] = y[7] + i32(p.start) * 100 + i32(p.size)


def test_ranges_have_a_start_and_a_size() -> None:
    x, y = np.arange(2, 14, dtype=np.int32), np.zeros(12, np.int32)
    run(moved_ranges, x, y)
    assert y.tolist() == [8, 4, 12, 5, 1, 11, 13, 1515, 0, 0, 0, 0]


# -- copies ----------------------------------------------------------------------------------------


@tile_kernel
def product(
    A: Global[f32, M, K],
    X: Global[f32, K, N],
    C: Global[f32, M, N],
    *,
    BM: const = 32,
    BN: const = 32,
    BK: const = 8,
    STAGES: const = 2,
    order: Const[Literal["rows", "serpentine", "spiral", "pairs", "column_pairs", "column_quads"]] = "rows",
    layout: Const[Layout | None] = None,
):
    """C = A @ X: stages in one tile, A transposed, the next tiles moved while these are multiplied."""
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    tx, ty = threads(BN // 8, BM // 8)
    m, n = tile(by, BM), tile(bx, BN)
    va, vx = min(A.align, 8), min(X.align, 16)
    As, Xs = shared((STAGES, BK, BM), f32, layout=layout), shared((STAGES, BK, BN), f32)
    acc = fragment((8, 8), f32)
    a, x = fragment((8,), f32), fragment((8,), f32)
    copy(A[m, 0:BK], As[0, :, :].T, vec=va)
    copy(X[0:BK, n], Xs[0, :, :], vec=vx)
    stage = index(0)
    for k in tiles(K, BK):
        barrier()
        after = 1 - stage
        copy(A[m, k + BK], As[after, :, :].T, vec=va)
        copy(X[k + BK, n], Xs[after, :, :], vec=vx)
        for kk in unroll(BK):
            for h in unroll(tiles(8, 4)):
                a[h] = As.load(stage, kk, 8 * ty + h.start)
                x[h] = Xs.load(stage, kk, 8 * tx + h.start)
            acc = outer_fma(acc, a, x, order=order)
        stage = after
    Cs = C[m, n]
    for i in unroll(8):
        for j in unroll(8):
            Cs.put(8 * ty + i, 8 * tx + j, acc[i, j])


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_of_copies(order: Any) -> None:
    """Orders give equal bits: each element's sum goes along k."""
    a, x = floats(45, 22), floats(22, 35)
    c, rows = np.zeros((45, 35), np.float32), np.zeros((45, 35), np.float32)
    run(product, a, x, c, order=order)
    product(a, x, rows, device="emulator")
    assert np.abs(c - a @ x).max() < 1e-5
    assert np.array_equal(c, rows)


@pytest.mark.parametrize("layout", [row_major, padded(36), swizzled(4, 8)])
def test_a_layout_changes_no_result(layout: Layout) -> None:
    a, x = floats(32, 16), floats(16, 32)
    c, auto = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    run(product, a, x, c, layout=layout)
    product(a, x, auto, device="emulator")
    assert np.array_equal(c, auto)


@tile_kernel
def shared_to_shared(A: Global[f32, M, N], C: Global[f32, M, N], *, VEC: const = 16):
    grid(1)
    threads(32)
    S, T = shared((16, 8), f32), shared((8, 16), f32)
    copy(A[0:16, 0:8], S, vec=VEC)
    barrier()
    copy(S.T, T, vec=VEC)
    barrier()
    copy(T, C[0:16, 0:8].T, vec=VEC)


@pytest.mark.parametrize("vec", [4, 8, 16])
def test_copies_between_tiles(vec: int) -> None:
    a, c = floats(13, 8), floats(13, 8)
    run(shared_to_shared, a, c, VEC=vec)
    assert np.array_equal(c, a)


@tile_kernel
def hazard(A: Global[f32, M, N], C: Global[f32, M, K], *, MEET: Const[bool] = False):
    grid(1)
    t = threads(64)
    S = shared((8, 32), f32)
    copy(A[0:8, 0:32], S)  # the copy
    if MEET:
        barrier()
    for i in unroll(4):
        C[2 * i, t] = S[7 - 2 * i, t % 32]


def test_a_missing_barrier_after_a_copy_is_found() -> None:
    a, c = floats(8, 32), np.zeros((8, 64), np.float32)
    with pytest.raises(HazardError) as caught:
        hazard.check(a, c)
    text = Path(__file__).read_text().splitlines()
    copied, read = (next(n for n, line in enumerate(text, 1) if what in line) for what in ("# the copy", "S[7 - 2 * i"))
    assert {copied, read} <= {int(n) for n in re.findall(r"test_tiles\.py:(\d+)", str(caught.value))}
    hazard.check(a, c, MEET=True)
    assert np.array_equal(c[0], np.tile(a[7], 2))


def test_only_edges_are_guarded_and_vectors_stay_vectors() -> None:
    ptx = product.compile(arch="sm_90a", BM=64, BN=64).ptx
    assert len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)) == 4  # one a copy, before the loop and in it
    assert not re.search(r"ld\.shared\.b32", ptx)
    assert "ld.local" not in ptx


# -- fragments -------------------------------------------------------------------------------------


@tile_kernel
def slices(A: Global[f32, M, Literal[8]], C: Global[f32, M, Literal[8]]):
    row = grid(cdiv(M, 32)) * 32 + threads(32)
    if row < M:
        both = fragment((2, 8), f32)
        both[0, 0:4] = A.load(row, 0)
        both[0, 4:] = A.load(row, 4)
        both[1, :] = both[0, :] * 2
        both[1, 0:8:2] = 7
        both[:, 3] += both[:, 4]
        pair: Fragment[f32] = both[:, 1:3]
        both[1, 6:8] = pair[1, :]
        for half in unroll(tiles(8, 4)):
            C.store(row, half.start, both[1, half])


@tile_kernel
def later_tiles(C: Global[f32, M]):
    grid(1)
    t = threads(32)
    for part in unroll(tiles(16, 4, start=8)):
        if t == 0:
            C[part.start] = 1.0


def test_tiles_at_compile_time_begin_at_their_start() -> None:
    c = np.zeros(16, np.float32)
    run(later_tiles, c)
    assert np.flatnonzero(c).tolist() == [8, 12]


def test_slices_of_fragments() -> None:
    a, c = floats(9, 8), floats(9, 8)
    run(slices, a, c)
    both = np.stack([a, a * 2], 1)
    both[:, 1, ::2] = 7
    both[:, :, 3] += both[:, :, 4]
    both[:, 1, 6:8] = both[:, 1, 1:3]
    assert np.array_equal(c, both[:, 1])


MAXAS = [
    *(1, 0, 2, 3, 5, 4, 6, 7, 33, 32, 34, 35, 37, 36, 38, 39, 45, 44, 46, 47, 41, 40, 42, 43, 13, 12, 14, 15),
    *(9, 8, 10, 11, 17, 16, 18, 19, 21, 20, 22, 23, 49, 48, 50, 51, 53, 52, 54, 55, 61, 60, 62, 63, 57, 56, 58, 59),
    *(29, 28, 30, 31, 25, 24, 26, 27),
]
"""The published order, by number of the accumulator's register."""


@tile_kernel
def between(X: Global[f32, N], Y: Global[f32, N]):
    i = 4 * threads(32) + grid(1)
    x = X.load(i, vec=16)
    Y.store(i, where(-1 < x < X[0], x, 0))


def test_chained_comparisons_go_element_by_element() -> None:
    x, y = floats(128), np.zeros(128, np.float32)
    x[0] = 0.5
    run(between, x, y)
    np.testing.assert_array_equal(y, np.where((x > -1) & (x < 0.5), x, 0))


def test_the_spiral_is_that_of_maxas() -> None:
    """Register r of maxas holds row 4 b5 + 2 (1 - b1) + b2 and column 4 b4 + 2 b3 + (1 - b0) of its thread's 8 x 8."""
    bits = [[r >> b & 1 for b in range(6)] for r in MAXAS]
    places = [(4 * b5 + 2 * (1 - b1) + b2, 4 * b4 + 2 * b3 + 1 - b0) for b0, b1, b2, b3, b4, b5 in bits]
    assert ORDERS["spiral"](8, 8) == tuple(places)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(8, 8), (16, 8), (8, 24)])
def test_an_order_is_a_permutation(order: str, shape: tuple[int, int]) -> None:
    assert sorted(ORDERS[order](*shape)) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        ("pairs", (2, 5)),
        ("column_pairs", (1, 2)),
        ("column_pairs", (5, 6)),
        ("column_quads", (1, 4)),
        ("column_quads", (2, 8)),
        ("column_quads", (7, 12)),
    ],
)
def test_an_order_needs_multiples_of_its_block_only(order: str, shape: tuple[int, int]) -> None:
    assert sorted(ORDERS[order](*shape)) == [(i, j) for i in range(shape[0]) for j in range(shape[1])]


def test_neighbours_share_a_factor_in_pairs() -> None:
    for order in ("serpentine", "pairs", "column_pairs"):
        assert all(x[0] == y[0] or x[1] == y[1] for x, y in pairwise(ORDERS[order](16, 8)))


def test_column_pairs_end_with_the_last_row() -> None:
    """No column is done before that: the last use of each b[j] is one FFMA, not a run of them."""
    order = ORDERS["column_pairs"](16, 8)
    assert order[:4] == ((0, 0), (0, 1), (1, 1), (1, 0))
    assert order[-8:] == tuple((15, j) for j in reversed(range(8)))


def test_column_quads_end_with_the_last_two_rows() -> None:
    """And neighbours share a factor everywhere but on the way there."""
    order = ORDERS["column_quads"](16, 8)
    assert [n for n, (x, y) in enumerate(pairwise(order), 1) if x[0] != y[0] and x[1] != y[1]] == [112]
    assert order[:8] == (*((0, j) for j in range(4)), *((1, j) for j in reversed(range(4))))
    assert order[-16:] == (*((14, j) for j in reversed(range(8))), *((15, j) for j in range(8)))


def first_seen(pairs: list[tuple[Any, Any]]) -> list[tuple[int, int]]:
    """Names replaced by the order in which they come."""
    rows: dict[Any, int] = {}
    columns: dict[Any, int] = {}
    return [(rows.setdefault(a, len(rows)), columns.setdefault(b, len(columns))) for a, b in pairs]


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_reaches_the_ptx(order: Any) -> None:
    """All fma of one outer product stand together, in the order asked for: LLVM moves none of them."""
    ptx = product.compile(arch="sm_90a", order=order).ptx
    body = [line.split() for line in ptx.splitlines() if re.match(r"\s+(fma|ld\.shared)", line)]
    pairs = [(words[2], words[3]) for words in body if words[0] == "fma.rn.f32"]
    assert len(pairs) == 8 * 64
    for first in range(0, len(pairs), 64):
        assert first_seen(pairs[first : first + 64]) == first_seen(ORDERS[order](8, 8))


# -- loops -----------------------------------------------------------------------------------------


@tile_kernel
def partly_unrolled(x: Global[i32, N], y: Global[i32, Literal[3]], n: i32, *, BY: const = 4):
    grid(1)
    threads(1)
    total, backwards, ranges = i32(0), i32(0), i32(0)
    for i in unroll(range(N), by=BY):
        total = total * 3 + x[i]
    for i in unroll(range(n, 0, -2), by=BY):
        backwards = backwards * 3 + i
    for r in unroll(tiles(N, 2), by=BY):
        ranges = ranges * 3 + x.get(r.start + 1)
    y[0], y[1], y[2] = total, backwards, ranges


@pytest.mark.parametrize("by", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_partly_unrolled_loops(count: int, by: int) -> None:
    x, y = RNG.integers(0, 9, count).astype(np.int32), np.zeros(3, np.int32)
    run(partly_unrolled, x, y, count, BY=by)
    wanted = [0, 0, 0]
    for i in range(count):
        wanted[0] = wanted[0] * 3 + int(x[i])
    for i in range(count, 0, -2):
        wanted[1] = wanted[1] * 3 + i
    for i in range(0, count, 2):
        wanted[2] = wanted[2] * 3 + (int(x[i + 1]) if i + 1 < count else 0)
    assert y.tolist() == wanted


@tile_kernel
def unrolled_ranges(x: Global[i32, Literal[16]], y: Global[i32, Literal[4]]):
    grid(1)
    threads(1)
    for r in unroll(tiles(16, 4)):
        part: View[i32] = x[r]
        y[r.start // 4] = part[0] + part[3]
    where: Range = tile(2, 4)
    assert where.start == 8


def test_ranges_of_an_unrolled_loop_are_compile_time() -> None:
    x, y = np.arange(16, dtype=np.int32), np.zeros(4, np.int32)
    run(unrolled_ranges, x, y)
    assert y.tolist() == [3, 11, 19, 27]

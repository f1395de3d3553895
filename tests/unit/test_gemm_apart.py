"""Operands whose lines are not aligned: loaded by TMA in parts and put in order, or padded; and which of the two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.test_gemm_call import numbers
from tiledsl import (
    Global,
    Ring,
    assert_,
    bf16,
    const,
    lane_id,
    role,
    row_major,
    shared,
    swizzle_128b,
    tile,
    tile_kernel,
    tile_schedule,
    tma_load,
    unroll,
    warp_id,
)
from tiledsl.arch import TARGETS
from tiledsl.dims import K, M
from tiledsl.errors import CompileErrors, EmulatorError, KernelArgumentError
from tiledsl.gemm import gemm
from tiledsl.gemm.choice import FEW_REGISTERS, Request, Variant, estimate, ranked, table_of
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.hopper_stores import pieces
from tiledsl.gemm.operands import described
from tiledsl.gemm.pad import pad, pad_both, width
from tiledsl.gemm.plan import Problem, choice_of, plan
from tiledsl.gemm.split_k import slice_width
from tiledsl.gemm.steps import problem_of
from tiledsl.lang import cdiv

BF16 = np.dtype(ml_dtypes.bfloat16)
Array = NDArray[Any]


def exact(A: Array, B: Array) -> Array:
    return (A.astype(np.float64) @ B.astype(np.float64)).astype(BF16)


# -- tma_load(every=, first=) ------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def gathered(X: Global[bf16, M, K], Y: Global[bf16, M, K], *, BM: const = 64, BK: const = 64, PARTS: const = 8):
    """Y = X, by way of tiles that have every so many-th row of X after another."""
    work = tile_schedule(M, K, 1, tile=(BM, BK, 64))
    ring = Ring(2, a=shared((BM, BK + 8), bf16, layout=row_major))
    with role("load", threads=1):
        for t in work:
            with ring.fill() as s:
                for i in unroll(PARTS):
                    rows, columns = tile(t.m.start // BM, BM // PARTS), tile(0, BK + 8) + t.n.start
                    tma_load(X[rows, columns], s.a[tile(i, BM // PARTS), :], every=PARTS, first=i)
    with role("store"):
        for t in work:
            with ring.use() as s:
                for i in range(BM * BK // 128):
                    at = i * 128 + warp_id() % 4 * 32 + lane_id()
                    row, column, part = at // BK, at % BK, at // BK % PARTS
                    later = part * X.strides[0] % 8
                    Y.put(t.m.start + row, t.n.start + column, s.a[part * (BM // PARTS) + row // PARTS, column + later])


@pytest.mark.parametrize(
    ("rows", "columns", "parts"), [(70, 131, 8), (5, 77, 8), (200, 66, 4), (64, 100, 2), (3, 7, 8), (9, 64, 8)]
)
def test_every_so_many_th_row(rows: int, columns: int, parts: int) -> None:
    """Also where a part has no row; past the edges there are zeros."""
    X, Y = numbers(rows, columns), np.full((rows, columns), np.nan, BF16)
    gathered.check(X, Y, PARTS=parts)
    assert (X == Y).all()


def test_what_has_no_aligned_rows_is_refused() -> None:
    room, Y = numbers(64, 132), numbers(64, 131)
    with pytest.raises(KernelArgumentError, match="begins at an address that is no multiple of 16"):
        gathered(room[:, 1:], Y, device="emulator")
    with pytest.raises(KernelArgumentError, match="the stride of 8 rows is -2112 bytes"):
        gathered(room[::-1], numbers(64, 132), device="emulator")
    with pytest.raises(
        CompileErrors, match=r"for every 4 rows; those of X are known to be multiples of 2(.|\n)*every=8"
    ):
        gathered(numbers(64, 131), Y, PARTS=4, device="emulator")


@tile_kernel(arch="sm_90a")
def shifted(X: Global[bf16, M, K], *, AT: const = 4):
    work = tile_schedule(M, K, 1, tile=(64, 64, 64))
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            with ring.fill() as s:
                tma_load(X[t.m, tile(0, 64) + AT], s.a)
    with role("use"):
        for _ in work:
            with ring.use() as s:
                assert_(s.a[0, 0] != 9, "all are at most 3")


def test_a_box_begins_at_a_multiple_of_16_bytes() -> None:
    """Else an H200 stops with an illegal instruction."""
    X = numbers(64, 128)
    shifted(X, AT=8, device="emulator")
    with pytest.raises(EmulatorError, match=r"begins at element 4 of a row of X(.|\n)*a multiple of 8 elements"):
        shifted(X, device="emulator")


# -- the kernel --------------------------------------------------------------------------------------

CASES: dict[str, tuple[Variant, int, int, int, str]] = {
    "odd rows": (Variant((64, 64, 2)), 100, 75, 131, "NT"),
    "few columns of a tile": (Variant((64, 16, 2)), 70, 21, 141, "NT"),
    "B across k": (Variant((64, 64, 2)), 70, 75, 131, "NN"),
    "A alone": (Variant((64, 64, 2)), 70, 72, 130, "NN"),
    "B alone": (Variant((64, 64, 2)), 70, 75, 136, "NN"),
    "rows of multiples of 8 bytes": (Variant((64, 32, 2)), 70, 40, 132, "NT"),
    "A along m": (Variant((64, 64, 2)), 75, 70, 131, "TN"),
    "two warpgroups a tile": (Variant((128, 48, 1)), 150, 75, 70, "NT"),
    "parts of k": (Variant((64, 64, 2), parts=2, groups=2), 70, 75, 533, "NT"),
    "exchanged": (Variant((64, 16, 2), exchanged=True), 30, 101, 133, "NT"),
    "exchanged, B across k": (Variant((64, 16, 2), exchanged=True, parts=2), 30, 101, 533, "NN"),
}


@pytest.mark.parametrize("name", CASES)
def test_right_and_without_hazards(name: str) -> None:
    variant, m, n, k, layout = CASES[name]
    A, B, C = numbers(1, m, k), numbers(1, k, n, seed=1), np.full((1, m, n), np.nan, BF16)
    expected, bias = exact(A, B), np.zeros(n, np.float32)
    A, B = (
        X.swapaxes(1, 2).copy().swapaxes(1, 2) if order == "T" else X for X, order in zip((A, B), layout, strict=True)
    )
    unaligned = tuple(min(s for s in X.strides[1:] if s > 2) % 16 > 0 for X in (A, B))
    consts = variant.consts_apart(k, (unaligned[0], unaligned[1])) | {"EARLY": True, "EPILOGUE": add_bias}
    operands = (A, B, C)
    if variant.exchanged:
        operands = tuple(X.swapaxes(1, 2) for X in (B, A, C))
        consts["EXCHANGED"] = True
    room: dict[str, Any] = {}
    if variant.parts:
        sums = np.full(variant.workspace(variant.tiles(m, n)), np.nan, np.float32)
        room = {"sums": sums, "done": np.zeros(sums.shape[1], np.uint32)}
    hopper_fastest.check(*operands, bias=bias, **room, **consts)
    assert (expected == C).all()


@pytest.mark.parametrize(
    ("columns", "out"), [(35, "bf16"), (66, "bf16"), (36, "bf16"), (132, "bf16"), (35, "f32"), (66, "f32")]
)
def test_results_that_tma_cannot_store(columns: int, out: str) -> None:
    """In vectors as wide as their rows allow, in whole or in part past the edge, and next to what stays as it is."""
    A, B = numbers(70, 40), numbers(40, columns, seed=1)
    room = np.full((70, columns + 12), 7, np.float32 if out == "f32" else BF16)
    for C in (room[:, :columns], room[:, 4 : columns + 4], room[:, 1 : columns + 1]):
        gemm(A, B, C, device="emulator")
        assert (exact(A, B) == C).all()
        C[...] = 7
        assert (room == 7).all()


@pytest.mark.parametrize(
    ("columns", "dtype"), [(16, BF16), (48, BF16), (112, BF16), (176, BF16), (16, np.float32), (176, np.float32)]
)
def test_pieces_of_any_width(columns: int, dtype: Any) -> None:
    """Of a tile that 128 bytes do not divide, too: the threads share each piece in whole rounds."""
    for n, layout in ((columns + 5, "C"), (columns + 6, "C"), (columns + 4, "C"), (columns + 5, "F")):
        A, B = numbers(1, 100, 40), numbers(1, 40, (n + 7) // 8 * 8, seed=1)[:, :, :n]
        C = np.full((100, n), np.nan, dtype, layout)[None]
        consts = {"BM": 128, "BN": columns, "STAGES": 2}
        B = B.swapaxes(1, 2).copy().swapaxes(1, 2)
        hopper_fastest(A, B, C, device="emulator", **consts)
        assert (exact(A, B).astype(dtype) == C).all(), (n, layout)


# -- the choice --------------------------------------------------------------------------------------

EXTENTS = st.integers(1, 8192)


@given(
    EXTENTS,
    EXTENTS,
    EXTENTS,
    st.booleans(),
    st.booleans(),
    st.sampled_from([(True, True), (True, False), (False, True)]),
    st.booleans(),
)
def test_every_choice_fits(
    m: int, n: int, k: int, a: bool, b: bool, unaligned: tuple[bool, bool], by_tma: bool
) -> None:
    """Shared memory, for lines of 2, 4 and 8 parts, and what the role that orders them takes for granted."""
    request = Request(1, m, n, k, (a, b), FEW_REGISTERS, apart=True, unaligned=unaligned, by_threads=0 if by_tma else 1)
    chosen = next(v for v, _ in ranked(2000, request) if v.apart)
    consts = chosen.consts_apart(k, unaligned, 2, by_tma)
    rows, columns, instances = chosen.tile
    stored = slice_width(chosen.parts, columns) if chosen.parts else columns
    wide, rest = pieces(rows * instances, stored, 2, chosen.registers, by_tma)
    buffers = (1 if chosen.parts or not by_tma else 2) * instances
    assert chosen.along_m == 1 and consts["STAGES"] >= 2 and consts["APART"] >= 2
    along = (b, a) if chosen.exchanged else (a, b)
    loaded = unaligned[::-1] if chosen.exchanged else unaligned
    for parts in (2, 4, 8):
        used = 0 if chosen.groups > 1 else rows * 2 * (buffers * wide + instances * rest * by_tma)
        used += chosen.received
        for extent, along_k, part in zip((rows, columns), along, loaded, strict=True):
            lines, length = (extent, consts["BK"]) if along_k else (consts["BK"], extent)
            assert length % 64 == 0
            used += 2 * consts["STAGES"] * lines * length if part else 0
            unit = max(8, 64 // np.gcd(lines // parts, 64))
            used += 2 * consts["APART"] * lines * (cdiv(length + 8, int(unit)) * int(unit) if part else length)
        assert used + 1024 <= TARGETS["sm_90a"].shared_per_block


def test_lines_for_which_there_is_no_room_are_padded() -> None:
    """What parts of k receive leaves room for steps of 32 elements, where a warp puts 64 in order at once."""
    v = Variant((128, 192, 1), parts=3, by_rows=True, apart=True)
    request = choice_of(ragged(210, 1251, 7465)._replace(unit_b=2))
    assert v.consts_apart(7465, request.unaligned)["BK"] == 32
    found = [each._replace(band=8) for each, _ in ranked(10000, request)]
    assert v not in found and v._replace(apart=False) in found and v._replace(tile=(128, 128, 1)) in found


def ragged(m: int, n: int, k: int, **more: Any) -> Problem:
    tma = {"tma_a": False, "tma_b": False, "tma_c": False, "apart_a": True, "apart_b": True}
    return Problem(1, m, n, k, unit_b=1, **(tma | more))


def test_small_products_are_not_padded() -> None:
    made = plan(ragged(82, 2588, 21))
    assert "APART" in made.consts and not (made.pad_a or made.pad_b)
    assert made.consts["BK"] == 64, "k has no second step"


@pytest.mark.parametrize(
    "problem",
    [ragged(3763, 1806, 1023), ragged(331, 509, 4043), ragged(8191, 8191, 8191), ragged(82, 2588, 21, apart_a=False)],
    ids=["many tiles", "deep", "large", "no lines that TMA can read"],
)
def test_others_are(problem: Problem) -> None:
    made = plan(problem)
    assert made.pad_a and made.pad_b and "APART" not in made.consts


def test_only_what_tma_cannot_read_is_padded() -> None:
    made = plan(ragged(331, 509, 4043, tma_b=True, apart_b=False))
    assert made.pad_a and not made.pad_b


def test_more_lines_for_each_tile_cost_more() -> None:
    def longer(v: Variant, m: int, n: int, k: int) -> bool:
        """Does it take longer to load operands in parts than to copy them?"""
        both = table_of([v._replace(apart=True), v], [2, 2])
        apart, copied = estimate(both, 1, m, n, k, (True, True), 132, unaligned=(True, True)).total
        return apart > copied

    assert not longer(Variant((64, 16, 2)), 64, 1000, 165)
    assert longer(Variant((64, 192, 2)), 4000, 4000, 1000)


def test_which_operands_have_aligned_lines() -> None:
    A, B, C = numbers(40, 27), numbers(27, 40), numbers(40, 40)

    def loads(a: Array, b: Array = B) -> tuple[bool, bool]:
        of = described(a, b, C, None, None, None)
        info = replace(of.a, pointer=of.a.pointer // 16 * 16 + a.ctypes.data % 16)
        made = problem_of(of._replace(a=info), 0.0, False, "sm_90a", 132)
        return made.tma_a, made.apart_a

    assert loads(A) == (False, True)
    assert loads(numbers(40, 32)[:, :27]) == (True, False)
    assert loads(numbers(40, 28)[:, 1:]) == (False, False), "its address is not aligned"
    assert loads(A[::-1]) == (False, False), "TMA goes forwards"
    assert loads(numbers(40, 54)[:, ::2]) == (False, False), "no axis is contiguous"


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("size", [(33, 35, 21), (70, 90, 43), (9, 130, 203), (130, 9, 203)])
def test_gemm_of_ragged_operands(size: tuple[int, int, int], layout: str) -> None:
    m, n, k = size
    A, B = numbers(m, k), numbers(k, n, seed=1)
    a, b = (np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), layout, strict=True))
    assert (gemm(a, b, device="emulator") == exact(A, B)).all()


# -- padding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((1, 5, 3), (1, 70, 333)), ((2, 100, 21), (2, 9, 40)), ((3, 64, 31), (3, 7, 300))])
def test_padded_copies(shapes: tuple[tuple[int, int, int], tuple[int, int, int]]) -> None:
    X, Z = (numbers(*shape) for shape in shapes)
    Y, W = (np.full((*x.shape[:2], cdiv(x.shape[2], 8) * 8), np.nan, BF16) for x in (X, Z))
    pad_both.check(X, Y, Z, W, WIDE=width(Y.shape[2]), WIDE2=width(W.shape[2]))
    for x, y in ((X, Y), (Z, W)):
        assert (y[:, :, : x.shape[2]] == x).all() and (y[:, :, x.shape[2] :] == 0).all()
        y[...] = np.nan
        pad(x[:, ::-1], y, WIDE=width(y.shape[2]), device="emulator")
        assert (y[:, :, : x.shape[2]] == x[:, ::-1]).all()


def test_a_warp_copies_several_short_rows() -> None:
    assert [width(n) for n in (8, 32, 40, 128, 136, 8192)] == [32, 32, 64, 128, 256, 256]

"""`gemm` of tf32, 8-bit floats and integers: exact sums, any order, dtypes of the result, special values, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.test_gemm_call import VIEWS
from tiledsl import Fragment, Memory, f32, index, maximum, tile_function
from tiledsl.arch import TARGETS
from tiledsl.errors import CompileErrors, KernelArgumentError
from tiledsl.gemm import call, gemm
from tiledsl.gemm.choice import Request, Variant, best, estimate, table_of
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.formats import FORMATS
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.hopper_stores import pieces
from tiledsl.gemm.mma import mma_fastest
from tiledsl.gemm.pad import pad, pad_both, padded, width
from tiledsl.gemm.plan import Problem, plan
from tiledsl.gemm.split_k import slice_width
from tiledsl.ir.types import DTYPES
from tiledsl.lang import cdiv

Array = NDArray[Any]
NUMPY: dict[str, Any] = {
    "tf32": np.float32,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
}
PAIRS = [(f.a.name, f.b.name) for f in FORMATS.values() if f.along_k and f.a.name not in ("f32", "f64")]
"""Those of which wgmma reads operands along k only."""

EACH_SIZE = [("tf32", "tf32"), ("e4m3", "e5m2"), ("i8", "u8")]
"""A pair for each size of elements, and for integers: orders and copies depend on nothing else."""

ORDERED = [*((pair, layout) for pair in EACH_SIZE for layout in ("NN", "NT", "TN", "TT")),
           *((pair, "NT") for pair in PAIRS if pair not in EACH_SIZE)]  # fmt: skip


def numbers(format: str, *shape: int, seed: int = 0) -> Array:
    """Small integers, whose sums are exact in f32; those of 8-bit floats keep to what one wgmma adds exactly."""
    low = 0 if format == "u8" else -3
    return np.random.default_rng(seed).integers(low, 4, shape).astype(NUMPY[format])


def product(A: Array, B: Array, *more: Any, format: str = "", **given: Any) -> Array:
    if format == "tf32":
        given["precision"] = "tf32"
    return gemm(A, B, *more, device="emulator", **given)


def exact(A: Array, B: Array) -> Array:
    return A.astype(np.float64) @ B.astype(np.float64)


def equal(C: Array, expected: Any) -> bool:
    """expected: rounded once to the dtype of C. 8-bit floats saturate."""
    if C.dtype.itemsize == 1 and C.dtype.kind != "i":
        largest = float(ml_dtypes.finfo(C.dtype).max)
        expected = np.clip(expected, -largest, largest)
    return C.tobytes() == np.asarray(expected).astype(C.dtype).tobytes()


# -- products --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pair", "layout"), ORDERED)
@pytest.mark.parametrize("size", [(40, 48, 2048), (7, 300, 64), (133, 17, 35)])
def test_every_pair_and_every_order(pair: tuple[str, str], layout: str, size: tuple[int, int, int]) -> None:
    """Aligned and not, in one piece and in parts of k, exchanged; operands across k are transposed on the way."""
    (a, b), (m, n, k) = pair, size
    A, B = numbers(a, m, k), numbers(b, k, n, seed=1)
    given = [np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), layout, strict=True)]
    C = product(*given, format=a)
    assert C.dtype == NUMPY[FORMATS[a, b].results[0].name]
    assert equal(C, exact(A, B))


@pytest.mark.parametrize(("a", "b"), zip(VIEWS, [*list(VIEWS)[1:], "rows"], strict=True))
@pytest.mark.parametrize("format", ["tf32", "e4m3", "i8"])
def test_strides_of_operands(format: str, a: str, b: str) -> None:
    A, B = numbers(format, 40, 24), numbers(format, 24, 32, seed=1)
    assert equal(product(VIEWS[a](A), VIEWS[b](B), format=format), exact(A, B))


@pytest.mark.parametrize("format", ["tf32", "e4m3", "i8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 32, 24), (40, 1, 24), (40, 32, 1), (1, 1, 300)])
def test_axes_of_extent_1(format: str, order: Any, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    A, B = (np.asarray(numbers(format, *s), order=order) for s in ((m, k), (k, n)))
    assert equal(product(A, B, format=format), exact(A, B))


@pytest.mark.parametrize("format", ["tf32", "e4m3", "i8"])
def test_batches(format: str) -> None:
    A, B = numbers(format, 3, 40, 24), numbers(format, 3, 24, 32, seed=1)
    for left, right in ((A, B), (A, B[0]), (A[0], B), (A.swapaxes(1, 2).copy().swapaxes(1, 2), B)):
        assert equal(product(left, right, format=format), exact(left, right))


RESULTS = [("tf32", "tf32", "f32"), ("e5m2", "e4m3", "f16"), ("bf16", "bf16", "e4m3"), ("tf32", "tf32", "e5m2")]


@pytest.mark.parametrize("dtypes", range(len(RESULTS)))
@pytest.mark.parametrize("size", range(3))
def test_dtypes_of_the_result(dtypes: int, size: int) -> None:
    """By rows and by columns, where TMA can store them and where not, and of parts of k; what is beside them stays.
    The sums are f32, whatever was multiplied. All dtypes and all sizes have each of the four places, two at a time."""
    (a, b, out), (m, n, k) = RESULTS[dtypes], ((70, 96, 64), (70, 90, 64), (64, 48, 1024))[size]
    A, B = numbers(a, m, k), numbers(b, n, k, seed=1).T
    expected = exact(A, B)
    room = np.full((m, n + 10), 7, NUMPY[out])
    places = (None, room[:, :n], room[:, 3 : n + 3], np.full((n, m), 7, NUMPY[out]).T)
    for C in places[(dtypes + size) % 2 :: 2]:
        if C is None:
            assert equal(product(A, B, format=a, out_dtype=out), expected)
        else:
            product(A, B, C, format=a)
            assert equal(C, expected)
            C[...] = 7
    assert (room == 7).all()


@pytest.mark.parametrize("tile", [(128, 80, 1), (64, 80, 2), (128, 112, 1), (128, 144, 2)])
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_rows_that_are_aligned_and_end_within_a_vector(tile: tuple[int, int, int], out: str) -> None:
    """Threads share a piece of such a tile in whole rounds, of shorter vectors than alignment allows."""
    A, B = numbers("bf16", 1, 100, 40), numbers("bf16", 1, 98, 40, seed=1).swapaxes(1, 2)
    room = np.full((1, 100, 112), 7, NUMPY[out])
    C = room[:, :, :98]
    rows, columns, instances = tile
    hopper_fastest(A, B, C, device="emulator", BM=rows, BN=columns, INSTANCES=instances, STAGES=2)
    assert equal(C, exact(A, B)) and (room[:, :, 98:] == 7).all()


@tile_function
def relu_bias(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    return maximum(add_bias(x, bias, column), 0)


@tile_function
def by_column(x: Fragment[Any], scales: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    return x.to(f32) * scales.get(column) if scales is not None else x.to(f32)


@pytest.mark.parametrize("format", ["tf32", "e4m3"])
@pytest.mark.parametrize("size", [(70, 90, 64), (40, 48, 2048), (7, 200, 64)])
def test_scaled_with_a_bias_and_an_epilogue(format: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    A, B, bias = numbers(format, m, k), numbers(format, n, k, seed=1).T, numbers("f32", n, seed=2)
    C = numbers("bf16", m, n, seed=3)
    expected = np.maximum(0.5 * exact(A, B) - 2 * C.astype(np.float64) + bias, 0)
    assert equal(product(A, B, C, 0.5, -2.0, bias, relu_bias, format=format), expected)


@pytest.mark.parametrize("size", [(70, 96, 64), (33, 47, 61), (64, 48, 2048), (7, 200, 64)])
def test_integers(size: tuple[int, int, int]) -> None:
    """All values; scaled by integers, added to, wrapped; scaled by column to other dtypes."""
    m, n, k = size
    random = np.random.default_rng(0)
    A, B = (random.integers(-128, 128, shape, np.int8, endpoint=False) for shape in ((m, k), (k, n)))
    sums = A.astype(np.int64) @ B.astype(np.int64)
    C = random.integers(-1000, 1000, (m, n), np.int32)
    assert equal(product(A, B, C.copy(), -3, 5), -3 * sums + 5 * C)
    assert equal(product(A, B, alpha=1 << 24), (sums << 24).astype(np.int32))
    assert equal(product(A, B, C.copy(), 0, 2), 2 * C)
    scales = random.integers(1, 5, n).astype(np.float32) / 8
    for out in ("f32", "bf16", "f16"):
        with np.errstate(over="ignore"):
            expected = (sums.astype(np.float32) * scales).astype(NUMPY[out])
        assert equal(product(A, B, bias=scales, epilogue=by_column, out_dtype=out), expected)


@pytest.mark.parametrize("format", ["tf32", "e4m3", "i8"])
def test_sums_of_nothing_read_nothing(format: str) -> None:
    A, B = numbers(format, 40, 0), numbers(format, 0, 32)
    assert equal(product(A, B, format=format), np.zeros((40, 32)))
    C = numbers(FORMATS[format, format].results[0].name, 40, 32)
    assert equal(product(A, B, C.copy(), 1, 2, format=format), 2 * C.astype(np.float64))
    A, B = numbers(format, 40, 24), numbers(format, 24, 32)
    if format != "i8":
        A[:], B[:] = np.nan, np.nan
    assert equal(product(A, B, C.copy(), 0, -1, format=format), 0 - C.astype(np.float64))
    assert product(A[:0], B, format=format).shape == (0, 32)


# -- values ----------------------------------------------------------------------------------------------------


def test_tf32_ignores_the_low_bits_and_f32_does_not() -> None:
    A, B = np.full((40, 24), 1 + 2.0**-11, np.float32), np.eye(24, 32, dtype=np.float32)
    A[1] = 1 + 2.0**-10 + 2.0**-23
    found = product(A, B, format="tf32")[:, :24]
    assert (found[0] == 1).all() and (found[1] == 1 + 2.0**-10).all()
    assert (product(A, B)[:, :24] == A).all()


@pytest.mark.parametrize("format", ["tf32", "e4m3", "e5m2"])
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_special_values_stay_in_their_row_and_column(format: str, layout: str) -> None:
    """Through TMA and through the pass that transposes; e4m3 has no infinity."""
    A, B = np.abs(numbers(format, 70, 90)) + NUMPY[format](1), np.abs(numbers(format, 90, 50)) + NUMPY[format](1)
    A, B = A.astype(NUMPY[format]), B.astype(NUMPY[format])
    expected = exact(A, B)
    A[3, 70], expected[3] = np.nan, np.nan
    B[89, 7], expected[:, 7] = np.nan, np.nan
    if format != "e4m3":
        A[5, 0], expected[5] = -np.inf, -np.inf
        expected[5, 7] = np.nan
    given = [np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), layout, strict=True)]
    C = product(*given, format=format, out_dtype="f32")
    assert np.array_equal(C, expected.astype(np.float32), equal_nan=True)
    assert (C.view(np.uint32)[np.isnan(C)] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("out", ["e4m3", "e5m2"])
def test_results_saturate(out: str) -> None:
    A, B = np.full((40, 64), 100, NUMPY["e4m3"]), np.full((64, 32), 1, NUMPY["e4m3"])
    B[:, ::2] *= NUMPY["e4m3"](-1)
    A[1] = np.nan
    C = product(A, B, out_dtype=out, alpha=1e4).astype(np.float32)
    largest = float(ml_dtypes.finfo(NUMPY[out]).max)
    assert (C[0, 1::2] == largest).all() and (C[0, ::2] == -largest).all() and np.isnan(C[1]).all()


@pytest.mark.parametrize(
    ("a", "b", "m", "n", "k"),
    [
        ("e4m3", "e4m3", 70, 90, 700),
        ("e4m3", "e5m2", 150, 200, 256),
        ("e4m3", "e4m3", 64, 48, 8192),
        ("e5m2", "e4m3", 7, 300, 1000),
    ],
)
def test_promoted_sums(a: str, b: str, m: int, n: int, k: int) -> None:
    """Exact where tensor cores alone are not. In one piece, the sums of 128 of k are added one after the other."""
    A, B = np.abs(numbers(a, m, k)), np.abs(numbers(b, k, n, seed=1))
    found = product(A, B, precision="promoted", out_dtype="f32")
    assert equal(found, exact(A, B))
    assert k < 8192 or not equal(product(A, B, out_dtype="f32", batch_invariant=True), exact(A, B))
    random, k = np.random.default_rng(0), min(k, 1000)
    A, B = (random.standard_normal(shape).astype(NUMPY[of]) for of, shape in ((a, (m, k)), (b, (k, n))))
    total = np.zeros((m, n), np.float32)
    for first in range(0, k, 128):
        total += product(A[:, first : first + 128], B[first : first + 128], out_dtype="f32")
    assert equal(product(A, B, precision="promoted", batch_invariant=True, out_dtype="f32"), total)
    scaled = product(A, B, np.ones((m, n), np.float32), 2.0, -1.0, precision="promoted", batch_invariant=True)
    assert equal(scaled, 2 * total.astype(np.float64) - 1)


def test_what_is_chosen_for_promoted_sums() -> None:
    """Steps of 128, both warpgroups for a tile, and accumulators that leave registers for the sums, or halves."""
    for m, n, k in ((8192, 8192, 8192), (4096, 2112, 7168), (2048, 2048, 2048), (512, 512, 512), (128, 128, 65536)):
        made = plan(Problem(1, m, n, k, "e4m3", unit_b=1, promoted=True))
        consts = made.consts
        assert consts["PROMOTED"] and consts["BK"] == 128
        assert consts["INSTANCES"] == 1 or consts["BN"] <= 32
        assert consts.get("HALVES", False) == (consts["BN"] == 256)
        assert consts["BM"] * consts["BN"] <= 96 * 256 or consts["HALVES"]
    with pytest.raises(KernelArgumentError, match="precision is 'promoted' on sm_120a, and only the kernel for wgmma"):
        plan(Problem(1, 64, 64, 64, "e4m3", promoted=True, arch="sm_120a"))


def test_the_bits_of_a_row_depend_on_it_alone() -> None:
    random = np.random.default_rng(0)
    for format in ("tf32", "e4m3"):
        A, B = (random.standard_normal(shape).astype(NUMPY[format]) for shape in ((200, 1000), (1000, 40)))
        whole = product(A, B, format=format, batch_invariant=True)
        for m in (1, 17, 70):
            assert product(A[-m:], B, format=format, batch_invariant=True).tobytes() == whole[-m:].tobytes()


# -- the kernel ------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Variant, str, str, str, tuple[int, int, int]]] = {
    "one piece": (Variant((128, 64, 1)), "e4m3", "e5m2", "bf16", (150, 72, 400)),
    "instances": (Variant((64, 48, 2)), "i8", "u8", "i32", (150, 80, 304)),
    "a cluster": (Variant((128, 64, 1), along_m=2, along_n=2), "i8", "i8", "i32", (256, 128, 256)),
    "parts of integers": (Variant((64, 64, 2), parts=2, groups=3), "i8", "i8", "i32", (100, 72, 2400)),
    "parts": (Variant((64, 96, 2), parts=8), "e4m3", "e4m3", "bf16", (100, 96, 2400)),
    "exchanged": (Variant((64, 32, 2), exchanged=True, parts=4), "e4m3", "e4m3", "f32", (40, 200, 2000)),
    "promoted": (Variant((128, 64, 1), along_m=2), "e4m3", "e5m2", "f32", (256, 128, 640)),
    "promoted in halves": (Variant((128, 256, 1)), "e4m3", "e5m2", "bf16", (150, 400, 400)),
    "promoted in halves, exchanged": (Variant((128, 256, 1), exchanged=True), "e4m3", "e4m3", "f32", (280, 150, 112)),
    "many accumulators": (Variant((128, 256, 1)), "e4m3", "e4m3", "e4m3", (128, 256, 256)),
}


@pytest.mark.parametrize("name", CASES)
def test_right_and_without_hazards(name: str) -> None:
    variant, a, b, out, (m, n, k) = CASES[name]
    A, B = numbers(a, 1, m, k), numbers(b, 1, n, k, seed=1).swapaxes(1, 2)
    C = np.full((1, m, n), 7, NUMPY[out])
    expected, operands = exact(A, B), (A, B, C)
    consts = variant.consts(0, C.dtype.itemsize, size=1) | {"STAGES": 3, "EXCHANGED": variant.exchanged}
    consts |= {"PROMOTED": "promoted" in name, "HALVES": "halves" in name}
    if variant.exchanged:
        operands = tuple(X.swapaxes(1, 2) for X in (B, A, C))
    room: dict[str, Any] = {}
    if variant.parts:
        sums = np.full(variant.workspace(variant.tiles(m, n)), np.nan, np.float32)
        room = {"sums": sums, "done": np.zeros(sums.shape[1], np.uint32)}
    hopper_fastest.check(*operands, **room, **consts)
    assert equal(C, expected)


@pytest.mark.parametrize("which", ["across k", "unaligned"])
def test_operands_that_the_kernel_cannot_read(which: str) -> None:
    k = 128 if which == "across k" else 120
    A, B, C = numbers("e4m3", 1, 64, k), numbers("e4m3", 1, k, 64), np.zeros((1, 64, 64), np.float32)
    if which == "unaligned":
        B = B.swapaxes(1, 2).copy().swapaxes(1, 2)
    with pytest.raises(CompileErrors, match="wgmma reads other than 16-bit operands along k only, in aligned rows"):
        hopper_fastest(A, B, C, BM=64, BN=64, BK=128, INSTANCES=2, device="emulator")


# -- copies ----------------------------------------------------------------------------------------------------


COPIED = [
    *((np.uint8, s) for s in ((1, 9, 19), (3, 17, 300), (2, 1, 1), (1, 200, 130), (2, 64, 128), (1, 132, 40))),
    *((dtype, s) for dtype in (np.uint16, np.uint32) for s in ((3, 17, 300), (2, 64, 128), (1, 132, 40))),
]


@pytest.mark.parametrize("number", range(len(COPIED)))
def test_copies_along_rows(number: int) -> None:
    """Of rows, and of columns, which are transposed; both in one launch; 0 behind. Every other time both are of one
    kind: all dtypes, and all shapes of several, have either."""
    dtype, shape = COPIED[number]
    random = np.random.default_rng(0)
    X, Z = (random.integers(1, 200, s).astype(dtype) for s in (shape, (shape[0], 12, 70)))
    turned, other = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (X, Z))
    size = X.itemsize
    Y, W = (np.full((*x.shape[:2], padded(x.shape[2], size)), 255, dtype) for x in (X, Z))
    wide, more = (width(x.shape[2], size) for x in (Y, W))
    pairs = ((X, other), (turned, Z)) if number % 2 else ((X, Z), (turned, other))
    for x, z in pairs:
        Y[...], W[...] = 255, 255
        pad_both.check(x, Y, z, W, WIDE=wide, WIDE2=more)
        for copied, of in ((Y, X), (W, Z)):
            assert (copied[:, :, : of.shape[2]] == of).all() and not copied[:, :, of.shape[2] :].any()
        Y[...] = 255
        pad.check(x, Y, WIDE=wide, EARLY=True)
        assert (Y[:, :, : X.shape[2]] == X).all() and not Y[:, :, X.shape[2] :].any()


# -- the choice ------------------------------------------------------------------------------------------------

EXTENTS = st.one_of(st.integers(1, 300), st.integers(1, 20000), st.sampled_from((64, 4096, 8192)))


@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from((1, 4)), st.sampled_from((1, 2, 4)), st.integers(0, 3))
def test_every_choice_fits(m: int, n: int, k: int, size: int, result: int, behind: int) -> None:
    chosen = best(Request(1, m, n, k, (True, True), behind, size=size, result=result))
    rows, columns, instances = chosen.tile
    consts = chosen.consts(k, result, behind < 3, size)
    share = slice_width(chosen.parts, columns) if chosen.parts else columns
    by_tma = behind < 3
    buffers = (1 if chosen.parts or not by_tma else 2) * instances
    wide, rest = pieces(rows * instances, share, result, chosen.registers, by_tma)
    assert wide * result % 16 == rest * result % 16 == 0 and (share % wide % rest if rest else share % wide) == 0
    staged = 0 if chosen.groups > 1 else rows * result * (buffers * wide + instances * rest * by_tma)
    used = consts["STAGES"] * size * consts["BK"] * (rows + columns) + staged
    assert consts["STAGES"] >= 3 and used + 1024 <= TARGETS["sm_90a"].shared_per_block
    assert consts["BK"] * size in (128, 256)


def test_the_model_counts_bytes() -> None:
    """The tensor cores multiply as many bytes of each format; a result takes as long as its bytes."""
    for v in (Variant((128, 256, 1)), Variant((128, 160, 2), exchanged=True)):
        of = {
            (size, result): estimate(
                table_of([v], [result]), 1, 4096, 2112, 3584, (True, True), 132, size=size, result=result
            )
            for size, result in ((1, 2), (2, 2), (4, 2), (4, 4))
        }
        assert len({float(times.products[0]) for times in of.values()}) == 1
        assert of[4, 4].steps[0] > of[4, 2].steps[0]
        assert v.tile[2] == 2 or of[4, 4].stores[0] == 2 * of[4, 2].stores[0]  # two instances: one stores meanwhile


def test_what_is_copied_first() -> None:
    """What TMA cannot read, and what does not run along k; of 16-bit elements the latter is read as it is."""

    def copied(**facts: Any) -> tuple[bool, bool]:
        made = plan(Problem(1, 512, 512, 512, **facts))
        return made.pad_a, made.pad_b

    for dtype, out in (("e4m3", "bf16"), ("tf32", "f32"), ("i8", "i32")):
        assert copied(dtype=dtype, out=out, unit_b=1) == (False, False)
        assert copied(dtype=dtype, out=out) == (False, True)
        assert copied(dtype=dtype, out=out, unit_a=1, unit_b=1) == (True, False)
        assert copied(dtype=dtype, out=out, unit_b=1, tma_a=False, apart_a=True) == (True, False)
    assert copied() == (False, False)


@pytest.mark.parametrize(("pair", "layout"), [(pair, layout) for pair, layout in ORDERED if layout != "TT"])
def test_without_wgmma_mma_sync_serves(pair: tuple[str, str], layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    assert plan(Problem(1, 64, 64, 64, a, dtype_b=b, arch="sm_120a")).kernel is mma_fastest
    monkeypatch.setattr(call, "EMULATED", ("sm_120a", 108))
    A, B = numbers(a, 2, 133, 67), numbers(b, 2, 67, 75, seed=1)
    given = [x.swapaxes(1, 2).copy().swapaxes(1, 2) if o == "T" else x for x, o in zip((A, B), layout, strict=True)]
    assert equal(product(*given, format=a), exact(A, B))


def test_a_target_without_a_format() -> None:
    for problem in (Problem(1, 64, 64, 64, "e4m3"), Problem(1, 64, 64, 64, out="e4m3")):
        with pytest.raises(KernelArgumentError, match=r"e4m3 on sm_80, which has no instructions for them\n  fix: use"):
            plan(problem._replace(arch="sm_80"))
    assert plan(Problem(1, 64, 64, 64, "i8", "i32", arch="sm_80")).kernel is mma_fastest


# -- refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a mixture": ("e4m3", "i8", {}, "A is e4m3, but B is i8; only e4m3 and e5m2, and i8 and u8, are multiplied by"),
    "the result of integers": ("i8", "i8", {"out_dtype": "f32"}, "C is f32; expected one of i32 for A and B of i8"),
    "the result of floats": ("e4m3", "e5m2", {"out_dtype": "i32"}, "C is i32; .* for A of e4m3 and B of e5m2"),
    "a fraction": ("i8", "i8", {"alpha": 0.5}, "alpha is 0.5, but the sums of A and B of i8 are i32"),
    "a large factor": ("i8", "i8", {"alpha": 1 << 25}, r"alpha is 3.35544e\+07, .* expected an integer up to 2\^24"),
    "a bias of integers": ("i8", "i8", {"bias": np.zeros(8, np.float32)}, "bias is f32, but the sums of .* are i32"),
    "a precision of another dtype": ("e4m3", "e4m3", {"precision": "tf32"}, "'tf32', which is for A and B of f32"),
    "promoted bf16": ("bf16", "bf16", {"precision": "promoted"}, "'promoted', which is for A and B of e4m3 or e5m2"),
    "no precision": (
        "f32",
        "f32",
        {"precision": "bf16x9"},
        "precision is 'bf16x9'; expected None or one of 'tf32', 'bf16x6', 'f16x3', 'i8x8', 'i8x15', 'promoted'",
    ),
    "added to what was converted": (
        "i8",
        "i8",
        {"C": np.zeros((8, 8), np.float32), "beta": 1, "epilogue": by_column},
        "beta is 1 and C is f32, but the sums",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    a, b, given, message = REFUSED[name]
    with pytest.raises(KernelArgumentError, match=message) as found:
        product(numbers(a, 8, 8), numbers(b, 8, 8), **given)
    assert str(found.value).startswith("gemm(): ") and "\n  fix: " in str(found.value)


def test_widths_of_copies() -> None:
    assert [width(n, 1) for n in (16, 48, 512, 4096)] == [32, 64, 512, 512]
    assert [width(n, 4) for n in (4, 48, 512)] == [32, 64, 128]
    assert [padded(n, size) for n, size in ((1, 1), (17, 1), (5, 4), (9, 2))] == [16, 32, 8, 16]
    assert cdiv(512, 16) == 32 and DTYPES["e4m3"].bytes == 1

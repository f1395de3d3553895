"""`ir.tensor_core` against exact fractions (tests/filetests/reference_mma.py), bit for bit, for every product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.filetests.reference_mma import dot_bits
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.tensor_core import mma
from tiledsl.ir.types import DTYPES, DType
from tiledsl.layout.mma import SHAPES, TABLE, MmaRow, find_row

Array = NDArray[Any]
Bits = NDArray[np.uint64]

FLOATS = [row for row in TABLE if not DTYPES[row.a].is_integer and row.a != "f64"]


def values(bits: Any, dtype: str) -> Array:
    type_ = DTYPES[dtype]
    return np.asarray(bits).astype(f"u{type_.bytes}").view(numpy_dtype(type_))


def bits_of(array: Array) -> list[int]:
    return [int(x) for x in np.ascontiguousarray(array).view(f"u{array.itemsize}").ravel()]


def expect(row: MmaRow, a: Array, b: Array, c: Array, sample: int = 24) -> None:
    """`mma` on one warp gives what the reference says, for some elements of the result."""
    got = mma(row, a, b, c)
    assert got.dtype == c.dtype and got.shape == c.shape
    places = np.random.default_rng(5).permutation(c.size)[:sample]
    for i, j in zip(*np.unravel_index(places, c.shape), strict=True):
        wanted = dot_bits(row, bits_of(a[i]), bits_of(b[:, j]), bits_of(c[i, j])[0])
        found = bits_of(got[i, j])[0]
        shown = f"{row}: [{i}, {j}] is {found:x}, expected {wanted:x}; a = {a[i]}, b = {b[:, j]}, c = {c[i, j]}"
        assert found == wanted, shown


def shapes(row: MmaRow) -> tuple[tuple[int, int], ...]:
    s = row.shape
    return (s.m, s.k), (s.k, s.n), (s.m, s.n)


# -- distributions: what makes a float of random numbers -------------------------------------------


def normal(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    return rng.standard_normal(shape).astype(np.float32).astype(numpy_dtype(dtype))


def spread(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """Exponents over what the format has, at most +-20; a fifth are zeros of either sign."""
    reach = {"e4m3": 6, "e5m2": 13, "f16": 13}.get(dtype.name, 20)
    wide = rng.standard_normal(shape) * np.exp2(rng.integers(-reach, reach, shape))
    zeros = rng.random(shape) < 0.2
    return np.where(zeros, np.copysign(0.0, wide), wide).astype(np.float32).astype(numpy_dtype(dtype))


def codes(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """Any bits: NaNs and infinities of every kind among them."""
    return values(rng.integers(0, (1 << dtype.bits) - 1, shape, np.uint64, endpoint=True), dtype.name)


def finite(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """Any finite bits, so that sums overflow and terms vanish."""
    array = codes(rng, dtype, shape)
    return np.where(np.isfinite(array.astype(np.float64)), array, np.zeros_like(array))


def subnormal(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """The least numbers: subnormals and the first normals, of either sign."""
    low = {"f32": 24, "tf32": 24, "bf16": 8, "f16": 11, "e4m3": 4, "e5m2": 3, "f64": 53}[dtype.name]
    size = rng.integers(0, 1 << low, shape, np.uint64)
    return values(size | rng.integers(0, 2, shape, np.uint64) << np.uint64(dtype.bits - 1), dtype.name)


def special(rng: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> Array:
    """Ordinary numbers with a NaN, infinities and zeros here and there."""
    array = normal(rng, dtype, shape).astype(np.float64)
    rare = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
    return np.where(rng.random(shape) < 0.06, rare, array).astype(np.float32).astype(numpy_dtype(dtype))


DISTRIBUTIONS = (normal, spread, codes, finite, subnormal, special)


@pytest.mark.parametrize("draw", DISTRIBUTIONS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_floats(row: MmaRow, draw: Any) -> None:
    rng = np.random.default_rng(len(str(row)))
    with np.errstate(all="ignore"):
        for _ in range(3):
            a, b, c = (
                draw(rng, DTYPES[t], shape) for t, shape in zip((row.a, row.b, row.acc), shapes(row), strict=True)
            )
            expect(row, a, b, c)
            expect(row, a, b, np.zeros_like(c))


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_subnormal_operands_count_with_the_least_exponent(row: MmaRow) -> None:
    """Beside a subnormal times an ordinary number, c and the other products lose what lies 25 bits below it."""
    rng = np.random.default_rng(6)
    form_a, form_b, acc = (DTYPES[t] for t in (row.a, row.b, row.acc))
    (m, k), (_, n), _ = shapes(row)
    large = 2.0**30 if row.a in ("bf16", "tf32") else 1.0  # so that f32 holds what is lost
    for _ in range(4):
        a, b = subnormal(rng, form_a, (m, k)), (normal(rng, form_b, (k, n)) * large).astype(numpy_dtype(form_b))
        size = float(np.abs(a.astype(np.float64)).max()) * large
        c = size * rng.standard_normal((m, n)) * np.exp2(rng.integers(-34, -8, (m, n)))
        expect(row, a, b, c.astype(numpy_dtype(acc)))


@pytest.mark.parametrize("row", [r for r in FLOATS if r.a in ("bf16", "tf32")], ids=str)
def test_sums_below_every_f32(row: MmaRow) -> None:
    """Products about 2^-149 and far below: multiples of 2^-158 are added, whatever their exponents."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        a, b = (
            (rng.standard_normal(s) * np.exp2(rng.integers(-79, -74, s))).astype(np.float32) for s in shapes(row)[:2]
        )
        c = rng.choice([0.0, 2.0**-149, -(2.0**-149)], shapes(row)[2]).astype(np.float32)
        expect(row, a.astype(numpy_dtype(DTYPES[row.a])), b.astype(numpy_dtype(DTYPES[row.b])), c)


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_cancellation(row: MmaRow) -> None:
    """Large terms of both signs that cancel, and leave what truncation has kept of the small ones."""
    rng = np.random.default_rng(3)
    (m, k), (_, n), _ = shapes(row)
    for _ in range(4):
        a, b = normal(rng, DTYPES[row.a], (m, k)), normal(rng, DTYPES[row.b], (k, n))
        large = rng.integers(0, k // 2, n)
        b[large, np.arange(n)] = np.asarray(rng.choice([64.0, 96.0, 448.0], n)).astype(b.dtype)
        b[k - 1 - large, np.arange(n)] = -b[large, np.arange(n)].astype(np.float32)
        a[:, ::-1][:, : k // 2] = a[:, : k // 2]
        c = (rng.standard_normal((m, n)) * np.exp2(rng.integers(-30, 12, (m, n)))).astype(np.float32)
        expect(row, a, b, c.astype(numpy_dtype(DTYPES[row.acc])))


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_the_sum_decides_how_much_of_c_is_kept(row: MmaRow) -> None:
    """One product of 2^e against every alignment of c: 25 bits below the larger one count, no more."""
    (m, k), (_, n), _ = shapes(row)
    a, b = np.zeros((m, k), numpy_dtype(DTYPES[row.a])), np.zeros((k, n), numpy_dtype(DTYPES[row.b]))
    a[:, 0], b[0] = 1.0, 1.0
    exponents = np.arange(m * n).reshape(m, n) - 64
    c = (np.exp2(exponents.clip(-24, 15) if row.acc == "f16" else exponents) * (2 - 2.0**-10)).astype(
        numpy_dtype(DTYPES[row.acc])
    )
    expect(row, a, b, c, sample=c.size)
    expect(row, -a, b, c, sample=c.size)


@pytest.mark.parametrize("row", [r for r in TABLE if DTYPES[r.a].is_integer], ids=str)
def test_integers_are_exact_and_wrap(row: MmaRow) -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        a, b = (codes(rng, DTYPES[t], shape) for t, shape in zip((row.a, row.b), shapes(row), strict=False))
        expect(row, a, b, codes(rng, DTYPES["i32"], shapes(row)[2]), sample=128)


@pytest.mark.parametrize("row", [r for r in TABLE if r.a == "f64"], ids=str)
@pytest.mark.parametrize("draw", [normal, spread, codes, finite, subnormal], ids=lambda draw: draw.__name__)
def test_f64_is_a_chain_of_fused_multiply_adds(row: MmaRow, draw: Any) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (draw(rng, DTYPES["f64"], shape) for shape in shapes(row))
    expect(row, a, b, c)


# -- single facts ----------------------------------------------------------------------------------


def one(row: MmaRow, pairs: list[tuple[float, float]], c: float) -> float:
    """The result of a dot product of these pairs, the rest being zeros."""
    (m, k), (_, n), _ = shapes(row)
    a, b = np.zeros((m, k), numpy_dtype(DTYPES[row.a])), np.zeros((k, n), numpy_dtype(DTYPES[row.b]))
    for at, (x, y) in enumerate(pairs):
        a[0, at], b[at, 0] = x, y
    with np.errstate(over="ignore"):
        sums = np.full((m, n), c).astype(numpy_dtype(DTYPES[row.acc]))
    return float(mma(row, a, b, sums)[0, 0])


def row_of(shape: str, a: str, acc: str = "f32", b: str = "") -> MmaRow:
    row = find_row(SHAPES[shape], a, b or a, acc)
    assert row is not None
    return row


F16 = row_of("m16n8k16", "f16")


def test_sums_are_truncated_not_rounded() -> None:
    assert one(F16, [(1.0, 1.0)], 2.0**-24 * 1.75) == 1.0
    assert one(F16, [(-1.0, 1.0)], -(2.0**-24) * 1.75) == -1.0


def test_a_term_keeps_25_bits_below_the_largest() -> None:
    assert one(F16, [(1.0, 1.0), (-1.0, 1.0), (2.0**-12, 2.0**-13)], 0.0) == 2.0**-25
    assert one(F16, [(1.0, 1.0), (-1.0, 1.0), (2.0**-13, 2.0**-13)], 0.0) == 0.0


def test_products_are_not_renormalised() -> None:
    """1.5 * 1.5 = 2.25 counts with exponent 0, so that 2^-25 survives beside it and 2^-26 does not."""
    assert one(F16, [(1.5, 1.5), (-1.5, 1.5), (2.0**-12, 2.0**-13)], 0.0) == 2.0**-25
    assert one(F16, [(1.5, 1.5), (-1.5, 1.5), (2.0**-13, 2.0**-13)], 0.0) == 0.0


def test_tf32_ignores_the_low_13_bits() -> None:
    row = row_of("m16n8k8", "tf32")
    assert one(row, [(1.0 + 2.0**-10 + 2.0**-11, 1.0)], 0.0) == 1.0 + 2.0**-10
    assert one(row, [(1.0 + 2.0**-11, 1.0)], 0.0) == 1.0


def test_sums_into_f16_round_once_to_nearest_even() -> None:
    row = row_of("m16n8k16", "f16", "f16")
    assert one(row, [(1.0, 1.0), (2.0**-11, 1.0)], 0.0) == 1.0
    assert one(row, [(1.0, 1.0), (2.0**-11, 1.0 + 2.0**-10)], 0.0) == 1.0 + 2.0**-10
    assert one(row, [(256.0, 255.5), (128.0, 0.75)], 0.0) == 65504.0
    assert one(row, [(256.0, 256.0)], 0.0) == np.inf
    # The exponent of c is -14: 2^-40, which would decide the tie, is lost.
    assert one(row, [(2.0**-12, 2.0**-13), (2.0**-20, 2.0**-20)], 2.0**-23) == 2.0**-23
    assert one(row, [(2.0**-12, 2.0**-13), (2.0**-20, 2.0**-19)], 2.0**-23) == 1.5 * 2.0**-23


def test_fp8_adds_the_halves_of_every_four_products_one_after_the_other() -> None:
    """k = 0, 1, 4, 5, ... first: their 2^16 cancels before k = 2 comes, whose 2^-12 would not survive beside it."""
    row = row_of("m16n8k32", "e4m3")
    pairs = [(256.0, 256.0), (-256.0, 256.0), (2.0**-6, 2.0**-6)]
    assert one(row, pairs, 0.0) == 2.0**-12
    assert one(row, [pairs[0], pairs[2], pairs[1]], 0.0) == 0.0
    assert one(row, [(1.0, 1.0)], 2.0**-24 * 1.5) == 1.0 + 2.0**-23  # c is added to nearest


def test_overflow_is_infinite_and_just_below_it_the_largest_number() -> None:
    row = row_of("m16n8k16", "bf16")
    assert one(row, [(2.0**64, 2.0**64)], 0.0) == np.inf
    assert one(row, [(2.0**64, 2.0**64), (2.0**52, -(2.0**51))], 0.0) == np.finfo(np.float32).max
    assert one(row, [(2.0**127, -(2.0**127)), (2.0**127, 2.0**127)], 1.0) == 0.0


def test_what_vanishes_in_f32_is_positive() -> None:
    row = row_of("m16n8k16", "bf16")
    assert not np.signbit(one(row, [(2.0**-75, -(2.0**-75))], 0.0))
    assert one(row, [(2.0**-75, -(2.0**-74))], 0.0) == -(2.0**-149)


@pytest.mark.parametrize("shape", ["m16n8k8", "m16n8k16"])
def test_what_vanishes_in_f16_is_positive(shape: str) -> None:
    """Up to the tie between zero and the least number, with either sign of c; beyond it the sign is kept."""
    row = row_of(shape, "f16", "f16")
    for x in (2.0**-24, 2.0**-13, 2.0**-12):
        for c in (0.0, -0.0):
            assert not np.signbit(one(row, [(-x, 2.0**-13)], c))
    assert one(row, [(-(2.0**-12) * (1 + 2.0**-10), 2.0**-13)], 0.0) == -(2.0**-24)


CANCELLED = {
    "m16n8k8": ("aa58b581b975bd6b3bfe2dcc3b4dbfdb", "35d730c328542e213d1b3809b831350f", "0c99"),
    "m16n8k16": (
        "2a51bd443a34c191b14e3438ba7d3e9d37cc3e34b92832a43a4c327e3c9137a9",
        "b8bf3be4bd6b371f39af3020be69bb73bbee3ed1bafb391231a23b72adeb3f51",
        "a190",
    ),
}
"""A row of A, a column of B and an element of C, as bits, of which an H200 made 0000. The exact sum is -2^-25, the tie
between zero and the least f16; in the second one it is -1.5 * 2^-25, and that tie once the terms are truncated."""


@pytest.mark.parametrize("shape", CANCELLED)
def test_what_cancels_in_f16_but_for_a_little(shape: str) -> None:
    row = row_of(shape, "f16", "f16")
    a, b, c = (np.frombuffer(bytes.fromhex(text), ">f2").astype(np.float16) for text in CANCELLED[shape])
    (m, k), (_, n), _ = shapes(row)
    got = mma(row, np.broadcast_to(a, (m, k)), np.broadcast_to(b[:, None], (k, n)), np.broadcast_to(c, (m, n)))
    assert set(bits_of(got)) == {0}


@pytest.mark.parametrize("row", FLOATS, ids=str)
def test_a_sum_of_zero_is_positive(row: MmaRow) -> None:
    a, b, c = (
        np.full(s, x).astype(numpy_dtype(DTYPES[t]))
        for s, x, t in zip(shapes(row), (-0.0, 1.0, -0.0), (row.a, row.b, row.acc), strict=True)
    )
    assert not np.signbit(mma(row, a, b, c)).any()
    assert not np.signbit(one(row, [(1.0, 1.0), (-1.0, 1.0)], -0.0))


def test_leading_axes_broadcast() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 1, 16, 16)).astype(np.float16)
    b = rng.standard_normal((5, 16, 8)).astype(np.float16)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    got = mma(F16, a, b, c)
    assert got.shape == (3, 5, 16, 8)
    for i in range(3):
        for j in range(5):
            np.testing.assert_array_equal(got[i, j], mma(F16, a[i, 0], b[j], c))


def test_warps_are_independent_however_many_there_are() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((500, 16, 16)).astype(np.float16)
    b = rng.standard_normal((500, 16, 8)).astype(np.float16)
    c = np.zeros((500, 16, 8), np.float32)
    a[7, 0, 0], a[200] = np.nan, 0.0
    got = mma(F16, a, b, c)
    for warp in (0, 7, 95, 96, 200, 499):
        np.testing.assert_array_equal(got[warp], mma(F16, a[warp], b[warp], c[warp]))

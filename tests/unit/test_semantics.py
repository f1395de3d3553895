"""The scalar table's exact values: against Python's exact integers and fractions, and the compiled loops."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.backends.emulator.native import loops as native
from tiledsl.ir import semantics
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, INDEX, TF32, U8, U32, U64, DType

FLOATS = (F64, F32, F16, BF16)
INTS = tuple(t for t in DTYPES.values() if t.is_integer)
QNAN = {"f64": 0x7FFFFFFFFFFFFFFF, "f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF}
PRECISION = {"f64": (53, -1074), "f32": (24, -149), "f16": (11, -24), "bf16": (8, -133)}
LARGEST = {"f64": 1024, "f32": 128, "f16": 16, "bf16": 128}


def bits(value: Any, dtype: DType) -> int:
    return int(np.asarray(value, semantics.numpy_dtype(dtype)).view(f"u{dtype.bytes}"))


def nasty(dtype: DType) -> NDArray[Any]:
    """Zeros, subnormals, values around 1, the largest, infinities and NaNs with payloads, of both signs."""
    precision, smallest = PRECISION[dtype.name]
    least, top = 2.0**smallest, 2.0 ** (LARGEST[dtype.name] - 1)
    one = [1.0, 1 + 2.0 ** (1 - precision), 1 - 2.0**-precision, 1.5, 3.0, 2.0 ** (precision // 2) + 1]
    edge = [0.0, least, least * 3, 2.0 ** (smallest + precision - 1), 2.0 ** (smallest + precision - 1) - least]
    root = 2.0 ** (smallest // 2)
    big = [top, top * (2 - 2.0 ** (1 - precision)), math.inf, math.nan, root, root * 3]
    values = np.array([*one, *edge, *big], np.float64)
    return np.concatenate([values, -values]).astype(semantics.numpy_dtype(dtype))


def round_exact(value: Fraction, dtype: DType) -> float:
    """A fraction rounded to nearest even, as a Python float (every format here fits one)."""
    if value == 0:
        return 0.0
    precision, smallest = PRECISION[dtype.name]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, smallest)
    scaled = magnitude / unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    result = whole * unit
    limit = Fraction(2) ** LARGEST[dtype.name]
    return math.copysign(math.inf if result >= limit else float(result), -1 if value < 0 else 1)


def assert_same(got: Any, expected: Any, dtype: DType) -> None:
    np_dtype = semantics.numpy_dtype(dtype)
    got, expected = np.asarray(got, np_dtype), np.asarray(expected, np_dtype)
    word = f"u{dtype.bytes}"
    wrong = got.view(word) != expected.view(word)
    assert not wrong.any(), f"{got[wrong][:5]} where {expected[wrong][:5]} is right"


def test_every_row_has_a_meaning_for_every_dtype_it_accepts() -> None:
    for row, dtype in itertools.product(SCALAR.values(), DTYPES.values()):
        if row.accepts(dtype):
            one = np.ones(3, semantics.numpy_dtype(dtype))
            result = semantics.apply(row.name, dtype, *[one] * row.arity)
            assert result.dtype == (np.bool_ if row.to_bool else one.dtype), row.name
            assert result.shape == (3,), row.name


# -- floats ----------------------------------------------------------------------------------------

EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}


def floats_of(dtype: DType) -> st.SearchStrategy[float]:
    """Any bit pattern, and products and sums that come close to a tie."""
    size = dtype.bytes
    any_bits = st.integers(0, 2 ** (8 * size) - 1).map(
        lambda i: float(np.array(i, f"u{size}").view(semantics.numpy_dtype(dtype)))
    )
    special = st.sampled_from([float(v) for v in nasty(dtype)])
    return st.one_of(any_bits, special)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("fn", EXACT)
@settings(max_examples=60)
@given(data=st.data())
def test_float_arithmetic_is_rounded_once(fn: str, dtype: DType, data: st.DataObject) -> None:
    operands = [data.draw(floats_of(dtype)) for _ in range(SCALAR[fn].arity)]
    result = semantics.fold(fn, dtype, *operands)
    if all(map(math.isfinite, operands)) and not (fn == "div" and operands[1] == 0):
        expected = round_exact(Fraction(EXACT[fn](*map(Fraction, operands))), dtype)
        assert result == expected
    elif math.isnan(result):
        arrays = [np.array(o, semantics.numpy_dtype(dtype)) for o in operands]
        assert bits(semantics.apply(fn, dtype, *arrays), dtype) == QNAN[dtype.name]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_keeps_the_signs_of_zero_and_the_infinities(dtype: DType) -> None:
    fma = lambda *a: semantics.fold("fma", dtype, *a)  # noqa: E731
    assert math.copysign(1, fma(-0.0, 1.0, -0.0)) == -1
    assert math.copysign(1, fma(-0.0, 1.0, 0.0)) == 1
    assert math.copysign(1, fma(1.5, 2.0, -3.0)) == 1
    top = float(nasty(dtype)[12])
    assert fma(top, top, -math.inf) == -math.inf
    assert math.isnan(fma(math.inf, 0.0, 1.0))
    assert fma(top, 2.0, -top) == top, "the product alone overflows"


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_compiled_fma_equals_the_definition(dtype: DType) -> None:
    values = nasty(dtype)
    operands = [np.array(c) for c in zip(*itertools.product(values, repeat=3), strict=True)]
    rng = np.random.default_rng(0)
    keep = rng.integers(0, len(operands[0]), 2048) if dtype == F64 else np.arange(len(operands[0]))
    keep = keep[: len(keep) // 256 * 256]
    operands = [o[keep].reshape(-1, 8, 32) for o in operands]
    compiled = native.fma(dtype)
    assert_same(compiled(*operands), semantics.apply("fma", dtype, *operands), dtype)
    # Broadcast operands: along groups, warps, lanes, and a scalar first.
    parts = [operands[0][:1, :1, :1], *(o[:, :1] if i else o[:1] for i, o in enumerate(operands[1:]))]
    assert_same(compiled(*parts), semantics.apply("fma", dtype, *parts), dtype)
    parts[0] = operands[0][0, 0, 0]
    assert_same(compiled(*parts), semantics.apply("fma", dtype, *parts), dtype)


@settings(max_examples=300)
@given(st.tuples(*[floats_of(F32)] * 3))
def test_f32_fma_equals_exact_fractions(operands: tuple[float, float, float]) -> None:
    arrays = [np.full((1, 8, 32), o, np.float32) for o in operands]
    assert_same(semantics.apply("fma", F32, *arrays), native.fma(F32)(*arrays), F32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_min_max_prefer_numbers_and_order_zeros(dtype: DType) -> None:
    assert semantics.fold("min", dtype, math.nan, 2.0) == 2.0
    assert semantics.fold("max", dtype, 2.0, math.nan) == 2.0
    for a, b in ((0.0, -0.0), (-0.0, 0.0)):
        assert math.copysign(1, semantics.fold("min", dtype, a, b)) == -1
        assert math.copysign(1, semantics.fold("max", dtype, a, b)) == 1
    assert semantics.fold("min", dtype, -math.inf, 1.0) == -math.inf


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nans_are_canonical(dtype: DType) -> None:
    np_dtype = semantics.numpy_dtype(dtype)
    payload = np.array(QNAN[dtype.name] - 1 | 1 << (dtype.bits - 1), f"u{dtype.bytes}").view(np_dtype)
    for fn in ("add", "mul", "min", "neg", "abs", "fma"):
        result = semantics.apply(fn, dtype, *[payload] * SCALAR[fn].arity)
        assert bits(result, dtype) == QNAN[dtype.name], fn
    assert not semantics.fold("eq", dtype, math.nan, math.nan)
    assert semantics.fold("ne", dtype, math.nan, math.nan)


def test_roundings() -> None:
    assert [semantics.fold("rint", F32, x) for x in (0.5, 1.5, -2.5)] == [0.0, 2.0, -2.0]
    assert semantics.fold("floor", F64, -0.5) == -1.0
    assert math.copysign(1, semantics.fold("trunc", F32, -0.5)) == -1
    assert math.isnan(semantics.fold("sqrt", F32, -1.0))


# -- integers --------------------------------------------------------------------------------------


def wrap(value: int, dtype: DType) -> int:
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def shifted_left(a: int, b: int, t: DType) -> int:
    return 0 if b % (1 << t.bits) >= t.bits else a << b % (1 << t.bits)


def shifted_right(a: int, b: int, t: DType) -> int:
    return a >> min(b % (1 << t.bits), t.bits)


INTEGER = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul": lambda a, b, t: a * b,
    "floordiv": lambda a, b, t: a // b if b else 0,
    "ceildiv": lambda a, b, t: -(-a // b) if b else 0,
    "mod": lambda a, b, t: a % b if b else a,
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
    "and": lambda a, b, t: a & b,
    "or": lambda a, b, t: a | b,
    "xor": lambda a, b, t: a ^ b,
    "shl": shifted_left,
    "shr": shifted_right,
    "neg": lambda a, t: -a,
    "abs": lambda a, t: abs(a),
    "not": lambda a, t: ~a,
    "popc": lambda a, t: (a % (1 << t.bits)).bit_count(),
    "clz": lambda a, t: t.bits - (a % (1 << t.bits)).bit_length(),
}


@pytest.mark.parametrize("fn", INTEGER)
@settings(max_examples=80)
@given(data=st.data())
def test_integers_are_exact_and_wrap(fn: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([t for t in INTS if SCALAR[fn].accepts(t)]))
    low, high = wrap(1 << (dtype.bits - 1), dtype) if dtype.is_signed else 0, (1 << dtype.bits - dtype.is_signed) - 1
    edges = [low, high, 0, 1, max(low, -1), dtype.bits, dtype.bits - 1]
    number = st.one_of(st.integers(low, high), st.sampled_from(edges))
    operands = [data.draw(number) for _ in range(SCALAR[fn].arity)]
    assert semantics.fold(fn, dtype, *operands) == wrap(INTEGER[fn](*operands, dtype), dtype)


def test_bools() -> None:
    assert semantics.fold("and", BOOL, True, False) is False
    assert semantics.fold("not", BOOL, False) is True
    assert semantics.fold("xor", BOOL, True, True) is False


# -- casts -----------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(FLOATS))
def test_integers_become_floats_in_one_rounding(value: int, dtype: DType) -> None:
    assert semantics.fold_cast(value, I64, dtype) == round_exact(Fraction(value), dtype)
    assert semantics.fold_cast(abs(value), U64, dtype) == round_exact(Fraction(abs(value)), dtype)


def test_bf16_to_f32_moves_the_bits() -> None:
    """Of a NaN too, from which other conversions make the canonical one."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = codes.view(ml_dtypes.bfloat16)
    nan = codes & 0x7FFF > 0x7F80
    moved = codes.astype(np.uint32) << 16
    assert np.array_equal(semantics.cast(values, BF16, F32).view(np.uint32), moved)
    assert semantics.cast(values[0x7FFF], BF16, F32).view(np.uint32) == 0x7FFF0000
    assert np.array_equal(semantics.cast(values, BF16, TF32).view(np.uint32), moved)  # its low 16 bits are zero
    for dst in (F64, F16):
        nans = semantics.cast(values[nan], BF16, dst).view(f"u{dst.bytes}")
        assert set(nans.tolist()) == {QNAN[dst.name]}
    back = semantics.cast(semantics.cast(values, BF16, F32), F32, BF16).view(np.uint16)
    assert np.array_equal(back, np.where(nan, QNAN["bf16"], codes))


def test_a_tie_broken_by_the_last_bit_of_an_integer() -> None:
    assert semantics.fold_cast(2**62 + 2**54 + 1, I64, BF16) == 2.0**62 + 2.0**55
    assert semantics.fold_cast(2**62 + 2**54, I64, BF16) == 2.0**62


@settings(max_examples=200)
@given(st.sampled_from(FLOATS), st.sampled_from(FLOATS), st.data())
def test_floats_become_floats_in_one_rounding(src: DType, dst: DType, data: st.DataObject) -> None:
    value = data.draw(floats_of(src))
    result = semantics.fold_cast(value, src, dst)
    if math.isfinite(value):
        assert result == round_exact(Fraction(value), dst)
        assert math.copysign(1, result) == math.copysign(1, value)
    else:
        assert result == value or (math.isnan(result) and math.isnan(value))


def test_f64_to_narrow_is_not_rounded_twice() -> None:
    above_tie = 1 + 2.0**-8 + 2.0**-40
    assert semantics.fold_cast(above_tie, F64, BF16) == 1 + 2.0**-7
    assert semantics.fold_cast(1 + 2.0**-11 + 2.0**-40, F64, F16) == 1 + 2.0**-10


@settings(max_examples=200)
@given(st.sampled_from(FLOATS), st.sampled_from(INTS), st.data())
def test_floats_become_integers_truncated_and_saturated(src: DType, dst: DType, data: st.DataObject) -> None:
    value = data.draw(floats_of(src))
    limits = np.iinfo(semantics.numpy_dtype(dst))
    if math.isnan(value):
        expected = 0
    elif math.isinf(value):
        expected = int(limits.max if value > 0 else limits.min)
    else:
        expected = min(max(math.trunc(Fraction(value)), int(limits.min)), int(limits.max))
    assert semantics.fold_cast(value, src, dst) == expected


def test_other_casts() -> None:
    assert semantics.fold_cast(-1, I32, U8) == 255
    assert semantics.fold_cast(200, U8, I8) == -56
    assert semantics.fold_cast(255, U8, I64) == 255
    assert semantics.fold_cast(-1, I8, U32) == 2**32 - 1
    assert semantics.fold_cast(math.nan, F32, BOOL) is True
    assert semantics.fold_cast(-0.0, F32, BOOL) is False
    assert semantics.fold_cast(True, BOOL, F16) == 1.0
    assert semantics.fold_cast(7, INDEX, I32) == 7


def test_bitcasts() -> None:
    assert semantics.fold_bitcast(1.0, F32, U32) == 0x3F800000
    assert semantics.fold_bitcast(0x3F80, DTYPES["u16"], BF16) == 1.0
    assert semantics.fold_bitcast(math.nan, F32, U32) == 0x7FFFFFFF
    assert semantics.bitcast(np.zeros((2, 3), ml_dtypes.bfloat16), BF16, F16).shape == (2, 3)

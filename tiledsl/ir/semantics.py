"""The exact value of every row of the scalar table, of casts and of bit casts, on NumPy arrays.

This is the definition that the folder, the emulator and the PTX rules share; it is written to be
read, not to be fast (the emulator puts compiled loops in the place of some rows and a test holds the
two equal). Arrays broadcast; an `index` is an int64. Arithmetic on f16 and bf16 is done in a wider
format from which rounding again is innocuous: f32 for f16 (24 >= 2 * 11 + 2 bits), f64 for bf16, whose
subnormals are too small for f32. Where that is not enough the wide result is rounded to odd first
(Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any, Callable
from typing import cast as type_cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.ir.formats import FORMATS
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import BF16, F16, F32, F64, TF32, DType

Array = NDArray[Any]
Function = Callable[..., Array]

_NUMPY: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bool": np.dtype(np.bool_),
    "index": np.dtype(np.int64),
    **{f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}") for sign in "iu" for bits in (8, 16, 32, 64)},
}
_CANONICAL = {name: np.array(f.nan, f"u{_NUMPY[name].itemsize}").view(_NUMPY[name]) for name, f in FORMATS.items()}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that holds values of `dtype`."""
    return _NUMPY[dtype.name]


def apply(fn: str, dtype: DType, *arrays: Any) -> Array:
    """Row `fn` of the scalar table on operands of `dtype`, element by element."""
    with np.errstate(all="ignore"):
        return function(fn, dtype)(*arrays)


def cast(array: Any, src: DType, dst: DType) -> Array:
    """The meaning of `arith.cast`: see its docstring for rounding, saturation and NaN."""
    with np.errstate(all="ignore"):
        return _cast(np.asarray(array), src, dst)


def bitcast(array: Any, src: DType, dst: DType) -> Array:
    """The same bits as another dtype of the same width."""
    assert src.bits == dst.bits, f"{src} and {dst} differ in width"
    return np.ascontiguousarray(array).view(numpy_dtype(dst)).reshape(np.shape(array))


def fold(fn: str, dtype: DType, *values: Any) -> Any:
    """Row `fn` on Python numbers: a Python int, float or bool."""
    operands = [np.array(v, numpy_dtype(dtype)) for v in values]
    return _python(apply(fn, dtype, *operands))


def fold_cast(value: Any, src: DType, dst: DType) -> Any:
    """`cast` of one Python number."""
    return _python(cast(np.array(value, numpy_dtype(src)), src, dst))


def fold_bitcast(value: Any, src: DType, dst: DType) -> Any:
    """`bitcast` of one Python number; a NaN stands for the canonical one."""
    return _python(bitcast(canonical(np.array(value, numpy_dtype(src)), src), src, dst))


def canonical(array: Any, dtype: DType) -> Array:
    """The array with every NaN replaced by the canonical one."""
    nan = np.isnan(array)
    return np.where(nan, _CANONICAL[dtype.name], array) if nan.any() else array


def _python(array: Array) -> Any:
    value = np.asarray(array)
    return value.item() if value.dtype.isbuiltin == 1 else float(value)


# -- dispatch --------------------------------------------------------------------------------------


@cache
def function(fn: str, dtype: DType) -> Function:
    """Row `fn` for one dtype as a function of arrays. NumPy's warnings are the caller's to silence."""
    assert SCALAR[fn].accepts(dtype), f"{fn} is not defined for {dtype}"
    if not dtype.is_float:
        return _INTEGER[fn]  # on NumPy's bools, bitwise functions are the logical ones
    if fn in _COMPARE:
        return _COMPARE[fn]
    exact = _FMA[dtype.name] if fn == "fma" else _ON_FLOATS.get(fn)
    if exact is not None:
        return lambda *a: canonical(exact(*a), dtype)
    if fn in _APPROXIMATE:
        approximate = _APPROXIMATE[fn]
        return lambda *a: canonical(approximate(np.asarray(a[0], np.float64)).astype(np.float32), dtype)
    return _arithmetic(_IEEE[fn], dtype)


def _arithmetic(ieee: Function, dtype: DType) -> Function:
    if dtype == F16:
        return lambda *a: canonical(ieee(*(np.asarray(x, np.float32) for x in a)).astype(np.float16), F16)
    if dtype == BF16:
        return lambda *a: canonical(_narrow(ieee(*(np.asarray(x, np.float64) for x in a)), BF16), BF16)
    return lambda *a: canonical(ieee(*a), dtype)


_IEEE: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "sqrt": np.sqrt,
}
_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _rsqrt(a: Array) -> Array:
    return np.reciprocal(np.sqrt(a))


def _exp2_flushed(a: Any) -> Array:
    """What is below the smallest normal f32 is 0."""
    result = np.exp2(a)
    return np.where(result < 2.0**-126, 0, result)


# Evaluated in f64 and rounded to f32: closer to the true value than the hardware's approximation.
_APPROXIMATE: dict[str, Function] = {
    "rcp_approx": np.reciprocal,
    "rsqrt_approx": _rsqrt,
    "exp2_approx": _exp2_flushed,
    "log2_approx": np.log2,
    "tanh_approx": np.tanh,
    "sin_approx": np.sin,
    "cos_approx": np.cos,
}


# -- floats ----------------------------------------------------------------------------------------


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def _float_extremum(pick: Function, merge_zeros: Function) -> Function:
    """The other operand of a NaN; among equals, which differ only as -0 and +0, `merge_zeros` of the bits."""

    def extremum(a: Any, b: Any) -> Array:
        best = type_cast(Array, np.where(np.isnan(a) | (pick(b, a) & ~np.isnan(b)), b, a))
        ties = merge_zeros(_bits(a), _bits(b)).view(a.dtype)
        return np.where(a == b, ties, best)

    return extremum


def _sign_bit(array: Array) -> Array:
    return np.array(1 << (array.dtype.itemsize * 8 - 1), f"u{array.dtype.itemsize}")


def _float_neg(a: Any) -> Array:
    return (_bits(a) ^ _sign_bit(a)).view(a.dtype)


def _float_abs(a: Any) -> Array:
    return (_bits(a) & ~_sign_bit(a)).view(a.dtype)


_ON_FLOATS: dict[str, Function] = {
    "min": _float_extremum(np.less, np.bitwise_or),
    "max": _float_extremum(np.greater, np.bitwise_and),
    "neg": _float_neg,
    "abs": _float_abs,
}


def _to_odd(rounded: Array, error: Array) -> Array:
    """What rounding to odd would have given, from the nearest float and the sign of what it lost."""
    bits = _bits(rounded)
    away = (error > 0) != np.signbit(rounded)
    step = np.where(away, np.array(1, bits.dtype), np.array(-1, np.int64).astype(bits.dtype))
    inexact = np.isfinite(rounded) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + step, bits).view(rounded.dtype)


def _narrow(wide: Any, dtype: DType) -> Array:
    """Round an f64 array to f32, f16 or bf16 once, to nearest even."""
    wide = np.asarray(wide, np.float64)
    if dtype == F32:
        return wide.astype(np.float32)
    return _single_to_odd(wide).astype(numpy_dtype(dtype))


def _single_to_odd(wide: Array) -> Array:
    """An f64 array as f32, rounded to odd: rounding that again to 22 bits or fewer is rounding once."""
    single = wide.astype(np.float32)
    return _to_odd(single, wide - single)


def _fma_in_f64(a: Any, b: Any, c: Any) -> Array:
    """``a * b + c`` rounded to odd in f64. Exact products: the operands have 24 bits or fewer."""
    a, b, c = (np.asarray(x).astype(np.float64) for x in (a, b, c))
    product = np.asarray(a * b)
    total = np.asarray(product + c)
    part = total - product
    error = (product - (total - part)) + (c - part)
    return _to_odd(total, np.asarray(error))


def _fma_f64_one(a: float, b: float, c: float) -> float:
    plain = a * b + c
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        # An infinite c decides even where a * b overflows in f64, which it does not in an fma.
        return c if np.isfinite(a) and np.isfinite(b) else plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        # Only a product that is zero itself may leave the sign to the sum of two zeros.
        return plain if a == 0 or b == 0 else 0.0
    try:
        return float(exact) or (-0.0 if exact < 0 else 0.0)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


_fma_f64 = type_cast(Function, np.frompyfunc(_fma_f64_one, 3, 1))

_FMA: dict[str, Function] = {
    "f64": lambda *a: np.asarray(_fma_f64(*(np.asarray(x) for x in a)), np.float64),
    "f32": lambda *a: _fma_in_f64(*a).astype(np.float32),
    "f16": lambda *a: _narrow(_fma_in_f64(*a), F16),
    "bf16": lambda *a: _narrow(_fma_in_f64(*a), BF16),
}


# -- integers and bools ----------------------------------------------------------------------------


def _int_floordiv(a: Any, b: Any) -> Array:
    by_minus_one = (b == -1) if b.dtype.kind == "i" else np.zeros(b.shape, bool)
    quotient = np.floor_divide(a, np.where((b == 0) | by_minus_one, np.array(1, b.dtype), b))
    return np.where(b == 0, np.array(0, a.dtype), np.where(by_minus_one, np.negative(a), quotient))


def _int_ceildiv(a: Any, b: Any) -> Array:
    inexact = (_int_mod(a, b) != 0) & (b != 0)
    return np.add(_int_floordiv(a, b), inexact.astype(a.dtype))


def _int_mod(a: Any, b: Any) -> Array:
    return np.subtract(a, np.multiply(_int_floordiv(a, b), b))


def _shift(a: Any, b: Any) -> tuple[Array, Array, Array]:
    """The operand, the amount clipped to what NumPy defines, and where the amount is in range."""
    amount = b.view(f"u{b.dtype.itemsize}")
    last = a.dtype.itemsize * 8 - 1
    return a, np.minimum(amount, np.array(last, amount.dtype)).astype(a.dtype), amount <= last


def _shl(a: Any, b: Any) -> Array:
    a, amount, fits = _shift(a, b)
    return np.where(fits, np.left_shift(a, amount), np.array(0, a.dtype))


def _shr(a: Any, b: Any) -> Array:
    a, amount, fits = _shift(a, b)
    shifted = np.right_shift(a, amount)
    # A signed shift by width - 1 already is the sign.
    return shifted if a.dtype.kind == "i" else np.where(fits, shifted, np.array(0, a.dtype))


def _popc(a: Any) -> Array:
    return np.bitwise_count(_bits(a)).astype(a.dtype)


def _clz(a: Any) -> Array:
    bits = _bits(a)
    width = a.dtype.itemsize * 8
    shift = 1
    while shift < width:
        bits = bits | (bits >> np.array(shift, bits.dtype))
        shift *= 2
    return (width - np.bitwise_count(bits)).astype(a.dtype)


def _int_abs(a: Any) -> Array:
    return type_cast(Array, np.abs(a)) if a.dtype.kind == "i" else a


_INTEGER: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": _int_floordiv,
    "ceildiv": _int_ceildiv,
    "mod": _int_mod,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": _int_abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shl,
    "shr": _shr,
    "popc": _popc,
    "clz": _clz,
    **_COMPARE,
}


# -- casts -----------------------------------------------------------------------------------------


def _cast(array: Array, src: DType, dst: DType) -> Array:
    if src == dst:
        return array
    if src.is_matrix:
        return _cast(array if src == TF32 else canonical(array.astype(np.float32), F32), F32, dst)
    if dst.is_matrix:
        return _to_matrix(array, src, dst)
    if dst.kind == "bool":
        return array != 0
    if (src, dst) == (BF16, F32):
        return _upper_half(array)
    if dst.is_float:
        wide = array if src.is_float else _int_to_float(array, src, dst)
        if wide.dtype == np.float64 and dst != F64:
            return canonical(_narrow(wide, dst), dst)
        # f32 holds both narrow formats.
        single = wide if dst == F64 else wide.astype(np.float32)
        return canonical(single.astype(numpy_dtype(dst)), dst)
    if src.is_float:
        return _float_to_int(array.astype(np.float64), dst)
    return array.astype(numpy_dtype(dst))


def _to_matrix(array: Array, src: DType, dst: DType) -> Array:
    """A float array in a format of matrix operands, rounded once; by way of f32."""
    single = canonical(_single_to_odd(array), F32) if src == F64 else _cast(array, src, F32)
    if dst == TF32:
        bits = _bits(single)
        rounded = np.where(np.isfinite(single), bits + np.uint32(0x1000), bits)
        return np.bitwise_and(rounded, np.uint32(0xFFFFE000)).view(np.float32)
    limit = np.float32(FORMATS[dst.name].largest)
    return canonical(np.clip(single, -limit, limit).astype(numpy_dtype(dst)), dst)


def _upper_half(array: Array) -> Array:
    """The f32 whose upper 16 bits are a bf16, which is its value; a move, so that a NaN keeps its payload."""
    return np.asarray(_bits(array).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _int_to_float(array: Array, src: DType, dst: DType) -> Array:
    """A float that rounds to `dst` as the integer itself does: f64, or f32 where that is the target."""
    if dst in (F32, F64):
        return array.astype(numpy_dtype(dst))
    if src.bits < 64:
        return array.astype(np.float64)
    negative = array < 0
    magnitude = np.where(negative, np.negative(array), array).astype(np.uint64)
    # More than 53 bits: keep the upper 52 and a sticky bit, which f64 holds and 11 or 8 bits never see.
    sticky = ((magnitude >> np.uint64(12)) | ((magnitude & np.uint64(0xFFF)) != 0).astype(np.uint64)) << np.uint64(12)
    exact = np.where(magnitude >> np.uint64(53) != 0, sticky, magnitude).astype(np.float64)
    return np.where(negative, -exact, exact)


def _float_to_int(array: Array, dst: DType) -> Array:
    """Towards zero, saturated, NaN to 0."""
    to = numpy_dtype(dst)
    limits = np.iinfo(to)
    low, high = float(limits.min), float(limits.max + 1)  # both exact in f64, unlike the largest 64-bit integer
    whole = np.trunc(array)
    inside = (whole >= low) & (whole < high)
    value = np.where(inside, whole, 0.0).astype(to)
    value = np.where(whole >= high, np.array(limits.max, to), value)
    return np.where(whole < low, np.array(limits.min, to), value)

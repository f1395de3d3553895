"""What every scalar row and every cast gives, from exact fractions and Python integers, bits to bits.

Shares nothing with `tiledsl.ir.semantics`: it is the second opinion that the filetests' expected
results are written from (the third is an H200). A float is (sign, magnitude): the magnitude is a
Fraction, `INF` or `NAN`. A tf32 is read as an f32; some conversions also act on the bits of NaNs (`_NAN_MOVES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from tiledsl.ir.types import DType

__all__ = ["FORMATS", "Format", "approximate", "cast_bits", "row_bits"]


@dataclass(frozen=True)
class Format:
    """IEEE 754 binary interchange format: exponent and fraction bits.

    infinite: False where the codes of infinity and NaN are numbers, but for the one with all bits set, which is NaN.
    saturates: rounding gives the largest number instead of infinity. away: rounding takes ties away from zero.
    """

    exponent: int
    fraction: int
    infinite: bool = True
    saturates: bool = False
    away: bool = False

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def least(self) -> int:
        """The exponent of subnormals."""
        return 1 - self.bias

    @property
    def largest(self) -> int:
        """The code of the largest number."""
        ones = (1 << (self.bits - 1)) - 1
        return ones - (1 << self.fraction if self.infinite else 1)

    def nearest(self, steps: Fraction) -> int:
        return math.floor(steps + Fraction(1, 2)) if self.away else round(steps)  # Python rounds halves to even


FORMATS = {
    "f64": Format(11, 52),
    "f32": Format(8, 23),
    "f16": Format(5, 10),
    "bf16": Format(8, 7),
    "tf32": Format(8, 10, away=True),
    "e4m3": Format(4, 3, infinite=False, saturates=True),
    "e5m2": Format(5, 2, saturates=True),
}
_TF32_LOW = 13
"""Bits of a tf32 below its fraction."""


@dataclass(frozen=True)
class _Float:
    """`magnitude`: a Fraction, or "inf" or "nan"."""

    negative: bool
    magnitude: Fraction | str

    @property
    def nan(self) -> bool:
        return self.magnitude == "nan"

    @property
    def inf(self) -> bool:
        return self.magnitude == "inf"

    @property
    def exact(self) -> Fraction:
        assert isinstance(self.magnitude, Fraction)
        return -self.magnitude if self.negative else self.magnitude


_NAN = _Float(False, "nan")


@cache
def _decode(bits: int, dtype: DType) -> _Float:
    form = FORMATS["f32" if dtype.name == "tf32" else dtype.name]
    negative = bool(bits >> (form.bits - 1))
    exponent = bits >> form.fraction & ((1 << form.exponent) - 1)
    fraction = bits & ((1 << form.fraction) - 1)
    if form.infinite and exponent == (1 << form.exponent) - 1:
        return _Float(negative, "nan" if fraction else "inf")
    if bits & ((1 << (form.bits - 1)) - 1) > form.largest:
        return _Float(negative, "nan")
    scale = Fraction(2) ** (max(exponent, 1) - form.bias - form.fraction)
    return _Float(negative, (fraction + (bool(exponent) << form.fraction)) * scale)


def _encode(value: _Float, dtype: DType) -> int:
    """Round to nearest."""
    form = FORMATS[dtype.name]
    if dtype.name == "tf32":
        return _round(value, form) << _TF32_LOW
    return _round(value, form)


def _round(value: _Float, form: Format) -> int:
    infinity = form.largest if form.saturates else ((1 << form.exponent) - 1) << form.fraction
    if value.nan:
        return (1 << (form.bits - 1)) - 1
    sign = value.negative << (form.bits - 1)
    if value.inf or value.magnitude == 0:
        return sign | (infinity if value.inf else 0)
    magnitude = abs(value.exact)
    top = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    top -= magnitude < Fraction(2) ** top
    unit = max(top, 1 - form.bias) - form.fraction
    steps = form.nearest(magnitude / Fraction(2) ** unit)
    # A carry out of the fraction moves into the exponent by itself.
    biased = unit + form.fraction + form.bias
    code = steps if steps < 1 << form.fraction and biased == 1 else ((biased - 1) << form.fraction) + steps
    return sign | min(code, infinity)


def _sum(a: _Float, b: _Float) -> _Float:
    if a.nan or b.nan or (a.inf and b.inf and a.negative != b.negative):
        return _NAN
    if a.inf or b.inf:
        return a if a.inf else b
    total = a.exact + b.exact
    return _Float(total < 0 if total else a.negative and b.negative, abs(total))


def _product(a: _Float, b: _Float) -> _Float:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.inf and b.magnitude == 0) or (b.inf and a.magnitude == 0):
        return _NAN
    if a.inf or b.inf:
        return _Float(negative, "inf")
    return _Float(negative, abs(a.exact * b.exact))


def _quotient(a: _Float, b: _Float) -> _Float:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.inf and b.inf) or (a.magnitude == 0 and b.magnitude == 0):
        return _NAN
    if a.inf or b.magnitude == 0:
        return _Float(negative, "inf")
    return _Float(negative, Fraction(0) if b.inf else abs(a.exact / b.exact))


def _negated(a: _Float) -> _Float:
    return _Float(not a.negative, a.magnitude)


def _key(a: _Float) -> tuple[float, Fraction, bool]:
    """Total order of all but NaN; -0 below +0."""
    if a.inf:
        return (-math.inf if a.negative else math.inf), Fraction(0), False
    return 0.0, a.exact, not a.negative


def _extremum(pick: Callable[..., _Float]) -> Callable[[_Float, _Float], _Float]:
    return lambda a, b: b if a.nan else a if b.nan else pick(a, b, key=_key)


def _root(a: _Float) -> _Float:
    """Square root, to far more bits than any format has, the last one sticky."""
    if a.nan or (a.negative and a.magnitude != 0):
        return _NAN
    if a.inf or a.magnitude == 0:
        return a
    scale = 4**1200
    scaled = a.exact * scale
    whole = math.isqrt(math.floor(scaled))
    inexact = whole * whole != scaled
    return _Float(False, (whole + Fraction(inexact, 2)) / 2**1200)


def _integral(rounding: Callable[[Fraction], int]) -> Callable[[_Float], _Float]:
    return lambda a: a if a.nan or a.inf else _Float(a.negative, Fraction(abs(rounding(a.exact))))


_FLOAT_ROWS: dict[str, Callable[..., _Float]] = {
    "add": _sum,
    "sub": lambda a, b: _sum(a, _negated(b)),
    "mul": _product,
    "div": _quotient,
    "fma": lambda a, b, c: _sum(_product(a, b), c),
    "min": _extremum(min),
    "max": _extremum(max),
    "neg": _negated,
    "abs": lambda a: _Float(False, a.magnitude),
    "sqrt": _root,
    "floor": _integral(math.floor),
    "ceil": _integral(math.ceil),
    "trunc": _integral(math.trunc),
    "rint": _integral(round),
}


def _order(a: _Float, b: _Float) -> int | None:
    """-1, 0 or 1; None with a NaN."""
    if a.nan or b.nan:
        return None
    x, y = _key(a)[:2], _key(b)[:2]
    return (x > y) - (x < y)


_COMPARE: dict[str, Callable[[int | None], bool]] = {
    "eq": lambda o: o == 0,
    "ne": lambda o: o != 0,
    "lt": lambda o: o == -1,
    "le": lambda o: o in (-1, 0),
    "gt": lambda o: o == 1,
    "ge": lambda o: o in (0, 1),
}


def _number(bits: int, dtype: DType) -> int:
    negative = dtype.kind == "int" and bits >> (dtype.bits - 1)
    return bits - (1 << dtype.bits) if negative else bits


_INTEGER_ROWS: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "ceildiv": lambda a, b: -(-a // b) if b else 0,
    "mod": lambda a, b: a % b if b else a,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "abs": abs,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
}


def _integer_row(row: str, dtype: DType, bits: tuple[int, ...]) -> int:
    modulus = 1 << dtype.bits
    numbers = [_number(b, dtype) for b in bits]
    match row:
        case "shl":
            return bits[0] << bits[1] & (modulus - 1) if bits[1] < dtype.bits else 0
        case "shr":
            return (numbers[0] >> min(bits[1], dtype.bits)) % modulus
        case "popc":
            return bits[0].bit_count()
        case "clz":
            return dtype.bits - bits[0].bit_length()
        case _:
            return _INTEGER_ROWS[row](*numbers) % modulus


def row_bits(row: str, dtype: DType, bits: tuple[int, ...]) -> int:
    """The bits of `row` on operands with these bits; for a comparison 0 or 1."""
    if row in _COMPARE:
        if dtype.is_float:
            order = _order(*(_decode(b, dtype) for b in bits))
        else:
            a, b = (_number(x, dtype) for x in bits)
            order = (a > b) - (a < b)
        return int(_COMPARE[row](order))
    if dtype.is_float:
        return _encode(_FLOAT_ROWS[row](*(_decode(b, dtype) for b in bits)), dtype)
    if dtype.kind == "bool":
        return {"and": min, "or": max, "xor": lambda a, b: a ^ b, "not": lambda a: 1 - a}[row](*bits)
    return _integer_row(row, dtype, bits)


_NAN_MOVES: dict[tuple[str, str], Callable[[int], int]] = {
    ("bf16", "f32"): lambda bits: bits << 16,
    ("bf16", "tf32"): lambda bits: bits << 16,
    ("f32", "tf32"): lambda bits: bits >> _TF32_LOW << _TF32_LOW,
}
"""Casts that keep bits of a NaN; every other one makes the canonical NaN. (From tf32 to f32 all bits are kept.)"""


def cast_bits(bits: int, src: DType, dst: DType) -> int:
    """The bits of the cast of a value with these bits."""
    if src.python is float:
        value = _decode(bits, src)
        if value.nan and (src.name, dst.name) in _NAN_MOVES:
            return _NAN_MOVES[src.name, dst.name](bits)
        if (src.name, dst.name) == ("tf32", "f32"):
            return bits
        if dst.python is float:
            return _encode(value, dst)
        if dst.kind == "bool":
            return int(value.magnitude != 0)
        return _saturated(value, dst)
    number = _number(bits, src)
    if dst.kind == "bool":
        return int(number != 0)
    if dst.python is float:
        return _encode(_Float(number < 0, Fraction(abs(number))), dst)
    return number % (1 << dst.bits)


def _saturated(value: _Float, dst: DType) -> int:
    low = -(1 << (dst.bits - 1)) if dst.kind == "int" else 0
    high = (1 << (dst.bits - (dst.kind == "int"))) - 1
    if value.nan:
        return 0
    if value.inf:
        return (low if value.negative else high) % (1 << dst.bits)
    return max(low, min(high, math.trunc(value.exact))) % (1 << dst.bits)


def approximate(row: str, value: float) -> float:
    """The true value of an approximate row, in float64."""
    with np.errstate(all="ignore"):
        x = np.float64(value)
        return float(
            {
                "rcp_approx": lambda: 1 / x,
                "rsqrt_approx": lambda: 1 / np.sqrt(x),
                "exp2_approx": lambda: np.where(np.exp2(x) < 2.0**-126, 0.0, np.exp2(x)),
                "log2_approx": lambda: np.log2(x),
                "tanh_approx": lambda: np.tanh(x),
                "sin_approx": lambda: np.sin(x),
                "cos_approx": lambda: np.cos(x),
            }[row]()
        )

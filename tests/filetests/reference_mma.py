"""What one ``mma.sync``, or ``wgmma``, gives, from exact fractions, bits to bits, one element of the result at a time.

Shares nothing with `tiledsl.ir.tensor_core`, which is tested against it; its docstring says which rules are measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

from tests.filetests.reference import FORMATS, row_bits
from tiledsl.ir.types import DTYPES, F32, F64
from tiledsl.layout.mma import MmaRow
from tiledsl.layout.wgmma import WgmmaRow

__all__ = ["dot_bits", "wgmma_bits"]

Special = Literal["nan", "inf"]


@dataclass(frozen=True)
class _Number:
    """`exponent` is that of the format, of a zero None. `special`: a NaN, or an infinity with the sign of `value`."""

    value: Fraction
    exponent: int | None
    special: Special | None = None


@cache
def _decode(bits: int, dtype: str, least: int | None = None) -> _Number:
    """`least`: the exponent of subnormals, if the number is looked at as one of another format."""
    form = FORMATS[dtype]
    if dtype == "tf32":
        bits >>= 13  # the instruction ignores the others
    sign = -1 if bits >> (form.exponent + form.fraction) else 1
    exponent, fraction = bits >> form.fraction & ((1 << form.exponent) - 1), bits & ((1 << form.fraction) - 1)
    top = exponent == (1 << form.exponent) - 1
    if not form.infinite and top and fraction == (1 << form.fraction) - 1:
        return _Number(Fraction(0), None, "nan")
    if form.infinite and top:
        return _Number(Fraction(sign), None, "nan" if fraction else "inf")
    whole = fraction + (1 << form.fraction if exponent else 0)
    value = Fraction(whole) * Fraction(2) ** (max(exponent, 1) - form.bias - form.fraction)
    if value == 0:
        return _Number(value, None)
    return _Number(sign * value, max(_log2(value), form.least if least is None else least))


def _log2(value: Fraction) -> int:
    """floor(log2 value) of a positive number."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def _encode(value: Fraction, dtype: str) -> int:
    """f32: truncated; 2^128 and more are infinite. f16: rounded to nearest even. What becomes zero is +0."""
    form = FORMATS[dtype]
    infinity = ((1 << form.exponent) - 1) << form.fraction
    sign = (value < 0) << (form.exponent + form.fraction)
    if value == 0:
        return 0
    magnitude = abs(value)
    exponent = max(_log2(magnitude), form.least)
    steps = magnitude / Fraction(2) ** (exponent - form.fraction)
    whole = math.floor(steps) if dtype == "f32" else round(steps)
    code = whole + ((exponent - form.least) << form.fraction)
    if code == 0:
        return 0
    return sign | min(code, infinity)


_NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
_INFINITY = {"f32": 0x7F800000, "f16": 0x7C00}


def _special(a: list[_Number], b: list[_Number], c: _Number, acc: str) -> int | None:
    """Bits of the result if it is no finite number because of an operand."""
    infinite = [c.value > 0] if c.special == "inf" else []
    if any(x.special == "nan" for x in (*a, *b, c)):
        return _NAN[acc]
    for x, y in zip(a, b, strict=True):
        if "inf" in (x.special, y.special):
            if x.value == 0 or y.value == 0:
                return _NAN[acc]
            infinite.append(x.value * y.value > 0)
    if not infinite:
        return None
    if len(set(infinite)) == 2:
        return _NAN[acc]
    sign = 0 if infinite[0] else 1 << (DTYPES[acc].bits - 1)
    return sign | _INFINITY[acc]


def _step(a: list[_Number], b: list[_Number], c: int, acc: str, below: int = 25, kept: int = 0) -> int:
    """A step of the products of floats that `tiledsl.ir.tensor_core` describes. below: bits of a term that count below
    the largest exponent. kept: leading bits of the sum; 0: as many as the accumulator has."""
    sum_ = _decode(c, acc)
    special = _special(a, b, sum_, acc)
    if special is not None:
        return special
    terms = [(sum_.value, sum_.exponent)]
    for x, y in zip(a, b, strict=True):
        exponent = None if x.exponent is None or y.exponent is None else x.exponent + y.exponent
        terms.append((x.value * y.value, exponent))
    largest = max([-133, *(e for _, e in terms if e is not None)])
    unit = Fraction(2) ** (largest - below)
    total = sum(math.trunc(value / unit) for value, _ in terms)
    if kept:
        dropped = max(abs(total).bit_length() - kept, 0)
        total = (abs(total) >> dropped << dropped) * (1 if total >= 0 else -1)
    return _encode(total * unit, acc)


def dot_bits(row: MmaRow, a: list[int], b: list[int], c: int) -> int:
    """One element of D from a row of A, a column of B and an element of C, all as bits."""
    if row.a == "f64":
        for x, y in zip(a, b, strict=True):
            c = row_bits("fma", F64, (x, y, c))
        return c
    if DTYPES[row.a].is_integer:
        total = _signed(c, "i32") + sum(_signed(x, row.a) * _signed(y, row.b) for x, y in zip(a, b, strict=True))
        return total % (1 << 32)
    if row.a in ("e4m3", "e5m2"):
        left, right = [_decode(x, row.a, -14) for x in a], [_decode(y, row.b, -14) for y in b]
        total = 0
        for chosen in ((0, 1), (2, 3)):
            of = [k for k in range(len(a)) if k % 4 in chosen]
            total = _step([left[k] for k in of], [right[k] for k in of], total, "f32")
        return row_bits("add", F32, (total, c))
    return _step([_decode(x, row.a) for x in a], [_decode(y, row.b) for y in b], c, row.acc)


def wgmma_bits(row: WgmmaRow, a: list[int], b: list[int], c: int) -> int:
    """The same of one instruction of a warpgroup. 8-bit floats are one step here: 13 bits below, 14 kept."""
    if DTYPES[row.a].is_integer:
        total = _signed(c, "i32") + sum(_signed(x, row.a) * _signed(y, row.b) for x, y in zip(a, b, strict=True))
        return total % (1 << 32)
    left, right = [_decode(x, row.a) for x in a], [_decode(y, row.b) for y in b]
    return _step(left, right, c, row.acc, *((13, 14) if row.bits == 8 else ()))


def _signed(bits: int, dtype: str) -> int:
    type_ = DTYPES[dtype]
    return bits - (1 << type_.bits) if type_.kind == "int" and bits >> (type_.bits - 1) else bits

"""What tensor cores compute, bit for bit: the one definition of ``mma.sync`` and ``wgmma`` that the emulator runs.

A product of floats runs in steps of at most `Dot.products` products along k, which chain through c in k order. In one
step every exact product has the exponent e_a + e_b, the sum of its operands' (it is not renormalised; a subnormal has
its format's least exponent), and c its own. E is the largest exponent of the terms that are not zero, at least -133.
Every term is truncated towards zero to a multiple of 2^(E - Dot.bits), the truncated terms are added exactly, and the
sum is truncated to an f32, or rounded once to an f16, to nearest even. Besides:

- m16n8k8 of 16-bit and m16n8k4 of tf32 operands are one step of as many products.
- tf32 operands lose their low 13 bits, without rounding: a NaN that has its payload there alone is an infinity.
- fp8 on an H200 becomes two products of f16 and an addition: first those k with k % 4 < 2 from c = 0, then the others
  on that, then c is added, rounded to nearest. Other architectures have products of fp8 and compute otherwise.
- f64 is a chain of fused multiply-adds in k order.
- A NaN, a product of infinity and zero, and infinities of both signs give the canonical NaN; otherwise an infinity
  gives itself. A sum of 2^128 and more (f16: what rounds to 2^16) is an infinity. A sum of zero is +0, and so is one
  that becomes zero in the format of the result.
- integers are exact; sums in i32 wrap around.

All of this is measured on an H200, for every product of `layout.mma` (`python -m benchmarks.tensor_core_probe`). Not
measured are the NaNs of f64, which `nan_bits.py` makes canonical where their bits can be seen.

Other architectures have other rules: an A100 takes 8 products of 16 bits (4 of tf32) a step and keeps 24 bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir import semantics
from tiledsl.ir.formats import FORMATS
from tiledsl.ir.types import DTYPES, F16, F32, F64, TF32, DType
from tiledsl.layout.mma import MmaRow
from tiledsl.layout.wgmma import WgmmaRow

Array = NDArray[Any]
Fma = Callable[[Array, Array, Array], Array]
Terms = Sequence[Array]
Formats = tuple[str, str, str]
Add = Callable[[int, Terms, Formats], Array]

LEAST_EXPONENT = -133
"""The sum's exponent E is never below it."""

ZERO = np.int16(-10000)
"""Exponent of a zero: below all others, also when two are added."""

CHUNK = 96
"""Products of this many warps are computed at once, so that the arrays of a step stay in a core's cache."""

RESULTS = 1 << 14
"""The same for wgmma: elements of the result."""


@dataclass(frozen=True, slots=True)
class Dot:
    """How floats of one format are multiplied. products: most of one step. bits: kept below the largest exponent.
    kept: significant bits of the sum; 0: those of the accumulators."""

    products: int
    bits: int
    kept: int = 0


DOTS: dict[str, Dot] = {"f16": Dot(16, 25), "bf16": Dot(16, 25), "tf32": Dot(8, 25)}
"""By the dtype of the operands."""

_WGMMA_FP8 = Dot(32, 13, 14)


def _fma(a: Array, b: Array, c: Array) -> Array:
    return semantics.apply("fma", F64, a, b, c)


def mma(row: MmaRow, a: Any, b: Any, c: Any, fma: Fma = _fma) -> Array:
    """``a b + c`` of one instruction, for arrays [..., m, k], [..., k, n] and [..., m, n] of the row's dtypes.

    The leading axes broadcast: each of their places is a warp. `fma`: a faster stand-in for the f64 of `semantics`.
    """
    shape = row.shape
    a, b, c = (np.asarray(x) for x in (a, b, c))
    assert (a.shape[-2:], b.shape[-2:], c.shape[-2:]) == ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2])
    flat = [np.broadcast_to(x, (*leading, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (a, b, c)]
    planes = flat[0].transpose(2, 1, 0), flat[1].transpose(1, 2, 0), flat[2].transpose(1, 2, 0)
    result = mma_planes(row, *planes, fma)
    return np.ascontiguousarray(result.transpose(2, 0, 1)).reshape(*leading, shape.m, shape.n)


def mma_planes(row: MmaRow, a: Array, b: Array, c: Array, fma: Fma = _fma) -> Array:
    """The same with the warps last and k first: a [k, m, warps], b [k, n, warps], c and the result [m, n, warps].

    So every operation below runs along the warps, whose number is large and whose values are contiguous.
    """
    out = np.empty(c.shape, c.dtype)
    with np.errstate(all="ignore"):
        for first in range(0, a.shape[2], CHUNK):
            part = slice(first, first + CHUNK)
            left, right, sums = (np.ascontiguousarray(x[:, :, part]) for x in (a, b, c))
            out[:, :, part] = _planes(row, left, right, sums, fma)
    return out


def _planes(row: MmaRow, a: Array, b: Array, c: Array, fma: Fma) -> Array:
    dtype = DTYPES[row.a]
    if dtype == F64:
        for x, y in zip(a, b, strict=True):
            c = fma(np.broadcast_to(x[:, None], c.shape), np.broadcast_to(y, c.shape), c)
        return c
    if dtype.is_integer:
        # A product of two bytes and a sum of 32 of them fit; adding to `c` wraps around, as NumPy's int32 does.
        total = c.copy()
        for x, y in zip(a.astype(np.int32), b.astype(np.int32), strict=True):
            total += x[:, None] * y
        return total
    if dtype.name in DOTS:
        dot = DOTS[dtype.name]
        return _chain(dot, dot.products, (row.a, row.b, row.acc), _wide(a, dtype), _wide(b, dtype), c)
    # All numbers of both formats of fp8 are numbers of f16, whose exponents count.
    early = np.arange(len(a)) % 4 < 2
    left, right = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros_like(c)
    for chosen in (early, ~early):
        total = _step(DOTS["f16"], ("f16", "f16", "f32"), left[chosen], right[chosen], total)
    return semantics.apply("add", F32, total, c)


# -- floats ----------------------------------------------------------------------------------------


def _chain(dot: Dot, size: int, formats: Formats, a: Array, b: Array, c: Array, add: Add | None = None) -> Array:
    """Steps of `size` products each, in k order."""
    for first in range(0, len(a), size):
        c = _step(dot, formats, a[first : first + size], b[first : first + size], c, add)
    return c


def _wide(array: Array, dtype: DType) -> Array:
    """As the tensor cores read it, in f64."""
    if dtype == TF32:
        array = (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return array.astype(np.float64)


_UPPER = 3 if sys.byteorder == "little" else 0
"""Of the four words of an f64, the one with its exponent."""


def exponents(values: Array, format: str) -> Array:
    """floor(log2 |x|), at least the format's; of zeros `ZERO`. No f64 here is subnormal, so that its bits say it."""
    upper = np.ascontiguousarray(values).view(np.int16)[..., _UPPER::4]  # in 16 bits, with the sign before them
    biased = upper >> 4
    biased &= np.int16(0x7FF)
    found = np.maximum(biased - np.int16(1023), np.int16(FORMATS[format].least_normal))
    found[biased == 0] = ZERO
    return found


def _step(dot: Dot, formats: Formats, a: Array, b: Array, c: Array, add: Add | None = None) -> Array:
    """One step: a [k, m, warps] and b [k, n, warps] in f64, c [m, n, warps]. formats: of a, b and c.

    No operation on f64 rounds. A product has at most 22 significant bits and lies between 2^-266 (of bf16 subnormals)
    and 2^256; scaled by a power of two it stays far inside f64's range. The scaled product is below 2^(bits + 2), since
    each operand is below 2 in units of its exponent, so the truncated terms sum to an integer far below 2^53.
    """
    acc = DTYPES[formats[2]]
    terms = a, b, c.astype(np.float64)
    special = _special(*terms)
    if special is not None:
        terms = tuple(np.where(np.isfinite(x), x, 0.0) for x in terms)
    exact = (add or _add)(dot.bits, terms, formats)
    if dot.kept:
        exact = _leading(exact, dot.kept)
    result = _round(exact + 0.0, acc)  # -0 + 0 is +0
    if special is None:
        return result
    return semantics.canonical(np.where(np.isfinite(special), result, special.astype(result.dtype)), acc)


def _add(bits: int, terms: Terms, formats: Formats) -> Array:
    """The sum of the truncated terms in f64: of a, b and c in these formats."""
    a, b, c = terms
    scale = bits - _largest_exponent(*map(exponents, terms, formats))
    factor = np.ldexp(1.0, scale)
    total = np.trunc(c * factor)
    term = np.empty_like(total)
    for x, y in zip(a, b, strict=True):
        np.multiply(x[:, None], y, out=term)
        term *= factor
        total += np.trunc(term, out=term)
    return np.ldexp(total, -scale)


def _largest_exponent(left: Array, right: Array, of_c: Array) -> Array:
    """E for every result, as int32."""
    largest = np.maximum(of_c, np.int16(LEAST_EXPONENT))
    pair = np.empty_like(largest)
    for x, y in zip(left, right, strict=True):
        np.add(x[:, None], y, out=pair)
        np.maximum(largest, pair, out=largest)
    return largest.astype(np.int32)


def _special(a: Array, b: Array, c: Array) -> Array | None:
    """None if all is finite; otherwise an array that is NaN or infinite, in c's stead, where the result is.

    The sum in f64 tells: it is finite if all of its terms are, since they are far below f64's largest number.
    """
    if all(np.isfinite(x).all() for x in (a, b, c)):
        return None
    return sum((x[:, None] * y for x, y in zip(a, b, strict=True)), c)


def _round(exact: Array, acc: DType) -> Array:
    """An f64 array that holds exact sums, in the accumulators' format."""
    if acc == F16:
        nearest = exact.astype(np.float16)  # NumPy rounds this conversion once
        nearest.view(np.uint16)[np.abs(exact) <= 2.0**-25] = 0  # +0, from either side
        return nearest
    nearest = exact.astype(np.float32)
    size = np.abs(exact)
    beyond = (np.abs(nearest) > size) & (size < 2.0**128)
    return (nearest.view(np.uint32) - beyond).view(np.float32) + np.float32(0)  # what vanishes is +0


# -- wgmma -----------------------------------------------------------------------------------------


def wgmma(row: WgmmaRow, a: Array, b: Array, c: Array, add: Add | None = None) -> Array:
    """``a b^T + c`` of ``wgmma``: arrays [products, m, k], [products, n, k] and [products, m, n] of the row's dtypes; k
    is a multiple of the instruction's, whose steps chain through c.

    Floats of 16 and 32 bits follow the rules above. Of fp8 one step is 32 products, keeps 13 bits below the largest
    exponent and 14 bits of the sum, as measured on an H200; the filetests `hopper/wgmma.tir` have the bits.
    `add`: a faster stand-in for `_add`, of a [k, products, m, 1], b [k, products, 1, 1, n] and c [products, 1, m, n].
    """
    if DTYPES[row.a].is_integer:
        # f64 holds sums of 2^37 products of bytes.
        exact = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
        return (c.astype(np.int64) + exact.astype(np.int64)).astype(np.int32)
    dot, formats, out = DOTS.get(row.a, _WGMMA_FP8), (row.a, row.b, row.acc), np.empty(c.shape, c.dtype)
    with np.errstate(all="ignore"):
        some = max(1, RESULTS // prod(c.shape[1:]))
        for first in range(0, len(c), some):
            part = slice(first, first + some)
            # In place of `_step`'s axes m, n and warps: the products, one, and m and n.
            left = _wide(a[part], DTYPES[row.a]).transpose(2, 0, 1)[..., None]
            right = _wide(b[part], DTYPES[row.b]).transpose(2, 0, 1)[:, :, None, None]
            out[part] = _chain(dot, row.k, formats, left, right, c[part][:, None], add)[:, 0]
    return out


def _leading(total: Array, bits: int) -> Array:
    """The first significant bits, the rest truncated."""
    fraction, exponent = np.frexp(total)
    return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)

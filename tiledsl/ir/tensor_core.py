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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir import semantics
from tiledsl.ir.types import DTYPES, F16, F32, F64, TF32, DType
from tiledsl.layout.mma import MmaRow
from tiledsl.layout.wgmma import WgmmaRow

Array = NDArray[Any]
Planes = Callable[[MmaRow, Array, Array, Array], Array]
Fma = Callable[[Array, Array, Array], Array]
Terms = tuple[Array, Array, Array]
Add = Callable[[int, Terms, Terms], Array]

LEAST_EXPONENT = -133
"""The sum's exponent E is never below it."""

ZERO = np.int16(-10000)
"""Exponent of a zero: below all others, also when two are added."""

CHUNK = 96
"""Products of this many warps are computed at once, so that the arrays of a step stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Dot:
    """How floats of one format are multiplied. products: most of one step. bits: kept below the largest exponent.
    least: exponent of the format's subnormals; least_b: of B's format, if that is another one. kept: significant bits
    of the sum; 0: those of the accumulators."""

    products: int
    bits: int
    least: int
    least_b: int | None = None
    kept: int = 0


DOTS: dict[str, Dot] = {"f16": Dot(16, 25, -14), "bf16": Dot(16, 25, -126), "tf32": Dot(8, 25, -126)}
"""By the dtype of the operands."""

_LEAST_ACC = {"f32": -126, "f16": -14}


def mma(row: MmaRow, a: Any, b: Any, c: Any, fma: Fma | None = None) -> Array:
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


def mma_planes(row: MmaRow, a: Array, b: Array, c: Array, fma: Fma | None = None) -> Array:
    """The same with the warps last and k first: a [k, m, warps], b [k, n, warps], c and the result [m, n, warps].

    So every operation below runs along the warps, whose number is large and whose values are contiguous.
    """
    compute = _rule(row, fma or _fma)
    warps = a.shape[2]
    out = np.empty(c.shape, c.dtype)
    with np.errstate(all="ignore"):
        for first in range(0, warps, CHUNK):
            part = slice(first, first + CHUNK)
            operands = (np.ascontiguousarray(x[:, :, part]) for x in (a, b, c))
            out[:, :, part] = compute(row, *operands)
    return out


def _rule(row: MmaRow, fma: Fma) -> Planes:
    dtype = DTYPES[row.a]
    if dtype == F64:
        return partial(_fma_chain, fma)
    if dtype.is_integer:
        return _integers
    return _floats if dtype.name in DOTS else _fp8


# -- integers and f64 ------------------------------------------------------------------------------


def _integers(row: MmaRow, a: Array, b: Array, c: Array) -> Array:
    """A product of two bytes and a sum of 32 of them fit; adding to `c` wraps around, as NumPy's int32 does."""
    total = c.copy()
    for x, y in zip(a.astype(np.int32), b.astype(np.int32), strict=True):
        total += x[:, None] * y
    return total


def _fma(a: Array, b: Array, c: Array) -> Array:
    return semantics.apply("fma", F64, a, b, c)


def _fma_chain(fma: Fma, row: MmaRow, a: Array, b: Array, c: Array) -> Array:
    for x, y in zip(a, b, strict=True):
        c = fma(np.broadcast_to(x[:, None], c.shape), np.broadcast_to(y, c.shape), c)
    return c


# -- floats ----------------------------------------------------------------------------------------


def _floats(row: MmaRow, a: Array, b: Array, c: Array) -> Array:
    dtype, acc = DTYPES[row.a], DTYPES[row.acc]
    size = DOTS[dtype.name].products
    left, right = _wide(a, dtype), _wide(b, dtype)
    for first in range(0, len(a), size):
        c = _step(DOTS[dtype.name], left[first : first + size], right[first : first + size], c, acc)
    return c


def _fp8(row: MmaRow, a: Array, b: Array, c: Array) -> Array:
    """All numbers of both formats are numbers of f16, whose exponents count."""
    early = np.arange(len(a)) % 4 < 2
    left, right = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros_like(c)
    for chosen in (early, ~early):
        total = _step(DOTS["f16"], left[chosen], right[chosen], total, F32)
    return semantics.apply("add", F32, total, c)


def _wide(array: Array, dtype: DType) -> Array:
    """As the tensor cores read it, in f64."""
    if dtype == TF32:
        array = (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return array.astype(np.float64)


def _exponents(values: Array, least: int) -> Array:
    """floor(log2 |x|), at least `least`; of zeros `ZERO`. No f64 here is subnormal, so that its bits say it."""
    biased = (values.view(np.int64) >> 52 & 0x7FF).astype(np.int16)
    return np.where(biased == 0, ZERO, np.maximum(biased - np.int16(1023), np.int16(least)))


def _step(dot: Dot, a: Array, b: Array, c: Array, acc: DType, add: Add | None = None) -> Array:
    """One step: a [k, m, warps] and b [k, n, warps] in f64, c [m, n, warps] in `acc`.

    No operation on f64 rounds. A product has at most 22 significant bits and lies between 2^-266 (of bf16 subnormals)
    and 2^256; scaled by a power of two it stays far inside f64's range. The scaled product is below 2^(bits + 2), since
    each operand is below 2 in units of its exponent, so the truncated terms sum to an integer far below 2^53.
    """
    wide = c.astype(np.float64)
    special = _special(a, b, wide)
    if special is not None:
        a, b, wide = (np.where(np.isfinite(x), x, 0.0) for x in (a, b, wide))
    least_b = dot.least if dot.least_b is None else dot.least_b
    exponents = _exponents(a, dot.least), _exponents(b, least_b), _exponents(wide, _LEAST_ACC[acc.name])
    exact = (add or _add)(dot.bits, (a, b, wide), exponents)
    if dot.kept:
        exact = _leading(exact, dot.kept)
    result = _round(exact + 0.0, acc)  # -0 + 0 is +0
    if special is None:
        return result
    return semantics.canonical(np.where(np.isfinite(special), result, special.astype(result.dtype)), acc)


def _add(bits: int, terms: Terms, exponents: Terms) -> Array:
    """The sum of the truncated terms in f64: of a, b and c, and of their exponents."""
    a, b, c = terms
    scale = bits - _largest_exponent(*exponents)
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
    beyond = (np.abs(nearest) > np.abs(exact)) & (np.abs(exact) < 2.0**128)
    return (nearest.view(np.uint32) - beyond).view(np.float32) + np.float32(0)  # what vanishes is +0


# -- wgmma -----------------------------------------------------------------------------------------


_FP8_LEAST = {"e4m3": -6, "e5m2": -14}


def wgmma(row: WgmmaRow, a: Array, b: Array, c: Array, add: Add | None = None) -> Array:
    """``a b^T + c`` of ``wgmma``: arrays [products, m, k], [products, n, k] and [products, m, n] of the row's dtypes; k
    is a multiple of the instruction's, whose steps chain through c.

    Floats of 16 and 32 bits follow the rules above. Of fp8 one step is 32 products, keeps 13 bits below the largest
    exponent and 14 bits of the sum, as measured on an H200; the filetests `hopper/wgmma.tir` have the bits.
    `add`: a faster stand-in for `_add`, of a [k, m, 1], b [k, 1, n] and c [m, 1, n].
    """
    out = np.empty(c.shape, c.dtype)
    with np.errstate(all="ignore"):
        for product in range(len(c)):
            out[product] = _wgmma_one(row, a[product], b[product], c[product], add)
    return out


def _wgmma_one(row: WgmmaRow, a: Array, b: Array, c: Array, add: Add | None) -> Array:
    dtype = DTYPES[row.a]
    if dtype.is_integer:
        # f64 holds sums of 2^37 products of bytes.
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        return (c.astype(np.int64) + exact.astype(np.int64)).astype(np.int32)
    # One row of `_step`'s products a row of m, along n.
    left, right = _wide(a, dtype).T[:, :, None], _wide(b, DTYPES[row.b]).T[:, None, :]
    dot = DOTS.get(row.a) or Dot(32, 13, _FP8_LEAST[row.a], _FP8_LEAST[row.b], 14)
    sums = c[:, None, :]
    for first in range(0, len(left), row.k):
        part = slice(first, first + row.k)
        sums = _step(dot, left[part], right[part], sums, DTYPES[row.acc], add)
    return sums[:, 0]


def _leading(total: Array, bits: int) -> Array:
    """The first significant bits, the rest truncated."""
    fraction, exponent = np.frexp(total)
    return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)

"""Inputs that distinguish rules of tensor-core arithmetic: for each question a batch of products, as bits.

A case has A [products, m, k], B [products, k, n] and C [products, m, n] as unsigned integers of the elements' size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES
from tiledsl.layout.mma import MmaRow

__all__ = ["Batch", "Bits", "batches"]

Bits = NDArray[Any]
Batch = tuple[Bits, Bits, Bits]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Format:
    """A float format: bits of the exponent and of the fraction, and whether it has infinities."""

    exponent: int
    fraction: int
    has_infinity: bool = True

    @property
    def unsigned(self) -> np.dtype[Any]:
        return np.dtype(f"u{(1 + self.exponent + self.fraction) // 8}")

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def most(self) -> int:
        """The largest exponent field of a finite number."""
        return (1 << self.exponent) - (2 if self.has_infinity else 1)

    @property
    def top(self) -> int:
        """The largest exponent field whose numbers are all finite."""
        return (1 << self.exponent) - 2

    @property
    def highest(self) -> int:
        """The exponent of `top`."""
        return self.top - self.bias

    @property
    def lowest(self) -> int:
        """The exponent of the smallest subnormal."""
        return 1 - self.bias - self.fraction


FORMATS: dict[str, Format] = {
    "f64": Format(11, 52),
    "f32": Format(8, 23),
    "tf32": Format(8, 23),
    "f16": Format(5, 10),
    "bf16": Format(8, 7),
    "e4m3": Format(4, 3, has_infinity=False),
    "e5m2": Format(5, 2),
}
"""tf32 is stored in 32 bits, of which the low 13 are drawn as well: the tensor cores ignore them."""


class Source:
    """Draws arrays for one float operand, as bits."""

    def __init__(self, random: np.random.Generator, name: str, shape: tuple[int, ...]) -> None:
        self.random, self.name, self.shape = random, name, shape
        self.format = FORMATS[name]

    def assemble(self, field: Any, fraction: Any = None) -> Bits:
        """Numbers with these exponent fields and random signs; fractions are random unless given."""
        kind = self.format
        if fraction is None:
            fraction = self.random.integers(0, 1 << kind.fraction, self.shape, np.uint64)
        sign = self.random.integers(0, 2, self.shape, np.uint64) << np.uint64(kind.exponent + kind.fraction)
        exponent = np.asarray(field, np.uint64) << np.uint64(kind.fraction)
        return (sign | exponent | np.asarray(fraction, np.uint64)).astype(kind.unsigned)

    def between(self, least: int, most: int, fraction: Any = None) -> Bits:
        """Normal numbers whose exponent is random in that range, as far as the format has it."""
        exponent = self.random.integers(least, most + 1, self.shape)
        return self.assemble(np.clip(exponent + self.format.bias, 1, self.format.top), fraction)

    def spread(self, distance: int) -> Bits:
        return self.between(-distance, distance)

    def finite(self) -> Bits:
        """Finite numbers, all equally likely."""
        kind = self.format
        field = self.random.integers(0, kind.most + 1, self.shape)
        fraction = self.random.integers(0, 1 << kind.fraction, self.shape, np.uint64)
        if not kind.has_infinity:  # the last code is the NaN
            fraction = np.where(field == kind.most, fraction & ~np.uint64(1), fraction)
        return self.assemble(field, fraction)

    def subnormal(self) -> Bits:
        return self.assemble(0)

    def top(self) -> Bits:
        """Near the largest number."""
        top = self.format.top
        return self.assemble(self.random.integers(top - 1, top + 1, self.shape))

    def normal(self, scale: float = 1.0) -> Bits:
        return self.of(self.random.standard_normal(self.shape) * scale)

    def of(self, values: NDArray[np.float64]) -> Bits:
        """The nearest numbers of the format."""
        with np.errstate(over="ignore"):
            return values.astype(numpy_dtype(DTYPES[self.name])).view(self.format.unsigned)

    def powers(self, least: int, most: int) -> Bits:
        """Powers of two with random signs and exponents, including subnormal ones, as far as the format has them."""
        exponent = np.minimum(self.random.integers(least, most + 1, self.shape), self.format.highest)
        return self.of(np.ldexp(self.random.choice([-1.0, 1.0], self.shape), exponent))

    def largest(self) -> Bits:
        """The largest number with the exponent of `top`, of both signs."""
        return self.assemble(self.format.top, (1 << self.format.fraction) - 1)

    def zeros(self) -> Bits:
        """Zeros of both signs."""
        return self.assemble(0, 0)

    def ones(self) -> Bits:
        return self.assemble(self.format.bias, 0)

    def any(self) -> Bits:
        """Any bits."""
        unsigned = self.format.unsigned
        count = prod(self.shape) * unsigned.itemsize
        return np.frombuffer(self.random.bytes(count), unsigned).reshape(self.shape)

    # -- a share of special values -------------------------------------------------------------

    def mixed(self, share: float, chosen: Bits, others: Bits) -> Bits:
        return np.where(self.random.random(self.shape) < share, chosen, others)

    def with_infinities(self, share: float, others: Bits) -> Bits:
        """`others` where the format has none."""
        if not self.format.has_infinity:
            return others
        return self.mixed(share, self.assemble(self.format.most + 1, 0), others)

    def with_nans(self, share: float, others: Bits) -> Bits:
        """NaNs with any payload and sign, quiet and signalling."""
        kind = self.format
        if not kind.has_infinity:
            return self.mixed(share, self.assemble(kind.most, (1 << kind.fraction) - 1), others)
        payload = self.random.integers(1, 1 << kind.fraction, self.shape, np.uint64)
        return self.mixed(share, self.assemble(kind.most + 1, payload), others)

    def with_hidden_nans(self, share: float, others: Bits) -> Bits:
        """For tf32: NaNs in memory that become infinities when the low 13 bits are ignored."""
        payload = self.random.integers(1, 1 << 13, self.shape, np.uint64)
        return self.mixed(share, self.assemble(self.format.most + 1, payload), others)


class Draw:
    """The sources of A, B and C from which a case draws, for `count` products.

    high: an exponent of C that leaves room for products below its last bit. low: the exponent of a product that is half
    of the last bit of such a C.
    """

    def __init__(self, row: MmaRow, count: int, seed: int) -> None:
        shape, random = row.shape, np.random.default_rng(seed)
        self.row, self.count, self.random = row, count, random
        self.a = Source(random, row.a, (count, shape.m, shape.k))
        self.b = Source(random, row.b, (count, shape.k, shape.n))
        self.c = Source(random, row.acc, (count, shape.m, shape.n))
        self.high = 14 if "e4m3" in (row.a, row.b) else 0
        self.low = self.high - self.c.format.fraction - 1

    def values(self, source: Source, bits: Bits) -> NDArray[np.float64]:
        return bits.view(numpy_dtype(DTYPES[source.name])).astype(np.float64)

    def small(self, distance: int) -> tuple[Bits, Bits]:
        """A and B whose products have exponents within `distance` of `low`."""
        of_b = self.low // 2
        return self.a.between(self.low - of_b - distance, self.low - of_b + distance), self.b.between(of_b, of_b)

    def places(self) -> tuple[Any, Any, Any]:
        """The indices of all products, and two positions along k for each, the first before the second."""
        k = self.row.shape.k
        first = self.random.integers(0, k - 1, self.count)
        return np.arange(self.count), first, self.random.integers(first + 1, k)


def _normal(d: Draw) -> Batch:
    return d.a.normal(), d.b.normal(), d.c.normal(4.0)


def _spread(d: Draw) -> Batch:
    return d.a.spread(20), d.b.spread(20), d.c.spread(20)


def _finite(d: Draw) -> Batch:
    return d.a.finite(), d.b.finite(), d.c.finite()


def _subnormal(d: Draw) -> Batch:
    return d.a.subnormal(), d.b.spread(20), d.c.mixed(0.5, d.c.subnormal(), d.c.zeros())


def _cancelled(d: Draw) -> Batch:
    a, b = d.a.normal(), d.b.normal()
    return a, b, d.c.of(-(d.values(d.a, a) @ d.values(d.b, b)))


def _small_products(d: Draw) -> Batch:
    a, b = d.small(6)
    return a, b, d.c.between(d.high, d.high)


def _one_large_product(d: Draw) -> Batch:
    (a, b), (products, place, _) = d.small(6), d.places()
    a[products, :, place] = d.a.spread(1)[products, :, place]
    b[products, place] = d.b.spread(1)[products, place]
    return a, b, d.c.between(d.low, d.low + 12)


def _with_opposites(d: Draw, a: Bits, b: Bits, large_a: Bits, large_b: Bits) -> None:
    """Two products of each sum become large and cancel each other."""
    products, first, second = d.places()
    sign = a.dtype.type(1 << (8 * a.itemsize - 1))
    a[products, :, first] = large_a[products, :, first]
    a[products, :, second] = large_a[products, :, first] ^ sign
    b[products, first] = b[products, second] = large_b[products, first]


def _opposites(d: Draw) -> Batch:
    a, b = d.a.spread(3), d.b.spread(3)
    _with_opposites(d, a, b, d.a.between(6, 8), d.b.between(6, 8))
    return a, b, d.c.spread(3)


def _halfway(d: Draw) -> Batch:
    """C plus half of its last bit; in half of the cases a smaller term breaks the tie."""
    a, b = d.a.zeros(), d.b.zeros()
    products, first, second = d.places()
    of_b = d.low // 2
    a[products, :, first] = d.a.between(d.low - of_b, d.low - of_b, 0)[products, :, first]
    b[products, first] = d.b.between(of_b, of_b, 0)[products, first]
    below_b = of_b - 8
    below = d.a.mixed(0.5, d.a.between(d.low - below_b - 16, d.low - below_b - 1, 0), d.a.zeros())
    a[products, :, second] = below[products, :, second]
    b[products, second] = d.b.between(below_b, below_b, 0)[products, second]
    return a, b, d.c.between(d.high, d.high)


def _signed_zeros(d: Draw) -> Batch:
    """In half of the products all terms of a sum have the same sign."""
    a, b, c = (s.mixed(share, s.zeros(), s.ones()) for s, share in ((d.a, 0.8), (d.b, 0.8), (d.c, 0.7)))
    half = d.count // 2
    signs = np.arange(half).reshape(-1, 1, 1) % 2
    a[:half] = signs.astype(a.dtype) << a.dtype.type(8 * a.itemsize - 1)
    b[:half] = d.b.format.bias << d.b.format.fraction  # 1.0
    c[:half] = d.c.zeros()[:half]
    return a, b, c


def _vanishing(d: Draw) -> Batch:
    a, b = (s.mixed(0.5, s.subnormal(), s.assemble(s.random.integers(1, 3, s.shape))) for s in (d.a, d.b))
    keep = np.zeros(d.a.shape, np.bool_)
    keep[np.arange(d.count), :, d.places()[1]] = True  # one product, so that its sign is that of the sum
    a[: d.count // 2] = np.where(keep, a, 0)[: d.count // 2]
    return a, b, d.c.mixed(0.5, d.c.subnormal(), d.c.zeros())


def _least(d: Draw) -> Batch:
    """Sums near the smallest result, which keep or lose terms far below it."""
    of_b = d.c.format.lowest // 2
    of_a = d.c.format.lowest - of_b
    return d.a.between(of_a - 8, of_a + 1), d.b.between(of_b, of_b), d.c.mixed(0.5, d.c.subnormal(), d.c.zeros())


def _halfway_subnormal(d: Draw) -> Batch:
    return _beside(d, d.c.subnormal(), d.c.format.lowest)


def _halfway_to_infinity(d: Draw) -> Batch:
    return _beside(d, d.c.largest(), d.c.format.highest - d.c.format.fraction)


def _beside(d: Draw, c: Bits, last: int) -> Batch:
    """C, whose last bit has the exponent `last`, plus that bit or half of it, a smaller term, both, or nothing."""
    a, b = d.a.zeros(), d.b.zeros()
    products, first, second = d.places()
    of_b, below_b = last // 2, last // 2 - 4
    large = d.a.mixed(0.5, d.a.powers(last - of_b - 1, last - of_b), a)
    small = d.a.mixed(0.7, d.a.powers(last - below_b - 19, last - below_b - 2), a)
    a[products, :, first], a[products, :, second] = large[products, :, first], small[products, :, second]
    b[products, first] = d.b.powers(of_b, of_b)[products, first]
    b[products, second] = d.b.powers(below_b, below_b)[products, second]
    return a, b, c


def _overflow(d: Draw) -> Batch:
    return d.a.top(), d.b.top(), d.c.top()


def _overflow_inside(d: Draw) -> Batch:
    a, b = d.a.spread(3), d.b.spread(3)
    _with_opposites(d, a, b, d.a.top(), d.b.top())
    return a, b, d.c.spread(3)


def _infinities(d: Draw) -> Batch:
    a, b, c = _normal(d)
    return d.a.with_infinities(0.02, a), d.b.with_infinities(0.02, b), d.c.with_infinities(0.1, c)


def _infinity_times_zero(d: Draw) -> Batch:
    a, b, c = _normal(d)
    return d.a.with_infinities(0.02, a), d.b.mixed(0.3, d.b.zeros(), b), c


def _nans(d: Draw) -> Batch:
    a, b, c = _normal(d)
    return d.a.with_nans(0.01, a), d.b.with_nans(0.01, b), d.c.with_nans(0.1, c)


def _hidden_nans(d: Draw) -> Batch:
    a, b, c = _normal(d)
    return d.a.with_hidden_nans(0.02, a), d.b.with_hidden_nans(0.02, b), c


def _any(d: Draw) -> Batch:
    return d.a.any(), d.b.any(), d.c.any()


_FLOATS: dict[str, Callable[[Draw], Batch]] = {
    "random normal": _normal,
    "exponents spread": _spread,
    "all finite codes": _finite,
    "subnormal operands": _subnormal,
    "c cancels the sum": _cancelled,
    "products at the last bits of c": _small_products,
    "products at the last bits of one": _one_large_product,
    "large products that cancel": _opposites,
    "halfway between results": _halfway,
    "signed zeros": _signed_zeros,
    "results that vanish": _vanishing,
    "overflow": _overflow,
    "overflow inside the sum": _overflow_inside,
    "infinities": _infinities,
    "infinity times zero": _infinity_times_zero,
    "NaNs": _nans,
    "any bits": _any,
    "sums about the least result": _least,
    "halfway between subnormal results": _halfway_subnormal,
    "halfway to infinity": _halfway_to_infinity,
}


def _integers(
    row: MmaRow, count: int, seed: int, draw: Callable[[np.random.Generator, Shape, np.dtype[Any]], Bits]
) -> Batch:
    shape, random = row.shape, np.random.default_rng(seed)
    shapes = (count, shape.m, shape.k), (count, shape.k, shape.n), (count, shape.m, shape.n)
    dtypes = [numpy_dtype(DTYPES[name]) for name in (row.a, row.b, row.acc)]
    a, b, c = (draw(random, s, dtype).view(f"u{dtype.itemsize}") for s, dtype in zip(shapes, dtypes, strict=True))
    return a, b, c


def _any_integer(random: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> Bits:
    count = prod(shape) * dtype.itemsize
    return np.frombuffer(random.bytes(count), dtype).reshape(shape)


def _extreme_integer(random: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> Bits:
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, info.max - 1, info.max], dtype)
    return np.asarray(values[random.integers(0, len(values), shape)])


def batches(row: MmaRow, count: int, seed: int = 0) -> dict[str, Batch]:
    """All cases of one kind of product, by question."""
    if row.acc == "i32":
        kinds = {"random": _any_integer, "extremes": _extreme_integer}
        return {name: _integers(row, count, seed + i, draw) for i, (name, draw) in enumerate(kinds.items())}
    asked = dict(_FLOATS)
    if row.a == "tf32":
        asked["NaNs in the bits that are ignored"] = _hidden_nans
    return {name: case(Draw(row, count, seed + i)) for i, (name, case) in enumerate(asked.items())}

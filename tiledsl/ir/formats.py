"""The formats of the float dtypes in numbers: what literals, conversions, NaNs and error bounds are computed from."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """One format. precision: significand bits of a normal number. least: exponent of the smallest subnormal.

    bound: finite numbers are below 2^bound. nan: bits of the canonical NaN. largest: where conversions to it stop,
    those of infinity too; infinity if they do not stop.
    """

    precision: int
    least: int
    bound: int
    nan: int
    largest: float = math.inf

    @property
    def least_normal(self) -> int:
        """Exponent of the smallest normal number, which subnormals have too."""
        return self.least + self.precision - 1

    @property
    def unit_roundoff(self) -> float:
        """The relative error of rounding once to nearest."""
        return math.ldexp(1.0, -self.precision)

    @property
    def smallest(self) -> float:
        """The smallest subnormal."""
        return math.ldexp(1.0, self.least)

    def holds(self, value: float) -> bool:
        """True for a number of this format, for infinities and for NaN."""
        if not math.isfinite(value) or not value:
            return True
        if abs(value) > self.largest or math.frexp(value)[1] > self.bound:
            return False
        unit = max(math.frexp(value)[1] - self.precision, self.least)
        return math.ldexp(value, -unit).is_integer()


FORMATS: dict[str, FloatFormat] = {
    "f64": FloatFormat(53, -1074, 1024, 0x7FFFFFFFFFFFFFFF),
    "f32": FloatFormat(24, -149, 128, 0x7FFFFFFF),
    "f16": FloatFormat(11, -24, 16, 0x7FFF),
    "bf16": FloatFormat(8, -133, 128, 0x7FFF),
    "tf32": FloatFormat(11, -136, 128, 0x7FFFE000),
    "e4m3": FloatFormat(4, -9, 9, 0x7F, largest=448.0),
    "e5m2": FloatFormat(3, -16, 16, 0x7F, largest=57344.0),
}
"""By dtype name; `arith.cast` says how each is rounded to."""

"""Bits of filetest values: reading and writing them, and the special values of each dtype."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType

__all__ = ["SPECIAL_BITS", "parse_bits", "special_bits", "special_values", "to_hex"]

SPECIAL_BITS: dict[str, tuple[int, ...]] = {
    # 0, -0, 1, -1, 1.5, -2.5, the least and the largest subnormal, the least normal, the largest,
    # a value whose square underflows, inf, -inf, the canonical NaN, a NaN with sign and payload
    "f64": (
        0, 1 << 63, 0x3FF0 << 48, 0xBFF0 << 48, 0x3FF8 << 48, 0xC004 << 48, 1, (1 << 52) - 1, 1 << 52,
        0x7FEFFFFFFFFFFFFF, 0x1FF0000000000001, 0x7FF0 << 48, 0xFFF0 << 48, (1 << 63) - 1, 0xFFF8000000000001,
    ),
    "f32": (
        0, 1 << 31, 0x3F800000, 0xBF800000, 0x3FC00000, 0xC0200000, 1, (1 << 23) - 1, 1 << 23,
        0x7F7FFFFF, 0x1F800001, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFC00001,
    ),
    "f16": (
        0, 1 << 15, 0x3C00, 0xBC00, 0x3E00, 0xC100, 1, (1 << 10) - 1, 1 << 10,
        0x7BFF, 0x0C01, 0x7C00, 0xFC00, 0x7FFF, 0xFE01,
    ),
    "bf16": (
        0, 1 << 15, 0x3F80, 0xBF80, 0x3FC0, 0xC020, 1, (1 << 7) - 1, 1 << 7,
        0x7F7F, 0x1F81, 0x7F80, 0xFF80, 0x7FFF, 0xFFC1,
    ),
    "tf32": (  # as f32; one whose low 13 bits are set, and NaNs whose payload is in them or above
        0, 1 << 31, 0x3F800000, 0xBF800000, 0x3FC00000, 0xC0200000, 0x2000, 0x7FE000, 1 << 23,
        0x7F7FE000, 0x3F801FFF, 0x7F800000, 0xFF800000, 0x7FFFE000, 0xFFC00001, 0x7F800001,
    ),
    "e4m3": tuple(range(256)),
    "e5m2": tuple(range(256)),
    "bool": (0, 1),
}  # fmt: skip
"""Bits of the special floats and bools; every code of the 8-bit floats. Integers: see `special_bits`."""


def special_bits(dtype: DType) -> tuple[int, ...]:
    """Bits of the special values of `dtype`, as unsigned numbers."""
    if dtype.name in SPECIAL_BITS:
        return SPECIAL_BITS[dtype.name]
    bits, top = dtype.bits, 1 << (dtype.bits - 1)
    values = (0, 1, 2, 3, 7, bits - 1, bits, top - 1, top, top + 1, -3, -1)
    return tuple(dict.fromkeys(v % (1 << bits) for v in values))


def special_values(dtype: DType, axis: int, count: int) -> NDArray[Any]:
    """Operand `axis` of `count` ones that run through all combinations of special values.

    Three operands would be many: they take every second special value only.
    """
    bits = special_bits(dtype)
    if count == 3:
        bits = bits[::2] + bits[-1:]
    columns = list(itertools.product(bits, repeat=count))
    return np.array([c[axis] for c in columns], f"u{dtype.bytes}").view(numpy_dtype(dtype))


def parse_bits(text: str, dtype: DType) -> NDArray[Any]:
    """Values from hexadecimal words, separated by blanks."""
    return np.array([int(word, 16) for word in text.split()], f"u{dtype.bytes}").view(numpy_dtype(dtype))


def to_hex(value: Any) -> str:
    """The bits of one NumPy value, as many digits as its dtype has."""
    array = np.asarray(value)
    width = array.dtype.itemsize
    return f"{int(array.view(f'u{width}')):0{2 * width}x}"

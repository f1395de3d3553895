"""u32 registers and the elements that share them, the first one lowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledsl.layout.fragments import WORD_BITS

__all__ = ["from_word", "to_word"]


def to_word(elements: Sequence[Any]) -> Any:
    """A u32 from all elements that it holds: values of a cohort of one narrow dtype, or one of 32 bits."""
    bits = WORD_BITS // len(elements)
    word: Any = np.zeros((), np.uint32)
    for position, element in enumerate(elements):
        part = np.asarray(element).view(f"u{bits // 8}").astype(np.uint32)
        word = word | part << np.uint32(bits * position)
    return word


def from_word(word: Any, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """The elements of `dtype` in a u32."""
    bits = dtype.itemsize * 8
    parts = (np.asarray(word) >> np.uint32(shift) for shift in range(0, WORD_BITS, bits))
    return tuple(np.asarray(part).astype(f"u{bits // 8}").view(dtype) for part in parts)

"""Scalar arithmetic: the table of `ir.semantics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort, blend
from tiledsl.backends.emulator.native.loops import fma
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.ir import semantics
from tiledsl.ir.ops import arith
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import F32, F64
from tiledsl.layout.fragments import WORD_BITS


@rule(arith.Scalar)
def scalar(c: Cohort, op: arith.Scalar, *operands: Any) -> Any:
    fn, dtype = op.fn.name, op.operands[0].dtype
    evaluate = fma(dtype) if fn == "fma" and dtype in (F32, F64) else semantics.function(fn, dtype)
    return evaluate(*operands)


@rule(arith.Cast)
def cast(c: Cohort, op: arith.Cast, src: Any) -> Any:
    return semantics.cast(src, op.src.dtype, op.to)


@rule(arith.Bitcast)
def bitcast(c: Cohort, op: arith.Bitcast, src: Any) -> Any:
    return semantics.bitcast(src, op.src.dtype, op.to)


@rule(arith.PackWord)
def pack_word(c: Cohort, op: arith.PackWord, *elements: Any) -> Any:
    return to_word(elements)


@rule(arith.UnpackWord)
def unpack_word(c: Cohort, op: arith.UnpackWord, word: Any) -> tuple[Any, ...]:
    return from_word(word, numpy_dtype(op.to))


@rule(arith.Select)
def select(c: Cohort, op: arith.Select, condition: Any, a: Any, b: Any) -> Any:
    if np.ndim(condition) == 0:
        return a if condition else b
    return blend(condition, a, b)


# -- registers and the elements that share them -----------------------------------------------------


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

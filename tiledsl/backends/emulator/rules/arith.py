"""Scalar arithmetic: the table of `ir.semantics`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort, blend
from tiledsl.backends.emulator.native.loops import fma
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.words import from_word, to_word
from tiledsl.ir import semantics
from tiledsl.ir.ops import arith
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import F32, F64

__all__: list[str] = []


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

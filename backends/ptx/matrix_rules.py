"""Tensor cores: products, the matrices that feed them, words of narrow elements. (PTX ISA: mma, ldmatrix, stmatrix.)

Loads and stores of matrices are intrinsics, so that constant offsets become immediates. Products are inline PTX: pure,
so that equal ones may be merged, and convergent, since the lanes of a warp compute them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from tiledsl.arch import require, targets_from
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I32, VOID, integer, llvm_type, result_type
from tiledsl.backends.ptx.vectors import numbered, product_names, rounded_pairs, vector_of
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith, mem, ptx

# -- words -----------------------------------------------------------------------------------------


@lowers(arith.PackWord)
def lower_pack_word(lw: Lowering, op: arith.PackWord) -> Sequence[Any]:
    pairs = rounded_pairs(lw, op.operands)
    return pairs or [lw.b.bitcast(vector_of(lw, lw.operands(op.operands)), I32)]


@lowers(arith.UnpackWord)
def lower_unpack_word(lw: Lowering, op: arith.UnpackWord) -> Sequence[Any]:
    count = len(op.results)
    vector = lw.b.bitcast(lw.value(op.word), ir.VectorType(llvm_type(op.to), count))
    return [lw.b.extract_element(vector, integer(i, I32)) for i in range(count)]


# -- matrices --------------------------------------------------------------------------------------


def _matrices(what: str, op: mem.LdMatrix | mem.StMatrix) -> str:
    trans = ".trans" if op.trans else ""
    return f"llvm.nvvm.{what}.sync.aligned.m8n8.x{op.num}{trans}.b16.p3"


@lowers(mem.LdMatrix)
def lower_ldmatrix(lw: Lowering, op: mem.LdMatrix) -> Sequence[Any]:
    result = lw.intrinsic(_matrices("ldmatrix", op), result_type([I32] * op.num), lw.value(op.ptr))
    return lw.parts(result, op.num)


@lowers(mem.StMatrix)
def lower_stmatrix(lw: Lowering, op: mem.StMatrix) -> None:
    lw.intrinsic(_matrices("stmatrix", op), VOID, lw.value(op.ptr), *lw.operands(op.words))


# -- products --------------------------------------------------------------------------------------


@lowers(ptx.MmaSync)
def lower_mma_sync(lw: Lowering, op: ptx.MmaSync) -> Sequence[Any]:
    row = op.row
    require(lw.target.name, targets_from(row.capability), f"the product {row}", op.loc)
    registers = [_to_register(lw, v) for v in op.operands]
    types = [r.type for r in registers[len(registers) - len(op.results) :]]
    ends = list(accumulate((len(types), *map(len, op.split()))))
    groups = ", ".join(numbered(start, end) for start, end in zip((0, *ends), ends, strict=False))
    text = f"mma.sync.aligned.{row.shape}.row.col.{product_names(row.acc, row.a, row.b, row.acc)} {groups};"
    return lw.asm(text, *registers, results=types, pure=True, convergent=True)


def _to_register(lw: Lowering, value: Value) -> Any:
    """Operands of the format tf32 are untyped 32-bit registers."""
    return lw.bits(lw.value(value)) if value.dtype.is_matrix else lw.value(value)

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
from tiledsl.backends.ptx.types import I32, VOID, integer, llvm_type, structure
from tiledsl.backends.ptx.vectors import rounded_pairs, vector_of
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import arith, mem, ptx
from tiledsl.ir.types import E4M3, E5M2

__all__ = [
    "PTX_NAMES",
    "lower_ldmatrix",
    "lower_mma_sync",
    "lower_pack_word",
    "lower_stmatrix",
    "lower_unpack_word",
    "needs_ptx",
]

PTX_NAMES = {"i8": "s8", "i32": "s32"}
"""What mma calls dtypes whose name here is another."""

EIGHT_BIT_PTX = 84
"""The PTX version that brought products of e4m3 and e5m2; the others are as old as the targets that have them."""


def needs_ptx(op: Op) -> int:
    """The PTX version (major * 10 + minor) that `op` needs beyond the target's own; 0 for most."""
    return EIGHT_BIT_PTX if isinstance(op, ptx.MmaSync) and {op.a, op.b} & {E4M3, E5M2} else 0


# -- words -----------------------------------------------------------------------------------------


@lowers(arith.PackWord)
def lower_pack_word(lw: Lowering, op: arith.PackWord) -> Sequence[Any]:
    pairs = rounded_pairs(lw, op.operands)
    if pairs is not None:
        return pairs
    return [lw.b.bitcast(vector_of(lw, lw.operands(op.operands), llvm_type(op.operands[0].dtype)), I32)]


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
    result = I32 if op.num == 1 else structure(*[I32] * op.num)
    loaded = lw.intrinsic(_matrices("ldmatrix", op), result, lw.value(op.ptr))
    return [loaded] if op.num == 1 else [lw.b.extract_value(loaded, i) for i in range(op.num)]


@lowers(mem.StMatrix)
def lower_stmatrix(lw: Lowering, op: mem.StMatrix) -> Sequence[Any]:
    lw.intrinsic(_matrices("stmatrix", op), VOID, lw.value(op.ptr), *lw.operands(op.words))
    return []


# -- products --------------------------------------------------------------------------------------


@lowers(ptx.MmaSync)
def lower_mma_sync(lw: Lowering, op: ptx.MmaSync) -> Sequence[Any]:
    row = op.row
    require(lw.target, targets_from(row.capability), f"the product {row}", op.loc)
    registers = [_to_register(lw, v) for v in op.operands]
    types = [r.type for r in registers[len(registers) - len(op.results) :]]
    names = ".".join(PTX_NAMES.get(name, name) for name in (row.acc, row.a, row.b, row.acc))
    groups = _numbered(len(types), *map(len, op.split()))
    text = f"mma.sync.aligned.{row.shape}.row.col.{names} {groups};"
    constraints = [f"={_CONSTRAINTS[str(t)]}" for t in types] + [_CONSTRAINTS[str(r.type)] for r in registers]
    result = lw.asm(text, ",".join(constraints), structure(*types), *registers, convergent=True)
    return [lw.b.extract_value(result, i) for i in range(len(types))]


def _numbered(*counts: int) -> str:
    """So many operands a group, in braces: ``{$0, $1}, {$2}``."""
    ends = list(accumulate(counts))
    groups = (range(end - count, end) for count, end in zip(counts, ends, strict=True))
    return ", ".join("{" + ", ".join(f"${i}" for i in group) + "}" for group in groups)


_CONSTRAINTS = {"i32": "r", "float": "f", "double": "d"}


def _to_register(lw: Lowering, value: Value) -> Any:
    """Operands of the format tf32 are untyped 32-bit registers."""
    return lw.b.bitcast(lw.value(value), I32) if value.dtype.is_matrix else lw.value(value)

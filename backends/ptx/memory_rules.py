"""Addresses, loads, stores and atomics. (PTX ISA: ld, st, atom.)"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, I32, integer, memory_type
from tiledsl.backends.ptx.vectors import rounded_pairs, vector_of
from tiledsl.ir.core import Value
from tiledsl.ir.ops import mem
from tiledsl.ir.types import BF16, BOOL, DType, PtrType

__all__ = ["lower_atomic_add", "lower_load", "lower_offset", "lower_shared_base", "lower_store"]

ATOM_TYPES = {
    "f64": ("add.f64", "d"),
    "f32": ("add.f32", "f"),
    "f16": ("add.noftz.f16", "h"),
    "bf16": ("add.noftz.bf16", "h"),
    "i32": ("add.u32", "r"),
    "u32": ("add.u32", "r"),
    "i64": ("add.u64", "l"),
    "u64": ("add.u64", "l"),
}
"""PTX type suffix and register constraint of an atomic addition. Two's complement: signed is unsigned."""

POINTER_CONSTRAINTS = {"global": "l", "shared": "r"}


def _pointer_type(pointer: Value) -> PtrType:
    assert isinstance(pointer.type, PtrType)
    return pointer.type


@lowers(mem.SharedBase)
def lower_shared_base(lw: Lowering, op: mem.SharedBase) -> Sequence[Any]:
    return [lw.b.gep(lw.shared, [ir.Constant(I32, op.offset)], source_etype=I8)]


@lowers(mem.Offset)
def lower_offset(lw: Lowering, op: mem.Offset) -> Sequence[Any]:
    """GEP takes the i32 as signed: in global memory it becomes one ``mad.wide.s32``; a shared address
    has 32 bits itself, so that constants in the index always end up in the instruction's immediate."""
    base, index = lw.operands(op.operands)
    return [lw.b.gep(base, [index], source_etype=memory_type(_pointer_type(op.base).dtype))]


@lowers(mem.Load)
def lower_load(lw: Lowering, op: mem.Load) -> Sequence[Any]:
    dtype = _pointer_type(op.ptr).dtype
    element = memory_type(dtype)
    if op.vec == 1:
        return [_from_memory(lw, dtype, lw.b.load(lw.value(op.ptr), align=dtype.bytes, typ=element))]
    vector = lw.b.load(lw.value(op.ptr), align=dtype.bytes * op.vec, typ=ir.VectorType(element, op.vec))
    elements = [lw.b.extract_element(vector, integer(i, I32)) for i in range(op.vec)]
    return [_from_memory(lw, dtype, e) for e in elements]


@lowers(mem.Store)
def lower_store(lw: Lowering, op: mem.Store) -> Sequence[Any]:
    dtype = _pointer_type(op.ptr).dtype
    if op.vec == 1:
        (value,) = lw.operands(op.values)
        lw.b.store(_to_memory(lw, dtype, value), lw.value(op.ptr), align=dtype.bytes)
        return []
    pairs = rounded_pairs(lw, op.values)
    if pairs is not None:
        vector = vector_of(lw, pairs, I32)
    else:
        vector = vector_of(lw, [_to_memory(lw, dtype, v) for v in lw.operands(op.values)], memory_type(dtype))
    lw.b.store(vector, lw.value(op.ptr), align=dtype.bytes * op.vec)
    return []


def _from_memory(lw: Lowering, dtype: DType, value: Any) -> Any:
    return lw.b.icmp_unsigned("!=", value, integer(0, I8)) if dtype == BOOL else value


def _to_memory(lw: Lowering, dtype: DType, value: Any) -> Any:
    return lw.b.zext(value, I8) if dtype == BOOL else value


@lowers(mem.AtomicAdd)
def lower_atomic_add(lw: Lowering, op: mem.AtomicAdd) -> Sequence[Any]:
    pointer, value = lw.operands(op.operands)
    type_ = _pointer_type(op.ptr)
    suffix, register = ATOM_TYPES[type_.dtype.name]
    atom = f"atom.relaxed.gpu.{type_.space}"
    text = f"{atom}.{suffix} $0, [$1], $2;"
    if type_.dtype == BF16 and lw.target.capability < (9, 0):
        text = _bf16_cas_loop(atom, type_.space)
    constraints = f"=&{register},{POINTER_CONSTRAINTS[type_.space]},{register},~{{memory}}"
    narrow = register == "h"
    operand = lw.b.bitcast(value, ir.IntType(16)) if narrow else value
    result = lw.asm(text, constraints, operand.type, pointer, operand, side_effect=True)
    return [lw.b.bitcast(result, value.type) if narrow else result]


def _bf16_cas_loop(atom: str, space: str) -> str:
    """Before sm_90 there is no bf16 atomic: compare and swap 16 bits until nobody came between."""
    return (
        "{ .reg .pred again; .reg .b16 seen, sum, one; mov.b16 one, 0x3F80; "
        f"ld.relaxed.gpu.{space}.b16 seen, [$1]; "
        "ADD${:uid}: fma.rn.bf16 sum, seen, one, $2; "
        f"{atom}.cas.b16 $0, [$1], seen, sum; "
        "setp.ne.b16 again, $0, seen; mov.b16 seen, $0; @again bra ADD${:uid}; }"
    )

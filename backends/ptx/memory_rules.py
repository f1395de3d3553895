"""Addresses, plain loads and stores. (PTX ISA: ld, st.)"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I8, I32, integer, memory_type
from tiledsl.backends.ptx.vectors import rounded_pairs, vector_of
from tiledsl.ir.ops import mem
from tiledsl.ir.types import BOOL, DType


@lowers(mem.SharedBase)
def lower_shared_base(lw: Lowering, op: mem.SharedBase) -> Sequence[Any]:
    return [lw.b.gep(lw.shared, [integer(op.offset, I32)], source_etype=I8)]


@lowers(mem.Offset)
def lower_offset(lw: Lowering, op: mem.Offset) -> Sequence[Any]:
    """GEP takes the i32 as signed: in global memory it becomes one ``mad.wide.s32``; a shared address
    has 32 bits itself, so that constants in the index always end up in the instruction's immediate."""
    base, index = lw.operands(op.operands)
    return [lw.b.gep(base, [index], source_etype=memory_type(mem.pointer(op).dtype))]


@lowers(mem.Load)
def lower_load(lw: Lowering, op: mem.Load) -> Sequence[Any]:
    dtype = mem.pointer(op).dtype
    element = memory_type(dtype)
    if op.vec == 1:
        return [_from_memory(lw, dtype, lw.b.load(lw.value(op.ptr), align=dtype.bytes, typ=element))]
    vector = lw.b.load(lw.value(op.ptr), align=dtype.bytes * op.vec, typ=ir.VectorType(element, op.vec))
    elements = [lw.b.extract_element(vector, integer(i, I32)) for i in range(op.vec)]
    return [_from_memory(lw, dtype, e) for e in elements]


@lowers(mem.Store)
def lower_store(lw: Lowering, op: mem.Store) -> None:
    dtype = mem.pointer(op).dtype
    values = rounded_pairs(lw, op.values)
    if values is None:
        values = [lw.b.zext(v, I8) if dtype == BOOL else v for v in lw.operands(op.values)]
    value = values[0] if op.vec == 1 else vector_of(lw, values)
    lw.b.store(value, lw.value(op.ptr), align=dtype.bytes * op.vec)


def _from_memory(lw: Lowering, dtype: DType, value: Any) -> Any:
    return lw.b.icmp("ne", value, integer(0, I8)) if dtype == BOOL else value

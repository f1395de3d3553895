"""Dtypes and constants as LLVM types and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tiledsl.backends.ptx.llvm import ir
from tiledsl.ir.formats import FORMATS
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import BF16, BOOL, F16, F32, F64, TF32, DType, PtrType, Type


class _BFloat(ir.types._BaseFloatType):  # llvmlite has no bfloat of its own
    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
VOID = ir.VoidType()
ADDRESS_SPACES = {"generic": 0, "global": 1, "shared": 3}

_FLOATS: dict[DType, Any] = {
    F64: ir.DoubleType(), F32: ir.FloatType(), F16: ir.HalfType(), BF16: _BFloat(), TF32: ir.FloatType(),
}  # fmt: skip
POINTERS: dict[str, Any] = {space: ir.PointerType(addrspace=number) for space, number in ADDRESS_SPACES.items()}


@cache
def llvm_type(type_: Type) -> Any:
    """The LLVM type of a value: a bool is an i1, an 8-bit float an i8, signed and unsigned integers are the same."""
    if isinstance(type_, PtrType):
        return POINTERS[type_.space]
    assert isinstance(type_, DType), f"{type_} does not exist at thread level"
    if type_ == BOOL:
        return I1
    return _FLOATS.get(type_) or ir.IntType(type_.bits)


def memory_type(type_: Type) -> Any:
    """The LLVM type of an element in memory or of a parameter: as the value, but a bool is a byte of 0 or 1."""
    return I8 if type_ == BOOL else llvm_type(type_)


def overload(type_: Any) -> str:
    """How an intrinsic's name spells an LLVM type: f32, i64, bf16."""
    return type_.intrinsic_name if hasattr(type_, "intrinsic_name") else f"i{type_.width}"


def constant(value: int | float | bool, dtype: DType) -> Any:
    """A literal of `dtype`. Floats are written as bit patterns, so that nothing is lost in decimals."""
    if dtype.python is not float:
        return ir.Constant(llvm_type(dtype), int(value))
    bits = int.from_bytes(np.array(value, numpy_dtype(dtype)).tobytes(), "little")
    if math.isnan(value):
        bits = FORMATS[dtype.name].nan
    if dtype.bits == 8:
        return ir.Constant(llvm_type(dtype), bits)
    if dtype in (F32, TF32):  # LLVM spells a float as the double of the same value
        bits = int(np.array(bits, np.uint32).view(np.float32).astype(np.float64).view(np.uint64))
    prefix, digits = {F16: ("0xH", 4), BF16: ("0xR", 4)}.get(dtype, ("0x", 16))
    return ir.FormattedConstant(llvm_type(dtype), f"{prefix}{bits:0{digits}X}")


@cache
def bits_of(type_: Any) -> int:
    """How many bits a scalar of an LLVM type has."""
    return type_.width if isinstance(type_, ir.IntType) else {"float": 32, "double": 64}.get(str(type_), 16)


@cache
def register_class(type_: Any) -> str:
    """The letter by which inline PTX asks for a register of an LLVM type, all but floats of 16 bits: those are i16."""
    if isinstance(type_, ir.PointerType):
        return "r" if type_ == POINTERS["shared"] else "l"
    if isinstance(type_, ir.IntType):
        return {1: "b", 16: "h", 32: "r", 64: "l"}[type_.width]
    return {"float": "f", "double": "d"}[str(type_)]


def result_type(registers: Sequence[Any]) -> Any:
    """What an instruction gives: nothing, one register, or a structure of several."""
    if len(registers) == 1:
        return registers[0]
    return ir.LiteralStructType(registers) if registers else VOID


def global_variable(module: Any, type_: Any, name: str, space: str) -> Any:
    """A module-level variable, as an opaque pointer like every other one (llvmlite would type it)."""
    variable = ir.GlobalVariable(module, type_, name, addrspace=ADDRESS_SPACES[space])
    variable.type = POINTERS[space]
    return variable


def integer(value: int, like: Any) -> Any:
    """An integer literal of the type of `like` (an LLVM value or integer type)."""
    return ir.Constant(getattr(like, "type", like), value)

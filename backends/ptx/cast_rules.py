"""Conversions. (PTX ISA: cvt.)

From float to integer, hardware saturates; a NaN gives 0 only between f32 or f16 and integers of at
most 32 bits, else the sign bit alone, so that it is selected away here. 8- and 16-bit integers are
clamped after a conversion to 32 bits.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I32, constant, integer, llvm_type
from tiledsl.ir.ops import arith
from tiledsl.ir.types import BF16, BOOL, F32, F64, DType

__all__ = ["lower_bitcast", "lower_cast"]


@lowers(arith.Bitcast)
def lower_bitcast(lw: Lowering, op: arith.Bitcast) -> Sequence[Any]:
    value, to = lw.value(op.src), llvm_type(op.to)
    return [value if value.type == to else lw.b.bitcast(value, to)]


@lowers(arith.Cast)
def lower_cast(lw: Lowering, op: arith.Cast) -> Sequence[Any]:
    value, src, to = lw.value(op.src), op.src.dtype, op.to
    if src == to:
        return [value]
    if to == BOOL:
        return [_to_bool(lw, value, src)]
    if src == BOOL:
        return [lw.b.uitofp(value, llvm_type(to)) if to.is_float else lw.b.zext(value, llvm_type(to))]
    rule = {
        (True, True): _float_to_float,
        (True, False): _float_to_integer,
        (False, True): _integer_to_float,
        (False, False): _integer_to_integer,
    }[src.is_float, to.is_float]
    return [rule(lw, value, src, to)]


def _to_bool(lw: Lowering, value: Any, src: DType) -> Any:
    if src.is_float:
        return lw.b.fcmp_unordered("!=", value, constant(0.0, src))
    return lw.b.icmp_unsigned("!=", value, integer(0, value))


def _float_to_float(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    """Widening is exact; narrowing rounds once, f64 to bf16 too (before sm_90 LLVM rounds to odd first)."""
    if src.bits == to.bits:  # f16 and bf16: f32 holds either exactly
        return lw.b.fptrunc(lw.b.fpext(value, llvm_type(F32)), llvm_type(to))
    return lw.b.fpext(value, llvm_type(to)) if to.bits > src.bits else lw.b.fptrunc(value, llvm_type(to))


def _integer_to_integer(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    if to.bits < src.bits:
        return lw.b.trunc(value, llvm_type(to))
    if to.bits == src.bits:
        return value
    return lw.b.sext(value, llvm_type(to)) if src.is_signed else lw.b.zext(value, llvm_type(to))


def _float_to_integer(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    if src.bits == 16:
        value, src = lw.b.fpext(value, llvm_type(F32)), F32
    letter = {64: "d", 32: "f"}[src.bits]
    kind = ("" if to.is_signed else "u") + ("ll" if to.bits == 64 else "i")
    wide = ir.IntType(max(32, to.bits))
    converted = lw.intrinsic(f"llvm.nvvm.{letter}2{kind}.rz", wide, value)
    if src == F64 or to.bits == 64:
        nan = lw.b.fcmp_unordered("uno", value, value)
        converted = lw.b.select(nan, integer(0, wide), converted)
    return _clamped(lw, converted, to) if to.bits < 32 else converted


def _clamped(lw: Lowering, value: Any, to: DType) -> Any:
    """An i32 (signed or unsigned, as `to`) saturated to 8 or 16 bits."""
    if to.is_signed:
        half = 1 << (to.bits - 1)
        value = lw.intrinsic("llvm.smax", I32, value, integer(-half, I32), types=[I32])
        value = lw.intrinsic("llvm.smin", I32, value, integer(half - 1, I32), types=[I32])
    else:
        value = lw.intrinsic("llvm.umin", I32, value, integer((1 << to.bits) - 1, I32), types=[I32])
    return lw.b.trunc(value, llvm_type(to))


def _integer_to_float(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    if to == BF16 and lw.target.capability < (9, 0) and src.bits > 16:
        return _wide_integer_to_bf16(lw, value, src)
    convert = lw.b.sitofp if src.is_signed else lw.b.uitofp
    return convert(value, llvm_type(to))


def _wide_integer_to_bf16(lw: Lowering, value: Any, src: DType) -> Any:
    """Before sm_90 there is no such cvt, and rounding to f32 and again to bf16 would round twice.

    So the f32 is rounded to odd: towards zero, and its last bit set if that lost anything.
    """
    b = lw.b
    kind = ("" if src.is_signed else "u") + ("ll" if src.bits == 64 else "i")
    towards_zero = lw.intrinsic(f"llvm.nvvm.{kind}2f.rz", llvm_type(F32), value)
    back = lw.intrinsic(f"llvm.nvvm.f2{kind}.rz", value.type, towards_zero)
    sticky = b.zext(b.icmp_unsigned("!=", back, value), I32)
    odd = b.or_(b.bitcast(towards_zero, I32), sticky)
    return b.fptrunc(b.bitcast(odd, llvm_type(F32)), llvm_type(BF16))

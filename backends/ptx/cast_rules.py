"""Conversions. (PTX ISA: cvt.)

From float to integer, hardware saturates; a NaN gives 0 only between f32 or f16 and integers of at
most 32 bits, else the sign bit alone, so that it is selected away here. 8- and 16-bit integers are
clamped after a conversion to 32 bits.

The 8-bit floats are converted in pairs, to and from f16 and from f32: here one half of the pair is unused.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.arch import FEATURES, require
from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.nan_bits import CANONICALIZE
from tiledsl.backends.ptx.types import I8, I16, I32, bits_of, constant, integer, llvm_type
from tiledsl.ir.ops import arith
from tiledsl.ir.types import BF16, BOOL, E4M3, E5M2, F16, F32, F64, TF32, DType

PAIRS = {E4M3: "e4m3x2", E5M2: "e5m2x2"}


@lowers(arith.Bitcast)
def lower_bitcast(lw: Lowering, op: arith.Bitcast) -> Sequence[Any]:
    """A float becomes an integer by a move that LLVM does not look into: of ``(x ^ 0x80000000).bitcast(f32)`` it would
    make -x, whose NaN is the canonical one."""
    value, to = lw.value(op.src), llvm_type(op.to)
    if value.type == to:
        return [value]
    if op.src.dtype.is_float and isinstance(to, ir.IntType):
        source = lw.bits(value) if op.to.bits == 16 else value
        return lw.asm(f"mov.b{op.to.bits} $0, $1;", source, results=[to], pure=True)
    return [lw.b.bitcast(value, to)]


@lowers(arith.Cast)
def lower_cast(lw: Lowering, op: arith.Cast) -> Sequence[Any]:
    value, src, to = lw.value(op.src), op.src.dtype, op.to
    if src == to:
        return [value]
    if src.is_matrix or to.is_matrix:
        return [_matrix_format(lw, op, value)]
    if to == BOOL:
        compare, predicate = (lw.b.fcmp, "une") if src.is_float else (lw.b.icmp, "ne")
        return [compare(predicate, value, constant(0, src))]
    if src.is_float:
        return [(_float_to_float if to.is_float else _float_to_integer)(lw, value, src, to)]
    if to.is_float:
        return [_integer_to_float(lw, value, src, to)]
    if bits_of(llvm_type(to)) <= bits_of(value.type):
        return [lw.b.trunc(value, llvm_type(to))]
    return [lw.b.sext(value, llvm_type(to)) if src.is_signed else lw.b.zext(value, llvm_type(to))]


def _float_to_float(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    """Widening is exact; narrowing rounds once, f64 to bf16 too (before sm_90 LLVM rounds to odd first)."""
    if (src, to) == (BF16, F32):
        # By moving its bits, mov.b32 {0, x}: ptxas makes a shift of cvt.f32.bf16, but 0x7fffffff of a constant NaN;
        # and of the upper half of a register it makes two instructions, of the move one.
        pair = ir.Constant(ir.VectorType(llvm_type(BF16), 2), None)
        return lw.b.bitcast(lw.b.insert_element(pair, value, integer(1, I32)), llvm_type(F32))
    if src.bits == to.bits:  # f16 and bf16: f32 holds either exactly
        return lw.b.fptrunc(lw.b.fpext(value, llvm_type(F32)), llvm_type(to))
    return lw.b.fpext(value, llvm_type(to)) if to.bits > src.bits else lw.b.fptrunc(value, llvm_type(to))


def _float_to_integer(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    if src.bits == 16:
        value, src = lw.b.fpext(value, llvm_type(F32)), F32
    wide = ir.IntType(max(32, to.bits))
    letter = {64: "d", 32: "f"}[src.bits]
    converted = lw.intrinsic(f"llvm.nvvm.{letter}2{_kind(to)}.rz", wide, value)
    if src == F64 or to.bits == 64:
        converted = lw.b.select(lw.b.fcmp("uno", value, value), integer(0, wide), converted)
    if to.bits < 32:
        half = 1 << to.bits - 1
        limits = (("smax", -half), ("smin", half - 1)) if to.is_signed else (("umin", 2 * half - 1),)
        for name, limit in limits:
            converted = lw.intrinsic(f"llvm.{name}", I32, converted, integer(limit, I32), types=[I32])
    return lw.b.trunc(converted, llvm_type(to))


def _kind(dtype: DType) -> str:
    """How intrinsics of conversions name the integer of 32 bits or 64 that stands for a dtype."""
    return ("" if dtype.is_signed else "u") + ("ll" if dtype.bits == 64 else "i")


def _integer_to_float(lw: Lowering, value: Any, src: DType, to: DType) -> Any:
    if src == BOOL:  # one instruction
        return lw.b.select(value, constant(1.0, to), constant(0.0, to))
    if to == BF16 and "bf16_of_int" not in lw.target.features and src.bits > 16:
        return _wide_integer_to_bf16(lw, value, src)
    convert = lw.b.sitofp if src.is_signed else lw.b.uitofp
    return convert(value, llvm_type(to))


def _wide_integer_to_bf16(lw: Lowering, value: Any, src: DType) -> Any:
    """Before sm_90 there is no such cvt, and rounding to f32 and again to bf16 would round twice.

    So the f32 is rounded to odd: towards zero, and its last bit set if that lost anything.
    """
    towards_zero = lw.intrinsic(f"llvm.nvvm.{_kind(src)}2f.rz", llvm_type(F32), value)
    back = lw.intrinsic(f"llvm.nvvm.f2{_kind(src)}.rz", value.type, towards_zero)
    return lw.b.fptrunc(_odd_if(lw, lw.b.icmp("ne", back, value), towards_zero), llvm_type(BF16))


def _odd_if(lw: Lowering, lost: Any, value: Any) -> Any:
    """An f32 with its last bit set where the bool `lost` is true."""
    return lw.b.bitcast(lw.b.or_(lw.bits(value), lw.b.zext(lost, I32)), value.type)


# -- formats of matrix operands --------------------------------------------------------------------


def _matrix_format(lw: Lowering, op: arith.Cast, value: Any) -> Any:
    """By way of f16 or f32, which hold the source exactly, or as an f64 rounded to odd: rounded once."""
    src, to = op.src.dtype, op.to
    if {src, to} & PAIRS.keys():
        only = f"on {lw.target.name}, {to if to in PAIRS else src} is only moved and bit cast"
        require(lw.target.name, FEATURES["fp8"], f"a conversion from {src} to {to}", op.loc, only)
    if src in PAIRS:
        value, src = _unpacked(lw, value, src), F16
    elif src == TF32:
        src = F32
    if not to.is_matrix:
        return value if src == to else _float_to_float(lw, value, src, to)
    if src == F64:
        value = _to_odd(lw, value)
    elif src != F32:
        value = _float_to_float(lw, value, src, F32)
    if to == TF32:
        if src == F64:  # which of the NaNs a conversion from f64 makes is not known, and tf32 keeps its bits
            (value,) = lw.asm(CANONICALIZE[F32], value, results=[value.type], pure=True)
        return lw.b.bitcast(lw.intrinsic("llvm.nvvm.f2tf32.rna", I32, value), llvm_type(TF32))
    pair = lw.intrinsic(f"llvm.nvvm.ff.to.{PAIRS[to]}.rn", I16, constant(0.0, F32), value)
    return lw.b.trunc(pair, I8)


def _unpacked(lw: Lowering, value: Any, src: DType) -> Any:
    pair = lw.intrinsic(f"llvm.nvvm.{PAIRS[src]}.to.f16x2.rn", ir.VectorType(llvm_type(F16), 2), lw.b.zext(value, I16))
    return lw.b.extract_element(pair, integer(0, I32))


def _to_odd(lw: Lowering, value: Any) -> Any:
    """An f64 as f32: towards zero, and the last bit set if that lost anything (a NaN loses nothing)."""
    towards_zero = lw.intrinsic("llvm.nvvm.d2f.rz", llvm_type(F32), value)
    return _odd_if(lw, lw.b.fcmp("one", lw.b.fpext(towards_zero, value.type), value), towards_zero)

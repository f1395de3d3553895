"""The rows of the scalar table, constants and selection. (PTX ISA: integer, floating-point, comparison
and logic instructions.)

No fast-math flag is ever set and nothing is contracted here: LLVM then emits ``.rn`` on every addition
and multiplication, which forbids ptxas to fuse them.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.division_rules import lower_floordiv, lower_mod
from tiledsl.backends.ptx.types import I1, constant, integer, llvm_type
from tiledsl.ir.core import OPS, Value
from tiledsl.ir.ops import arith
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import DType

__all__ = ["lower_constant", "lower_scalar", "lower_select"]

RowRule = Callable[[Lowering, DType, Sequence[Value]], Any]

APPROX = {
    "rcp_approx": "rcp.approx.f32",
    "rsqrt_approx": "rsqrt.approx.f32",
    "exp2_approx": "ex2.approx.ftz.f32",
    "log2_approx": "lg2.approx.f32",
    "tanh_approx": "tanh.approx.f32",
    "sin_approx": "sin.approx.f32",
    "cos_approx": "cos.approx.f32",
}
"""Inline PTX, because LLVM's intrinsics exist for some of them only in the form that flushes subnormals. That of ex2 is
chosen: it is one instruction, and the other one four (a comparison, scaling before and behind)."""

SAME_INTRINSIC = {
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "trunc": "llvm.trunc",
    "rint": "llvm.rint",
    "sqrt": "llvm.sqrt",
    "popc": "llvm.ctpop",
    "fma": "llvm.fma",
}
"""Rows that are one intrinsic on operands of one type."""

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@lowers(arith.Constant)
def lower_constant(lw: Lowering, op: arith.Constant) -> Sequence[Any]:
    return [constant(op.value, op.dtype)]


@lowers(arith.Select)
def lower_select(lw: Lowering, op: arith.Select) -> Sequence[Any]:
    return [lw.b.select(*lw.operands(op.operands))]


@lowers(*(OPS[f"arith.{row}"] for row in SCALAR))
def lower_scalar(lw: Lowering, op: arith.Scalar) -> Sequence[Any]:
    if op.nowrap:
        return [getattr(lw.b, op.fn.name)(*lw.operands(op.operands), flags=("nsw",))]
    return [ROWS[op.fn.name](lw, op.operands[0].dtype, op.operands)]


def _arithmetic(name: str) -> RowRule:
    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        method = getattr(lw.b, ("f" if dtype.is_float else "") + name)
        return method(*lw.operands(operands))

    return lower


def _bitwise(name: str) -> RowRule:
    return lambda lw, dtype, operands: getattr(lw.b, name)(*lw.operands(operands))


def _intrinsic(name: str) -> RowRule:
    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        type_ = llvm_type(dtype)
        return lw.intrinsic(name, type_, *lw.operands(operands), types=[type_])

    return lower


def _approx(instruction: str) -> RowRule:
    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        return lw.asm(f"{instruction} $0, $1;", "=f,f", llvm_type(dtype), lw.value(operands[0]))

    return lower


def _comparison(sign: str) -> RowRule:
    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        a, b = lw.operands(operands)
        if dtype.is_float:  # only != is true for a NaN
            return lw.b.fcmp_unordered(sign, a, b) if sign == "!=" else lw.b.fcmp_ordered(sign, a, b)
        return lw.b.icmp_signed(sign, a, b) if dtype.is_signed else lw.b.icmp_unsigned(sign, a, b)

    return lower


def _extremum(name: str) -> RowRule:
    """``minimumnum`` of LLVM is the table's row (the number of a pair, -0 < +0) and PTX's min."""

    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        type_ = llvm_type(dtype)
        prefix = "" if dtype.is_float else "s" if dtype.is_signed else "u"
        full = f"llvm.{name}imumnum" if dtype.is_float else f"llvm.{prefix}{name}"
        return lw.intrinsic(full, type_, *lw.operands(operands), types=[type_])

    return lower


def _div(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    """16-bit quotients go through f32: 24 bits are enough that rounding twice is rounding once."""
    return lw.b.fdiv(*lw.operands(operands))


def _neg(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    value = lw.value(operands[0])
    return lw.b.fneg(value) if dtype.is_float else lw.b.sub(integer(0, value), value)


def _abs(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    value, type_ = lw.value(operands[0]), llvm_type(dtype)
    if dtype.is_float:
        return lw.intrinsic("llvm.fabs", type_, value, types=[type_])
    if not dtype.is_signed:
        return value
    return lw.intrinsic("llvm.abs", type_, value, integer(0, I1), types=[type_])


def _not(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    value = lw.value(operands[0])
    return lw.b.xor(value, integer(-1, value))


def _clz(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    value, type_ = lw.value(operands[0]), llvm_type(dtype)
    return lw.intrinsic("llvm.ctlz", type_, value, integer(0, I1), types=[type_])


def _shift(name: str) -> RowRule:
    """LLVM's shifts are poison from the width on, so an amount that is not a small literal is tested."""

    def lower(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
        b = lw.b
        value, amount = lw.operands(operands)
        arithmetic = name == "shr" and dtype.is_signed
        shift = b.shl if name == "shl" else b.ashr if arithmetic else b.lshr
        top = integer(dtype.bits - 1, amount)
        if arithmetic:  # a shift by the width or more gives the sign, as one by width - 1 does
            return shift(value, lw.intrinsic("llvm.umin", amount.type, amount, top, types=[amount.type]))
        fits = b.icmp_unsigned("<=", amount, top)
        if dtype.bits == 64:
            # LLVM's NVPTX turns the plain form into one shl.b64, whose amount has 32 bits: 2^32 would be 0.
            amount = lw.intrinsic("llvm.umin", amount.type, amount, top, types=[amount.type])
        return b.select(fits, shift(value, amount), integer(0, value))

    return lower


ROWS: dict[str, RowRule] = {
    **{name: _arithmetic(name) for name in ("add", "sub", "mul")},
    **{name: _intrinsic(full) for name, full in SAME_INTRINSIC.items()},
    **{name: _approx(instruction) for name, instruction in APPROX.items()},
    **{name: _comparison(sign) for name, sign in COMPARISONS.items()},
    "div": _div,
    "floordiv": lower_floordiv,
    "mod": lower_mod,
    "min": _extremum("min"),
    "max": _extremum("max"),
    "neg": _neg,
    "abs": _abs,
    "and": _bitwise("and_"),
    "or": _bitwise("or_"),
    "xor": _bitwise("xor"),
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "clz": _clz,
}
"""One entry a row of `ir.scalar.SCALAR`."""

assert ROWS.keys() == SCALAR.keys(), "a row of the scalar table has no PTX rule"

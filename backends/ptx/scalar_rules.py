"""The rows of the scalar table, constants and selection. (PTX ISA: integer, floating-point, comparison
and logic instructions.)

No fast-math flag is ever set and nothing is contracted here: LLVM then emits ``.rn`` on every addition
and multiplication, which forbids ptxas to fuse them.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering, lowers
from tiledsl.backends.ptx.division_rules import ceil_division, floor_division
from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.types import I1, constant, integer
from tiledsl.ir.core import OPS
from tiledsl.ir.ops import arith
from tiledsl.ir.scalar import SCALAR
from tiledsl.ir.types import DType

# By row of `ir.scalar.SCALAR`: what LLVM has for floats, signed and unsigned integers, or one name for all of them.
INSTRUCTIONS: dict[str, Sequence[str]] = {
    "add": ("fadd", "add", "add"),
    "sub": ("fsub", "sub", "sub"),
    "mul": ("fmul", "mul", "mul"),
    "div": ("fdiv",),  # 16-bit quotients go through f32: 24 bits are enough that rounding twice is rounding once
    "and": ("and_",),
    "or": ("or_",),
    "xor": ("xor",),
}
INTRINSICS: dict[str, Sequence[str]] = {
    "floor": ("llvm.floor",),
    "ceil": ("llvm.ceil",),
    "trunc": ("llvm.trunc",),
    "rint": ("llvm.rint",),
    "sqrt": ("llvm.sqrt",),
    "fma": ("llvm.fma",),
    "popc": ("llvm.ctpop",),
    # minimumnum is the table's row (the number of a pair, -0 < +0) and PTX's min.
    "min": ("llvm.minimumnum", "llvm.smin", "llvm.umin"),
    "max": ("llvm.maximumnum", "llvm.smax", "llvm.umax"),
}
PREDICATES: dict[str, Sequence[str]] = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),  # the only one that is true for a NaN
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
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


@lowers(arith.Constant)
def lower_constant(lw: Lowering, op: arith.Constant) -> Sequence[Any]:
    return [constant(op.value, op.dtype)]


@lowers(arith.Select)
def lower_select(lw: Lowering, op: arith.Select) -> Sequence[Any]:
    return [lw.b.select(*lw.operands(op.operands))]


@lowers(*(OPS[f"arith.{row}"] for row in SCALAR))
def lower_scalar(lw: Lowering, op: arith.Scalar) -> Sequence[Any]:
    name, dtype, values = op.fn.name, op.operands[0].dtype, lw.operands(op.operands)

    def of(names: Sequence[str]) -> str:
        kind = 0 if dtype.is_float else 1 if dtype.is_signed else 2
        return names[min(kind, len(names) - 1)]

    if name in INSTRUCTIONS:
        flags = {"nsw": True} if op.nowrap else {}
        return [getattr(lw.b, of(INSTRUCTIONS[name]))(*values, **flags)]
    type_ = values[0].type
    if name in INTRINSICS:
        return [lw.intrinsic(of(INTRINSICS[name]), type_, *values, types=[type_])]
    if name in PREDICATES:
        compare = lw.b.fcmp if dtype.is_float else lw.b.icmp
        return [compare(of(PREDICATES[name]), *values)]
    if name in APPROX:
        return lw.asm(f"{APPROX[name]} $0, $1;", *values, results=[type_], pure=True)
    return [_composed(lw, name, dtype, *values)]


def _composed(lw: Lowering, name: str, dtype: DType, value: Any, other: Any = None) -> Any:
    """Rows that are more than one name."""

    def intrinsic(fn: str, *flags: Any) -> Any:
        return lw.intrinsic(fn, value.type, value, *flags, types=[value.type])

    match name:
        case "floordiv" | "mod":
            return floor_division(lw, dtype, value, other)[name == "mod"]
        case "ceildiv":
            return ceil_division(lw, dtype, value, other)
        case "neg":
            return lw.b.fneg(value) if dtype.is_float else lw.b.sub(integer(0, value), value)
        case "abs" if dtype.is_float:
            return intrinsic("llvm.fabs")
        case "abs":
            return intrinsic("llvm.abs", integer(0, I1)) if dtype.is_signed else value
        case "not":
            return lw.b.xor(value, integer(-1, value))
        case "clz":
            return intrinsic("llvm.ctlz", integer(0, I1))
        case "shr" if dtype.is_signed:  # a shift by the width or more gives the sign, as one by width - 1 does
            return lw.b.ashr(value, _at_most(lw, dtype.bits - 1, other))
        case "shl" | "shr":
            return _shifted(lw, dtype, name, value, other)
        case _:
            raise AssertionError(f"the scalar row {name} has no PTX rule")


def _shifted(lw: Lowering, dtype: DType, name: str, value: Any, amount: Any) -> Any:
    """Shift by any amount. LLVM's shifts are poison from the width on, so an amount that is no literal is tested."""
    shift = lw.b.shl if name == "shl" else lw.b.lshr
    if dtype.bits == 64 and not isinstance(amount, ir.Constant):
        # LLVM's NVPTX makes one instruction of a test and a shift, with the low 32 bits of the amount: 2^32 would be 0.
        # Two shifts by half of it need no test.
        most = _at_most(lw, dtype.bits, amount)
        half = lw.b.lshr(most, integer(1, most))
        return shift(shift(value, half), lw.b.sub(most, half))
    fits = lw.b.icmp("ule", amount, integer(dtype.bits - 1, amount))
    return lw.b.select(fits, shift(value, amount), integer(0, value))


def _at_most(lw: Lowering, limit: int, amount: Any) -> Any:
    return lw.intrinsic("llvm.umin", amount.type, amount, integer(limit, amount), types=[amount.type])

"""Simplifications of one scalar op, all exact: the result has the same bits for every operand.

Integers wrap, so ring identities hold. For floats only these remain: adding -0.0, subtracting 0.0,
multiplying and dividing by 1.0, all of which change nothing but a NaN's payload; they apply where
the operand cannot be a NaN with a payload, because it comes out of arithmetic (`_canonical`).
Adding +0.0 is not one of them (-0.0 + 0.0 = +0.0), nor is x - x, nor x * 0.0.
"""

from __future__ import annotations

from typing import Literal

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith
from tiledsl.ir.scalar import OPPOSITE
from tiledsl.ir.types import BF16, BOOL, TF32, U16, U32, DType
from tiledsl.passes.analysis.constants import Number, constant, fold, semantics

_OF_ITSELF: dict[str, Literal["x", "0"] | bool] = {
    **dict.fromkeys(("and", "or", "min", "max"), "x"),
    **dict.fromkeys(("xor", "sub", "mod"), "0"),  # also 0 mod 0, which is 0
    **dict.fromkeys(("eq", "le", "ge"), True),
    **dict.fromkeys(("ne", "lt", "gt"), False),
}
"""What ``x fn x`` is. Of floats only some: a NaN differs from itself, and x - x may be one."""
_WITH: dict[str, dict[int, Literal["x", "c", "0", "not"]]] = {
    "add": {0: "x"},
    "sub": {0: "x"},
    "mul": {0: "c", 1: "x"},
    "and": {0: "c", -1: "x"},
    "or": {0: "x", -1: "c"},
    "xor": {0: "x", -1: "not"},
    "shl": {0: "x"},
    "shr": {0: "x"},
    "floordiv": {0: "c", 1: "x"},
    "ceildiv": {0: "c", 1: "x"},
    "mod": {0: "x", 1: "0"},
}
"""What ``x fn c`` is, by c; -1 stands for all bits."""
_WITH_BOOL = {**_WITH, "eq": {0: "not", -1: "x"}, "ne": {0: "x", -1: "not"}}
_NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
"""The c for which ``x fn c`` is x, of floats."""


def simplify_scalar(b: Builder, op: arith.Scalar) -> Value | None:
    """The value that `op` always equals, where there is a simpler one; ops it needs go through `b`.

    Constants of commutative ops move to the right, and ``(x + 1) + 2`` becomes ``x + 3``, in place.
    """
    row = op.fn
    dtype = op.operands[0].dtype
    known = [constant(v) for v in op.operands]
    values = [v for v in known if v is not None]
    if len(values) == len(known) and row.ulp is None:
        return b.constant(fold(row.name, dtype, *values), BOOL if row.to_bool else dtype)
    if row.commutative and known[0] is not None:
        op.set_operands([op.operands[1], op.operands[0]])
    match op.operands:
        case [x]:
            return _twice(b, op, x)
        case [x, y] if x is y:
            return _of_itself(b, op, x)
        case [x, y] if dtype.is_float:
            return x if _is_float(y, _NEUTRAL.get(row.name)) and _canonical(x) else None
        case [x, y]:
            value = constant(y)
            return None if value is None else _with_constant(b, op, value)
        case [x, y, z] if row.name == "fma":
            return _fma(b, x, y, z)
        case _:
            return None


def packed_word(b: Builder, op: arith.Scalar) -> Value | None:
    """``low.bitcast(u16).to(u32) | high.bitcast(u16).to(u32) << 16``: the word of two 16-bit values of one dtype.

    As one op it takes what is rounded for it in one instruction. (PTX ISA: cvt.rn.bf16x2.f32.)
    """
    if op.fn.name not in ("or", "add") or op.result.dtype != U32:
        return None
    for low, high in (op.operands, op.operands[::-1]):
        shift = high.op
        if not isinstance(shift, arith.Scalar) or shift.fn.name != "shl" or constant(shift.operands[1]) != 16:
            continue
        first, second = _half(low), _half(shift.operands[0])
        if first is not None and second is not None and first.type == second.type:
            return b.value(arith.PackWord(first, second))
    return None


def _half(value: Value) -> Value | None:
    """The 16-bit float whose bits are the lower half of the u32 `value`, the rest 0."""
    cast = value.op
    if not isinstance(cast, arith.Cast) or cast.src.type != U16:
        return None
    moved = cast.src.op
    return moved.src if isinstance(moved, arith.Bitcast) and moved.src.dtype.is_float else None


def simplify_cast(b: Builder, op: arith.Cast) -> Value | None:
    src, to = op.src.dtype, op.to
    if src == to:
        return op.src
    value = constant(op.src)
    if value is not None and not ((src, to) in _MOVES and value != value):
        return b.constant(semantics().fold_cast(value, src, to), to)
    inner = op.src.op
    if not isinstance(inner, arith.Cast) or not (src.is_integer and to.is_integer and inner.src.dtype.is_integer):
        return None
    # The step between drops no bit that counts: the low bits survive all, and so does an extension of the same kind.
    origin = inner.src.dtype
    extends = origin.bits <= src.bits and origin.is_signed == src.is_signed
    zero_extends = origin.bits < src.bits and not origin.is_signed
    return b.cast(inner.src, to) if to.bits <= src.bits or extends or zero_extends else None


def simplify_bitcast(b: Builder, op: arith.Bitcast) -> Value | None:
    src = op.src.dtype
    if src == op.to:
        return op.src
    value = constant(op.src)
    if value is not None and not (op.to.python is float and _is_payload_nan(value, src, op.to)):
        return b.constant(semantics().fold_bitcast(value, src, op.to), op.to)
    inner = op.src.op
    if isinstance(inner, arith.Bitcast):
        return b.value(arith.Bitcast(inner.src, to=op.to)) if inner.src.type != op.to else inner.src
    return None


_MOVES = arith.CARRIERS | {(BF16, TF32)}
"""Casts that move bits: not even of the canonical NaN do they make that of the result's dtype."""


def _is_payload_nan(value: Number, src: DType, to: DType) -> bool:
    """A NaN constant is canonical, so other NaN bit patterns cannot become one."""
    result = semantics().fold_bitcast(value, src, to)
    return result != result and semantics().fold_bitcast(result, to, src) != value


def simplify_select(b: Builder, op: arith.Select) -> Value | None:
    known = constant(op.condition)
    if known is not None:
        return op.a if known else op.b
    if op.a is op.b:
        return op.a
    inner = op.condition.op
    if isinstance(inner, arith.Scalar) and inner.fn.name == "not":
        op.set_operands([inner.operands[0], op.b, op.a])
        return None
    if op.a.type == BOOL and (constant(op.a), constant(op.b)) == (True, False):
        return op.condition
    return None


# -- scalar functions ------------------------------------------------------------------------------


def _twice(b: Builder, op: arith.Scalar, operand: Value) -> Value | None:
    """neg(neg x), not(not x); ``not`` of an exact comparison is the opposite one."""
    inner, name = operand.op, op.fn.name
    if not isinstance(inner, arith.Scalar) or name not in ("neg", "not"):
        return None
    x = inner.operands[0]
    if inner.fn.name == name:
        return x if not x.dtype.is_float or _canonical(x) else None
    opposite = OPPOSITE.get(inner.fn.name)
    if name == "not" and opposite is not None and (not x.dtype.is_float or opposite in ("eq", "ne")):
        return b.scalar(opposite, *inner.operands)
    return None


def _of_itself(b: Builder, op: arith.Scalar, x: Value) -> Value | None:
    name, dtype = op.fn.name, x.dtype
    found = _OF_ITSELF.get(name)
    if dtype.is_float and name not in ("lt", "gt") and not (found == "x" and _canonical(x)):
        return None
    if isinstance(found, bool):
        return b.constant(found, BOOL)
    return b.constant(dtype.python(0), dtype) if found == "0" else x if found else None


def _canonical(value: Value) -> bool:
    """True if a NaN here can only be the canonical one."""
    op = value.op
    if isinstance(op, arith.Cast):
        return op.src.dtype != op.to and (op.src.dtype, op.to) not in _MOVES
    return isinstance(op, (arith.Scalar, arith.Constant))


def _is_float(value: Value, wanted: float | None) -> bool:
    known = constant(value)
    return isinstance(known, float) and repr(known) == repr(wanted)  # 0.0 == -0.0


def _fma(b: Builder, x: Value, y: Value, z: Value) -> Value | None:
    if _is_float(z, -0.0):
        return b.scalar("mul", x, y)
    if _is_float(y, 1.0):
        return b.scalar("add", x, z)
    return b.scalar("add", y, z) if _is_float(x, 1.0) else None


def _with_constant(b: Builder, op: arith.Scalar, value: Number) -> Value | None:
    """``x fn value``, of integers and bools."""
    name, (x, y), dtype = op.fn.name, op.operands, op.operands[0].dtype
    value = int(value)
    ones = (1 << dtype.bits) - 1 if dtype.kind == "uint" else 1 if dtype is BOOL else -1
    match (_WITH_BOOL if dtype is BOOL else _WITH).get(name, {}).get(-1 if value == ones else value):
        case "x":
            return x
        case "c":
            return y
        case "0":
            return b.constant(0, dtype)
        case "not":
            return b.scalar("not", x)
        case _:
            pass
    power = value > 0 and value & (value - 1) == 0
    match name:
        case "sub":
            return b.scalar("add", x, b.constant(fold("neg", dtype, value), dtype))
        case "add" | "mul" | "and" | "or" | "xor":
            _reassociate(b, op, value)
        case "shl" | "shr" if not 0 <= value < dtype.bits and (name == "shl" or dtype.kind == "uint"):
            return b.constant(0, dtype)
        case "floordiv" if power:  # a shift and a mask, for either sign
            return b.scalar("shr", x, b.constant(value.bit_length() - 1, dtype))
        case "ceildiv" if power:
            rest = b.scalar("min", b.scalar("and", x, b.constant(value - 1, dtype)), b.constant(1, dtype))
            return b.scalar("add", b.scalar("shr", x, b.constant(value.bit_length() - 1, dtype)), rest)
        case "mod" if power:
            return b.scalar("and", x, b.constant(value - 1, dtype))
        case _:
            pass
    return None


def _reassociate(b: Builder, op: arith.Scalar, value: int) -> None:
    """``(x fn c) fn value`` becomes ``x fn (c fn value)``, in place."""
    inner, dtype = op.operands[0].op, op.operands[0].dtype
    known = constant(inner.operands[1]) if isinstance(inner, arith.Scalar) and type(inner) is type(op) else None
    if inner is not None and known is not None:
        op.set_operands([inner.operands[0], b.constant(fold(op.fn.name, dtype, known, value), dtype)])
        op.attrs["nowrap"] = False  # said of the old sum, whose inner one may have wrapped

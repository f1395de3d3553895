"""Simplifications of one scalar op, all exact: the result has the same bits for every operand.

Integers wrap, so ring identities hold. For floats only these remain: adding -0.0, subtracting 0.0,
multiplying and dividing by 1.0, all of which change nothing but a NaN's payload; they apply where
the operand cannot be a NaN with a payload, because it comes out of arithmetic (`_canonical`).
Adding +0.0 is not one of them (-0.0 + 0.0 = +0.0), nor is x - x, nor x * 0.0.
"""

from __future__ import annotations

from math import copysign
from typing import Callable

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import BF16, BOOL, F32, TF32, U16, U32, DType
from tiledsl.passes.analysis.constants import Number, constant, fold, fold_bitcast, fold_cast

__all__ = ["packed_word", "simplify_bitcast", "simplify_cast", "simplify_scalar", "simplify_select"]

Rule = Callable[[Builder, arith.Scalar, DType], "Value | None"]

_COMPARISONS = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_REFLEXIVE = {"eq": True, "le": True, "ge": True, "ne": False, "lt": False, "gt": False}


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
    if len(op.operands) == 2 and op.operands[0] is op.operands[1]:
        return _same_operands(b, op, dtype)
    rule = (_FLOAT_RULES if dtype.is_float else _EXACT_RULES).get(row.name)
    return None if rule is None else rule(b, op, dtype)


def packed_word(op: arith.Scalar) -> Op | None:
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
            return arith.PackWord(first, second, loc=op.loc)
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
    if value is not None and not (_keeps_payload(src, to) and value != value):
        return b.constant(fold_cast(value, src, to), to)
    inner = op.src.op
    if isinstance(inner, arith.Cast) and src.is_integer and to.is_integer:
        origin = inner.src.dtype
        if origin.is_integer and (origin.bits <= src.bits or to.bits <= src.bits):
            return _chained_cast(b, inner.src, origin, src, to)
    return None


def _chained_cast(b: Builder, value: Value, origin: DType, middle: DType, to: DType) -> Value | None:
    """``to(middle(value))`` for integers: the middle step drops no bit that counts."""
    if to.bits <= middle.bits:
        return b.cast(value, to)  # the low bits survive every step
    same_extension = origin.is_signed == middle.is_signed or (middle.bits > origin.bits and not origin.is_signed)
    return b.cast(value, to) if same_extension else None


def simplify_bitcast(b: Builder, op: arith.Bitcast) -> Value | None:
    src = op.src.dtype
    if src == op.to:
        return op.src
    value = constant(op.src)
    if value is not None and not (op.to.python is float and _is_payload_nan(value, src, op.to)):
        return b.constant(fold_bitcast(value, src, op.to), op.to)
    inner = op.src.op
    if isinstance(inner, arith.Bitcast):
        return b.value(arith.Bitcast(inner.src, to=op.to)) if inner.src.type != op.to else inner.src
    return None


_MOVES = frozenset({(TF32, F32), (BF16, F32), (BF16, TF32)})


def _keeps_payload(src: DType, to: DType) -> bool:
    """True for a cast that moves bits: not even of the canonical NaN does it make that of `to`."""
    return (src, to) in _MOVES


def _is_payload_nan(value: Number, src: DType, to: DType) -> bool:
    """A NaN constant is canonical, so other NaN bit patterns cannot become one."""
    result = fold_bitcast(value, src, to)
    return result != result and fold_bitcast(result, to, src) != value


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


# -- rules -----------------------------------------------------------------------------------------


def _same_operands(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """``x fn x``. A NaN differs from itself, and x - x may be one."""
    name, x = op.fn.name, op.operands[0]
    if name in ("lt", "gt") or (name in _REFLEXIVE and not dtype.is_float):
        return b.constant(_REFLEXIVE[name], BOOL)
    if name in ("min", "max"):
        return x if not dtype.is_float or _canonical(x) else None
    if name in ("and", "or"):
        return x
    if name in ("xor", "mod") or (name == "sub" and not dtype.is_float):
        return b.constant(_typed(0, dtype), dtype)  # also 0 mod 0, which is 0
    return None


def _typed(value: int, dtype: DType) -> Number:
    return bool(value) if dtype.kind == "bool" else value


def _canonical(value: Value) -> bool:
    """True if a NaN here can only be the canonical one."""
    op = value.op
    if isinstance(op, arith.Cast):
        return op.src.dtype != op.to and not _keeps_payload(op.src.dtype, op.to)
    return isinstance(op, (arith.Scalar, arith.Constant))


def _is_float(value: Value, wanted: float) -> bool:
    known = constant(value)
    return isinstance(known, float) and known == wanted and copysign(1, known) == copysign(1, wanted)


def _float_neutral(neutral: float) -> Rule:
    """``x fn neutral`` is x, for floats."""

    def rule(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
        x, y = op.operands
        return x if _is_float(y, neutral) and _canonical(x) else None

    return rule


def _float_fma(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    x, y, z = op.operands
    if _is_float(z, -0.0):
        return b.scalar("mul", x, y)
    if _is_float(y, 1.0):
        return b.scalar("add", x, z)
    return b.scalar("add", y, z) if _is_float(x, 1.0) else None


def _twice(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """neg(neg x), not(not x); ``not`` of an exact comparison is the opposite one."""
    inner = op.operands[0].op
    if not isinstance(inner, arith.Scalar):
        return None
    name = inner.fn.name
    if name == op.fn.name:
        x = inner.operands[0]
        return x if not dtype.is_float or _canonical(x) else None
    if op.fn.name == "not" and name in _COMPARISONS and (not inner.operands[0].dtype.is_float or name in ("eq", "ne")):
        return b.scalar(_COMPARISONS[name], *inner.operands)
    return None


def _add(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """x + 0; x - c as x + (-c); (x + c) + d."""
    x, y = op.operands
    value = constant(y)
    if value is None:
        return None
    if value == 0:
        return x
    if op.fn.name == "sub":
        return b.scalar("add", x, b.constant(fold("neg", dtype, value), dtype))
    _reassociate(b, op, dtype, value)
    return None


def _mul(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    x, y = op.operands
    value = constant(y)
    if value is None:
        return None
    if value in (0, 1):
        return x if value else y
    _reassociate(b, op, dtype, value)
    return None


def _reassociate(b: Builder, op: arith.Scalar, dtype: DType, value: Number) -> None:
    """``(x fn c) fn value`` becomes ``x fn (c fn value)``, in place."""
    inner = op.operands[0].op
    if isinstance(inner, arith.Scalar) and type(inner) is type(op):
        known = constant(inner.operands[1])
        if known is not None:
            op.set_operands([inner.operands[0], b.constant(fold(op.fn.name, dtype, known, value), dtype)])
            op.attrs["nowrap"] = False  # said of the old sum, whose inner one may have wrapped


def _bits(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """and, or, xor with all bits or none; with a constant twice."""
    x, y = op.operands
    value = constant(y)
    if value is None:
        return None
    ones = fold("not", dtype, _typed(0, dtype))
    name = op.fn.name
    if value == 0:
        return y if name == "and" else x
    if value == ones:
        return {"and": x, "or": y}.get(name) or b.scalar("not", x)
    _reassociate(b, op, dtype, value)
    return None


def _shift(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    x, y = op.operands
    value = constant(y)
    if value == 0:
        return x
    too_far = value is not None and not 0 <= value < dtype.bits
    if too_far and (op.fn.name == "shl" or dtype.kind == "uint"):
        return b.constant(0, dtype)
    return None


def _divide(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """Floor division and modulo by a power of two are a shift and a mask, for either sign."""
    x, y = op.operands
    value = constant(y)
    if value is None or value < 0 or value & (int(value) - 1):  # pyright: ignore[reportOperatorIssue]
        return None
    floor = op.fn.name == "floordiv"
    if value in (0, 1):
        return {(True, 0): y, (True, 1): x, (False, 0): x}.get((floor, int(value))) or b.constant(0, dtype)
    if floor:
        return b.scalar("shr", x, b.constant(int(value).bit_length() - 1, dtype))
    return b.scalar("and", x, b.constant(int(value) - 1, dtype))


def _equal(b: Builder, op: arith.Scalar, dtype: DType) -> Value | None:
    """A bool against a constant."""
    x, y = op.operands
    value = constant(y)
    if dtype is not BOOL or value is None:
        return None
    return x if value == (op.fn.name == "eq") else b.scalar("not", x)


_FLOAT_RULES: dict[str, Rule] = {
    "add": _float_neutral(-0.0),
    "sub": _float_neutral(0.0),
    "mul": _float_neutral(1.0),
    "div": _float_neutral(1.0),
    "fma": _float_fma,
    "neg": _twice,
}
_EXACT_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _add,
    "mul": _mul,
    "and": _bits,
    "or": _bits,
    "xor": _bits,
    "not": _twice,
    "neg": _twice,
    "shl": _shift,
    "shr": _shift,
    "floordiv": _divide,
    "mod": _divide,
    "eq": _equal,
    "ne": _equal,
}

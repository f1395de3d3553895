"""Floor division and remainder, total: ``x floordiv 0 = 0``, ``x mod 0 = x``, ``MIN floordiv -1 = MIN``.

Literal divisors cost what they must: a power of two is a shift or a mask, another one LLVM's multiply
by the reciprocal.
"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.backends.ptx.context import Lowering
from tiledsl.backends.ptx.types import integer
from tiledsl.ir.core import Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import DType

__all__ = ["lower_floordiv", "lower_mod"]


def lower_floordiv(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    a, b = lw.operands(operands)
    literal = _literal(operands[1])
    if literal == 0:
        return integer(0, a)
    if literal is not None and literal > 0 and literal & (literal - 1) == 0:
        amount = integer(literal.bit_length() - 1, a)
        return lw.b.ashr(a, amount) if dtype.is_signed else lw.b.lshr(a, amount)
    if not dtype.is_signed:
        return _unsigned(lw, a, b, literal)[0]
    return _signed(lw, a, b, literal)[0]


def lower_mod(lw: Lowering, dtype: DType, operands: Sequence[Value]) -> Any:
    a, b = lw.operands(operands)
    literal = _literal(operands[1])
    if literal == 0:
        return a
    if literal is not None and literal > 0 and literal & (literal - 1) == 0:
        return lw.b.and_(a, integer(literal - 1, a))
    if not dtype.is_signed:
        return _unsigned(lw, a, b, literal)[1]
    return _signed(lw, a, b, literal)[1]


def _literal(value: Value) -> int | None:
    return int(value.op.value) if isinstance(value.op, arith.Constant) else None


def _unsigned(lw: Lowering, a: Any, b: Any, literal: int | None) -> tuple[Any, Any]:
    """Quotient and remainder; a divisor of 0 is replaced before dividing, for LLVM's is undefined."""
    build, zero = lw.b, integer(0, a)
    if literal is not None:
        return build.udiv(a, b), build.urem(a, b)
    by_zero = build.icmp_unsigned("==", b, zero)
    divisor = build.select(by_zero, integer(1, a), b)
    quotient, remainder = build.udiv(a, divisor), build.urem(a, divisor)
    return build.select(by_zero, zero, quotient), build.select(by_zero, a, remainder)


def _signed(lw: Lowering, a: Any, b: Any, literal: int | None) -> tuple[Any, Any]:
    """Truncated division, then one step down where the remainder's sign is not the divisor's.

    Divisors 0 and -1 are replaced by 1: the first is undefined in LLVM, the second overflows.
    """
    build, zero, one = lw.b, integer(0, a), integer(1, a)
    if literal == -1:
        return build.sub(zero, a), zero
    if literal is not None:
        return _floored(lw, a, b)
    by_zero = build.icmp_signed("==", b, zero)
    negated = build.icmp_signed("==", b, integer(-1, a))
    quotient, remainder = _floored(lw, a, build.select(build.or_(by_zero, negated), one, b))
    quotient = build.select(negated, build.sub(zero, a), quotient)
    return build.select(by_zero, zero, quotient), build.select(by_zero, a, remainder)


def _floored(lw: Lowering, a: Any, b: Any) -> tuple[Any, Any]:
    build, zero = lw.b, integer(0, a)
    quotient = build.sdiv(a, b)
    remainder = build.sub(a, build.mul(quotient, b))
    inexact = build.icmp_signed("!=", remainder, zero)
    opposite = build.icmp_signed("<", build.xor(remainder, b), zero)
    step = build.and_(inexact, opposite)
    lower = build.sub(quotient, integer(1, a))
    return build.select(step, lower, quotient), build.select(step, build.add(remainder, b), remainder)

"""Floor division and remainder, total: ``x floordiv 0 = 0``, ``x mod 0 = x``, ``MIN floordiv -1 = MIN``.

Literal divisors cost what they must: LLVM folds the tests, makes a shift or a mask of a power of two, and multiplies by
the reciprocal of another one.
"""

from __future__ import annotations

from typing import Any

from tiledsl.backends.ptx.context import Lowering
from tiledsl.backends.ptx.types import integer
from tiledsl.ir.types import DType


def floor_division(lw: Lowering, dtype: DType, a: Any, b: Any) -> tuple[Any, Any]:
    """Quotient and remainder. LLVM drops the one that nobody uses."""
    build, zero = lw.b, integer(0, a)
    # Divisors 0 and -1 are replaced by 1: the first is undefined in LLVM, the second overflows.
    by_zero = build.icmp("eq", b, zero)
    if not dtype.is_signed:
        divisor = build.select(by_zero, integer(1, a), b)
        quotient, remainder = build.udiv(a, divisor), build.urem(a, divisor)
    else:
        negated = build.icmp("eq", b, integer(-1, a))
        quotient, remainder = _floored(lw, a, build.select(build.or_(by_zero, negated), integer(1, a), b))
        quotient = build.select(negated, build.sub(zero, a), quotient)
    return build.select(by_zero, zero, quotient), build.select(by_zero, a, remainder)


def _floored(lw: Lowering, a: Any, b: Any) -> tuple[Any, Any]:
    """Truncated division, then one step down where the remainder's sign is not the divisor's."""
    build, zero = lw.b, integer(0, a)
    quotient = build.sdiv(a, b)
    remainder = build.sub(a, build.mul(quotient, b))
    inexact = build.icmp("ne", remainder, zero)
    opposite = build.icmp("slt", build.xor(remainder, b), zero)
    step = build.and_(inexact, opposite)
    lower = build.sub(quotient, integer(1, a))
    return build.select(step, lower, quotient), build.select(step, build.add(remainder, b), remainder)

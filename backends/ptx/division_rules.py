"""Floor division, remainder, and ceiling division, total: ``x floordiv 0 = x ceildiv 0 = 0``, ``x mod 0 = x``, and
``MIN floordiv -1 = MIN ceildiv -1 = MIN``.

Literal divisors cost what they must: LLVM folds the tests, makes a shift or a mask of a power of two, and multiplies by
the reciprocal of another one.
"""

from __future__ import annotations

from typing import Any

from tiledsl.backends.ptx.context import Lowering
from tiledsl.backends.ptx.types import integer
from tiledsl.ir.types import DType


def floor_division(lw: Lowering, dtype: DType, a: Any, b: Any) -> tuple[Any, Any]:
    """Return quotient and remainder. LLVM drops the one that nobody uses."""
    build, zero = lw.b, integer(0, a)
    by_zero, negated, divisor = _divisor(lw, dtype, a, b)
    if not dtype.is_signed:
        quotient, remainder = build.udiv(a, divisor), build.urem(a, divisor)
    else:
        quotient, remainder = _floored(lw, a, divisor)
        quotient = build.select(negated, build.sub(zero, a), quotient)
    return build.select(by_zero, zero, quotient), build.select(by_zero, a, remainder)


def ceil_division(lw: Lowering, dtype: DType, a: Any, b: Any) -> Any:
    """Return the quotient, rounded towards zero and one more where a rest of the quotient's sign is left."""
    build, zero = lw.b, integer(0, a)
    by_zero, negated, divisor = _divisor(lw, dtype, a, b)
    if dtype.is_signed:
        quotient, remainder, inexact = _truncated(lw, a, divisor)
        positive = build.icmp("sge", build.xor(remainder, divisor), zero)
        step = build.and_(inexact, positive)
    else:
        quotient = build.udiv(a, divisor)
        step = build.icmp("ne", build.urem(a, divisor), zero)
    quotient = build.select(step, build.add(quotient, integer(1, a)), quotient)
    if dtype.is_signed:
        quotient = build.select(negated, build.sub(zero, a), quotient)
    return build.select(by_zero, zero, quotient)


def _divisor(lw: Lowering, dtype: DType, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Return whether b is 0, whether it is a signed -1, and b, with 1 for both: LLVM leaves the quotient by 0
    undefined, and that by -1 overflows."""
    build = lw.b
    by_zero = build.icmp("eq", b, integer(0, a))
    if not dtype.is_signed:
        return by_zero, None, build.select(by_zero, integer(1, a), b)
    negated = build.icmp("eq", b, integer(-1, a))
    return by_zero, negated, build.select(build.or_(by_zero, negated), integer(1, a), b)


def _truncated(lw: Lowering, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Return quotient and remainder of a division that rounds towards zero, and whether a remainder is left."""
    quotient = lw.b.sdiv(a, b)
    remainder = lw.b.sub(a, lw.b.mul(quotient, b))
    return quotient, remainder, lw.b.icmp("ne", remainder, integer(0, a))


def _floored(lw: Lowering, a: Any, b: Any) -> tuple[Any, Any]:
    """Return truncated division, one step down where the remainder's sign is not the divisor's."""
    build, zero = lw.b, integer(0, a)
    quotient, remainder, inexact = _truncated(lw, a, b)
    opposite = build.icmp("slt", build.xor(remainder, b), zero)
    step = build.and_(inexact, opposite)
    lower = build.sub(quotient, integer(1, a))
    return build.select(step, lower, quotient), build.select(step, build.add(remainder, b), remainder)

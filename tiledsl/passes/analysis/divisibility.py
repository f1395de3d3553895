"""Divisibility analysis: the largest power of two that is known to divide an integer value.

It proves alignment. Wrapping arithmetic keeps divisibility by a power of two up to the dtype's
modulus, so the rules hold for every integer dtype; `LIMIT` stays far below all moduli that matter.
Loop-carried values start at the top and sink until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import arith, tile
from tiledsl.ir.types import DType, GlobalType
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.forward import Forward

LIMIT = 128
"""Enough for every alignment; i8 wraps at 256, so it is a true divisor in each dtype."""


def power_of_two_in(number: int) -> int:
    """The largest power of two that divides `number`, at most `LIMIT`; 0 is divisible by all."""
    return min(LIMIT, number & -number) if number else LIMIT


class Divisibility(Forward):
    """Runs over the kernel once, at construction; `of(value)` then answers."""

    def __init__(self, kernel: Kernel) -> None:
        self._known: dict[Value, int] = dict.fromkeys(kernel.body.args, 1)
        self.walk(kernel.body)

    def of(self, value: Value) -> int:
        """A power of two from 1 to `LIMIT` that divides `value`, an integer."""
        return self._known.get(value, LIMIT)

    def op(self, op: Op) -> None:
        for result in op.results:
            if isinstance(result.type, DType) and result.type.is_integer:
                self._lower(result, divisor_of(op, self.of))

    def join(self, op: Op, target: Value, sources: Sequence[Value]) -> None:
        self._lower(target, min(map(self.of, sources)))

    def _lower(self, value: Value, divisor: int) -> None:
        """Several things may reach a value, so what is known only ever sinks."""
        if divisor < self.of(value):
            self._known[value] = divisor
            self.changed = True


def divisor_of(op: Op | None, of: Callable[[Value], int]) -> int:
    """A power of two that divides the result of `op`, where `of` gives one of each operand."""
    match op:
        case arith.Constant(value=int(value)):
            return power_of_two_in(value)
        case arith.Scalar() if op.operands[0].dtype.is_integer:
            return _scalar(op, [of(v) for v in op.operands])
        case arith.Cast() if op.src.dtype.is_integer:
            return of(op.src)
        case arith.Select():
            return min(of(op.a), of(op.b))
        case tile.Stride():
            type_ = op.tensor.type
            assert isinstance(type_, GlobalType)
            return 1 if op.axis == type_.unit else max(1, type_.align // type_.dtype.bytes)
        case tile.Dim():
            extent = op.tensor.type.dims[op.axis] if isinstance(op.tensor.type, GlobalType) else None
            return power_of_two_in(extent) if isinstance(extent, int) else 1
        case _:
            return 1


def _scalar(op: arith.Scalar, d: Sequence[int]) -> int:
    """The same for a scalar function, from powers of two (`d`) that divide the operands."""
    match op.fn.name:
        case "add" | "sub" | "min" | "max" | "or" | "xor" | "mod":
            return min(d)
        case "and":
            return max(d)
        case "mul":
            return min(LIMIT, d[0] * d[1])
        case "neg" | "abs":
            return d[0]
        case "shl" | "shr" | "floordiv" | "ceildiv":
            return _scaled(op, d[0])
        case _:
            return 1


def _scaled(op: arith.Scalar, divisor: int) -> int:
    """Shifts and division by a constant; otherwise a left shift keeps the divisor, the rest nothing."""
    by = integer(op.operands[1])
    name = op.fn.name
    if by is None or by < 0:
        return divisor if name == "shl" else 1
    if name == "shl":
        return min(LIMIT, divisor << min(by, 16))
    if name == "shr":
        return max(1, divisor >> min(by, 16))
    return max(1, divisor // by) if by and by & (by - 1) == 0 else 1

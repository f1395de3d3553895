"""Divisibility analysis: the largest power of two that is known to divide an integer value.

It proves alignment. Wrapping arithmetic keeps divisibility by a power of two up to the dtype's
modulus, so the rules hold for every integer dtype; `LIMIT` stays far below all moduli that matter.
Loop-carried values start at the top and sink until nothing changes.
"""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, tile
from tiledsl.ir.types import DType, GlobalType
from tiledsl.passes.analysis.constants import integer

__all__ = ["LIMIT", "Divisibility", "divisor_of", "power_of_two_in"]

LIMIT = 128
"""Enough for every alignment; i8 wraps at 256, so it is a true divisor in each dtype."""


def power_of_two_in(number: int) -> int:
    """The largest power of two that divides `number`, at most `LIMIT`; 0 is divisible by all."""
    return min(LIMIT, number & -number) if number else LIMIT


class Divisibility:
    """Runs over the kernel once, at construction; `of(value)` then answers."""

    def __init__(self, kernel: Kernel) -> None:
        self._known: dict[Value, int] = {}
        self._changed = False
        self._threads = kernel.threads
        for arg in kernel.body.args:
            self._known[arg] = 1
        self._block(kernel.body)

    def of(self, value: Value) -> int:
        """A power of two from 1 to `LIMIT` that divides `value`, an integer."""
        return self._known.get(value, LIMIT)

    def _lower(self, value: Value, divisor: int) -> None:
        """Note what reaches `value`; several things may (loops), so it only ever sinks."""
        if divisor < self._known.get(value, LIMIT):
            self._known[value] = divisor
            self._changed = True

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, control.If):
                self._if(op)
            elif isinstance(op, (control.For, control.While)):
                self._loop(op)
            else:
                for result in op.results:
                    if isinstance(result.type, DType) and result.type.is_integer:
                        self._lower(result, self._op(op))

    def _if(self, op: control.If) -> None:
        for block in op.blocks:
            self._block(block)
            for result, value in zip(op.results, block.terminator.operands, strict=True):
                self._lower(result, self.of(value))

    def _loop(self, op: control.For | control.While) -> None:
        inits = op.inits if isinstance(op, control.For) else op.operands
        args = op.body.args[1:] if isinstance(op, control.For) else op.before.args
        if isinstance(op, control.For):
            self._lower(op.body.args[0], min(self.of(op.lo), self.of(op.step)))
        for arg, value in zip(args, inits, strict=True):
            self._lower(arg, self.of(value))
        while True:
            outer, self._changed = self._changed, False
            for block in op.blocks:
                self._block(block)
                if isinstance(block.terminator, control.Condition):
                    self._pass_on(op, block.terminator.operands[1:])
            for arg, value in zip(args, op.blocks[-1].terminator.operands, strict=True):
                self._lower(arg, self.of(value))
            again, self._changed = self._changed, self._changed or outer
            if not again:
                break
        if isinstance(op, control.For):
            for result, arg in zip(op.results, args, strict=True):
                self._lower(result, self.of(arg))

    def _pass_on(self, op: control.While | control.For, values: list[Value]) -> None:
        for target in (op.blocks[1].args, op.results):
            for result, value in zip(target, values, strict=True):
                self._lower(result, self.of(value))

    def _op(self, op: Op) -> int:
        match op:
            case arith.Constant(value=int(value)):
                return power_of_two_in(value)
            case arith.Scalar():
                return divisor_of(op, [self.of(v) for v in op.operands])
            case arith.Cast() if isinstance(op.src.type, DType) and op.src.type.is_integer:
                return self.of(op.src)
            case arith.Select():
                return min(self.of(op.a), self.of(op.b))
            case tile.Dim():
                return self._tensor(op)
            case _:
                return 1

    def _tensor(self, op: tile.Dim) -> int:
        type_ = op.tensor.type
        assert isinstance(type_, GlobalType)
        if isinstance(op, tile.Stride):
            return 1 if op.axis == type_.unit else max(1, type_.align // type_.dtype.bytes)
        extent = type_.dims[op.axis]
        return power_of_two_in(extent) if isinstance(extent, int) else 1


def divisor_of(op: arith.Scalar, d: Sequence[int]) -> int:
    """A power of two that divides the result, from those (`d`) that divide the operands."""
    match op.fn.name:
        case "add" | "sub" | "min" | "max" | "or" | "xor" | "mod":
            return min(d)
        case "and":
            return max(d)
        case "mul":
            return min(LIMIT, d[0] * d[1])
        case "neg" | "abs":
            return d[0]
        case "shl" | "shr" | "floordiv":
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

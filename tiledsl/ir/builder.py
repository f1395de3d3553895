"""Appends ops to a block at a current source location."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import UNKNOWN_LOC, Loc
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import INDEX, DType

__all__ = ["Builder"]


class Builder:
    """`block` is where ops go; `loc` is given to every op. Both may be set at any time.

    With `before`, ops are inserted in front of that op instead of at the block's end. `made` counts them.
    """

    def __init__(self, block: Block, loc: Loc = UNKNOWN_LOC, before: Op | None = None) -> None:
        self.block, self.loc, self.before = block, loc, before
        self.made = 0

    def add(self, op: Op) -> Op:
        """Place `op` here, give it the current location, and return it."""
        op.loc = self.loc
        self.made += 1
        if self.before is None:
            return self.block.append(op)
        return self.block.insert_before(self.before, op)

    def value(self, op: Op) -> Value:
        """Place `op` here and return its only result."""
        return self.add(op).result

    def constant(self, value: int | float | bool, dtype: DType) -> Value:
        """A constant of any dtype. What passes compute of indices wraps at 64 bits, as their sums at run time do."""
        if dtype == INDEX:
            value = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
        return self.value(arith.Constant(value=value, dtype=dtype))

    def scalar(self, fn: str, *operands: Value, nowrap: bool = False) -> Value:
        """The op of a row of the scalar table."""
        return self.value(arith.scalar(fn, *operands, nowrap=nowrap))

    def cast(self, value: Value, to: DType) -> Value:
        return value if value.type == to else self.value(arith.Cast(value, to=to))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.value(arith.Select(condition, a, b))

    def op(self, cls: type[Op], *operands: Value, **kwargs: Any) -> Op:
        return self.add(cls(*operands, **kwargs))

"""Appends ops to a block at a current source location."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tiledsl.errors import UNKNOWN_LOC, Loc
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import arith, control
from tiledsl.ir.types import INDEX, DType

Side = Sequence[Value] | Callable[[], Sequence[Value] | None]
"""Of a condition: values from before it, or a function that writes ops and gives their values, if any."""


class Builder:
    """`block` is where ops go; `loc` is given to every op. Both may be set at any time.

    With `before`, ops are inserted in front of that op instead of at the block's end. `made` counts them.
    """

    def __init__(self, block: Block, loc: Loc = UNKNOWN_LOC, before: Op | None = None) -> None:
        self.block, self.loc, self.before = block, loc, before
        self.made = 0
        self._place = 0  # of `before`, as far as is known

    def add(self, op: Op) -> Op:
        """Place `op` here, give it the current location, and return it."""
        op.loc = self.loc
        self.made += 1
        if self.before is None:
            return self.block.append(op)
        ops, op.parent = self.block.ops, self.block
        if not (self._place < len(ops) and ops[self._place] is self.before):
            self._place = ops.index(self.before)
        ops.insert(self._place, op)
        self._place += 1
        return op

    def value(self, op: Op) -> Value:
        """Place `op` here and return its only result."""
        return self.add(op).result

    def constant(self, value: int | float | bool, dtype: DType) -> Value:
        """A constant of any dtype. What passes compute of indices wraps at 64 bits, as their sums at run time do."""
        if dtype == INDEX:
            value = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
        return self.value(arith.Constant(value=value, dtype=dtype))

    def values(self, operands: Sequence[Value | int]) -> list[Value]:
        """The operands of a scalar function; an int becomes a constant of the dtype that the others have."""
        known = [v for v in operands if isinstance(v, Value)]
        if len(known) == len(operands):
            return known
        return [v if isinstance(v, Value) else self.constant(v, known[0].dtype) for v in operands]

    def scalar(self, fn: str, *operands: Value | int, nowrap: bool = False) -> Value:
        """The op of a row of the scalar table, on `values(operands)`."""
        return self.value(arith.scalar(fn, *self.values(operands), nowrap=nowrap))

    def cast(self, value: Value, to: DType) -> Value:
        return value if value.type == to else self.value(arith.Cast(value, to=to))

    def select(self, condition: Value, a: Value | int, b: Value | int) -> Value:
        """One of two values; an int becomes a constant as in `scalar`."""
        return self.value(arith.Select(condition, *self.values([a, b])))

    def op(self, cls: type[Op], *operands: Value, **kwargs: Any) -> Op:
        return self.add(cls(*operands, **kwargs))

    @contextmanager
    def inside(self, block: Block) -> Generator[None, None, None]:
        """Ops go to the end of `block` for a while."""
        outer, self.block, self.before = (self.block, self.before), block, None
        yield
        self.block, self.before = outer

    @contextmanager
    def anew(self, block: Block) -> Generator[list[Op], None, None]:
        """`block` is written anew. Gives its ops so far."""
        ops, block.ops = block.ops, []
        with self.inside(block):
            yield ops

    @contextmanager
    def when(self, condition: Value, **attrs: Any) -> Generator[None, None, None]:
        """What is added here is under a condition, and gives nothing. attrs: of the `control.if`."""
        loc, blocks = self.loc, [Block(), Block()]
        with self.inside(blocks[0]):
            yield
        self.loc = loc
        for block in blocks:
            with self.inside(block):
                self.add(control.Yield())
        self.add(control.If(condition, blocks=blocks, **attrs))

    def either(self, condition: Value, then: Side, orelse: Side, **attrs: Any) -> list[Value]:
        """What one of two sides gives. attrs: of the `control.if`."""
        blocks = [Block(), Block()]
        for block, side in zip(blocks, (then, orelse), strict=True):
            with self.inside(block):
                self.add(control.Yield(*((side() or ()) if callable(side) else side)))
        return self.add(control.If(condition, blocks=blocks, **attrs)).results


class CachingBuilder(Builder):
    """Writes equal constants, scalar functions and casts once a block.

    Accesses to one memory have most of their arithmetic in common; what is not made need not be merged later.
    """

    def __init__(self, block: Block, loc: Loc = UNKNOWN_LOC) -> None:
        super().__init__(block, loc)
        self._known: dict[tuple[object, ...], Value] = {}

    def constant(self, value: int | float | bool, dtype: DType) -> Value:
        key = self.block, dtype, repr(value) if isinstance(value, float) else value  # 0.0 == -0.0
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = super().constant(value, dtype)
        return known

    def scalar(self, fn: str, *operands: Value | int, nowrap: bool = False) -> Value:
        key = self.block, fn, nowrap, *operands
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = super().scalar(fn, *operands, nowrap=nowrap)
        return known

    def cast(self, value: Value, to: DType) -> Value:
        key = self.block, value, to
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = super().cast(value, to)
        return known

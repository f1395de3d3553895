"""The counter of a loop that keeps its own: Python's range, in which nothing wraps."""

from __future__ import annotations

import ast

from tiledsl.frontend.frame import Frame
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.types import DTYPES, INDEX

__all__ = ["Counter"]


class Counter:
    """Goes from `lo` to `hi` by `step`, in the frame's environment, so that a loop carries it under its `names`.

    known: the step where that is a constant, any number of its sign where only the direction is known, else 0.
    Where the counter could wrap behind the last iteration, the loop carries whether there is another one. An index
    cannot: it has the bits that it needs.
    """

    def __init__(self, frame: Frame, node: ast.For, lo: Value, hi: Value, step: Value, known: int) -> None:
        self.frame, self.hi, self.step, self.known = frame, hi, step, known
        count, self.more = (f"${what}{node.lineno}_{node.col_offset}" for what in ("for", "more"))
        wraps = step.type != INDEX and known not in (1, -1)
        self.names = (count, self.more) if wraps else (count,)
        frame.env[count] = lo
        if wraps:
            frame.env[self.more] = self._is_before_end(frame.builder)

    @property
    def value(self) -> Value:
        return self.frame.env[self.names[0]]

    def goes_on(self) -> Value:
        """Is there an iteration at `value`?"""
        return self.frame.env[self.more] if self.more in self.names else self._is_before_end(self.frame.builder)

    def advance(self) -> None:
        builder, env = self.frame.builder, self.frame.env
        if self.more in self.names:
            env[self.more] = self._has_room(builder)
        env[self.names[0]] = builder.scalar("add", self.value, self.step)

    def forget(self) -> None:
        for name in self.names:
            del self.frame.env[name]

    def _is_before_end(self, builder: Builder) -> Value:
        """Never, for a step of 0."""
        at, hi, step = self.value, self.hi, self.step
        if self.known:
            return builder.scalar("lt" if self.known > 0 else "gt", at, hi)
        zero = builder.constant(0, step.dtype)
        down = builder.scalar("and", builder.scalar("lt", step, zero), builder.scalar("gt", at, hi))
        return builder.select(builder.scalar("gt", step, zero), builder.scalar("lt", at, hi), down)

    def _has_room(self, builder: Builder) -> Value:
        """Is there more than a step from here, which is before the end, to it? As unsigned numbers, which hold both."""
        at, hi, step = self.value, self.hi, self.step
        ahead, behind = builder.scalar("sub", hi, at), builder.scalar("sub", at, hi)
        if self.known:
            distance = ahead if self.known > 0 else behind
        else:
            up = builder.scalar("gt", step, builder.constant(0, step.dtype))
            distance = builder.select(up, ahead, behind)
        unsigned = DTYPES[f"u{step.dtype.bits}"]
        size = builder.cast(builder.scalar("abs", step), unsigned)
        return builder.scalar("gt", builder.cast(distance, unsigned), size)

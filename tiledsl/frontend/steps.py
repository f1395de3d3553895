"""What a run-time loop counts: its bounds, and the counter of a loop that keeps its own."""

from __future__ import annotations

import ast
from typing import Any

from tiledsl.frontend.arithmetic import common_dtype, unify
from tiledsl.frontend.bindings import LanguageObject, Range
from tiledsl.frontend.frame import Frame
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops.arith import Constant
from tiledsl.ir.types import DTYPES, INDEX


class Bounds(LanguageObject):
    """A run-time loop's bounds as three values of one dtype: index, or what was given.

    size: 0, or the variable is a `Range` of so many elements. of_item: as of `along_k`. how: the attributes of the
    loop: `unroll`, and `stages` and `fragments` of a pipelined one. known: the step, where it is a constant, else 0.
    loop: the op that it becomes.
    """

    loop: type[control.For] = control.For
    shown = "a loop at run time"
    use = "write it in a `for`"

    def __init__(self, frame: Frame, node: ast.AST, lo: Any, hi: Any, step: Any, *, size: int = 0) -> None:
        dtype = common_dtype([lo, hi, step], frame, node, "range()") or INDEX
        if dtype.kind not in ("int", "index"):
            raise frame.error(node, f"range() over {dtype}", "convert the bounds: i32(...) or index(...)", code="C203")
        if step == 0 and not isinstance(step, Value):
            raise frame.error(
                node, "range() with step 0 never ends", "use a step of 1 or more, or a negative one", code="C105"
            )
        self.lo, self.hi, self.step = unify([lo, hi, step], dtype, frame, node)
        op = self.step.op
        self.known = int(op.value) if isinstance(op, Constant) else 0
        self.frame, self.size, self.of_item = frame, size, False
        self.how: dict[str, Any] = {}

    def variable(self, value: Value) -> Any:
        """What the loop's name is bound to."""
        return Range(value, self.size) if self.size else value

    def finish(self) -> None:
        """What comes after the statements of an iteration."""


class Counter:
    """Goes through `bounds` in the frame's environment, so that a loop carries it under its `names`.

    The `known` step of the bounds may be any number of its sign where only the direction is known. Where the counter
    could wrap after the last iteration, the loop carries whether there is another one. An index cannot: it has the
    bits that it needs.
    """

    def __init__(self, frame: Frame, node: ast.For, bounds: Bounds) -> None:
        self.frame, self.hi, self.step, self.known = frame, bounds.hi, bounds.step, bounds.known
        count, self.more = (f"${what}{node.lineno}_{node.col_offset}" for what in ("for", "more"))
        wraps = self.step.type != INDEX and self.known not in (1, -1)
        self.names = (count, self.more) if wraps else (count,)
        frame.env[count] = bounds.lo
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
        """Is the counter before the end? Never, for a step of 0."""
        at, hi, step = self.value, self.hi, self.step
        if self.known:
            return builder.scalar("lt" if self.known > 0 else "gt", at, hi)
        zero = builder.constant(0, step.dtype)
        down = builder.scalar("and", builder.scalar("lt", step, zero), builder.scalar("gt", at, hi))
        return builder.select(builder.scalar("gt", step, zero), builder.scalar("lt", at, hi), down)

    def _has_room(self, builder: Builder) -> Value:
        """Is the distance to the end more than a step? The counter is before the end, so both fit unsigned numbers."""
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

"""Steps of a loop that keeps its own counter: Python's range, in which nothing wraps.

In all of it `known` is the step where that is a constant, any number of its sign where only the direction is known, and
0 otherwise.
"""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.types import DTYPES

__all__ = ["goes_on", "has_room"]


def goes_on(builder: Builder, at: Value, hi: Value, step: Value, known: int) -> Value:
    """Is `at` before the end? Never, for a step of 0."""
    if known:
        return builder.scalar("lt" if known > 0 else "gt", at, hi)
    zero = builder.constant(0, step.dtype)
    down = builder.scalar("and", builder.scalar("lt", step, zero), builder.scalar("gt", at, hi))
    return builder.select(builder.scalar("gt", step, zero), builder.scalar("lt", at, hi), down)


def has_room(builder: Builder, at: Value, hi: Value, step: Value, known: int) -> Value:
    """Is there more than a step from `at`, which is before the end, to it? As unsigned numbers, which hold both."""
    ahead, behind = builder.scalar("sub", hi, at), builder.scalar("sub", at, hi)
    if known:
        distance = ahead if known > 0 else behind
    else:
        up = builder.scalar("gt", step, builder.constant(0, step.dtype))
        distance = builder.select(up, ahead, behind)
    unsigned = DTYPES[f"u{step.dtype.bits}"]
    size = builder.cast(builder.scalar("abs", step), unsigned)
    return builder.scalar("gt", builder.cast(distance, unsigned), size)

"""Compile-time loops, and partly unrolled ones. The run-time loop is Python's ``range``."""

from __future__ import annotations

from typing import Any, Iterator, overload

from tiledsl.lang.misuse import only_in_kernel
from tiledsl.lang.ranges import Range

__all__ = ["unroll"]


@overload
def unroll(stop: int, /) -> Iterator[int]: ...
@overload
def unroll(start: int, stop: int, step: int = 1, /) -> Iterator[int]: ...
@overload
def unroll(loop: range, /, *, by: int = 0) -> Iterator[int]: ...
@overload
def unroll(loop: Iterator[Range], /, *, by: int = 0) -> Iterator[Range]: ...
def unroll(*bounds: Any, by: int = 0) -> Any:
    """``for i in unroll(n)``: like ``range``, but at compile time: the body is repeated for each value.

    Bounds and the variable are compile-time ints, so the variable may index fragments.
    ``unroll(tiles(BK, 16))`` goes through compile-time ranges.

    ``for k in unroll(range(K), by=4)`` is a run-time loop whose body is repeated 4 times an iteration, with
    a second loop for what is left; k is a run-time value. `tiles` can stand for `range`. The step must be
    known at compile time, and neither `break` nor `return` may leave the loop.
    """
    raise only_in_kernel("unroll()")

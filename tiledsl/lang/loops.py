"""Compile-time loops, partly unrolled ones and pipelined ones. The run-time loop is Python's ``range``."""

from __future__ import annotations

from typing import Any, Iterator, overload

from tiledsl.lang.misuse import only_in_kernel
from tiledsl.lang.ranges import Range

__all__ = ["pipelined", "unroll"]


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


@overload
def pipelined(loop: range, /, *, stages: int, fragments: int = 0) -> Iterator[int]: ...
@overload
def pipelined(loop: Iterator[Range], /, *, stages: int, fragments: int = 0) -> Iterator[Range]: ...
def pipelined(loop: Any, /, *, stages: int, fragments: int = 0) -> Any:
    """``for k in pipelined(tiles(K, BK), stages=3)``: a run-time loop whose copies run ahead of its other statements.

    The body is written as if each `copy_async` or `copy` to a shared tile were complete at once. The compiler gives
    each such tile `stages` buffers, so that the copies of `stages` - 1 iterations are in flight while one is
    computed on, and places the waits and barriers. A tile that such a loop copies to is used nowhere else.

    fragments: of how many steps the operands of `mma` are held in registers. 2: those of the next step are loaded
    during the products of one. 0: 2 where the body allows it, which ``k.explain("pipeline")`` tells.

    Both numbers are compile-time. Neither `break` nor `return` leaves the loop, and no other pipelined loop stands in
    it. (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group.)
    """
    raise only_in_kernel("pipelined()")

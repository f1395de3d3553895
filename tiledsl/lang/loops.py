"""Compile-time loops. The run-time loop is Python's ``range``."""

from __future__ import annotations

from typing import Iterator, overload

from tiledsl.lang.misuse import only_in_kernel

__all__ = ["unroll"]


@overload
def unroll(stop: int, /) -> Iterator[int]: ...
@overload
def unroll(start: int, stop: int, step: int = 1, /) -> Iterator[int]: ...
def unroll(*bounds: int) -> Iterator[int]:
    """``for i in unroll(n)``: like ``range``, but at compile time: the body is repeated for each value.

    Bounds and the variable are compile-time ints, so the variable may index fragments.
    """
    raise only_in_kernel("unroll()")

"""Where a thread is: the launch's shape is declared in the kernel's body."""

from __future__ import annotations

from typing import Any, overload

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Integer, index
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["cdiv", "grid", "lane_id", "threads", "warp_id"]

HostExtent = Integer | int | type[Dim]


@overload
def grid(x: HostExtent, /) -> index: ...
@overload
def grid(x: HostExtent, y: HostExtent, /) -> tuple[index, index]: ...
@overload
def grid(x: HostExtent, y: HostExtent, z: HostExtent, /) -> tuple[index, index, index]: ...
def grid(*extents: HostExtent) -> Any:
    """Launch this many blocks along x, y, z, and give this block's indices: one, or a tuple.

    The extents are evaluated on the host: dimensions, consts, integer scalars, and ``+ - * // %``,
    `cdiv`, `min` and `max` of them. Limits: x 2^31 - 1, y and z 65535. Once, at the kernel's top level.
    (PTX ISA: %ctaid.)
    """
    raise only_in_kernel("grid()")


@overload
def threads(x: int, /, *, blocks: int = 0) -> index: ...
@overload
def threads(x: int, y: int, /, *, blocks: int = 0) -> tuple[index, index]: ...
@overload
def threads(x: int, y: int, z: int, /, *, blocks: int = 0) -> tuple[index, index, index]: ...
def threads(*extents: int, blocks: int = 0) -> Any:
    """Use this many threads a block along x, y, z (compile-time, at most 1024 together), and give
    this thread's indices: one, or a tuple. Once, at the kernel's top level. (PTX ISA: %tid.)

    blocks: so many blocks shall fit on an SM at a time, as far as registers go: the assembler then keeps
    to 65536 / (threads * blocks) of them, and spills where that is too few; `resources` says so. 0: its
    own choice. (PTX ISA: .minnctapersm.)
    """
    raise only_in_kernel("threads()")


def warp_id() -> index:
    """Linear thread index (x fastest) divided by 32: the same in all threads of a warp."""
    raise only_in_kernel("warp_id()")


def lane_id() -> index:
    """Linear thread index (x fastest) modulo 32. (PTX ISA: %laneid.)"""
    raise only_in_kernel("lane_id()")


@overload
def cdiv(a: int, b: int) -> int: ...
@overload
def cdiv(a: index | type[Dim], b: index | int | type[Dim]) -> index: ...
@overload
def cdiv(a: int, b: index | type[Dim]) -> index: ...
def cdiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up, for positive b: how many pieces of size b cover a. On Python ints it
    works in plain Python too."""
    if type(a) is int and type(b) is int:
        return -(-a // b)
    raise only_in_kernel("cdiv() of run-time values")

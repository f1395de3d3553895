"""Where a thread is: the launch's shape is declared in the kernel's body."""

from __future__ import annotations

from typing import Any, overload

from tiledsl.errors import TileError
from tiledsl.ir.expr import ceildiv
from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import Integer, index
from tiledsl.lang.misuse import only_in_kernel
from tiledsl.outside import python_number

__all__ = ["cdiv", "grid", "grid_size", "lane_id", "processors", "threads", "warp_id"]

HostExtent = Integer | int | type[Dim]


processors: index = index.__new__(index)
"""How many multiprocessors the GPU has, in the extents of `grid` alone: ``grid(min(tiles, processors))``."""


@overload
def grid(x: HostExtent, /, *, cluster: tuple[int, ...] = ()) -> index: ...
@overload
def grid(x: HostExtent, y: HostExtent, /, *, cluster: tuple[int, ...] = ()) -> tuple[index, index]: ...
@overload
def grid(
    x: HostExtent, y: HostExtent, z: HostExtent, /, *, cluster: tuple[int, ...] = ()
) -> tuple[index, index, index]: ...
def grid(*extents: HostExtent, cluster: tuple[int, ...] = ()) -> Any:
    """Launch this many blocks along x, y, z, and give this block's indices: one, or a tuple.

    The host evaluates the extents: dimensions, consts, integer scalars, `processors`, and integer operators, `cdiv`,
    `min`, and `max` of them. They have the value that they have in the kernel: integers wrap, and ``x // 0`` is 0.
    Limits: x 2^31 - 1, y and z 65535. Call it once, at the kernel's top level.
    (PTX ISA: %ctaid.)

    cluster: how many neighbouring blocks along x, y, z, at most 8 in all, run at the same time and reach each other's
    shared memory; the grid is a multiple of it. (PTX ISA: cluster.)
    """
    raise only_in_kernel("grid()")


def grid_size(axis: int = 0) -> index:
    """How many blocks the grid has along x (0), y (1) or z (2). (PTX ISA: %nctaid.)"""
    raise only_in_kernel("grid_size()")


@overload
def threads(x: int, /, *, blocks: int = 0, assembler_level: int = 3) -> index: ...
@overload
def threads(x: int, y: int, /, *, blocks: int = 0, assembler_level: int = 3) -> tuple[index, index]: ...
@overload
def threads(x: int, y: int, z: int, /, *, blocks: int = 0, assembler_level: int = 3) -> tuple[index, index, index]: ...
def threads(*extents: int, blocks: int = 0, assembler_level: int = 3) -> Any:
    """Use this many threads a block along x, y, z (compile-time, at most 1024 together), and give
    this thread's indices: one, or a tuple. Once, at the kernel's top level. (PTX ISA: %tid.)

    blocks: minimum resident blocks per SM, as far as registers go: the assembler then keeps
    to 65536 / (threads * blocks) of them, and spills where that is too few; `resources` says so. 0: its
    own choice. (PTX ISA: .minnctapersm.)

    assembler_level: how much the assembler optimises, 0 to 3 (compile-time). At 1 it keeps nearly the order in which
    the instructions are written, which pays where that order was chosen with care; at 3 it schedules anew.
    (ptxas --opt-level.)
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
    """Return ``a / b`` rounded up: how many pieces of size b cover a.

    As ``//`` does, it wraps for the least number of a dtype and b = -1, and is 0 for a b of 0 that is only known at run
    time. Of Python's and NumPy's integers it works in plain Python, too.
    """
    a, b = python_number(a), python_number(b)
    if type(a) is int and type(b) is int:
        return ceildiv(a, b)
    for name, value in (("a", a), ("b", b)):
        if isinstance(value, (bool, float, str)):
            message = f"cdiv() expected an integer as {name}, got {value!r}"
            raise TileError(f"{message}\n  fix: convert it with int(), or use math.ceil(a / b)")
    raise only_in_kernel("cdiv() of run-time values")

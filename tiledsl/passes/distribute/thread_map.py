"""The thread map of a whole-block copy: which thread moves which elements, at which step.

The elements are cut into accesses of `width` along one axis, the copy's vector axis. Accesses are numbered
with that axis fastest and the other axes in order, so that neighbouring threads move neighbouring elements of
a row; in step s, thread t makes access s * threads + t. `distribute` writes the map as ops, and the emulator runs it as
it is at tile level: both call `ThreadMap.place`, with a `Position` and with arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tiledsl.arch import MOST_THREADS, WARP
from tiledsl.errors import CompileError
from tiledsl.ir.ops import async_copy, tile
from tiledsl.ir.types import GlobalType
from tiledsl.passes.analysis.called import called, name_of


@dataclass(frozen=True)
class ThreadMap:
    """How `threads` threads cover `shape`, `width` elements at once along `axis`."""

    shape: tuple[int, ...]
    axis: int
    width: int
    threads: int

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """How many accesses there are along each axis."""
        return tuple(n // self.width if a == self.axis else n for a, n in enumerate(self.shape))

    @property
    def accesses(self) -> int:
        return prod(self.grid)

    @property
    def steps(self) -> int:
        """Accesses of one thread."""
        return self.accesses // self.threads

    @property
    def order(self) -> list[int]:
        """The axes, the fastest first."""
        return [self.axis, *(a for a in reversed(range(len(self.shape))) if a != self.axis)]

    def place(self, step: int, thread: Any) -> list[Any]:
        """Where the access of a thread begins in this step, an axis each; `thread` may be an array or a `Position`."""
        number, inner = thread + step * self.threads, 1
        found: dict[int, Any] = {}
        for axis in self.order:
            found[axis] = number // inner % self.grid[axis] * (self.width if axis == self.axis else 1)
            inner *= self.grid[axis]
        return [found[axis] for axis in range(len(self.shape))]

    def width_on(self, side: tile.Side) -> int:
        """Elements of one access to this side: all of `width`, or one by one."""
        return self.width if side.unit == self.axis else 1


def plan_copy(op: tile.Copy, threads: int) -> ThreadMap:
    """How a block of `threads` carries out `op`. Raises CompileError where the shape does not allow it.

    Vectors run along the unit-stride axis of the global side, else of the source, else of the destination;
    that follows from the types alone. What an asynchronous copy moves at once has to be side by side on both sides.
    Whether the accesses are aligned is for `check-accesses`.
    """
    asked, size, by = called(op), op.dtype.bytes, " x ".join(map(str, op.shape))
    sides = sorted((op.src, op.dst), key=lambda side: not isinstance(side.type, GlobalType))  # stable
    units = [side.unit for side in sides if side.unit is not None]
    width = op.vec // size
    if width > 1 and not units:
        message = f"{asked} with vec={op.vec}: neither side has its axis of stride 1 among the copied axes"
        raise CompileError(message, op.loc, _one_element(op), code="C404")
    axis = units[0] if units else len(op.shape) - 1
    if op.shape[axis] % width:
        message = f"{asked} with vec={op.vec}: rows of {op.shape[axis]} {op.dtype} (axis {axis} of {by}) are not a"
        raise CompileError(f"{message} multiple of {width} elements", op.loc, _advice(op, axis, threads), code="C404")
    plan = ThreadMap(op.shape, axis, width, threads)
    if plan.accesses % threads:
        message = f"{asked} of {by} {op.dtype} is {plan.accesses} accesses of {op.vec} bytes, which {threads} threads"
        raise CompileError(f"{message} cannot share equally", op.loc, _advice(op, axis, threads), code="C404")
    if isinstance(op, async_copy.Copy) and width > min(map(plan.width_on, sides)):
        source, name = name_of(op.src.memory), name_of(op.dst.memory)
        message = f"{asked} with vec={op.vec}: neighbours in {source} are not neighbours in {name}, but what it moves"
        fix = f"use copy(), which transposes through registers; or copy as it is and read {name} through its view .T"
        fix += f"; or {_one_element(op)}" if size in async_copy.CP_BYTES else ""
        raise CompileError(f"{message} at once stays together", op.loc, fix, code="C404")
    return plan


def _one_element(op: tile.Copy) -> str:
    size = op.dtype.bytes
    if isinstance(op, async_copy.Copy) and size not in async_copy.CP_BYTES:
        return f"use copy(), which moves single elements; copy_async() moves 4 bytes at least, a {op.dtype} has {size}"
    return f"use vec={size}, one element at once"


def _advice(op: tile.Copy, axis: int, threads: int) -> str:
    """Which widths or numbers of threads would do."""
    possible = async_copy.CP_BYTES if isinstance(op, async_copy.Copy) else (1, 2, 4, 8, 16)
    fitting = [v for v in possible if v % op.dtype.bytes == 0 and op.shape[axis] * op.dtype.bytes % v == 0]
    accesses = {v: prod(op.shape) * op.dtype.bytes // v for v in fitting}
    widths = [str(v) for v in fitting if accesses[v] % threads == 0]
    advice = [f"vec={' or '.join(widths)}"] if widths else []
    if op.vec in fitting:
        warps = [n for n in range(WARP, MOST_THREADS + 1, WARP) if accesses[op.vec] % n == 0]
        counts = warps or [n for n in range(1, WARP) if accesses[op.vec] % n == 0]
        near = sorted(sorted(counts, key=lambda n: abs(n - threads))[:3])
        advice.append(f"{' or '.join(map(str, near))} threads")
    if not advice:
        return f"use a shape of which {threads} threads can copy equal parts"
    return f"use {', or '.join(advice)}"

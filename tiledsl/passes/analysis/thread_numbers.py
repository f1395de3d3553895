"""Thread numbers: what each thread of a block computes from its own number and constants alone, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.ir import semantics
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import arith, gpu

Numbers = NDArray[Any]


def position(op: Op, threads: tuple[int, ...]) -> Numbers | None:
    """What a position is in each thread of a block of this shape, whose warps are all whole; None for other ops."""
    x, y, z = (*threads, 1, 1)[:3]
    thread = np.arange(-(-x * y * z // WARP) * WARP)
    match op:
        case gpu.ThreadId(axis=axis):
            return (thread % x, thread // x % y, thread // (x * y))[axis]
        case gpu.WarpId():
            return thread // WARP
        case gpu.LaneId():
            return thread % WARP
        case _:
            return None


class ThreadNumbers:
    """Of the values of a kernel, whose ops are noted in program order."""

    def __init__(self, kernel: Kernel) -> None:
        self.threads, self.count = kernel.threads, kernel.thread_count
        self._known: dict[Value, Numbers] = {}
        self._leaders: dict[int, Numbers] = {}
        """By size of a group, the first thread of each thread's group."""

    def __contains__(self, value: Value) -> bool:
        return value in self._known

    def alike(self, value: Value, group: int) -> bool:
        """Is a known value the same for all threads of each group of so many?"""
        numbers = self._known[value][: self.count]
        if group not in self._leaders:
            self._leaders[group] = np.arange(self.count) // group * group
        return bool((numbers == numbers[self._leaders[group]]).all())

    def note(self, op: Op) -> None:
        if isinstance(op, (gpu.Position, arith.Scalar, arith.Cast)) and op.result not in self._known:
            numbers = self._of(op)
            if numbers is not None:
                self._known[op.result] = numbers

    def _of(self, op: gpu.Position | arith.Scalar | arith.Cast) -> Numbers | None:
        if isinstance(op, gpu.Position):
            return position(op, self.threads)
        if self._known.keys().isdisjoint(op.operands):
            return None
        known = [self._operand(v) for v in op.operands]
        if any(numbers is None for numbers in known):
            return None
        dtype = op.operands[0].dtype
        if isinstance(op, arith.Cast):
            return semantics.cast(known[0], dtype, op.to)
        return semantics.apply(op.fn.name, dtype, *known) if op.fn.ulp is None else None

    def _operand(self, value: Value) -> Numbers | None:
        if isinstance(value.op, arith.Constant):
            return np.asarray(value.op.value, semantics.numpy_dtype(value.dtype))
        return self._known.get(value)

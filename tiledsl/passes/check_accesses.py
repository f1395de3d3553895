"""Check every tile-level access: vectors are aligned, constant indices lie inside static extents, layouts fit.

An access of n elements at once needs an address that is a multiple of its bytes, whatever the
arguments of a launch are within its specialisation. What cannot be proven is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import tile
from tiledsl.ir.types import GlobalType, SharedType
from tiledsl.layout.shared import Layout, Swizzled
from tiledsl.passes.constants import integer
from tiledsl.passes.divisibility import Divisibility, power_of_two_in

__all__ = ["CheckAccesses"]

MOST_ERRORS = 20


@dataclass(frozen=True)
class CheckAccesses:
    """Runs at tile level after unrolling, when indices are as constant as they get."""

    name: ClassVar[str] = "check-accesses"

    def run(self, kernel: Kernel) -> None:
        checker = _Checker(kernel)
        for op in kernel.walk():
            if isinstance(op, tile.SharedAlloc):
                checker.layout(op)
            elif isinstance(op, tile.Access):
                checker.access(op)
        if checker.errors:
            raise CompileErrors(list(checker.errors.values())[:MOST_ERRORS])


class _Checker:
    """`errors` by location: copies of one access in an unrolled loop are reported once."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.errors: dict[object, CompileError] = {}

    @cached_property
    def divisibility(self) -> Divisibility:
        return Divisibility(self.kernel)

    def layout(self, op: tile.SharedAlloc) -> None:
        problem = op.placement.problem(op.type.dims)
        if problem is not None:
            self.errors.setdefault(op.loc, CompileError(problem.message, op.loc, problem.fix))

    def access(self, op: tile.Access) -> None:
        if op.vec > 1:
            self.vector(op)
        if not isinstance(op, (tile.Get, tile.Put)):
            self.static_bounds(op)

    def error(self, op: tile.Access, message: str, fix: str) -> None:
        self.errors.setdefault(op.loc, CompileError(message, op.loc, fix))

    def static_bounds(self, op: tile.Access) -> None:
        type_ = op.memory_type
        unit = type_.unit if isinstance(type_, GlobalType) else type_.rank - 1
        for axis, (index, extent) in enumerate(zip(op.indices, type_.dims, strict=True)):
            at = integer(index)
            if at is None:
                continue
            last = at + (op.vec - 1 if axis == unit else 0)
            if at < 0 or (isinstance(extent, int) and last >= extent):
                self.error(
                    op,
                    f"index {last if at >= 0 else at} along axis {axis} of {_name(op)}, whose extent there is {extent}",
                    "indices run from 0 to the extent less 1; get() and put() guard an access",
                )

    def vector(self, op: tile.Access) -> None:
        if isinstance(op.memory_type, GlobalType):
            self.global_vector(op, op.memory_type)
        else:
            self.shared_vector(op, op.memory_type)

    def global_vector(self, op: tile.Access, type_: GlobalType) -> None:
        size = op.vec * type_.dtype.bytes
        if type_.unit < 0:
            self.error(
                op,
                f"{size} bytes at once from {_name(op)}, which has no axis of stride 1 in this call",
                "pass a tensor with a contiguous axis, or access single elements",
            )
        elif type_.align < size:
            what = f"{_name(op)}'s rows are" if type_.rank > 1 else f"{_name(op)} is"
            self.error(
                op,
                f"{what} aligned to {type_.align} bytes in this call, {size} needed",
                f"pass a tensor whose address and row length are multiples of {size} bytes, "
                f"or use vec={max(type_.align, type_.dtype.bytes)}",
            )
        else:
            self.unit_index(op, type_.unit, size)

    def unit_index(self, op: tile.Access, unit: int, size: int) -> None:
        known = self.divisibility.of(op.indices[unit])
        if known < op.vec:
            self.error(
                op,
                f"{size} bytes at once need an index along axis {unit} of {_name(op)} that is a multiple of "
                f"{op.vec}; this one is only known to be a multiple of {known}",
                f"write it as {op.vec} * something, or use vec={known * op.memory_type.dtype.bytes}",
            )

    def shared_vector(self, op: tile.Access, type_: SharedType) -> None:
        size = op.vec * type_.dtype.bytes
        unit = type_.rank - 1
        alloc = op.memory.op
        assert isinstance(alloc, tile.SharedAlloc)
        layout = alloc.placement
        if isinstance(layout, Swizzled) and layout.unit < op.vec:
            self.error(
                op,
                f"{size} bytes at once from {_name(op)}, whose layout {layout} moves every "
                f"{layout.unit * type_.dtype.bytes} bytes to a place of their own",
                f"give {_name(op)} a swizzle of unit={op.vec} or more, or leave its layout to the compiler",
            )
            return
        for axis, (index, stride) in enumerate(zip(op.indices, layout.strides(type_.dims), strict=True)):
            known = self.divisibility.of(index) * power_of_two_in(stride)
            if known >= op.vec:
                continue
            if axis == unit:
                self.unit_index(op, unit, size)
            else:
                self.row_step(op, axis, stride * type_.dtype.bytes, layout)
            return

    def row_step(self, op: tile.Access, axis: int, step: int, layout: Layout) -> None:
        """A vector that some rows misalign."""
        size = op.vec * op.memory_type.dtype.bytes
        multiple = f"a multiple of {op.vec}"
        by = f"with its layout {layout} " if str(layout) != "row" else ""
        fix = f"make the last extent of {_name(op)} {multiple}"
        if by:
            fix = f"pad {_name(op)} to {multiple}, or leave its layout to the compiler"
        self.error(
            op,
            f"{size} bytes at once from {_name(op)}, but {by}a step along axis {axis} is {step} bytes, "
            f"not a multiple of {size}",
            fix,
        )


def _name(op: tile.Access) -> str:
    return op.memory.name or "the tile"

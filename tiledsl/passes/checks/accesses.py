"""Check every tile-level access: vectors are aligned, constant indices lie inside static extents, layouts fit.

An access of n elements at once needs an address that is a multiple of its bytes, whatever the
arguments of a launch are within its specialisation. What cannot be proven is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import async_copy, matrix, tile
from tiledsl.ir.types import GlobalType, SharedType
from tiledsl.layout.shared import Layout, Paneled, Swizzled
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.divisibility import Divisibility, power_of_two_in

__all__ = ["CheckAccesses"]


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
                for place in _places(op):
                    checker.access(place)
        if checker.errors:
            raise CompileErrors(checker.errors.values())


@dataclass(frozen=True)
class _Place:
    """What an access touches at once: `vec` elements of `memory` from `indices` on, or, if `guarded`, those inside."""

    op: tile.Access
    memory: Value
    indices: tuple[Value, ...]
    guarded: bool

    @property
    def vec(self) -> int:
        return self.op.vec

    @property
    def type(self) -> GlobalType | SharedType:
        type_ = self.memory.type
        assert isinstance(type_, (GlobalType, SharedType))
        return type_

    @property
    def name(self) -> str:
        return name_of(self.memory)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.vec * self.type.dtype.bytes

    @property
    def unaligned(self) -> str:
        """What a message about alignment begins with."""
        return "unaligned async copy: " if isinstance(self.op, async_copy.Cp) else ""

    def axis(self, number: int) -> int:
        """The number of an axis as the kernel counts them: without the slots of a pipelined tile."""
        alloc = self.memory.op
        return number - (isinstance(alloc, tile.SharedAlloc) and alloc.stages > 1)

    def narrower(self, elements: int) -> str:
        """What would do where only so many elements are sure to be aligned."""
        size = elements * self.type.dtype.bytes
        if isinstance(self.op, (matrix.LdMatrix, matrix.StMatrix)):
            return "use load_fragment() and store(), which access as many elements as a lane holds side by side"
        if isinstance(self.op, async_copy.Cp) and size not in async_copy.CP_BYTES:
            return f"use copy(vec={size}), which goes through registers; copy_async() moves 4 bytes at least"
        return f"use vec={size}"


def _places(op: tile.Access) -> list[_Place]:
    touched = next(access for access in op.accesses() if access.memory is op.memory)
    own = _Place(op, op.memory, tuple(op.indices), touched.guarded)
    if not isinstance(op, async_copy.Cp):
        return [own]
    return [own, _Place(op, op.source.memory, op.source.origin, op.guard)]


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

    def access(self, place: _Place) -> None:
        if place.vec > 1:
            self.vector(place)
        if not place.guarded:
            self.static_bounds(place)

    def error(self, place: _Place, message: str, fix: str) -> None:
        loc = place.op.loc
        self.errors.setdefault(loc, CompileError(message, loc, fix))

    def static_bounds(self, place: _Place) -> None:
        type_ = place.type
        unit = type_.unit if isinstance(type_, GlobalType) else type_.rank - 1
        for axis, (index, extent) in enumerate(zip(place.indices, type_.dims, strict=True)):
            at = integer(index)
            if at is None:
                continue
            last = at + (place.vec - 1 if axis == unit else 0)
            if at < 0 or (isinstance(extent, int) and last >= extent):
                wrong = last if at >= 0 else at
                self.error(
                    place,
                    f"index {wrong} along axis {place.axis(axis)} of {place.name}, whose extent there is {extent}",
                    "indices run from 0 to the extent less 1; get() and put() guard an access",
                )

    def vector(self, place: _Place) -> None:
        if isinstance(place.type, GlobalType):
            self.global_vector(place, place.type)
        else:
            self.shared_vector(place, place.type)

    def global_vector(self, place: _Place, type_: GlobalType) -> None:
        size = place.size
        if type_.unit < 0:
            self.error(
                place,
                f"{place.unaligned}{size} bytes at once from {place.name}, which has no axis of stride 1 in this call",
                "pass a tensor with a contiguous axis, or access single elements",
            )
        elif type_.align < size:
            what = f"{place.name}'s rows are" if type_.rank > 1 else f"{place.name} is"
            self.error(
                place,
                f"{place.unaligned}{what} aligned to {type_.align} bytes in this call, {size} needed",
                f"pass a tensor whose address and row length are multiples of {size} bytes, "
                f"or {place.narrower(max(1, type_.align // type_.dtype.bytes))}",
            )
        else:
            self.unit_index(place, type_.unit)

    def unit_index(self, place: _Place, unit: int) -> None:
        known = self.divisibility.of(place.indices[unit])
        if known < place.vec:
            self.error(
                place,
                f"{place.unaligned}{place.size} bytes at once need an index along axis {place.axis(unit)} of "
                f"{place.name} that is a multiple of {place.vec}; this one is only known to be a multiple of {known}",
                f"write it as {place.vec} * something, or {place.narrower(known)}",
            )

    def shared_vector(self, place: _Place, type_: SharedType) -> None:
        unit = type_.rank - 1
        alloc = place.memory.op
        assert isinstance(alloc, tile.SharedAlloc)
        layout = alloc.placement
        if isinstance(layout, (Swizzled, Paneled)) and layout.unit < place.vec:
            self.error(
                place,
                f"{place.unaligned}{place.size} bytes at once from {place.name}, whose layout {layout} moves every "
                f"{layout.unit * type_.dtype.bytes} bytes to a place of their own",
                f"give {place.name} a swizzle of unit={place.vec} or more, or leave its layout to the compiler",
            )
            return
        for axis, (index, stride) in enumerate(zip(place.indices, layout.strides(type_.dims), strict=True)):
            known = self.divisibility.of(index) * power_of_two_in(stride)
            if known >= place.vec:
                continue
            if axis == unit:
                self.unit_index(place, unit)
            else:
                self.row_step(place, axis, stride * type_.dtype.bytes, layout)
            return

    def row_step(self, place: _Place, axis: int, step: int, layout: Layout) -> None:
        """A vector that some rows misalign."""
        multiple = f"a multiple of {place.vec}"
        by = f"with its layout {layout} " if str(layout) != "row" else ""
        fix = f"make the last extent of {place.name} {multiple}"
        if by:
            fix = f"pad {place.name} to {multiple}, or leave its layout to the compiler"
        self.error(
            place,
            f"{place.unaligned}{place.size} bytes at once from {place.name}, but {by}a step along axis "
            f"{place.axis(axis)} is {step} bytes, not a multiple of {place.size}",
            fix,
        )

"""Check every tile-level access: vectors are aligned, constant indices lie inside static extents, layouts fit.

An access of n elements at once needs an address that is a multiple of its bytes, whatever the
arguments of a launch are within its specialisation. What cannot be proven is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import async_copy, matrix, tile
from tiledsl.ir.types import GlobalType, MemoryType
from tiledsl.layout.shared import Paneled, Swizzled
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.divisibility import power_of_two_in
from tiledsl.passes.checks.checker import Checker, of_each


def check_accesses(kernel: Kernel) -> None:
    """Runs at tile level after unrolling, when indices are as constant as they get."""
    of_each(kernel.walk(), _Checker(kernel).op)


class _Checker(Checker):
    def op(self, op: Op) -> None:
        if isinstance(op, tile.SharedAlloc):
            problem = op.placement.problem(op.type.dims)
            if problem is not None:
                raise CompileError(problem.message, fix=problem.fix, code="C306")
        elif isinstance(op, tile.Access):
            touched = next(access for access in op.accesses() if access.memory is op.memory)
            self.place(_Place(op, op.memory, op.memory_type, tuple(op.indices)), touched.guarded)
            if isinstance(op, async_copy.Cp):
                self.place(_Place(op, op.source.memory, op.source.type, op.source.origin), op.guard)

    def place(self, place: _Place, guarded: bool) -> None:
        if place.vec > 1 and isinstance(place.type, GlobalType):
            self.global_vector(place, place.type)
        elif place.vec > 1:
            self.shared_vector(place)
        if not guarded:
            _check_static_bounds(place)

    def global_vector(self, place: _Place, type_: GlobalType) -> None:
        if type_.unit < 0:
            raise CompileError(
                f"{place.size} bytes at once from {place.name}, which has no axis of stride 1 in this call",
                fix="pass a tensor with a contiguous axis, or access single elements",
                code="C401",
            )
        if type_.align < place.size:
            what = f"{place.name}'s rows are" if type_.rank > 1 else f"{place.name} is"
            raise CompileError(
                f"{what} aligned to {type_.align} bytes in this call, {place.size} needed",
                fix=f"pass a tensor whose address and row length are multiples of {place.size} bytes, "
                f"or {place.narrower(max(1, type_.align // type_.dtype.bytes))}",
                code="C401",
            )
        self.unit_index(place)

    def unit_index(self, place: _Place) -> None:
        known = self.divisibility.of(place.indices[place.type.unit])
        if known < place.vec:
            raise CompileError(
                f"{place.size} bytes at once need an index along axis {place.axis(place.type.unit)} of "
                f"{place.name} that is a multiple of {place.vec}; this one is only known to be a multiple of {known}",
                fix=f"write it as {place.vec} * something, or {place.narrower(known)}",
                code="C401",
            )

    def shared_vector(self, place: _Place) -> None:
        alloc, element = tile.allocation(place.memory), place.type.dtype.bytes
        layout = alloc.placement
        if isinstance(layout, (Swizzled, Paneled)) and layout.unit < place.vec:
            raise CompileError(
                f"{place.size} bytes at once from {place.name}, whose layout {layout} moves every "
                f"{layout.unit * element} bytes to a place of their own",
                fix=f"give {place.name} a swizzle of unit={place.vec} or more, or leave its layout to the compiler",
                code="C401",
            )
        for axis, (index, stride) in enumerate(zip(place.indices, layout.strides(alloc.type.dims), strict=True)):
            if self.divisibility.of(index) * power_of_two_in(stride) >= place.vec:
                continue
            if axis == place.type.rank - 1:
                self.unit_index(place)
            raise CompileError(
                f"{place.size} bytes at once from {place.name}, but with its layout {layout} a step along axis "
                f"{place.axis(axis)} is {stride * element} bytes, not a multiple of {place.size}",
                fix=f"pad {place.name} to a multiple of {place.vec}, or leave its layout to the compiler",
                code="C401",
            )


@dataclass(frozen=True)
class _Place:
    """What an access touches at once: `vec` elements of `memory` from `indices` on."""

    op: tile.Access
    memory: Value
    type: MemoryType
    indices: tuple[Value, ...]

    @property
    def vec(self) -> int:
        return self.op.vec

    @property
    def name(self) -> str:
        return name_of(self.memory)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.vec * self.type.dtype.bytes

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


def _check_static_bounds(place: _Place) -> None:
    for axis, (index, extent) in enumerate(zip(place.indices, place.type.dims, strict=True)):
        at = integer(index)
        if at is None:
            continue
        last = at + (place.vec - 1 if axis == place.type.unit else 0)
        if at < 0 or (isinstance(extent, int) and last >= extent):
            raise CompileError(
                f"index {last if at >= 0 else at} along axis {place.axis(axis)} of {place.name}, whose extent there is "
                f"{extent}",
                fix="indices run from 0 to the extent less 1; get() and put() guard an access",
                code="C303",
            )

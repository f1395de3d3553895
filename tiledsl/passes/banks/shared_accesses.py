"""Every access of a kernel to its shared tiles, as rows and columns by lane."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

from numpy.typing import NDArray

from tiledsl.ir.core import Block, Op
from tiledsl.ir.facts import Access
from tiledsl.ir.ops import control, matrix, tile
from tiledsl.layout.banks import Kind
from tiledsl.passes.analysis.active_lanes import ActiveLanes, Mask
from tiledsl.passes.analysis.lanes import AffineForm, Lanes
from tiledsl.passes.analysis.structure import ops_around, trip_count

UNKNOWN_TRIPS = 64
"""What a loop counts in the weight of an access if its trip count is not known at compile time."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedAccess:
    """One access of one warp, as often as the loops around it say.

    row, column: of the first element, by lane; None where an index is neither known nor the same in all lanes.
    width: bytes a lane. mask: the lanes that take part. weight: the product of the trip counts around it, 0 on the
    side of a branch that is not likely.
    guarded: a bound that is checked at run time and counts as met.
    """

    op: tile.Access
    alloc: tile.SharedAlloc
    kind: Kind
    width: int
    weight: int
    row: AffineForm | None
    column: AffineForm | None
    mask: Mask
    guarded: bool = False

    @property
    def is_known(self) -> bool:
        return self.row is not None and self.column is not None

    def widened(self, vec: int, by: int) -> SharedAccess:
        """An access to `vec` elements, `by` elements on from where this one begins."""
        column = None if self.column is None else AffineForm(self.column.lanes + by, self.column.terms)
        return replace(self, width=vec * self.alloc.type.dtype.bytes, column=column)


def shared_accesses(ops: Iterable[Op], lanes: Lanes) -> list[SharedAccess]:
    """All among the ops of a tile-level kernel, in their order; loads that nobody uses are left out."""
    found: list[SharedAccess] = []
    active = ActiveLanes(lanes)
    for op in ops:
        if not isinstance(op, tile.Access) or not isinstance(op.memory.op, tile.SharedAlloc):
            continue
        if op.effects <= {"read"} and not any(r.uses for r in op.results):
            continue
        found += _of(op, op.memory.op, lanes, active.reaching(op))
    return found


def _kind(access: Access, op: tile.Access) -> Kind:
    """A row of the bank model."""
    if access.matrix:
        return "stmatrix" if access.writes else "ldmatrix"
    if access.done == "cp_async":
        return "cp_async"
    return "atomic" if access.atomic and op.effects >= {"read", "write"} else "store" if access.writes else "load"


def _of(op: tile.Access, alloc: tile.SharedAlloc, lanes: Lanes, mask: Mask) -> list[SharedAccess]:
    """The access; for a vector that may lie across the edge of its tile, the single elements there too."""
    touched = next(access for access in op.accesses() if access.memory is op.memory)
    kind = _kind(touched, op)
    element = alloc.type.dtype.bytes
    indices = [lanes.of(v) for v in op.indices]
    forms = [i for i in indices if i is not None]
    if isinstance(op, (matrix.LdMatrix, matrix.StMatrix)):
        mask = Mask(mask.lanes & lanes.first(matrix.MATRIX_ROWS * op.num), mask.unknown)
    width, weight = op.vec * element, _weight(op)
    if len(forms) < len(indices):
        return [SharedAccess(op, alloc, kind, width, weight, None, None, mask)]
    strides = alloc.placement.row_strides(alloc.type.dims)
    rows = [form.scaled(stride) for form, stride in zip(forms[:-1], strides, strict=True)]
    row = reduce(AffineForm.plus, rows) if rows else lanes.constant(0)
    access = SharedAccess(op, alloc, kind, width, weight, row, forms[-1], mask)
    return _guarded(access, forms) if touched.guarded else [access]


def _guarded(access: SharedAccess, indices: list[AffineForm]) -> list[SharedAccess]:
    """Restrict the mask to indices inside the tile."""
    dims, vec, (*rows, column) = access.alloc.type.dims, access.op.vec, indices
    mask = access.mask
    for form, extent in zip(rows, dims, strict=False):
        if not form.terms:
            mask &= _below(form.lanes, extent)
    access = replace(access, mask=mask, guarded=any(form.terms for form in indices))
    if column.terms:
        return [access]
    whole = _below(column.lanes, dims[-1] - vec + 1)
    parts = [replace(access, mask=mask & whole)]
    for e in range(0 if vec == 1 or dims[-1] % vec == 0 else vec):
        single = column.lanes + e
        alone = mask & _below(single, dims[-1]) & Mask(~whole.lanes)
        if alone.lanes.any():
            parts.append(replace(access, width=access.width // vec, column=AffineForm(single, {}), mask=alone))
    return parts


def _below(lanes: NDArray[Any], extent: int) -> Mask:
    return Mask((lanes >= 0) & (lanes < extent))


def _weight(op: Op) -> int:
    return prod(_times(owner, block) for owner, block in ops_around(op.parent))


def _times(owner: Op, block: Block) -> int:
    """How often `owner` runs this one of its blocks."""
    match owner:
        case control.For():
            trips = trip_count(owner)
            return UNKNOWN_TRIPS if trips is None else trips
        case control.While():
            return UNKNOWN_TRIPS
        case control.If() if owner.likely and block is owner.orelse:
            return 0
        case _:
            return 1

"""What one instruction of TMA moves of a box: one panel, at most 256 rows. (PTX ISA: cp.async.bulk.tensor, box.)"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.arch import TMA_MOST_BOX
from tiledsl.ir.ops import tile, tma
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import SharedType
from tiledsl.layout.shared import ROWS, Paneled

__all__ = ["Piece", "pieces"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a box that begins `row` and `column` elements into it, and the tensor map that it goes by."""

    map: TensorMap
    row: int
    column: int


def pieces(op: tma.Load | tma.Store) -> list[Piece]:
    """The parts of the box of `op`, panel after panel. `check-hopper` has approved it."""
    row_axis, column_axis = op.axes
    rows, columns = op.box[row_axis], op.box[column_axis]
    layout = _layout(op)
    width = layout.width if isinstance(layout, Paneled) else columns
    swizzle = layout.span if isinstance(layout, Paneled) else 0
    others = [axis for axis in reversed(range(len(op.box))) if axis not in op.axes]
    axes = (column_axis, row_axis, *others)
    found: list[Piece] = []
    for column in range(0, columns, width):
        for row, count in _shares(rows):
            box = (width, count, *(1 for _ in others))
            found.append(Piece(TensorMap(op.tensor.name, axes, box, swizzle), row, column))
    return found


def _layout(op: tma.Load | tma.Store) -> object:
    alloc = op.tile.op
    assert isinstance(op.tile.type, SharedType) and isinstance(alloc, tile.SharedAlloc)
    return alloc.placement


def _shares(rows: int) -> list[tuple[int, int]]:
    """Where each part of so many rows begins, and how many it has: equal ones, whole swizzle patterns, if possible."""
    parts = -(-rows // TMA_MOST_BOX)
    size = rows // parts if rows % (ROWS * parts) == 0 else min(rows, TMA_MOST_BOX)
    return [(first, min(size, rows - first)) for first in range(0, rows, size)]

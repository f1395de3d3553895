"""Which accesses may leave an axis of their memory.

At thread level an access is an address: past the end of a row begins the next one, and nothing tells. So before every
access that does not guard itself, `expand` puts a check (`mem.within`) of each axis whose index is not proven to stay
inside, if it lowers for the emulator. A GPU has no such check, and the same kernel without it.
"""

from __future__ import annotations

from tiledsl.ir.core import Value
from tiledsl.ir.ops import control, tile
from tiledsl.ir.types import GlobalType, MemoryType, SharedType
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.intervals import Intervals


def vector(type_: MemoryType, vec: int) -> tuple[int, ...]:
    """How many elements along each axis `vec` neighbours along the axis of stride 1 are."""
    return tuple(vec if axis == type_.unit else 1 for axis in range(type_.rank))


def proven(intervals: Intervals, memory: Value, index: Value, axis: int, count: int) -> bool:
    """Is the index sure to lie inside the axis, and so are the `count` - 1 after it?"""
    type_ = memory.type
    assert isinstance(type_, (GlobalType, SharedType))
    extent = type_.dims[axis]
    least, most = intervals.of(index)
    if isinstance(extent, int):
        return least >= 0 and most + count <= extent
    return count == 1 and least >= 0 and _counts_to(index, extent)


def _counts_to(index: Value, extent: str) -> bool:
    """Is it the variable of a loop that counts up to a run-time extent of this name?"""
    loop = index.block.parent
    if not isinstance(loop, control.For) or index is not loop.body.args[0]:
        return False
    hi, step = loop.hi.op, integer(loop.step)
    if type(hi) is not tile.Dim or step is None or step <= 0:
        return False
    type_ = hi.tensor.type
    return isinstance(type_, GlobalType) and type_.dims[hi.axis] == extent

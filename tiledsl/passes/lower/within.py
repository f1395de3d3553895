"""Which accesses may leave an axis of their memory, and the `mem.within` that says so on the emulator.

At thread level an access is an address: past the end of a row begins the next one, and nothing tells. So before every
access that does not guard itself, `expand` puts a check of each axis whose index is not proven to stay inside, if it
lowers for the emulator. A GPU has no such check, and the same kernel without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.arch import WARP
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, mem, tile
from tiledsl.ir.types import GlobalType, MemoryType, SharedType
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.lower.addresses import Memory


def vector(type_: MemoryType, vec: int) -> tuple[int, ...]:
    """How many elements along each axis `vec` neighbours along the axis of stride 1 are."""
    return tuple(vec if axis == type_.unit else 1 for axis in range(type_.rank))


class BoundsChecks:
    """Writes the checks of one kernel, each once in a block and what is inside it.

    `known`: index, extent and count of each axis that was checked where `expand` is now.
    """

    def __init__(self, intervals: Intervals) -> None:
        self.intervals = intervals
        self.known: set[tuple[Value, Value | int, int]] = set()

    def require(
        self, b: Builder, access: str, memory: Value, lowered: Memory, indices: Sequence[Value], new: Sequence[Value],
        counts: Sequence[int], lanes: int,
    ) -> None:  # fmt: skip
        """Check an access called `access` to `memory`, of `counts` elements along each axis, by the first `lanes` of a
        warp. `indices`: at tile level; `new`: at thread level."""
        if lowered.strides == (1,):  # what is past its end is past the allocation's, and found there
            return
        axes = [axis for axis, index in enumerate(indices) if not self.proven(memory, index, axis, counts[axis])]
        keys = {(new[axis], lowered.extents[axis], counts[axis]) for axis in axes}
        if keys <= self.known:
            return
        if lanes == WARP:
            self.known |= keys
        extents = tuple(-1 if isinstance(e, Value) else e for e in lowered.extents)
        given = [e for e in lowered.extents if isinstance(e, Value)]
        b.add(
            mem.Within(
                *new, *given, extents=extents, counts=tuple(counts), axes=tuple(axes), lanes=lanes,
                label=name_of(memory), access=access,
            )
        )  # fmt: skip

    def proven(self, memory: Value, index: Value, axis: int, count: int) -> bool:
        """Is the index sure to lie inside the axis, and so are the `count` - 1 after it?"""
        type_ = memory.type
        assert isinstance(type_, (GlobalType, SharedType))
        extent = type_.dims[axis]
        least, most = self.intervals.of(index)
        if isinstance(extent, int):
            return least >= 0 and most + count <= extent
        return count == 1 and least >= 0 and _counts_to(index, extent)


def _counts_to(index: Value, extent: str) -> bool:
    """Is it the variable of a loop that counts up to a run-time extent of this name?"""
    owner = index.owner
    loop = owner.parent if isinstance(owner, Block) else None
    if not isinstance(loop, control.For) or index is not loop.body.args[0]:
        return False
    hi, step = loop.hi.op, integer(loop.step)
    if type(hi) is not tile.Dim or step is None or step <= 0:
        return False
    type_ = hi.tensor.type
    return isinstance(type_, GlobalType) and type_.dims[hi.axis] == extent

"""Which accesses may leave an axis of their memory, and the `mem.within` that says so on the emulator.

At thread level an access is an address: past the end of a row begins the next one, and nothing tells. So before every
access that does not guard itself, `expand` puts a check of each axis whose index is not proven to stay inside, if it
lowers for the emulator. A GPU has no such check, and the same kernel without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.arch import WARP
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, mem, tile
from tiledsl.ir.types import GlobalType, MemoryType, SharedType
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.lower.addresses import Memory


@dataclass(frozen=True, slots=True)
class Reach:
    """What an op reaches of a memory: from the indices on, `counts` elements along each axis (none: 1).

    lanes: of those of a warp the first so many, whose indices alone count.
    """

    counts: tuple[int, ...] = ()
    lanes: int = WARP

    @staticmethod
    def vector(type_: MemoryType, vec: int, lanes: int = WARP) -> Reach:
        """`vec` neighbours along the axis of stride 1."""
        return Reach(tuple(vec if axis == type_.unit else 1 for axis in range(type_.rank)), lanes)


class Bounds:
    """Writes the checks of one kernel, each once in a block and what is inside it.

    `known`: index, extent and count of each axis that was checked where `expand` is now.
    """

    def __init__(self, intervals: Intervals) -> None:
        self.intervals = intervals
        self.known: set[tuple[Value, Value | int, int]] = set()

    def require(
        self, b: Builder, access: str, memory: Value, lowered: Memory, indices: Sequence[Value], new: Sequence[Value],
        reach: Reach,
    ) -> None:  # fmt: skip
        """Check an access called `access` to `memory`. `indices`: at tile level; `new`: at thread level."""
        if _ends_with_its_axis(lowered):
            return
        counts = reach.counts or (1,) * len(new)
        axes = [axis for axis, index in enumerate(indices) if not self.proven(memory, index, axis, counts[axis])]
        keys = {(new[axis], lowered.extents[axis], counts[axis]) for axis in axes}
        if keys <= self.known:
            return
        if reach.lanes == WARP:
            self.known |= keys
        extents = tuple(-1 if isinstance(e, Value) else e for e in lowered.extents)
        given = [e for e in lowered.extents if isinstance(e, Value)]
        b.add(
            mem.Within(
                *new, *given, extents=extents, counts=tuple(counts), axes=tuple(axes), lanes=reach.lanes,
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


def _ends_with_its_axis(memory: Memory) -> bool:
    """One axis of neighbours: what is past its end is past the allocation's, and found there."""
    return len(memory.strides) == 1 and memory.strides[0] == 1 and memory.swizzle is None and not memory.width


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

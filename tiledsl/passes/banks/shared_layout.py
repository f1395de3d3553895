"""Where each shared tile lies in a block's shared memory, and whether they fit.

Tiles are disjoint and start at multiples of 16 bytes, or of what their layout or TMA asks for, except that a tile
allocated `over` others may lie on their bytes. First fit in program order, so the layout is predictable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tiledsl.errors import CompileError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import tile
from tiledsl.layout.shared import ROW, Layout


@dataclass(frozen=True, slots=True)
class Slot:
    """The bytes [offset, offset + bytes) of one tile. label: its name, with a number if others before it have that."""

    op: tile.SharedAlloc
    offset: int
    bytes: int
    label: str

    @property
    def end(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """`slots` by allocation, in program order; `bytes`: what a block needs in all."""

    slots: dict[Op, Slot]
    bytes: int


def lay_out_shared(
    kernel: Kernel, layouts: Mapping[Op, Layout] | None = None, stages: int | None = None
) -> SharedLayout:
    """Place every shared tile of a tile-level kernel.

    layouts: by allocation, instead of what it says itself. stages: the most that the tiles of pipelined loops may
    have.
    """
    slots: dict[Op, Slot] = {}
    named = Counter[str]()
    for op in kernel.walk():
        if isinstance(op, tile.SharedAlloc):
            layout = op.placement if layouts is None else layouts.get(op, op.placement)
            dims = op.type.dims
            if stages is not None and op.stages > stages:
                dims = (stages, *dims[1:])
            size = layout.footprint(dims) * op.type.dtype.bytes
            name = op.result.name or "tile"
            named[name] += 1
            label = name if named[name] == 1 else f"{name} ({named[name]})"
            slots[op] = Slot(op, _first_fit(op, size, slots, _alignment(op, layout)), size, label)
    return SharedLayout(slots, max((s.end for s in slots.values()), default=0))


def _alignment(op: tile.SharedAlloc, layout: Layout) -> int:
    """What the layout asks for, and what any tile that is accessed together with this one does."""
    return max([layout.alignment, *(access.align for user, _ in op.result.uses for access in user.touches)])


def _first_fit(op: tile.SharedAlloc, size: int, slots: dict[Op, Slot], alignment: int) -> int:
    """The lowest aligned offset with `size` bytes that are free or belong to a tile that `op` lies over. The end of all
    tiles is always free."""
    over = {v.op for v in op.operands}
    shared = [s for s in slots.values() if s.op in over]
    taken = [part for s in slots.values() if s.op not in over for part in _without(s, shared)]
    places = [*(s.offset for s in shared), *(end for _, end in taken)]
    starts = sorted({0, *(-(-place // alignment) * alignment for place in places)})
    return next(start for start in starts if all(start + size <= lo or hi <= start for lo, hi in taken))


def _without(slot: Slot, holes: list[Slot]) -> list[tuple[int, int]]:
    """The byte ranges of `slot` that lie in none of `holes`."""
    ends = {slot.offset, slot.end, *(end for hole in holes for end in (hole.offset, hole.end))}
    pieces = pairwise(sorted(end for end in ends if slot.offset <= end <= slot.end))
    return [(lo, hi) for lo, hi in pieces if not any(hole.offset <= lo and hi <= hole.end for hole in holes)]


def check_shared_memory(kernel: Kernel, limit: int, target: str = "") -> None:
    """Error if a block's shared tiles need more than `limit` bytes (what `target` grants on request).

    Runs at tile level, where every tile still has its name and its line.
    """
    layout = lay_out_shared(kernel)
    if layout.bytes <= limit:
        return
    first = next(s for s in layout.slots.values() if s.end > limit)
    tiles = ", ".join(_described(s) for s in layout.slots.values())
    on = f" on {target}" if target else ""
    raise CompileError(
        f"the block's shared tiles need {layout.bytes} bytes, {limit} are possible{on}: {tiles}",
        first.op.loc,
        fix=f"{_fewer_stages(kernel, limit)}"
        f"make them {layout.bytes - limit} bytes smaller, "
        "or let a tile reuse the bytes of one that is no longer needed: shared(..., over=tile)",
        code="C703",
    )


def _fewer_stages(kernel: Kernel, limit: int) -> str:
    """A word on how many stages of pipelined loops fit."""
    most = max((op.stages for op in kernel.walk() if isinstance(op, tile.SharedAlloc)), default=1)
    for stages in range(most - 1, 0, -1):
        needed = lay_out_shared(kernel, stages=stages).bytes
        if needed <= limit:
            return f"pass stages={stages}, the most that fit ({needed} bytes), "
    return "not even one stage fits: " if most > 1 else ""


def _described(slot: Slot) -> str:
    op, stages = slot.op, slot.op.stages
    dims = op.type.dims[1:] if stages > 1 else op.type.dims  # as the kernel's author gave them
    notes = [f"{' x '.join(map(str, dims))} {op.type.dtype}"]
    notes += [str(op.placement)] if op.placement != ROW else []
    notes += [f"over {' and '.join(v.name or 'a tile' for v in op.operands)}"] if op.operands else []
    notes += [f"{stages} stages"] if stages > 1 else []
    return f"{slot.label} {slot.bytes} bytes ({', '.join(notes)})"

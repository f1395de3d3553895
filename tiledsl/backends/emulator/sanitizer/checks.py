"""A check of shared memory that runs as a hook: reads of what nobody wrote, or wrote through another tile last."""

from __future__ import annotations

import numpy as np

from tiledsl.backends.emulator.hooks import Access, LaunchInfo
from tiledsl.backends.emulator.rules.memory import shared_bases
from tiledsl.backends.emulator.sanitizer.shadow import Bools, Cells, Ints, Ops, ShadowHook
from tiledsl.errors import HazardError
from tiledsl.ir.ops import mem

__all__ = ["UninitialisedCheck"]


class _Writers:
    """`last`: of each cell, the number of the op that wrote it last, plus 1."""

    def __init__(self, launch: LaunchInfo, first: int, count: int) -> None:
        self.cells = Cells(launch, first, count)
        self.last = np.zeros(self.cells.count, np.int32)


class UninitialisedCheck(ShadowHook[_Writers]):
    """Raises HazardError when a thread reads shared memory that no thread of its block has written, or that was last
    written through another tile, which lies over the one it reads.

    `tiles`: of each op that writes, the number of its tile, 0 if control flow chose the pointer; then nothing is said.
    """

    def __init__(self) -> None:
        super().__init__(_Writers)
        self.writers = Ops()
        self.tiles: list[int] = []
        self.numbers: dict[mem.SharedBase, int] = {}
        self.overlapping = False

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or not len(access.blocks):
            return
        shadow = self.of(access.blocks)
        cells = shadow.cells.touched(access)
        if access.kind in ("read", "atomic", "fetch"):
            self.require_written(access, shadow, cells)
        if access.kind in ("write", "atomic"):
            shadow.last[cells] = self.writer(access)

    def on_delivery(self, access: Access) -> None:
        shadow = self.of(access.blocks)
        shadow.last[shadow.cells.touched(access)] = self.writer(access)

    def writer(self, access: Access) -> int:
        number = self.writers.number(access.op)
        if number == len(self.tiles):
            self.tiles.append(self.tile(access))
        return number + 1

    def tile(self, access: Access) -> int:
        """The number of the tile whose bytes are accessed, from 1 on; 0 if it is not known."""
        byte = int(access.addresses[0])
        found = next((base for base in shared_bases(access.op) if base.offset <= byte < base.offset + base.bytes), None)
        if found is None:
            return 0
        if found not in self.numbers:
            ends = found.offset + found.bytes
            self.overlapping |= any(o.offset < ends and found.offset < o.offset + o.bytes for o in self.numbers)
            self.numbers[found] = len(self.numbers) + 1
        return self.numbers[found]

    def require_written(self, access: Access, shadow: _Writers, cells: Ints) -> None:
        writers = shadow.last.take(cells)
        if not writers.all():
            self.fail(
                "uninitialised read", access, shadow, cells, writers == 0, "which no thread has written",
                "write the tile before it is read; shared memory does not start as zero on a GPU",
            )  # fmt: skip
        if not self.overlapping or (own := self.tile(access)) == 0:
            return
        through = np.array(self.tiles)[writers - 1]
        other = (through != own) & (through != 0)
        if other.any():
            at = np.unravel_index(int(np.argmax(other)), other.shape)
            over = next(base for base, number in self.numbers.items() if number == through[at])
            op = self.writers[int(writers[at]) - 1]
            self.fail(
                "overwritten", access, shadow, cells, other,
                f"which was last written through {over.label or 'another tile'}, which has the same bytes, at {op.loc}",
                "read a tile for the last time before the one over= it is written, or leave out over=",
            )  # fmt: skip

    def fail(self, what: str, access: Access, shadow: _Writers, cells: Ints, wrong: Bools, why: str, fix: str) -> None:
        lane, cell = (int(i) for i in np.argwhere(wrong)[0])
        byte = shadow.cells.byte(int(cells[lane, cell]), access)
        thread = self.launch.thread_index(int(access.threads[lane]))
        block = self.launch.block_index(int(access.blocks[lane]))
        raise HazardError(f"{what}: thread {thread} of block {block} reads {byte}, {why}", access.loc, fix)

"""A check of shared memory that runs as a hook: reads of what nobody wrote, or wrote through another tile last."""

from __future__ import annotations

import numpy as np

from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.rules_memory import shared_bases
from tiledsl.backends.emulator.shadow import Ints, Ops, ShadowHook
from tiledsl.errors import HazardError
from tiledsl.ir.ops import mem

__all__ = ["UninitialisedCheck"]


class UninitialisedCheck(ShadowHook):
    """Raises HazardError when a thread reads shared memory that no thread of its block has written, or that was last
    written through another tile, which lies over the one it reads.

    A cell holds the number of the op that wrote it last, plus 1. `tiles`: of each such op, the number of its tile, 0 if
    control flow chose the pointer; then nothing is said.
    """

    def __init__(self) -> None:
        super().__init__(lambda count, granules: np.zeros(count * granules, np.int32))
        self.writers = Ops()
        self.tiles: list[int] = []
        self.numbers: dict[mem.SharedBase, int] = {}
        self.overlapping = False

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or not len(access.blocks):
            return
        shadow, first = self.shadow_of(access.blocks)
        cells, lanes = self.cells(access, first)
        if access.kind in ("read", "atomic", "fetch"):
            self.require_written(access, shadow[cells], cells, lanes)
        if access.kind in ("write", "atomic"):
            shadow[cells] = self.writer(access)

    def on_delivery(self, access: Access) -> None:
        shadow, first = self.shadow_of(access.blocks)
        shadow[self.cells(access, first)[0]] = self.writer(access)

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

    def require_written(self, access: Access, writers: Ints, cells: Ints, lanes: Ints) -> None:
        unwritten = writers == 0
        if unwritten.any():
            at = int(np.argmax(unwritten))
            self.fail(
                "uninitialised read", access, int(cells[at]), int(lanes[at]), "which no thread has written",
                "write the tile before it is read; shared memory does not start as zero on a GPU",
            )  # fmt: skip
        own = self.tile(access)
        if not self.overlapping or own == 0:
            return
        through = np.array(self.tiles)[writers - 1]
        other = (through != own) & (through != 0)
        if other.any():
            at = int(np.argmax(other))
            over = next(base for base, number in self.numbers.items() if number == through[at])
            op = self.writers[int(writers[at]) - 1]
            self.fail(
                "overwritten", access, int(cells[at]), int(lanes[at]),
                f"which was last written through {over.label or 'another tile'}, which has the same bytes, at {op.loc}",
                "read a tile for the last time before the one over= it is written, or leave out over=",
            )  # fmt: skip

    def fail(self, what: str, access: Access, cell: int, lane: int, why: str, fix: str) -> None:
        byte, block = self.where(access, lane, cell)
        thread = self.launch.thread_index(int(access.threads[lane]))
        raise HazardError(f"{what}: thread {thread} of {block} reads {byte}, {why}", access.loc, fix)

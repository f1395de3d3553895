"""A check of shared memory: reads of what nobody wrote, or wrote through another tile last."""

from __future__ import annotations

import numpy as np

from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.rules.memory import shared_bases
from tiledsl.backends.emulator.sanitizer.shadow import DOES, Bools, Cells, Ints, Ops
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import mem


class LastWrites:
    """Raises HazardError when a thread reads shared memory that no thread of its block has written, or that was last
    written through another tile, which lies over the one it reads.

    `last`: of each cell, the number of the op that wrote it last, plus 1. `tiles`: of each op that writes, the number
    of its tile, 0 if control flow chose the pointer; then nothing is said.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.last = np.zeros(cells.count, np.int32)
        self.writers, self.tiles = Ops(), list[int]()
        self.numbers: dict[mem.SharedBase, int] = {}
        self.overlapping = False

    def access(self, access: Access, cells: Ints) -> None:
        if access.kind in ("read", "atomic", "fetch"):
            self.require_written(access, cells)
        if access.kind in ("write", "atomic"):
            self.write(access, cells)

    def write(self, access: Access, cells: Ints) -> None:
        number = self.writers.number(access.op)
        if number == len(self.tiles):
            self.tiles.append(self.tile(access))
        self.last[cells] = number + 1

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

    def require_written(self, access: Access, cells: Ints) -> None:
        writers = self.last.take(cells)
        if not writers.all():
            self.fail(
                "uninitialised read", access, cells, writers == 0, "which no thread has written",
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
                "overwritten", access, cells, other,
                f"which was last written through {over.label or 'another tile'}, which has the same bytes, at {op.loc}",
                "read a tile for the last time before the one over= it is written, or leave out over=",
            )  # fmt: skip

    def fail(self, what: str, access: Access, cells: Ints, wrong: Bools, why: str, fix: str) -> None:
        lane, cell = (int(i) for i in np.argwhere(wrong)[0])
        who = self.cells.launch.thread_of_block(access.threads[lane], access.blocks[lane])
        byte = self.cells.byte(int(cells[lane, cell]), access)
        raise HazardError(f"{what}: {who} reads {byte}, {why}", access.loc, fix)


# -- copies in flight -------------------------------------------------------------------------------


class InFlight:
    """Raises HazardError when a thread touches bytes of shared memory that an asynchronous copy is about to write,
    when two copies are in flight to the same bytes, and when a block ends before its copies have arrived.

    Nobody may touch them, the thread that copies included, until that thread has waited for the copy's group.

    `thread`: of each cell, whose copy is in flight there, -1 for none; `op`: its number. `any`: has there ever been
    one? `counted`: the ops whose bytes an mbarrier counts.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells, self.any = cells, False
        self.thread = np.full(cells.count, -1, np.int32)
        self.op = np.zeros(cells.count, np.int32)
        self.ops = Ops()
        self.counted: set[Op] = set()

    def access(self, access: Access, cells: Ints) -> None:
        if self.any:
            self.require_arrived(access, cells, self.thread.take(cells) >= 0)
        if access.kind == "async":
            self.any = True
            if access.until == "mbarrier":
                self.counted.add(access.op)
            threads = access.threads[:, None]
            self.thread[cells], self.op[cells] = threads, self.ops.number(access.op)
            # Two lanes at one cell: the one that does not find itself there has lost.
            self.require_arrived(access, cells, self.thread.take(cells) != threads)

    def deliver(self, cells: Ints) -> None:
        self.thread[cells] = -1

    def end(self) -> None:
        """The blocks have ended."""
        left = np.flatnonzero(self.thread >= 0)
        if not len(left):
            return
        cell, launch = int(left[0]), self.cells.launch
        block = launch.block_index(self.cells.first + cell // self.cells.each)
        thread = launch.thread_index(int(self.thread[cell]))
        raise HazardError(
            f"block {block} ends, and a copy that thread {thread} began has not arrived: nothing waits for it",
            self.ops[int(self.op[cell])].loc,
            "wait for the copy, also on the last iteration; or do not begin it",
        )

    def require_arrived(self, access: Access, cells: Ints, wrong: Bools) -> None:
        if not wrong.any():
            return
        lane, at = (int(i) for i in np.argwhere(wrong)[0])
        cell, launch = int(cells[lane, at]), self.cells.launch
        op = self.ops[int(self.op[cell])]
        who = launch.thread_of_block(access.threads[lane], access.blocks[lane])
        does = f"{who} {DOES[access.kind]} {self.cells.byte(cell, access)} at {access.loc}"
        copy = f"the copy of thread {launch.thread_index(int(self.thread[cell]))} at {op.loc}"
        if access.kind == "async":
            text = f"two copies in flight: {does}, where {copy} has not arrived"
            fix = "wait for the first copy before the next one to the same bytes begins"
        else:
            text = f"copy in flight: {does}, which {copy} has not delivered"
            fix = "wait for the copy, then put a barrier() before other threads touch its bytes"
            if op in self.counted:
                fix = "wait at the mbarrier that counts its bytes"
        raise HazardError(text, access.loc, fix)

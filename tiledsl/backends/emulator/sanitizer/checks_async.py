"""What asynchronous copies forbid while they are on their way, as a check that runs as a hook."""

from __future__ import annotations

import numpy as np

from tiledsl.backends.emulator.hooks import Access, LaunchInfo
from tiledsl.backends.emulator.sanitizer.shadow import DOES, Bools, Cells, Ints, Ops, ShadowHook
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["InFlightCheck"]


class _InFlight:
    """Cells of a chunk, flat. `thread`: whose copy is in flight there, -1 for none; `op`: its number. `any`: has there
    ever been one?"""

    def __init__(self, launch: LaunchInfo, first: int, count: int) -> None:
        self.cells, self.any = Cells(launch, first, count), False
        self.thread = np.full(self.cells.count, -1, np.int32)
        self.op = np.zeros(self.cells.count, np.int32)


class InFlightCheck(ShadowHook[_InFlight]):
    """Raises HazardError when a thread touches bytes of shared memory that an asynchronous copy is about to write,
    when two copies are on their way to the same bytes, and when a block ends before its copies have arrived.

    Nobody may touch them, the thread that copies included, until that thread has waited for the copy's group. Who may
    afterwards is `HazardCheck`'s concern.
    """

    def __init__(self) -> None:
        super().__init__(_InFlight)
        self.ops = Ops()
        self.counted: set[Op] = set()

    def on_access(self, access: Access) -> None:
        if access.space != "shared" or not len(access.blocks):
            return
        shadow = self.of(access.blocks)
        if not shadow.any and access.kind != "async":
            return
        cells = shadow.cells.touched(access)
        self.require_arrived(shadow, access, cells, shadow.thread.take(cells) >= 0)
        if access.kind == "async":
            shadow.any = True
            if access.until == "mbarrier":
                self.counted.add(access.op)
            threads = access.threads[:, None]
            shadow.thread[cells], shadow.op[cells] = threads, self.ops.number(access.op)
            # Two lanes at one cell: the one that does not find itself there has lost.
            self.require_arrived(shadow, access, cells, shadow.thread.take(cells) != threads)

    def on_delivery(self, access: Access) -> None:
        shadow = self.of(access.blocks)
        shadow.thread[shadow.cells.touched(access)] = -1

    def end(self, shadow: _InFlight) -> None:
        left = np.flatnonzero(shadow.thread >= 0)
        if not len(left):
            return
        cell = int(left[0])
        block = self.launch.block_index(shadow.cells.first + cell // shadow.cells.each)
        thread = self.launch.thread_index(int(shadow.thread[cell]))
        raise HazardError(
            f"block {block} ends, and a copy that thread {thread} began has not arrived: nothing waits for it",
            self.ops[int(shadow.op[cell])].loc,
            "wait for the copy, also on the last iteration; or do not begin it",
        )

    def require_arrived(self, shadow: _InFlight, access: Access, cells: Ints, wrong: Bools) -> None:
        if not wrong.any():
            return
        lane, at = (int(i) for i in np.argwhere(wrong)[0])
        cell = int(cells[lane, at])
        byte, block = shadow.cells.byte(cell, access), self.launch.block_index(int(access.blocks[lane]))
        who = f"thread {self.launch.thread_index(int(access.threads[lane]))} of block {block}"
        owner = f"thread {self.launch.thread_index(int(shadow.thread[cell]))}"
        line = self.ops[int(shadow.op[cell])].loc
        if access.kind == "async":
            raise HazardError(
                f"two copies in flight: {who} copies to {byte} at {access.loc}, where the copy of {owner} at {line} "
                "has not arrived",
                access.loc,
                "wait for the first copy before the next one to the same bytes begins",
            )
        counted = self.ops[int(shadow.op[cell])] in self.counted
        raise HazardError(
            f"copy in flight: {who} {DOES[access.kind]} {byte} at {access.loc}, which the copy of {owner} at {line} "
            "has not delivered",
            access.loc,
            "wait at the mbarrier that counts its bytes"
            if counted
            else "wait for the copy, then put a barrier() before other threads touch its bytes",
        )

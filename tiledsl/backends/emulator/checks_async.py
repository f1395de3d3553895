"""What asynchronous copies forbid while they are on their way, as a check that runs as a hook."""

from __future__ import annotations

import numpy as np

from tiledsl.backends.emulator.hooks import Access
from tiledsl.backends.emulator.shadow import DOES, Bools, Ints, Ops, ShadowHook
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["InFlightCheck"]


class _InFlight:
    """Cells of a chunk, flat. `thread`: whose copy is on its way there, -1 for none; `op`: its number. `any`: has there
    ever been one?"""

    def __init__(self, count: int, granules: int) -> None:
        self.thread, self.any = np.full(count * granules, -1, np.int32), False
        self.op = np.zeros(count * granules, np.int32)
        self.granules = granules


class InFlightCheck(ShadowHook):
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
        shadow, first = self.shadow_of(access.blocks)
        if not shadow.any and access.kind != "async":
            return
        cells, lanes = self.cells(access, first)
        self.require_arrived(shadow, access, cells, lanes, shadow.thread[cells] >= 0)
        if access.kind == "async":
            shadow.any = True
            if access.until == "mbarrier":
                self.counted.add(access.op)
            threads = access.threads[lanes]
            shadow.thread[cells], shadow.op[cells] = threads, self.ops.number(access.op)
            # Two lanes at one cell: the one that does not find itself there has lost.
            self.require_arrived(shadow, access, cells, lanes, shadow.thread[cells] != threads)

    def on_delivery(self, access: Access) -> None:
        shadow, first = self.shadow_of(access.blocks)
        shadow.thread[self.cells(access, first)[0]] = -1

    def on_blocks_end(self, first: int, count: int) -> None:
        shadow, _ = self.shadow_of(np.array([first]))
        left = np.flatnonzero(shadow.thread >= 0)
        super().on_blocks_end(first, count)
        if not len(left):
            return
        cell = int(left[0])
        block = self.launch.block_index(first + cell // shadow.granules)
        thread = self.launch.thread_index(int(shadow.thread[cell]))
        raise HazardError(
            f"block {block} ends, and a copy that thread {thread} began has not arrived: nothing waits for it",
            self.ops[int(shadow.op[cell])].loc,
            "wait for the copy, also on the last iteration; or do not begin it",
        )

    def require_arrived(self, shadow: _InFlight, access: Access, cells: Ints, lanes: Ints, wrong: Bools) -> None:
        if not wrong.any():
            return
        at = int(np.argmax(wrong))
        cell, lane = int(cells[at]), int(lanes[at])
        byte, block = self.where(access, lane, cell)
        who = f"thread {self.launch.thread_index(int(access.threads[lane]))} of {block}"
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

"""Shadow memory: what checks of shared memory remember of every byte.

A cell stands for each granule: the narrowest element that the kernel accesses in shared memory.
"""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Ints, LaunchInfo
from tiledsl.errors import Accessed
from tiledsl.ir.core import Op

DOES = {
    "read": "reads",
    "write": "writes",
    "atomic": "atomically updates",
    "async": "copies to",
    "fetch": "lets TMA or wgmma read",
    "mbarrier": "uses an mbarrier at",
}
"""What a thread does in an access of a kind, for messages."""


def held_by(access: Access, cells: int, granule: int) -> Ints | None:
    """For each of the `cells` of the rows that the lanes of a matrix op address, the lane whose register it is loaded
    to or stored from, [lanes, cells]; None for other ops, where it is the lane that gives the address."""
    if not access.held:
        return None
    row = access.threads[:, None] % 8
    byte = np.arange(cells) * granule
    return 4 * (byte // 2) + row // 2 if access.held == "columns" else 4 * row + byte // 4


class Ops:
    """Numbers for ops, which arrays of integers can hold."""

    def __init__(self) -> None:
        self.listed: list[Op] = []
        self.numbers: dict[Op, int] = {}

    def number(self, op: Op) -> int:
        number = self.numbers.setdefault(op, len(self.listed))
        if number == len(self.listed):
            self.listed.append(op)
        return number

    def __getitem__(self, number: int) -> Op:
        return self.listed[number]


class Cells:
    """The granules of shared memory of some blocks, one block behind the other: a shadow is flat arrays over them."""

    def __init__(self, launch: LaunchInfo, first: int, count: int) -> None:
        self.launch, self.first, self.granule = launch, first, launch.granule
        self.each = max(1, -(-launch.shared_bytes // launch.granule))
        self.count = count * self.each

    def of(self, rows: Ints, at: Ints, width: int) -> Ints:
        """Of `width` bytes from each address in `at` [entries, any] on: [entries, cells]."""
        first = rows[:, None] * self.each + at // self.granule
        count = max(1, width // self.granule)
        return first if count == 1 else (first[:, :, None] + np.arange(count)).reshape(len(rows), -1)

    def touched(self, access: Access) -> Ints:
        """By each lane: [lanes, cells]."""
        return self.of(access.blocks - self.first, access.addresses[:, None], access.width)

    # -- messages ------------------------------------------------------------------------------

    def memory(self, cell: int, access: Access) -> Accessed:
        byte = int(cell) % self.each * self.granule - access.base
        return Accessed(access.label, "shared", byte=byte, bytes=access.width)

    def thread(self, warp: int, lane: int) -> str:
        """lane: maybe with a flag above the bits of a lane."""
        return f"thread {self.launch.thread_index(warp * WARP + lane % WARP)}"

    def warp(self, row: int, warp: int) -> str:
        return self.launch.warp_of_block(warp, int(row) + self.first)

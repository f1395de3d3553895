"""Shadow memory: what checks of shared memory remember of every byte.

A cell stands for each granule (the narrowest element that the kernel accesses in shared memory); a shadow is a set
of NumPy arrays [blocks of a chunk x granules].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Access, Hook, LaunchInfo
from tiledsl.ir.core import Op

__all__ = ["DOES", "Bools", "Ints", "Ops", "ShadowHook", "held_by"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

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


@dataclass(frozen=True, slots=True)
class _Range:
    """The blocks that a shadow covers."""

    first: int
    count: int


class ShadowHook(Hook):
    """Common to both: which shadow an access belongs to, and its cells."""

    launch: LaunchInfo

    def __init__(self, make: Callable[[int, int], Any]) -> None:
        self.make = make
        self.shadows: dict[_Range, Any] = {}

    def on_launch(self, launch: LaunchInfo) -> None:
        self.launch = launch
        self.shadows.clear()

    def on_blocks_begin(self, first: int, count: int) -> None:
        granules = -(-self.launch.shared_bytes // self.launch.granule)
        self.shadows[_Range(first, count)] = self.make(count, max(granules, 1))

    def on_blocks_end(self, first: int, count: int) -> None:
        del self.shadows[_Range(first, count)]

    def shadow_of(self, blocks: Ints) -> tuple[Any, int]:
        """The shadow that holds these blocks (all of one chunk) and its first block."""
        for covered, shadow in self.shadows.items():
            if covered.first <= blocks[0] < covered.first + covered.count:
                return shadow, covered.first
        raise AssertionError("an access by a block that has not begun")

    def cells(self, access: Access, first: int) -> tuple[Ints, Ints]:
        """For every granule that every lane touches: the cell's index into a flat shadow, and the lane."""
        granule = self.launch.granule
        count = access.width // granule
        granules = -(-self.launch.shared_bytes // granule)
        start = (access.blocks - first) * granules + access.addresses // granule
        lanes = np.arange(len(start))
        return (start[:, None] + np.arange(count)).ravel(), np.repeat(lanes, count)

    def where(self, access: Access, lane: int, cell: int) -> tuple[str, str]:
        """Names of the byte and of the block, for messages."""
        granules = -(-self.launch.shared_bytes // self.launch.granule)
        byte = cell % granules * self.launch.granule - access.base
        return f"byte {byte} of {access.label}", f"block {self.launch.block_index(int(access.blocks[lane]))}"

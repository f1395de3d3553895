"""Shadow memory: what checks of shared memory remember of every byte.

A cell stands for each granule: the narrowest element that the kernel accesses in shared memory.
"""

from __future__ import annotations

from typing import Callable, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Access, Hook, LaunchInfo
from tiledsl.ir.core import Op

__all__ = ["DOES", "Bools", "Cells", "Ints", "Ops", "ShadowHook", "held_by"]

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

    def byte(self, cell: int, access: Touched) -> str:
        """Its name in messages."""
        return f"byte {int(cell) % self.each * self.granule - access.base} of {access.label}"


class Touched(Protocol):
    """What has a name and a place, as an `Access` has."""

    @property
    def label(self) -> str: ...
    @property
    def base(self) -> int: ...


T = TypeVar("T")


class ShadowHook(Hook, Generic[T]):
    """A hook that remembers something of all blocks that are emulated together: what `make` gives for a launch, their
    first and their number."""

    launch: LaunchInfo

    def __init__(self, make: Callable[[LaunchInfo, int, int], T]) -> None:
        self.make = make
        self.shadows: dict[range, T] = {}

    def on_launch(self, launch: LaunchInfo) -> None:
        self.launch = launch
        self.shadows.clear()

    def on_blocks_begin(self, first: int, count: int) -> None:
        self.shadows[range(first, first + count)] = self.make(self.launch, first, count)

    def on_blocks_end(self, first: int, count: int) -> None:
        self.end(self.shadows.pop(range(first, first + count)))

    def end(self, shadow: T) -> None:
        """Its blocks have finished."""

    def of(self, blocks: Ints) -> T:
        """What is remembered of these blocks, which are emulated together."""
        return next(shadow for covered, shadow in self.shadows.items() if int(blocks[0]) in covered)

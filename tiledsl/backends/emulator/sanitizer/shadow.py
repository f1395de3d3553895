"""Shadow memory: what checks of shared memory remember of every byte.

A cell stands for each granule: the narrowest element that the kernel accesses in shared memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, LaunchInfo
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

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

    def byte(self, cell: int, access: Access) -> str:
        """Its name in messages."""
        return f"byte {int(cell) % self.each * self.granule - access.base} of {access.label}"


# -- messages ---------------------------------------------------------------------------------------


_MEET = "let the one wait for the other: at an mbarrier, or at a barrier where both are"


class Words:
    """`simple`: nothing but barriers of whole blocks orders warps. `copies`: the ops that have brought anything."""

    def __init__(self, launch: LaunchInfo, first: int, simple: bool) -> None:
        self.launch, self.first, self.simple = launch, first, simple
        self.copies: set[Op] = set()
        self.unknown = " with no barrier between" if simple else ", with no wait between that lets it know"

    def meet(self, one_atomic: bool = False) -> str:
        """The fix. one_atomic: one of the two is atomic, the other is not."""
        return ("put a barrier() between the two" if self.simple else _MEET) + ", or make both atomic" * one_atomic

    def did(self, what: str) -> str:
        if self.simple:
            return {"read": "read", "wrote": "wrote", "copied": "copied to"}[what]
        return {"read": "has read", "wrote": "has written", "copied": "has filled"}[what]

    def other(self, warp: int, lane: int, own_warp: int, own_lane: int) -> str:
        """Who did the earlier access, of which `own_warp` and `own_lane` do the later one."""
        if not self.simple:
            return f"warp {warp}"
        same = (warp, lane % WARP) == (own_warp, own_lane)
        return "another thread" if same else self.thread(warp, lane)

    def thread(self, warp: int, lane: int) -> str:
        """lane: maybe with a flag above the bits of a lane."""
        return f"thread {self.launch.thread_index(warp * WARP + lane % WARP)}"

    def warp(self, row: int, warp: int) -> str:
        return f"warp {int(warp)} of block {self.launch.block_index(int(row) + self.first)}"

    def fail(self, access: Access, block: int, warp: int, lane: int, byte: str, text: str, fix: str) -> None:
        """Raise HazardError. lane: -1 if it is not one thread that accesses."""
        who = self.warp(block - self.first, warp)
        if self.simple and lane >= 0:
            who = self.launch.thread_of_block(warp * WARP + lane % WARP, block)
        raise HazardError(f"race: {who} {DOES[access.kind]} {byte} at {access.loc}, {text}", access.loc, fix)

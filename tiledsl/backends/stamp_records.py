"""Records of a run that is measured: when each warp of the first cluster came to each stamp (`ir.ops.debug.Stamp`).

Each warp has a region of its own, in which its first lane writes one record behind the other, until it is full. At the
begin and the end of the kernel there are two: by the clock of the SM, and by that of the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tiledsl.arch import WARP

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel

STAMPS = "$stamps"
"""The variable of a module that has all regions, by rank of the block in the cluster, then by warp. Zeros at first."""

RECORD = 16
"""Bytes: the time in eight, the site's number + 1 in four, and which place it is in four (`place_of`)."""

RECORDS = 4096
"""Of a region."""

REGION = RECORD * RECORDS
RANK = 24
"""The bits of a place below the rank + 1 of another block, whose mbarrier it is."""

Record = tuple[int, int, int]
"""(site, time, place)"""


@dataclass(frozen=True)
class Regions:
    """How many blocks have some, and how many warps each."""

    ranks: int
    warps: int

    @property
    def bytes(self) -> int:
        return self.ranks * self.warps * REGION

    @classmethod
    def of(cls, kernel: Kernel) -> Regions:
        return cls(prod(kernel.cluster), -(-kernel.thread_count // WARP))


def decode(memory: bytes, regions: Regions) -> list[list[Record]]:
    """The records of each warp, in order: block by block."""
    import numpy as np

    kind = np.dtype([("time", "<u8"), ("site", "<u4"), ("place", "<u4")])
    found: list[list[Record]] = []
    for rows in np.frombuffer(memory, kind).reshape(regions.ranks * regions.warps, RECORDS):
        count = int(np.argmax(rows["site"] == 0)) if (rows["site"] == 0).any() else RECORDS
        columns: Sequence[list[int]] = [rows[name][:count].tolist() for name in ("site", "time", "place")]
        found.append([(site - 1, time, place) for site, time, place in zip(*columns, strict=True)])
    return found


def place_of(place: int) -> tuple[int, int]:
    """(rank of the block, or -1 for the warp's own; byte in its shared memory, or number of a barrier)"""
    return (place >> RANK) - 1, place & ((1 << RANK) - 1)

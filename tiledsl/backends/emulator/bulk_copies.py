"""Bulk copies of some blocks: boxes that TMA brings to shared memory and takes from there.

A load reads the tensor when it is issued; its bytes arrive as late as they may: when nothing else can run and a warp
waits for their mbarrier. A store writes the tensor when it is issued; until when it reads its source is the concern of
hooks. (PTX ISA: cp.async.bulk.tensor.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.async_copies import require_few
from tiledsl.backends.emulator.hooks import Access, Hook
from tiledsl.backends.emulator.mbarriers import Mbarriers
from tiledsl.backends.emulator.spans import SharedMemory
from tiledsl.ir.core import Op
from tiledsl.layout.shared import CHUNK

__all__ = ["BulkCopies", "Transfer"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Boxes that one op moves; one entry each. `rows`: of the blocks whose shared memory it is, `threads`: who issued
    them; `owners`: the rows of the issuers' blocks. `at` [entries, chunks]: byte addresses of 16-byte chunks."""

    op: Op
    label: str
    base: int
    owners: Ints
    threads: Ints
    rows: Ints
    at: Ints

    def load(self, first: int, mbarriers: Ints) -> Access:
        """What hooks see; `mbarriers`: where those are that count the bytes."""
        return replace(self._access(first), kind="async", until="mbarrier", mbarriers=mbarriers)

    def store(self, first: int) -> Access:
        return replace(self._access(first), kind="fetch", until="bulk")

    def _access(self, first: int) -> Access:
        """An entry a chunk of 16 bytes."""
        count = self.at.shape[1]
        blocks, threads = np.repeat(self.rows + first, count), np.repeat(self.threads, count)
        at, owners = self.at.ravel(), self.owners + first
        return Access(
            self.op, "async", "shared", self.label, self.base, at, CHUNK, blocks, threads, run=count, owners=owners
        )  # fmt: skip

    def part(self, which: NDArray[np.bool_]) -> Transfer:
        names = ("owners", "threads", "rows", "at")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    """A load that has not arrived. `data` [entries, chunks, 16]; `columns`: the mbarriers that count it."""

    transfer: Transfer
    data: NDArray[np.uint8]
    columns: Ints


class BulkCopies:
    """`arriving`: loads on their way to `memory`, which `mbarriers` count."""

    def __init__(self, memory: SharedMemory, mbarriers: Mbarriers, hooks: Sequence[Hook]) -> None:
        self.memory, self.mbarriers, self.hooks = memory, mbarriers, hooks
        self.arriving: list[_Arrival] = []

    def load(self, transfer: Transfer, data: NDArray[np.uint8], columns: Ints) -> None:
        if self.hooks:
            access = transfer.load(self.memory.first, self.mbarriers.places(columns))
            for hook in self.hooks:
                hook.on_access(access)
        require_few(transfer.op, len(self.arriving))
        self.arriving.append(_Arrival(transfer, data, columns))

    def deliver(self, rows: Ints, columns: Ints) -> None:
        """All loads that these mbarriers count arrive."""
        wanted = np.zeros((self.memory.count, len(self.mbarriers.offsets)), np.bool_)
        wanted[rows, columns] = True
        waiting, self.arriving = self.arriving, []
        for arrival in waiting:
            which = wanted[arrival.transfer.rows, arrival.columns]
            if which.any():
                self.arrive(arrival if which.all() else _part(arrival, which))
            if not which.all():
                self.arriving.append(arrival if not which.any() else _part(arrival, ~which))

    def arrive(self, arrival: _Arrival) -> None:
        transfer, columns = arrival.transfer, arrival.columns
        if self.hooks:
            access = transfer.load(self.memory.first, self.mbarriers.places(columns))
            for hook in self.hooks:
                hook.on_delivery(access)
        self.memory.pieces(CHUNK)[self.memory.piece(transfer.rows[:, None], transfer.at, CHUNK)] = arrival.data
        self.mbarriers.expect(transfer.op, transfer.rows, columns, -arrival.data[0].size)
        self.mbarriers.flip(transfer.rows, columns)

    def store(self, transfer: Transfer) -> NDArray[np.uint8]:
        """What is there: [entries, chunks, 16]."""
        if self.hooks:
            access = transfer.store(self.memory.first)
            for hook in self.hooks:
                hook.on_access(access)
        return self.memory.pieces(CHUNK)[self.memory.piece(transfer.rows[:, None], transfer.at, CHUNK)]


def _part(arrival: _Arrival, which: Any) -> _Arrival:
    return _Arrival(arrival.transfer.part(which), arrival.data[which], arrival.columns[which])

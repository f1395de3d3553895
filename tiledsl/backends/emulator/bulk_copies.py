"""Bulk copies of a chunk: boxes that TMA brings to shared memory and takes from there.

A load reads the tensor when it is issued; its bytes arrive as late as they may: when nothing else can run and a warp
waits for their mbarrier. A store writes the tensor when it is issued; what it reads counts as read only when its
thread has waited for its bulk group. (PTX ISA: cp.async.bulk.tensor.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.async_copies import require_few
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Access, AccessKind
from tiledsl.ir.core import Op
from tiledsl.layout.shared import CHUNK

if TYPE_CHECKING:
    from tiledsl.backends.emulator.machine import Chunk

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

    def access(self, kind: AccessKind, first: int) -> Access:
        """What hooks see; an entry a chunk of 16 bytes."""
        count = self.at.shape[1]
        blocks, threads = np.repeat(self.rows + first, count), np.repeat(self.threads, count)
        return Access(self.op, kind, "shared", self.label, self.base, self.at.ravel(), CHUNK, blocks, threads)

    def part(self, which: NDArray[np.bool_]) -> Transfer:
        names = ("owners", "threads", "rows", "at")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    """A load that has not arrived. `data` [entries, chunks, 16]; `columns`: the mbarriers that count it."""

    transfer: Transfer
    data: NDArray[np.uint8]
    columns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """A store whose group has not been waited for. `groups`: of each entry, the number among its thread's."""

    transfer: Transfer
    groups: Ints


class BulkCopies:
    """`arriving`: loads on their way; `reading`: stores that may still read their source."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.arriving: list[_Arrival] = []
        self.reading: list[_Reading] = []
        # [blocks, threads]: how many bulk groups each thread has committed.
        self.committed = np.zeros((chunk.count, chunk.warps * WARP), np.int64)

    # -- loads ---------------------------------------------------------------------------------

    def load(self, transfer: Transfer, data: NDArray[np.uint8], columns: Ints) -> None:
        if self.chunk.order is not None:
            self.chunk.order.counted(transfer, columns)
        self.tell("async", transfer)
        require_few(transfer.op, len(self.arriving))
        self.arriving.append(_Arrival(transfer, data, columns))

    def deliver(self, rows: Ints, columns: Ints) -> None:
        """All loads that these mbarriers count arrive."""
        wanted = np.zeros((self.chunk.count, len(self.chunk.mbarriers.offsets)), np.bool_)
        wanted[rows, columns] = True
        waiting, self.arriving = self.arriving, []
        for arrival in waiting:
            which = wanted[arrival.transfer.rows, arrival.columns]
            if which.any():
                self.arrive(arrival if which.all() else _part(arrival, which))
            if not which.all():
                self.arriving.append(arrival if not which.any() else _part(arrival, ~which))

    def arrive(self, arrival: _Arrival) -> None:
        transfer, chunk = arrival.transfer, self.chunk
        if chunk.machine.hooks:
            access = transfer.access("async", chunk.first)
            for hook in chunk.machine.hooks:
                hook.on_delivery(access)
        memory = chunk.shared.reshape(-1, CHUNK)
        memory[(transfer.rows[:, None] * chunk.pitch + transfer.at) // CHUNK] = arrival.data
        if chunk.order is not None:
            chunk.order.written(transfer, arrival.columns)
        chunk.count_bytes(transfer.op, transfer.rows, arrival.columns, arrival.data[0].size)

    # -- stores --------------------------------------------------------------------------------

    def store(self, transfer: Transfer) -> None:
        self.tell("fetch", transfer)
        require_few(transfer.op, len(self.reading))
        self.reading.append(_Reading(transfer, self.committed[transfer.owners, transfer.threads]))

    def commit(self, c: Cohort) -> None:
        blocks, threads = c.lanes_of(c.active())
        self.committed[blocks - self.chunk.first, threads] += 1

    def wait(self, c: Cohort, pending: int) -> None:
        """The active threads' groups but their last `pending` have read their source."""
        if not self.reading:
            return
        blocks, threads = c.lanes_of(c.active())
        done = np.zeros_like(self.committed)
        done[blocks - self.chunk.first, threads] = self.committed[blocks - self.chunk.first, threads] - pending
        waiting, self.reading = self.reading, []
        for reading in waiting:
            over = reading.groups < done[reading.transfer.owners, reading.transfer.threads]
            if over.any() and self.chunk.order is not None:
                self.chunk.order.fetched(reading.transfer.part(over))
            if not over.all():
                self.reading.append(_Reading(reading.transfer.part(~over), reading.groups[~over]))

    def unread(self) -> list[Transfer]:
        """What nobody has waited for."""
        return [reading.transfer for reading in self.reading]

    def tell(self, kind: AccessKind, transfer: Transfer) -> None:
        if self.chunk.machine.hooks:
            access = transfer.access(kind, self.chunk.first)
            for hook in self.chunk.machine.hooks:
                hook.on_access(access)
        if self.chunk.order is not None:
            self.chunk.order.begun(transfer, kind)


def _part(arrival: _Arrival, which: Any) -> _Arrival:
    return _Arrival(arrival.transfer.part(which), arrival.data[which], arrival.columns[which])

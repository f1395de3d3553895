"""Asynchronous copies in flight to the shared memory of some blocks: of threads, and boxes that TMA moves.

A copy reads its source when it is issued. Its bytes arrive as late as they may: those of a thread when it waits for
their group, those of TMA when nothing else can run and a warp waits for their mbarrier. So a kernel that reads too soon
finds what was there before. A store by TMA writes the tensor when it is issued; until when it reads its source is the
concern of hooks. (PTX ISA: cp.async, cp.async.bulk.tensor.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, AccessKind, Hook, Until
from tiledsl.backends.emulator.mbarriers import Mbarriers
from tiledsl.backends.emulator.spans import SharedMemory
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.layout.shared import CHUNK

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """What one op copies; one entry a lane or box. `rows`: of the blocks whose shared memory it is, `threads`: who
    issued them; `owners`: the rows of the issuers' blocks. `at` [entries, pieces]: bytes of shared memory."""

    op: Op
    label: str
    base: int
    owners: Ints
    threads: Ints
    rows: Ints
    at: Ints

    def access(self, first: int, kind: AccessKind, width: int, until: Until, mbarriers: Ints | None = None) -> Access:
        """What hooks see, an entry a piece of `width` bytes; `mbarriers`: where those are that count the bytes."""
        count, owners = self.at.shape[1], self.owners + first
        return Access(
            self.op, kind, "shared", self.label, self.base, self.at.ravel(), width,
            np.repeat(self.rows + first, count), np.repeat(self.threads, count), until=until, run=count,
            owners=None if until == "cp_async" else owners, mbarriers=mbarriers,
        )  # fmt: skip

    def part(self, which: Bools) -> Transfer:
        arrays = (x[which] for x in (self.owners, self.threads, self.rows, self.at))
        return Transfer(self.op, self.label, self.base, *arrays)


MOST_PENDING = 1 << 15
"""Copies of cohorts that may be in flight together."""


def require_few(op: Op, pending: int) -> None:
    """Raises HazardError if copies begin again and again that nothing waits for."""
    if pending >= MOST_PENDING:
        message = f"{pending} executions of {op.name} are in flight, and nothing has waited for them"
        raise HazardError(message, op.loc, "wait for the copies inside the loop that begins them")


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """`data` [entries, pieces, bytes]. `waits`: the number of each one's group among its thread's, or the column of the
    mbarrier that counts it."""

    transfer: Transfer
    data: NDArray[np.uint8]
    waits: Ints

    def part(self, which: Bools) -> _Copy:
        return _Copy(self.transfer.part(which), self.data[which], self.waits[which])


class _InFlight:
    """`pending`: what has not arrived in `memory`."""

    def __init__(self, memory: SharedMemory, hook: Hook) -> None:
        self.memory, self.hook = memory, hook
        self.pending: list[_Copy] = []

    def begin(self, transfer: Transfer, data: NDArray[np.uint8], waits: Ints) -> None:
        require_few(transfer.op, len(self.pending))
        self.pending.append(_Copy(transfer, data, waits))

    def arrive(self, arrives: Callable[[_Copy], Bools]) -> None:
        """Those entries for which `arrives` holds."""
        waiting, self.pending = self.pending, []
        for copy in waiting:
            which = arrives(copy)
            if which.any():
                self.deliver(copy if which.all() else copy.part(which))
            if not which.all():
                self.pending.append(copy.part(~which) if which.any() else copy)

    def deliver(self, copy: _Copy) -> None:
        raise NotImplementedError

    def write(self, copy: _Copy, until: Until, mbarriers: Ints | None = None) -> None:
        """Pieces of `width` bytes: addresses are aligned to it, and so is a block's memory."""
        transfer, width = copy.transfer, copy.data.shape[2]
        self.hook.on_delivery(transfer.access(self.memory.first, "async", width, until, mbarriers))
        self.memory.pieces(width)[self.memory.piece(transfer.rows[:, None], transfer.at, width)] = copy.data


class AsyncCopies(_InFlight):
    """Of threads. [blocks, threads]: `committed`: how many groups each has, `arrived`: how many of them have."""

    def __init__(self, memory: SharedMemory, warps: int, hook: Hook) -> None:
        super().__init__(memory, hook)
        self.committed, self.arrived = (np.zeros((memory.count, warps * WARP), np.int64) for _ in range(2))

    def issue(self, transfer: Transfer, data: NDArray[np.uint8]) -> None:
        self.begin(transfer, data, self.committed[transfer.rows, transfer.threads])

    def commit(self, op: Op, blocks: Ints, threads: Ints) -> None:
        self.committed[blocks - self.memory.first, threads] += 1
        self.hook.on_commit(op, "cp_async", blocks, threads)

    def wait(self, op: Op, blocks: Ints, threads: Ints, pending: int) -> None:
        """All groups of these threads but their last `pending` arrive."""
        which = blocks - self.memory.first, threads
        self.arrived[which] = np.maximum(self.arrived[which], self.committed[which] - pending)
        self.arrive(lambda copy: copy.waits < self.arrived[copy.transfer.rows, copy.transfer.threads])
        self.hook.on_wait(op, "cp_async", blocks, threads, pending)

    def deliver(self, copy: _Copy) -> None:
        self.write(copy, "cp_async")


class BulkCopies(_InFlight):
    """Of TMA, in chunks of 16 bytes; `mbarriers` count its loads."""

    def __init__(self, memory: SharedMemory, mbarriers: Mbarriers, hook: Hook) -> None:
        super().__init__(memory, hook)
        self.mbarriers = mbarriers

    def load(self, transfer: Transfer, data: NDArray[np.uint8], columns: Ints) -> None:
        places = self.mbarriers.places(columns)
        self.hook.on_access(transfer.access(self.memory.first, "async", CHUNK, "mbarrier", places))
        self.begin(transfer, data, columns)

    def deliver_counted(self, rows: Ints, columns: Ints) -> None:
        """All loads that these mbarriers count arrive."""
        wanted = np.zeros((self.memory.count, len(self.mbarriers.offsets)), np.bool_)
        wanted[rows, columns] = True
        self.arrive(lambda copy: wanted[copy.transfer.rows, copy.waits])

    def deliver(self, copy: _Copy) -> None:
        rows, columns = copy.transfer.rows, copy.waits
        self.write(copy, "mbarrier", self.mbarriers.places(columns))
        self.mbarriers.change_bytes(copy.transfer.op, rows, columns, -copy.data[0].size)
        self.mbarriers.flip(rows, columns)

    def store(self, transfer: Transfer) -> NDArray[np.uint8]:
        """What is there: [entries, chunks, 16]."""
        self.hook.on_access(transfer.access(self.memory.first, "fetch", CHUNK, "bulk"))
        return self.memory.pieces(CHUNK)[self.memory.piece(transfer.rows[:, None], transfer.at, CHUNK)]

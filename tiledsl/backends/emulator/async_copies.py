"""Asynchronous copies in flight to the shared memory of some blocks: of threads, and boxes that TMA moves.

A copy reads its source when it is issued. Its bytes arrive as late as they may: those of a group when its thread waits
for it, those that an mbarrier counts when nothing else can run and a warp waits for that. So a kernel that reads too
soon finds what was there before. A store by TMA writes the tensor when it is issued; until when it reads its source is
the concern of hooks. (PTX ISA: cp.async, cp.async.bulk.tensor, st.async.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, AccessKind, Bools, Group, Hook, Ints, Until
from tiledsl.backends.emulator.mbarriers import Mbarriers
from tiledsl.backends.emulator.spans import SharedMemory
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.layout.shared import CHUNK


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

    def part(self, which: Bools | Ints) -> Transfer:
        arrays = (x[which] for x in (self.owners, self.threads, self.rows, self.at))
        return Transfer(self.op, self.label, self.base, *arrays)


@dataclass(slots=True, eq=False)
class Changes:
    """The number of times that something may have changed that a loop can wait for, in the whole run."""

    count: int = 0


MOST_PENDING = 1 << 15
"""Copies of cohorts that may be in flight together."""


def require_few(op: Op, pending: int) -> None:
    """Raises HazardError if copies begin again and again that nothing waits for."""
    if pending >= MOST_PENDING:
        message = f"{pending} executions of {op.name} are in flight, and nothing has waited for them"
        raise HazardError(message, op.loc, "wait for the copies inside the loop that begins them", code="T303")


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """`data` [entries, pieces, bytes]. `waits`: the number of each one's group of cp.async among its thread's, or the
    column of the mbarrier that counts it."""

    transfer: Transfer
    data: NDArray[np.uint8]
    until: Literal["cp_async", "mbarrier"]
    waits: Ints

    def part(self, which: Bools) -> _Copy:
        return _Copy(self.transfer.part(which), self.data[which], self.until, self.waits[which])


class Copies:
    """`pending`: what has not arrived in `memory`. [blocks, threads]: `committed`: how many groups of cp.async each
    thread has, `arrived`: how many of them have. TMA moves chunks of 16 bytes; `mbarriers` count its loads,
    and what threads send. `changes`: gets a count for each that arrives."""

    def __init__(self, memory: SharedMemory, warps: int, mbarriers: Mbarriers, hook: Hook, changes: Changes) -> None:
        self.memory, self.mbarriers, self.hook, self.changes = memory, mbarriers, hook, changes
        self.pending: list[_Copy] = []
        self.committed, self.arrived = (np.zeros((memory.count, warps * WARP), np.int64) for _ in range(2))

    def begin(self, copy: _Copy) -> None:
        require_few(copy.transfer.op, len(self.pending))
        self.pending.append(copy)

    def arrive(self, until: Until, arrives: Callable[[_Copy], Bools]) -> None:
        """Those entries for which `arrives` holds."""
        waiting, self.pending = self.pending, []
        for copy in waiting:
            which = arrives(copy) if copy.until == until else np.zeros(1, np.bool_)
            if which.any():
                self.deliver(copy if which.all() else copy.part(which))
            if not which.all():
                self.pending.append(copy.part(~which) if which.any() else copy)

    def deliver(self, copy: _Copy) -> None:
        """Pieces of `width` bytes: addresses are aligned to it, and so is a block's memory."""
        self.changes.count += 1
        transfer, width = copy.transfer, copy.data.shape[2]
        counted = copy.until == "mbarrier"
        places = self.mbarriers.places(copy.waits) if counted else None
        self.hook.on_delivery(transfer.access(self.memory.first, "async", width, copy.until, places))
        self.memory.pieces(width)[self.memory.piece(transfer.rows[:, None], transfer.at, width)] = copy.data
        if counted:
            self.mbarriers.change_bytes(transfer.op, transfer.rows, copy.waits, -copy.data[0].size)
            self.mbarriers.flip(transfer.rows, copy.waits)

    # -- of threads ----------------------------------------------------------------------------

    def issue(self, transfer: Transfer, data: NDArray[np.uint8]) -> None:
        self.begin(_Copy(transfer, data, "cp_async", self.committed[transfer.rows, transfer.threads]))

    def commit(self, op: Op, group: Group, blocks: Ints, threads: Ints) -> None:
        if group == "cp_async":
            self.committed[blocks - self.memory.first, threads] += 1
        self.hook.on_commit(op, group, blocks, threads)

    def wait(self, op: Op, group: Group, blocks: Ints, threads: Ints, pending: int) -> None:
        """All groups of cp.async of these threads but their last `pending` arrive."""
        if group == "cp_async":
            which = blocks - self.memory.first, threads
            self.arrived[which] = np.maximum(self.arrived[which], self.committed[which] - pending)
            self.arrive("cp_async", lambda copy: copy.waits < self.arrived[copy.transfer.rows, copy.transfer.threads])
        self.hook.on_wait(op, group, blocks, threads, pending)

    # -- counted by mbarriers ------------------------------------------------------------------

    def load(self, transfer: Transfer, data: NDArray[np.uint8], columns: Ints) -> None:
        places = self.mbarriers.places(columns)
        self.hook.on_access(transfer.access(self.memory.first, "async", data.shape[2], "mbarrier", places))
        self.begin(_Copy(transfer, data, "mbarrier", columns))

    def deliver_counted(self, rows: Ints, columns: Ints) -> None:
        """All loads that these mbarriers count arrive."""
        wanted = np.zeros((self.memory.count, len(self.mbarriers.offsets)), np.bool_)
        wanted[rows, columns] = True
        self.arrive("mbarrier", lambda copy: wanted[copy.transfer.rows, copy.waits])

    def deliver_all(self) -> None:
        """Let all loads arrive that mbarriers count, whoever waits for them."""
        self.arrive("mbarrier", lambda copy: np.ones(len(copy.waits), np.bool_))

    def store(self, transfer: Transfer) -> NDArray[np.uint8]:
        """What is there: [entries, chunks, 16]."""
        self.hook.on_access(transfer.access(self.memory.first, "fetch", CHUNK, "bulk"))
        return self.memory.pieces(CHUNK)[self.memory.piece(transfer.rows[:, None], transfer.at, CHUNK)]

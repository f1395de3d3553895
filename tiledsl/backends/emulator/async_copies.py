"""Asynchronous copies that are on their way: read when issued, written when their thread has waited for their group.

Never earlier: a kernel that reads too soon finds what was there before. Groups are each thread's own. The copies
belong to their blocks, so that cohorts may split and merge in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Hook
from tiledsl.backends.emulator.spans import SharedMemory, Span
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["AsyncCopies", "require_few"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """What the active lanes of a cohort copy with one op; one entry a lane.

    `rows`: of their blocks. `groups`: the number of the group among its thread's. `at`: bytes from the
    start of the block's shared memory. `data` [lanes, bytes].
    """

    op: Op
    label: str
    base: int
    rows: Ints
    threads: Ints
    groups: Ints
    at: Ints
    data: NDArray[np.uint8]

    def part(self, lanes: NDArray[np.bool_]) -> _Batch:
        return replace(
            self,
            rows=self.rows[lanes],
            threads=self.threads[lanes],
            groups=self.groups[lanes],
            at=self.at[lanes],
            data=self.data[lanes],
        )


MOST_PENDING = 1 << 15
"""Copies of cohorts that may be on their way together."""


def require_few(op: Op, pending: int) -> None:
    """Raises HazardError if copies begin again and again that nothing waits for."""
    if pending >= MOST_PENDING:
        message = f"{pending} executions of {op.name} are on their way, and nothing has waited for them"
        raise HazardError(message, op.loc, "wait for the copies inside the loop that begins them")


class AsyncCopies:
    """Those of some blocks, to their shared `memory`."""

    def __init__(self, memory: SharedMemory, warps: int, hooks: Sequence[Hook]) -> None:
        self.memory, self.hooks = memory, hooks
        # [blocks, threads]: how many groups a thread has committed, and how many of them have arrived.
        self.committed = np.zeros((memory.count, warps * WARP), np.int64)
        self.arrived = np.zeros_like(self.committed)
        self.pending: list[_Batch] = []

    def issue(self, op: Op, span: Span, blocks: Ints, threads: Ints, at: Ints, data: NDArray[np.uint8]) -> None:
        """Threads, one an entry, copy `data` [threads, bytes] to the bytes `at`."""
        rows = blocks - self.memory.first
        require_few(op, len(self.pending))
        groups = self.committed[rows, threads]
        self.pending.append(_Batch(op, span.label, span.base, rows, threads, groups, at, data))

    def commit(self, op: Op, blocks: Ints, threads: Ints) -> None:
        self.committed[blocks - self.memory.first, threads] += 1
        for hook in self.hooks:
            hook.on_commit(op, "cp_async", blocks, threads)

    def wait(self, op: Op, blocks: Ints, threads: Ints, pending: int) -> None:
        """All groups of these threads but their last `pending` arrive."""
        which = blocks - self.memory.first, threads
        self.arrived[which] = np.maximum(self.arrived[which], self.committed[which] - pending)
        waiting, self.pending = self.pending, []
        for batch in waiting:
            ready = batch.groups < self.arrived[batch.rows, batch.threads]
            if ready.any():
                self.deliver(batch if ready.all() else batch.part(ready))
            if not ready.all():
                self.pending.append(batch if not ready.any() else batch.part(~ready))
        for hook in self.hooks:
            hook.on_wait(op, "cp_async", blocks, threads, pending)

    def deliver(self, batch: _Batch) -> None:
        width = batch.data.shape[1]
        if self.hooks:
            access = Access(
                batch.op, "async", "shared", batch.label, batch.base, batch.at, width,
                batch.rows + self.memory.first, batch.threads, until="cp_async",
            )  # fmt: skip
            for hook in self.hooks:
                hook.on_delivery(access)
        # Pieces of `width` bytes: addresses are aligned to it, and so is a block's memory.
        self.memory.pieces(width)[self.memory.piece(batch.rows, batch.at, width)] = batch.data

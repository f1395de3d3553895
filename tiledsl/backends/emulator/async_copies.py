"""Asynchronous copies that are on their way: read when issued, written when their thread has waited for their group.

Never earlier: a kernel that reads too soon finds what was there before. Groups are each thread's own. The copies
belong to the chunk, so that cohorts may split and merge in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import Span
from tiledsl.backends.emulator.options import Access, Hook
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op

__all__ = ["AsyncCopies", "require_few"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """What the active lanes of a cohort copy with one op; one entry a lane.

    `blocks` count from the chunk's first. `groups`: the number of the group among its thread's. `at`: bytes from the
    start of the block's shared memory. `data` [lanes, bytes].
    """

    op: Op
    label: str
    base: int
    blocks: Ints
    threads: Ints
    groups: Ints
    at: Ints
    data: NDArray[np.uint8]

    def part(self, lanes: NDArray[np.bool_]) -> _Batch:
        return replace(
            self,
            blocks=self.blocks[lanes],
            threads=self.threads[lanes],
            groups=self.groups[lanes],
            at=self.at[lanes],
            data=self.data[lanes],
        )


MOST_PENDING = 1 << 15
"""Copies of cohorts that a chunk may have on their way."""


def require_few(op: Op, pending: int) -> None:
    """Raises HazardError if copies begin again and again that nothing waits for."""
    if pending >= MOST_PENDING:
        message = f"{pending} executions of {op.name} are on their way, and nothing has waited for them"
        raise HazardError(message, op.loc, "wait for the copies inside the loop that begins them")


class AsyncCopies:
    """Those of a chunk: `shared` is its memory, [blocks, pitch] bytes; `first` its first block."""

    def __init__(self, shared: NDArray[np.uint8], first: int, warps: int) -> None:
        self.shared, self.first = shared, first
        # [blocks, threads]: how many groups a thread has committed, and how many of them have arrived.
        self.committed = np.zeros((len(shared), warps * WARP), np.int64)
        self.arrived = np.zeros_like(self.committed)
        self.pending: list[_Batch] = []

    def issue(self, c: Cohort, op: Op, span: Span, address: Any, data: NDArray[np.uint8]) -> None:
        """The active lanes copy `data` [lanes, bytes] to `address`, an entry a lane of the cohort."""
        lanes = c.active()
        blocks, threads = c.lanes_of(lanes)
        blocks = blocks - self.first
        at = c.spread(address)[lanes]
        groups = self.committed[blocks, threads]
        require_few(op, len(self.pending))
        self.pending.append(_Batch(op, span.label, span.base, blocks, threads, groups, at, data))

    def commit(self, c: Cohort) -> None:
        blocks, threads = c.lanes_of(c.active())
        self.committed[blocks - self.first, threads] += 1

    def wait(self, c: Cohort, pending: int, hooks: Sequence[Hook]) -> None:
        """All groups of the active threads but their last `pending` arrive."""
        blocks, threads = c.lanes_of(c.active())
        which = blocks - self.first, threads
        self.arrived[which] = np.maximum(self.arrived[which], self.committed[which] - pending)
        waiting, self.pending = self.pending, []
        for batch in waiting:
            ready = batch.groups < self.arrived[batch.blocks, batch.threads]
            if ready.any():
                self.deliver(batch if ready.all() else batch.part(ready), hooks)
            if not ready.all():
                self.pending.append(batch if not ready.any() else batch.part(~ready))

    def deliver(self, batch: _Batch, hooks: Sequence[Hook]) -> None:
        blocks, width = batch.blocks, batch.data.shape[1]
        if hooks:
            access = Access(
                batch.op,
                "async",
                "shared",
                batch.label,
                batch.base,
                batch.at,
                width,
                blocks + self.first,
                batch.threads,
            )
            for hook in hooks:
                hook.on_delivery(access)
        # Rows of `width` bytes: addresses are aligned to it, and so is a block's memory.
        rows = self.shared.reshape(-1, width)
        rows[(blocks * self.shared.shape[1] + batch.at) // width] = batch.data

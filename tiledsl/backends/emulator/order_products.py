"""Products of warpgroups on their way: which registers are ready, and what is being read until which wait.

(PTX ISA: wgmma.fence, wgmma.commit_group, wgmma.wait_group.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.backends.emulator.order_memory import SharedHistory, Touch
from tiledsl.backends.emulator.shadow import Bools, Ints
from tiledsl.errors import HazardError
from tiledsl.ir.core import Op
from tiledsl.layout.shared import CHUNK

__all__ = ["ProductGroups"]


@dataclass(frozen=True, slots=True)
class _Products:
    """What one op's products read, one entry a warpgroup, named by its first warp. `groups`: the number of the group
    that each belongs to."""

    touch: Touch
    groups: Ints

    def part(self, which: Bools) -> _Products:
        return _Products(self.touch.part(which), self.groups[which])


class ProductGroups:
    """[blocks, warps]: `ready`: whether a fence has made a warp's registers ready; `committed`: its groups."""

    def __init__(self, memory: SharedHistory, blocks: int) -> None:
        self.memory, self.clocks = memory, memory.clocks
        self.ready = np.zeros((blocks, memory.warps), np.bool_)
        self.committed = np.zeros((blocks, memory.warps), np.int64)
        self.on_their_way: list[_Products] = []

    def issue(self, op: Op, label: str, base: int, rows: Ints, leaders: Ints, at: Ints) -> None:
        """Warpgroups begin to read the chunks of 16 bytes at `at` [warpgroups, chunks]."""
        warps = leaders[:, None] + np.arange(WARPGROUP_WARPS)
        self.require_ready(op, rows, leaders, np.asarray(self.ready[rows[:, None], warps].all(axis=1)))
        # What all of its warps know.
        known = self.clocks.known[rows[:, None], warps].min(axis=1)
        cells = self.memory.cells(rows, at, CHUNK)
        touch = Touch(op, "fetch", label, base, rows, leaders, rows, cells, known)
        self.memory.against_writers(touch)
        self.memory.against_unfenced(touch)
        self.memory.begin_reading(touch)
        self.on_their_way.append(_Products(touch, self.committed[rows, leaders]))

    def require_ready(self, op: Op, rows: Ints, leaders: Ints, ready: Bools) -> None:
        if ready.all():
            return
        at = int(np.argmin(ready))
        raise HazardError(
            f"{op.name} of {self.memory.who(rows[at], leaders[at])} uses registers that no wgmma.fence has made ready",
            op.loc,
            "put wgmma_fence() before the first product, and after registers of it were written",
        )

    def fence(self, rows: Ints, warps: Ints) -> None:
        self.ready[rows, warps] = True

    def commit(self, rows: Ints, warps: Ints) -> None:
        self.committed[rows, warps] += 1

    def wait(self, op: Op, rows: Ints, warps: Ints, pending: int, finish: bool) -> None:
        """All groups of these warps but the last `pending` have ended; `finish`: accumulators are read next."""
        done = np.full(self.committed.shape, -1)
        done[rows, warps] = self.committed[rows, warps] - pending
        waiting, self.on_their_way = self.on_their_way, []
        for products in waiting:
            touch = products.touch
            wanted = done[touch.owners, touch.warps]
            over = products.groups < wanted
            if finish:
                self.require_committed(op, touch, over | (wanted < 0))
            if over.any():
                self.end(products.part(over))
            if not over.all():
                self.on_their_way.append(products.part(~over))
        for products in self.on_their_way:
            self.memory.begin_reading(products.touch)
        if finish:
            self.ready[rows, warps] = False

    def require_committed(self, op: Op, touch: Touch, committed: Bools) -> None:
        if committed.all():
            return
        at = int(np.argmin(committed))
        raise HazardError(
            f"{op.name} of {self.memory.who(touch.owners[at], touch.warps[at])} does not wait for the product at "
            f"{touch.op.loc}, which no commit has put into a group",
            op.loc,
            "put wgmma_commit() behind the products",
        )

    def end(self, products: _Products) -> None:
        """Warps of a warpgroup wait together: each knows that the products have ended."""
        rows, leaders = products.touch.owners, products.touch.warps
        self.memory.end_reading(products.touch.cells, rows, leaders)
        ranks = self.memory.ranks[rows]
        when = self.clocks.known[rows, leaders, ranks, leaders] - 1
        for warp in range(1, WARPGROUP_WARPS):
            at = rows, leaders + warp, ranks, leaders
            self.clocks.known[at] = np.maximum(self.clocks.known[at], when)

    def require_ended(self, rows: Ints, warps: Ints) -> None:
        """These warps end."""
        ending = np.zeros(self.committed.shape, np.bool_)
        ending[rows, warps] = True
        for products in self.on_their_way:
            touch = products.touch
            left = ending[touch.owners, touch.warps]
            if left.any():
                at = int(np.argmax(left))
                who = self.memory.who(touch.owners[at], touch.warps[at])
                raise HazardError(
                    f"{who} ends, and has not waited for its product", touch.op.loc, "wait for it: acc.wait()"
                )

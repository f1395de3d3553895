"""Hazards of roles: who may touch shared memory when barriers order some warps only, and copies and products run on
their own. The check hears of accesses here, and of all else from the rules (`order`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.options import Access, Hook, LaunchInfo
from tiledsl.backends.emulator.order import Order
from tiledsl.backends.emulator.order_atomics import orders_others
from tiledsl.backends.emulator.shadow import PROXY_OPS, Ints
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers

if TYPE_CHECKING:
    from tiledsl.backends.emulator.machine import Chunk

__all__ = ["OrderCheck", "needs_order"]


def needs_order(kernel: Kernel) -> bool:
    """Does anything but full barriers order the warps of a block?"""
    kinds = (barriers.MbarrierOp, barriers.NamedBarrier, barriers.ClusterArrive, *PROXY_OPS)
    return any(isinstance(op, kinds) or orders_others(op) for op in kernel.walk())


class OrderCheck(Hook):
    """Raises HazardError for accesses to shared memory that nothing orders; `orders`: of the live chunks."""

    launch: LaunchInfo

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def on_launch(self, launch: LaunchInfo) -> None:
        self.launch = launch
        self.orders.clear()

    def begin(self, chunk: Chunk) -> Order:
        self.orders.append(Order(chunk, self.launch))
        return self.orders[-1]

    def order_of(self, block: int) -> Order:
        return next(o for o in self.orders if o.first <= block < o.first + o.count)

    def on_access(self, access: Access) -> None:
        theirs = isinstance(access.op, PROXY_OPS) or access.kind == "mbarrier"
        if not len(access.blocks) or theirs:
            return
        if access.space == "shared":
            self.order_of(int(access.blocks[0])).access(access)
        if access.order is not None:
            self.order_of(int(access.blocks[0])).atomics.access(access)

    def on_delivery(self, access: Access) -> None:
        if not isinstance(access.op, PROXY_OPS):
            self.order_of(int(access.blocks[0])).delivered(access)

    def on_barrier(self, op: Op, blocks: NDArray[np.int64]) -> None:
        order = self.order_of(int(blocks[0]))
        order.clocks.meet(blocks - order.first)

    def on_sync_warp(self, op: Op, blocks: Ints, warps: Ints) -> None:
        order = self.order_of(int(blocks[0]))
        order.clocks.sync(blocks - order.first, warps)

    def on_blocks_end(self, first: int, count: int) -> None:
        order = self.order_of(first)
        self.orders.remove(order)
        order.end()

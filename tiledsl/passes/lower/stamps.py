"""Insert stamps of the clock, for a run that is measured: where warps begin and end, wait and arrive.

At thread level, as the last pass: nothing else changes, and nothing moves across a stamp. The waits and arrivals follow
from the facts of ops. What one lane of a warp does alone is stamped by that lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import barriers, gpu
from tiledsl.ir.ops.debug import Stamp
from tiledsl.ir.types import I32

_PLACES: dict[type[Op], str] = {
    gpu.Barrier: "block",
    barriers.NamedBarrier: "named",
    barriers.ClusterArrive: "cluster",
    barriers.ClusterWait: "cluster",
}


def insert_stamps(kernel: Kernel) -> None:
    """Sites are numbered in program order; that of "waited" follows that of its "wait"."""
    _Stamps(kernel).all_of(kernel.body)


def stamps_of(kernel: Kernel) -> list[Stamp]:
    """Those of a kernel, by site."""
    return [op for op in kernel.walk() if isinstance(op, Stamp)]


class _Stamps:
    def __init__(self, kernel: Kernel) -> None:
        self.b = Builder(kernel.body)
        self.sites = 0

    def all_of(self, body: Block) -> None:
        """The body of a kernel."""
        with self.b.anew(body) as ops:
            self.stamp(ops[0], "begin")
            self.each(ops[:-1])
            self.stamp(ops[-1], "end")
            body.append(ops[-1])

    def each(self, ops: Sequence[Op]) -> None:
        for op in ops:
            facts = _place(op)
            waits = op.sync.meets or op.sync.completes
            if facts:
                self.stamp(op, "wait" if waits else "arrive", **facts)
            self.b.block.append(op)
            if facts and waits:
                self.stamp(op, "waited", **facts)
            for block in op.blocks:
                with self.b.anew(block) as inside:
                    self.each(inside)

    def stamp(self, of: Op, event: str, which: Sequence[Value] = (), **facts: Any) -> None:
        self.b.loc = of.loc
        self.b.add(Stamp(*which, site=self.sites, event=event, **facts))
        self.sites += 1


def _place(op: Op) -> dict[str, Any]:
    """At what a warp waits or arrives, as the stamps of it say; nothing if it does neither."""
    if isinstance(op, (barriers.Wait, barriers.Arrive, barriers.ExpectTx)):
        rank = [v for v in op.more if v.type == I32]  # a wait has a parity
        return {"at": "mbarrier", "which": [*op.place, *rank]}
    if isinstance(op, barriers.NamedBarrier):
        return {"at": "named", "number": op.number, "which": op.offset}
    if type(op) in _PLACES:
        return {"at": _PLACES[type(op)]}
    return {"at": "work", "work": op.sync.completes} if op.sync.completes else {}

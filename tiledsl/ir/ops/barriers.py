"""Barriers that live in shared memory, barriers of a part of a block, of a cluster, and the fences between them.

An mbarrier is an 8-byte element of a shared tile of u64. (PTX ISA: mbarrier; barrier; barrier.cluster; fence.proxy;
setmaxnreg; griddepcontrol.)
"""

from __future__ import annotations

from typing import ClassVar

from tiledsl.arch import (
    LEAST_SETMAXNREG,
    MOST_ARRIVALS,
    MOST_SETMAXNREG,
    MOST_THREADS,
    MOST_TX_BYTES,
    NAMED_BARRIERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
)
from tiledsl.ir.core import Kernel, Op, Orders, Pure, Value, attribute, operand, operands
from tiledsl.ir.facts import NOTHING, Sync, by, writes
from tiledsl.ir.types import BOOL, I32, U32, U64, PtrType, SharedType, Type

REGISTER_COUNTS = range(LEAST_SETMAXNREG, MOST_SETMAXNREG + 1, REGISTER_UNIT)
"""How many registers `SetMaxNReg` can give a thread."""


REACHES = ("cta", "cluster")
"""Whose accesses to memory an mbarrier orders. Across blocks, "cta" orders those to shared memory only, which is all
that a ring needs, without a fence."""


class MbarrierOp(Orders):
    """Base: operands are a tile of u64 and its indices, at thread level a pointer instead; then what else it takes."""

    touches = (writes("place", atomic="cluster"),)
    features = ("mbarrier",)
    variadic = True
    parts = ("place", "more")
    takes: ClassVar[tuple[list[Type], ...]] = ([],)
    """Types of the operands after the place: any of these."""

    @property
    def place(self) -> list[Value]:
        """The tile and its indices, or the pointer."""
        type_ = self.operands[0].type
        return self.operands[: 1 + type_.rank] if isinstance(type_, SharedType) else self.operands[:1]

    @property
    def more(self) -> list[Value]:
        return self.operands[len(self.place) :]

    def verify(self) -> None:
        type_, takes = self.operands[0].type, " or ".join(", ".join(map(str, each)) for each in self.takes)
        if isinstance(type_, PtrType):
            self.require(type_ == PtrType("shared", U64), f"an mbarrier at {type_}")
        else:
            tile = self.expect(type_, SharedType)
            self.require(tile.dtype == U64, f"{tile} has no mbarriers")
            self.require_indices(self.place[1:], tile.rank)
        self.require([v.type for v in self.more] in self.takes, f"takes {takes or 'nothing'} after the mbarrier")


class Init(MbarrierOp):
    """A new mbarrier in phase 0, each of whose phases ends after `count` arrivals and all bytes that it expects."""

    name = "mbarrier.init"
    sync = NOTHING
    called = "ptx.mbarrier_init()"
    count = attribute(int, least=1, most=MOST_ARRIVALS)


class Arrive(MbarrierOp):
    """This thread arrives; its earlier memory accesses are visible to those that wait for the phase. With one more
    operand, an i32: at the mbarrier at this place in the block of that rank in the cluster."""

    name = "mbarrier.arrive"
    sync = by(lambda op: Sync(releases="cluster" if op.more else "cta"))
    called = "ptx.mbarrier_arrive()"
    takes = ([], [I32])
    reach = attribute(str, "cta", among=REACHES)


class ExpectTx(MbarrierOp):
    """This thread arrives, and the phase waits for `bytes` more to come by asynchronous copies."""

    name = "mbarrier.expect_tx"
    sync = Sync(releases="cta")
    called = "ptx.mbarrier_expect_tx()"
    bytes = attribute(int, least=1, most=MOST_TX_BYTES)


class Wait(MbarrierOp):
    """Waits until the phase of this parity (the last operand, a u32 of 0 or 1) has ended: the current phase or the one
    before it."""

    name = "mbarrier.wait"
    sync = by(lambda op: Sync(meets=op.reach, completes="mbarrier"))
    called = "ptx.mbarrier_wait()"
    takes = ([U32],)
    reach = attribute(str, "cta", among=REACHES)
    parity = operand(-1, U32)


class FenceInit(Orders):
    """mbarriers initialised before it are seen as such by the cluster. (PTX ISA: fence.mbarrier_init.)"""

    name = "fence.mbarrier_init"
    sync = Sync(releases="cluster")
    features = ("mbarrier",)
    called = "ptx.fence_mbarrier_init()"


class FenceProxy(Orders):
    """This thread's earlier plain accesses to this memory, reads too, and those that it knows of, come before later
    ones of the asynchronous proxy (TMA, wgmma). (PTX ISA: fence.proxy.async, .shared::cta or .global.)"""

    name = "fence.proxy_async"
    sync = Sync(orders="proxy")
    features = ("tma",)
    called = "ptx.fence_proxy_async()"
    space = attribute(str, "shared", among=("shared", "global"))


class NamedBarrier(Orders):
    """`threads` threads wait for each other at barrier `number` (attribute), or at `number` plus the operand, an i32
    that is the same in a warp. wait False: these threads arrive only. (PTX ISA: barrier.cta.sync, .arrive.)"""

    name = "gpu.named_barrier"
    sync = by(lambda op: Sync(meets="cta") if op.wait else Sync(releases="cta"))
    scope, alike = "warp", ()
    called = "a barrier of some warps"
    number = attribute(int, least=1, most=NAMED_BARRIERS - 1)
    threads = attribute(int, among=range(WARP, MOST_THREADS + 1, WARP))
    wait = attribute(bool, True)
    offset = operands(0)

    def verify(self) -> None:
        self.require([v.type for v in self.offset] in ([], [I32]), "takes at most one i32")


class ClusterArrive(Orders):
    """This thread arrives at the barrier of its cluster. (PTX ISA: barrier.cluster.arrive.release.)"""

    name = "cluster.arrive"
    sync = Sync(releases="cluster")
    scope, alike = "warp", ()
    features = ("cluster",)
    called = "ptx.cluster_arrive()"


class ClusterWait(Orders):
    """Waits until all threads of the cluster have arrived. (PTX ISA: barrier.cluster.wait.acquire.)"""

    name = "cluster.wait"
    sync = Sync(meets="cluster")
    scope, alike = "warp", ()
    features = ("cluster",)
    called = "ptx.cluster_wait()"


class ClusterRank(Pure):
    """Number of the block in its cluster, x fastest, an i32. (PTX ISA: %cluster_ctarank.)"""

    name = "cluster.rank"
    features = ("cluster",)
    varies = "cta"
    cause = "the block's rank in its cluster"
    called = "ptx.cluster_rank()"
    nan = "computes"
    gives = (I32,)


class Elect(Op):
    """True in one lane of the warp, false in the others. (PTX ISA: elect.sync.)"""

    name = "warp.elect"
    touches, sync, stays = (), NOTHING, "pinned"
    scope, alike = "warp", ()
    features = ("elect",)
    varies = "thread"
    cause = "an election"
    nan = "computes"
    called = "ptx.elect()"
    gives = (BOOL,)


class SetMaxNReg(Op):
    """The warps of this warpgroup acquire (`increase`) or release registers, so that each thread has `registers`.
    (PTX ISA: setmaxnreg.)"""

    name = "gpu.setmaxnreg"
    touches, sync, stays = (), NOTHING, "io"
    scope, alike = "warpgroup", ()
    features = ("setmaxnreg",)
    called = "ptx.setmaxnreg()"
    registers = attribute(int, among=REGISTER_COUNTS)
    increase = attribute(bool)


def registers_at_launch(kernel: Kernel) -> int:
    """How many a launch gives each thread of a kernel with `SetMaxNReg`, of which `blocks_per_sm` blocks (0: one) share
    a multiprocessor. (PTX ISA: setmaxnreg, .minnctapersm.)"""
    each = REGISTERS_PER_SM // max(1, kernel.blocks_per_sm) // kernel.thread_count
    return min(each // REGISTER_UNIT * REGISTER_UNIT, MOST_SETMAXNREG)


class GridDependency(Orders):
    """Programmatic dependent launch. wait: until the grid that this one depends on has ended and its writes are seen;
    otherwise: dependents may be launched. (PTX ISA: griddepcontrol.)"""

    name = "gpu.grid_dependency"
    sync = by(lambda op: Sync(kernels="wait" if op.wait else "launch"))
    features = ("griddepcontrol",)
    called = by(lambda op: f"ptx.griddepcontrol_{'wait' if op.wait else 'launch'}()")
    wait = attribute(bool)

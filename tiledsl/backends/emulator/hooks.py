"""What hooks see of a run: the launch, accesses to memory, and what orders them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.errors import Side
from tiledsl.ir.core import Op
from tiledsl.ir.types import Space

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

AccessKind = Literal["read", "write", "atomic", "async", "fetch", "mbarrier"]
"""async: what an asynchronous copy will write; it has begun, or is arriving in shared memory (`Hook.on_delivery`).
atomic: an element is read and written in one step. fetch: what TMA or wgmma begin to read. mbarrier: an operation on
one."""
Group = Literal["cp_async", "bulk", "wgmma"]
"""Asynchronous work whose groups are committed and waited for: by a thread, or in `wgmma` by a warp."""
Until = Literal["", "mbarrier", "commit"] | Group
"""What an access has to be waited by: nothing, the mbarrier that counts its bytes, one at which a commit arrives
(`Sync.commits`), or a wait for its group."""
SyncKind = Literal["mbarrier", "named", "cluster"]
FenceKind = Literal["memory", "proxy", "global proxy", "init", "registers"]
"""memory: `membar`. proxy: between plain accesses to shared memory and those of TMA and wgmma; global proxy: the same
of global memory. init: of mbarriers that were made. registers: of wgmma."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor argument: `bytes` from the virtual address `low` on, which the caller has at the address `host`, so that
    tensors may have bytes in common. Element [0, ..., 0] is at `base`; `dims`, `strides`: in elements of `size` bytes.
    """

    label: str
    low: int
    bytes: int
    host: int
    base: int
    size: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def element(self, address: int) -> tuple[int, ...]:
        """The indices of the element at an address."""
        left, at = (address - self.low) // self.size, [0] * len(self.dims)
        for axis in sorted(range(len(at)), key=lambda axis: -abs(self.strides[axis])):
            step = self.strides[axis]
            if step:
                at[axis], left = divmod(left, abs(step))
                if step < 0:
                    at[axis] = self.dims[axis] - 1 - at[axis]
        return tuple(at)


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """The shape of a launch: blocks and threads along x, y, z, and shared memory of a block in bytes.

    `granule`: bytes of the narrowest element that the kernel accesses in shared memory. `cluster`: blocks of a cluster.
    `tensors`: the arguments in global memory. In a run of several launches `rank` is the GPU's, and `first` the number
    of blocks of the launches before, so that ``first + block`` numbers the blocks of all. `of`: of which rank and
    kernel its blocks are, for messages.
    """

    kernel: str
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared_bytes: int
    granule: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensors: tuple[TensorInfo, ...] = ()
    rank: int | None = None
    first: int = 0
    of: str = ""

    def block_index(self, block: int) -> tuple[int, ...]:
        """Coordinates (x, y, z) of a linear block index; x is fastest."""
        return _coordinates(block, self.grid)

    def thread_index(self, thread: int) -> tuple[int, ...]:
        return _coordinates(thread, self.threads)

    def block_name(self, block: int) -> str:
        """Its name in messages."""
        return f"block {self.block_index(int(block))}{self.of}"

    def thread_of_block(self, thread: int, block: int) -> str:
        return f"thread {self.thread_index(int(thread))} of {self.block_name(block)}"

    def warp_of_block(self, warp: int, block: int) -> str:
        return f"warp {int(warp)} of {self.block_name(block)}"

    def side(self, op: Op, does: str, block: int, *, warp: int = -1, thread: int = -1, who: str = "") -> Side:
        """Of a finding: what a warp, or one thread of it, does with `op`. who: its name, if it has another."""
        if thread >= 0:
            warp, who = thread // WARP, who or self.thread_of_block(thread, block)
        elif warp >= 0:
            who = who or self.warp_of_block(warp, block)
        at = None if thread < 0 else self.thread_index(int(thread))
        warps = () if warp < 0 else (int(warp),)
        return Side(op.loc, op.name, who, does, self.block_index(int(block)), at, warps, rank=self.rank)


def _coordinates(linear: int, extents: tuple[int, int, int]) -> tuple[int, ...]:
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


@dataclass(frozen=True, slots=True)
class Access:
    """One memory operation as the active lanes of a cohort made it; the arrays have one entry a lane,
    in block, warp and lane order.

    `addresses`: bytes; from the start of the block's memory (`space` is "shared", also where a tile is in a memory of
    its own), or a virtual global address (tensor `label` starts at `base`). `width`: bytes that each lane accesses.
    `blocks`, `threads`: linear indices; of an access from another block `blocks` has the one whose memory it is.

    `until`: what tells that an asynchronous access has ended. Of those that TMA and wgmma make `run` neighbouring
    entries are one, by one thread: `owners` and `mbarriers` have one entry for each of these, the thread's block and
    where the mbarrier is that counts the bytes. In global memory they are told by element: a load ("fetch") has the
    thread's block in `owners`, and in `blocks` the one whose mbarrier counts it.

    `held`: in which lane's registers an element is: of the lane that gives the address, or of the one that has it of a
    matrix, whose rows or columns the addresses are. `order`, `reach`: of an atomic operation, which a "read" or "write"
    may be as well ("relaxed", "acquire", ...), and among which threads it is one ("cta", "cluster", "gpu", "sys");
    None: plain. `proxies`: does its memory know of proxies, as shared memory?
    """

    op: Op
    kind: AccessKind
    space: Space
    label: str
    base: int
    addresses: Ints
    width: int
    blocks: Ints
    threads: Ints
    until: Until = ""
    run: int = 1
    owners: Ints | None = None
    mbarriers: Ints | None = None
    held: Literal["", "rows", "columns"] = ""
    order: str | None = None
    reach: str | None = None
    proxies: bool = True


@dataclass(frozen=True, slots=True)
class Sync:
    """Warps at a barrier of some warps or blocks, one an entry; a warp may be there several times.

    `homes`: the block whose mbarrier or named barrier it is; of a cluster's barrier, the warp's own. `places`: the
    mbarrier's byte in shared memory, the number of the named barrier, or 0. `lanes`: which lanes of the warps arrive
    or wait, at an mbarrier; None: all. `phases`: of mbarriers that were waited for, which phase, counted from 0;
    -1: the one before the first. `commits`: do they arrive when all work has ended that they have begun with accesses
    that wait for a "commit"? That, not what the thread did itself, comes before what acquires it.
    """

    op: Op
    kind: SyncKind
    blocks: Ints
    warps: Ints
    homes: Ints
    places: Ints
    lanes: Ints | None = None
    phases: Ints | None = None
    commits: bool = False


class Hook:
    """Base of clients that watch a run. Override what is needed; an error raised here stops the launch.

    Blocks are emulated in chunks of neighbours, of which several may be open at once.
    """

    def of_launch(self, launch: LaunchInfo) -> Hook:
        """Who hears of a launch, which starts now: this hook, or one for it alone."""
        return self

    def of_blocks(self, launch: LaunchInfo, first: int, count: int) -> Hook:
        """Who hears of blocks `first` ... `first + count - 1`, which start now: this hook, or one for them alone."""
        return self

    def on_end(self) -> None:
        """The blocks have finished that `of_blocks` was called for."""

    # -- accesses ------------------------------------------------------------------------------

    def on_access(self, access: Access) -> None:
        """Before the access takes place, or begins, but after its bounds and alignment were checked."""

    def on_delivery(self, access: Access) -> None:
        """Before an asynchronous copy, `access.op`, writes what it has brought for threads that waited for it."""

    def on_commit(self, op: Op, group: Group, blocks: Ints, threads: Ints) -> None:
        """What these threads have begun since their last commit is a group. Of warps one thread stands for all."""

    def on_wait(self, op: Op, group: Group, blocks: Ints, threads: Ints, pending: int) -> None:
        """These threads have waited for all of their groups but the last `pending`."""

    # -- what orders them ----------------------------------------------------------------------

    def on_barrier(self, op: Op, blocks: Ints) -> None:
        """All threads of `blocks` (linear indices) have reached a barrier."""

    def on_sync_warp(self, op: Op, blocks: Ints, warps: Ints) -> None:
        """The warps `warps` of `blocks` (pairs) have reached a `sync_warp`."""

    def on_init(self, op: Op, label: str, base: int, blocks: Ints, threads: Ints, places: Ints) -> None:
        """Threads make mbarriers at these bytes of their block's shared memory, of the tile `label` at `base`."""

    def on_arrive(self, sync: Sync) -> None:
        """Warps arrive: who acquires the round that this belongs to comes after what they did before."""

    def on_complete(self, kind: SyncKind, homes: Ints, places: Ints) -> None:
        """The current rounds, or phases, of these barriers end; of a cluster's barrier each block of it is there."""

    def on_acquire(self, sync: Sync) -> None:
        """Warps have waited for a round that has ended, or a phase of an mbarrier."""

    def on_fence(self, op: Op, kind: FenceKind, blocks: Ints, threads: Ints) -> None:
        """These threads execute a fence."""

    def on_stamp(self, op: Op, blocks: Ints, warps: Ints, places: Ints) -> None:
        """The warps `warps` of `blocks` (pairs) come to a stamp; `places` as in a record (`stamp_records`)."""

    def on_exit(self, blocks: Ints, warps: Ints) -> None:
        """These warps end."""


class OpHook(Hook):
    """A hook that hears of every op, too, but of checks, barriers and control flow."""

    def on_op(self, op: Op, blocks: Ints, warps: Ints, active: Bools | None) -> None:
        """Before these warps [1 or groups, warps] of `blocks` [groups] execute it. active: [groups, warps, lanes], any
        of which may be 1, or one for all lanes; None: all are."""


class Several(Hook):
    """Hooks as one: each hears of everything, in this order."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        for name in dir(Hook):
            if name.startswith("on_"):  # of `OpHook`, the program itself tells (`trace.told`)
                setattr(self, name, partial(_each, [getattr(hook, name) for hook in hooks]))


def _each(listeners: Sequence[Callable[..., None]], *heard: Any) -> None:
    for listener in listeners:
        listener(*heard)

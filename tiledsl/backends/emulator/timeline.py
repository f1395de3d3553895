"""What the warps of a launch's first cluster did, and who waited for whom, on logical clocks.

A hook: pass `Options(hooks=(Timeline(),))`. The clock of a warp counts the ops that it has executed. A wait ends when
what it waits for has been released: then the warp's clock is its own or that of the releaser at the release, the later
one. The work of copies and tensor cores takes no time, so this is no prediction: it says who waits for whom, and in
what order. The clocks do not depend on the order in which the emulator lets warps run, unless the kernel does: a loop
that polls memory executes ops for as long as it polls.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Bools, Hook, Ints, LaunchInfo, OpHook, Sync, SyncKind
from tiledsl.backends.emulator.mbarriers import ENTRY
from tiledsl.errors import Loc
from tiledsl.ir.core import Op

MOST_EVENTS = 100_000
"""Waits and phases that are kept, as they come: a warp may run far ahead of others."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Warps are counted through the cluster's blocks. barrier: an index into `Timeline.barriers`. by: the warp that
    released it last, -1 for none."""

    warp: int
    start: int
    end: int
    barrier: int
    by: int
    loc: Loc


@dataclass(frozen=True, slots=True)
class Phase:
    """A barrier's phase or round ended, when the warp `by` arrived or issued the last copy."""

    barrier: int
    end: int
    by: int


_Key = tuple[str, int, int]
"""Of a barrier: its kind, the rank of its block and its place."""


class Timeline(OpHook):
    """`blocks`: those of the cluster. warps: of a block. now, ended [warps of the cluster]: their clocks, and which
    have ended. barriers: names. full_at: the time of the first event that was not kept, or None."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self.most = most
        self.warps = 0
        self.blocks: list[int] = []
        self.barriers: list[str] = []
        self.waits: list[Wait] = []
        self.phases: list[Phase] = []
        self.full_at: int | None = None
        self._numbers: dict[_Key, int] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._left: dict[_Key, tuple[int, int]] = {}
        self._done: dict[_Key, tuple[int, int]] = {}

    def of_launch(self, launch: LaunchInfo) -> Hook:
        self.launch = launch
        x, y, _ = launch.grid
        along_x, along_y, along_z = launch.cluster
        inside = [(i, j, k) for k in range(along_z) for j in range(along_y) for i in range(along_x)]
        self.blocks = [i + x * (j + y * k) for i, j, k in inside]
        self.warps = -(-prod(launch.threads) // WARP)
        self.now = np.zeros(len(self.blocks) * self.warps, np.int64)
        self.ended = np.zeros(len(self.now), np.bool_)
        self._ranks = np.full(prod(launch.grid), -1)
        self._ranks[self.blocks] = range(len(self.blocks))
        return self

    def on_op(self, op: Op, blocks: Ints, warps: Ints, active: Bools | None) -> None:
        ranks = self._ranks[blocks]
        here = ranks >= 0
        if not here.any():
            return
        own = ranks[here, None] * self.warps + (warps if len(warps) == 1 else warps[here])
        if active is not None:
            spread = np.broadcast_to(
                active, (len(blocks), warps.shape[1], np.shape(active)[2] if np.ndim(active) else 1)
            )
            own = own[spread[here].any(axis=2)]
        self.now[own] += 1

    # -- what hooks hear -----------------------------------------------------------------------

    def on_init(self, op: Op, label: str, base: int, blocks: Ints, threads: Ints, places: Ints) -> None:
        for rank, place in zip(self._ranks[blocks].tolist(), places.tolist(), strict=True):
            if rank >= 0:
                self._names[rank, place] = f"{label}[{(place - base) // ENTRY}]"

    def on_access(self, access: Access) -> None:
        """A copy that an mbarrier counts: it arrives as soon as it is issued."""
        if access.kind == "async" and access.until == "mbarrier" and access.mbarriers is not None:
            owners = access.blocks if access.owners is None else access.owners
            warps = access.threads[:: access.run] // WARP
            self._release("mbarrier", owners, warps, access.blocks[:: access.run], access.mbarriers)

    def on_arrive(self, sync: Sync) -> None:
        self._release(sync.kind, sync.blocks, sync.warps, sync.homes, sync.places)

    def on_complete(self, kind: SyncKind, homes: Ints, places: Ints) -> None:
        for key in self._keys(kind, homes, places):
            end, by = self._done[key] = self._left.pop(key, (0, -1))
            if self._keeps(end):
                self.phases.append(Phase(self._number(key), end, by))

    def on_acquire(self, sync: Sync) -> None:
        ranks = self._ranks[sync.blocks]
        here = ranks >= 0
        if not here.any():
            return
        own = (ranks * self.warps + sync.warps)[here].tolist()
        keys = self._keys(sync.kind, sync.homes[here], sync.places[here], each=True)
        for warp, key in dict.fromkeys(zip(own, keys, strict=True)):
            self._wait(warp, key, *self._done.get(key, (0, -1)), sync.op)

    def on_barrier(self, op: Op, blocks: Ints) -> None:
        for rank in self._ranks[blocks]:
            warps = rank * self.warps + np.arange(self.warps)
            warps = warps[~self.ended[warps]]
            if rank < 0 or not len(warps):
                continue
            by, key = int(warps[np.argmax(self.now[warps])]), ("block", int(rank), 0)
            end = int(self.now[by])
            if len(warps) > 1 and self._keeps(end):
                self.phases.append(Phase(self._number(key), end, by))
            for warp in warps.tolist():
                self._wait(warp, key, end, by, op)

    def on_exit(self, blocks: Ints, warps: Ints) -> None:
        ranks = self._ranks[blocks]
        self.ended[(ranks * self.warps + warps)[ranks >= 0]] = True

    # -- clocks --------------------------------------------------------------------------------

    def _release(self, kind: SyncKind, blocks: Ints, warps: Ints, homes: Ints, places: Ints) -> None:
        ranks = self._ranks[blocks]
        here = (ranks >= 0) & (self._ranks[homes] >= 0)
        if not here.any():
            return
        own = (ranks * self.warps + warps)[here].tolist()
        for warp, key in zip(own, self._keys(kind, homes[here], places[here], each=True), strict=True):
            self._left[key] = max(self._left.get(key, (0, -1)), (int(self.now[warp]), warp))

    def _wait(self, warp: int, key: _Key, end: int, by: int, op: Op) -> None:
        start = int(self.now[warp])
        if end <= start:
            return
        self.now[warp] = end
        if self._keeps(start):
            self.waits.append(Wait(warp, start, end, self._number(key), by, op.loc))

    def _keys(self, kind: SyncKind, homes: Ints, places: Ints, each: bool = False) -> list[_Key]:
        """Of barriers in the cluster's blocks; `each`: one an entry, all of which are there."""
        ranks = self._ranks[homes].tolist() if kind != "cluster" else np.minimum(self._ranks[homes], 0).tolist()
        keys = [(kind, rank, place) for rank, place in zip(ranks, places.tolist(), strict=True) if rank >= 0]
        return keys if each else [*dict.fromkeys(keys)]

    def _keeps(self, time: int) -> bool:
        if len(self.waits) + len(self.phases) < self.most:
            return True
        self.full_at = time if self.full_at is None else min(self.full_at, time)
        return False

    def _number(self, key: _Key) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.barriers)
            self.barriers.append(self._name(key))
        return self._numbers[key]

    def _name(self, key: _Key) -> str:
        kind, rank, place = key
        of_block = f" of block {rank}" if len(self.blocks) > 1 else ""
        if kind == "cluster":
            return "the cluster's barrier"
        if kind == "mbarrier":
            return self._names.get((rank, place), f"mbarrier at byte {place}") + of_block
        return (f"barrier {place}" if kind == "named" else "barrier()") + of_block

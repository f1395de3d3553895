"""Releases and acquires through memory, by atomic operations and fences.

An atomic write that releases publishes the clock of its warp at its address; a read that acquires merges what it finds
there. An update keeps what was published before it, a store replaces it. A fence makes relaxed writes after it
releases, and relaxed reads before it acquires. (PTX ISA: memory consistency model, release and acquire
patterns.)

The emulator runs every access at its place in one order, so what a read finds is what was published last. Scopes are
not looked at: only the threads of a cluster, which share no shared memory with others, learn anything here.
"""

from __future__ import annotations

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.hooks import Access, Ints
from tiledsl.backends.emulator.sanitizer.clocks import Clocks, Known
from tiledsl.ir.atomics import ACQUIRING, RELEASING

_Place = tuple[str, int, int]
"""The space, whose (of a block, or for global memory of a cluster), and the address."""


class AtomicOrder:
    """`published`: at each place. [blocks, warps, rank, agents]: `fenced`: what each warp knew at its last fence;
    `seen`: what its relaxed reads have found, which the next fence lets it know."""

    def __init__(self, clocks: Clocks, first: int) -> None:
        self.clocks, self.first = clocks, first
        self.published: dict[_Place, Known] = {}
        self.fenced, self.seen = np.zeros_like(clocks.known), np.zeros_like(clocks.known)

    def access(self, access: Access) -> None:
        """Warps make it one after the other, in the order of the lanes."""
        if access.order == "relaxed" and not self.published and not self.fenced.any():
            return  # it publishes nothing, and finds nothing
        rows, warps = access.blocks - self.first, access.threads // WARP
        each = np.stack([rows, warps, access.addresses])
        _, at = np.unique(each, axis=1, return_index=True)
        for row, warp, address in each[:, np.sort(at)].T.tolist():
            shared = access.space == "shared"
            place = (access.space, row if shared else int(self.clocks.clusters[row]), address)
            if access.kind != "write":
                self.read(access, place, row, warp)
            if access.kind != "read":
                self.write(access, place, row, warp)

    def read(self, access: Access, place: _Place, row: int, warp: int) -> None:
        found = self.published.get(place)
        if found is None:
            return
        if access.order in ACQUIRING:
            self.clocks.acquire(found[None], np.array([row]), np.array([warp]))
        self.seen[row, warp] = np.maximum(self.seen[row, warp], found)

    def write(self, access: Access, place: _Place, row: int, warp: int) -> None:
        released = access.order in RELEASING
        what = self.clocks.known[row, warp] if released else self.fenced[row, warp]
        before = self.published.get(place) if access.kind == "atomic" else None
        self.published[place] = what.copy() if before is None else np.maximum(what, before)
        if released:
            self.clocks.tick(np.array([row]), np.array([warp]))

    def fence(self, rows: Ints, warps: Ints) -> None:
        """These warps, each named once, execute a fence."""
        self.clocks.acquire(self.seen[rows, warps], rows, warps)
        self.fenced[rows, warps] = self.clocks.known[rows, warps]
        self.clocks.tick(rows, warps)

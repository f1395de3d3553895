"""Counts the wavefronts of every shared access from the addresses that it really has.

A hook: pass `Options(hooks=(WavefrontCount(),))`. The counterpart of the static count of
`passes.banks.wavefront_counter`: both know what an access to given addresses takes from there, the static count finds
the addresses, too. At thread level they are those of the chosen layouts, at tile level those of row order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tiledsl.arch import MOST_WARPS, WARP
from tiledsl.backends.emulator.hooks import Access, Hook, Ints
from tiledsl.ir.core import Op
from tiledsl.layout.banks import Kind
from tiledsl.passes.banks.wavefront_counter import costs

KINDS: Mapping[str, Kind] = {"read": "load", "write": "store", "async": "store", "atomic": "atomic"}
MATRIX_KINDS: Mapping[str, Kind] = {"read": "ldmatrix", "write": "stmatrix"}


@dataclass
class OpCount:
    """What one op did to shared memory. `by_warp`: how often each warp of the blocks made the access."""

    kind: Kind
    bytes: int
    accesses: int = 0
    wavefronts: int = 0
    by_warp: Ints = field(default_factory=lambda: np.zeros(MOST_WARPS, np.int64))


class WavefrontCount(Hook):
    """`counts`: by op and bytes a lane, summed over the launches that it has watched.

    An access is one of a warp: lanes that diverged make it in several. An op may access with several
    widths: a guarded vector goes element by element at the edge.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[Op, int], OpCount] = {}

    @property
    def wavefronts(self) -> int:
        return sum(count.wavefronts for count in self.counts.values())

    def on_access(self, access: Access) -> None:
        by_threads = all(touch.proxy == "generic" for touch in access.op.touches) and access.kind != "mbarrier"
        if access.space != "shared" or not len(access.threads) or not by_threads:
            return
        kind = _kind(access)
        groups, warps, lanes = _by_warp(access)
        key = access.op, access.width
        count = self.counts.setdefault(key, OpCount(kind, access.width))
        count.accesses += len(lanes)
        count.wavefronts += sum(cost.wavefronts for cost in costs(lanes, kind, access.width))
        count.by_warp += np.bincount(warps[groups], minlength=MOST_WARPS)


def _kind(access: Access) -> Kind:
    touches = access.op.touches
    if any(touch.matrix for touch in touches):
        return MATRIX_KINDS[access.kind]
    return "cp_async" if any(touch.done == "cp_async" for touch in touches) else KINDS[access.kind]


def _by_warp(access: Access) -> tuple[Ints, Ints, Ints]:
    """For each warp access: where it starts in the arrays; the warp of every entry; addresses [accesses, 32], -1 for
    absent lanes."""
    warps = access.threads // WARP
    blocks = access.blocks if access.owners is None else access.owners
    starts = np.flatnonzero(np.diff(blocks * MOST_WARPS + warps, prepend=-1))
    row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(warps))))
    addresses = np.full((len(starts), WARP), -1)
    addresses[row, access.threads % WARP] = access.addresses
    return starts, warps, addresses

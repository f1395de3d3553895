"""Counts the wavefronts of every shared access from the addresses that it really has.

A hook: pass `Options(hooks=(WavefrontCount(),))`. The counterpart of the static count of
`passes.banks.wavefront_counter`, with which it shares no code but the phase table of `layout.banks`. At thread level
the addresses are those of the chosen layouts, at tile level those of row order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import MOST_WARPS, WARP
from tiledsl.backends.emulator.hooks import Access, Hook
from tiledsl.ir.core import Op
from tiledsl.layout.banks import BANKS, PHASES, WORD, Kind, Phases

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KINDS: Mapping[str, Kind] = {"read": "load", "write": "store", "atomic": "atomic"}
MATRIX_KINDS: Mapping[str, Kind] = {"read": "ldmatrix", "write": "stmatrix"}

ABSENT = np.int64(-1)


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
        if (
            access.space != "shared"
            or not len(access.threads)
            or access.owners is not None
            or access.kind == "mbarrier"
        ):
            return
        kind = _kind(access)
        groups, warps, lanes = _by_warp(access)
        key = access.op, access.width
        count = self.counts.setdefault(key, OpCount(kind, access.width))
        count.accesses += len(lanes)
        count.wavefronts += _wavefronts(lanes, access.width, PHASES[kind, access.width])
        count.by_warp += np.bincount(warps[groups], minlength=MOST_WARPS)


def _kind(access: Access) -> Kind:
    touches = access.op.touches
    if any(touch.matrix for touch in touches):
        return MATRIX_KINDS[access.kind]
    return "cp_async" if any(touch.done == "cp_async" for touch in touches) else KINDS[access.kind]


def _by_warp(access: Access) -> tuple[Ints, Ints, Ints]:
    """For each warp access: where it starts in the arrays; the warp of every entry; addresses [accesses, 32]."""
    warps = access.threads // WARP
    starts = np.flatnonzero(np.diff(access.blocks * MOST_WARPS + warps, prepend=-1))
    row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(warps))))
    addresses = np.full((len(starts), WARP), ABSENT)
    addresses[row, access.threads % WARP] = access.addresses
    return starts, warps, addresses


def _wavefronts(addresses: Ints, width: int, rule: Phases) -> int:
    """Of all rows of `addresses` [accesses, 32]; absent lanes are -1."""
    phases = addresses.reshape(-1, rule.lanes)
    if rule.merge:
        merging = np.zeros(len(addresses), np.bool_)
        for distance in rule.merge:
            partner = addresses[:, np.arange(addresses.shape[1]) ^ distance]
            merging |= np.all((addresses == partner) | (addresses == ABSENT) | (partner == ABSENT), axis=1)
        apart, pairs = addresses[~merging].reshape(-1, rule.lanes), addresses[merging].reshape(-1, 2 * rule.lanes)
        return _busiest_banks(apart, width, rule.shared) + _busiest_banks(pairs, width, rule.shared)
    return _busiest_banks(phases, width, rule.shared)


def _busiest_banks(phases: Ints, width: int, shared: bool) -> int:
    """The sum over phases, [phases, lanes], of the largest number of words in one bank."""
    there = phases != ABSENT
    first = phases[there] // WORD
    phase = np.nonzero(there)[0]
    each = np.arange(max(1, width // WORD))
    words, phase = (first[:, None] + each).ravel(), np.repeat(phase, len(each))
    if shared and len(words):  # each word of a phase once
        span = int(words.max()) + 1
        phase, words = np.divmod(np.unique(phase * span + words), span)
    load = np.bincount(phase * BANKS + words % BANKS, minlength=len(phases) * BANKS)
    return int(load.reshape(-1, BANKS).max(axis=1, initial=0).sum())

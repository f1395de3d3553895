"""Shadow of global memory: which tensors can race at all, and what is remembered of each of their elements.

It is one for all blocks of a launch. (What is remembered of each location: C. Flanagan and S. Freund, FastTrack, PLDI
2009: the last write, and of reads the last one, or several if nothing orders them.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.hooks import Bools, Ints, TensorInfo
from tiledsl.errors import Accessed
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.types import PtrType, TileType
from tiledsl.passes.analysis.written import memory_of

PLAIN, BY_TMA = 0, 9
"""How an access was made; an atomic one by the width of its scope, plus 1."""

# -- which tensors can race ------------------------------------------------------------------------


@dataclass
class Use:
    """What a kernel does with a tensor. `narrow`: by an atomic operation among fewer threads than those of the GPU."""

    reads: bool = False
    writes: bool = False
    updates: bool = False
    narrow: bool = False

    @property
    def may_race(self) -> bool:
        """Reads do not conflict with each other, nor do atomic operations among all threads."""
        return self.writes or (self.updates and (self.reads or self.narrow))

    def add(self, other: Use) -> None:
        for name in ("reads", "writes", "updates", "narrow"):
            setattr(self, name, getattr(self, name) or getattr(other, name))


def uses_of(kernel: Kernel) -> Mapping[str, Use]:
    """By tensor. A pointer that control flow chose may be into any."""
    names = {a: kernel.abi[a.index].name if kernel.level == "thread" else a.name for a in kernel.body.args}
    uses: defaultdict[str, Use] = defaultdict(Use)
    for op in kernel.walk():
        for access in op.accesses():
            for name in _tensors(kernel, names, access.memory):
                plain, narrow = not access.atomic, access.atomic in ("cta", "cluster")
                use = Use(plain and not access.writes, plain and access.writes, access.atomic != "", narrow)
                use.updates &= access.writes
                uses[name].add(use)
    return uses


def _tensors(kernel: Kernel, names: Mapping[Any, str], memory: Any) -> Sequence[str]:
    if isinstance(memory, int):
        return [kernel.tensor_maps[memory].tensor]
    if isinstance(memory, Value):
        if isinstance(memory.type, TileType) or (isinstance(memory.type, PtrType) and memory.type.space == "shared"):
            return []
        tensor = memory_of(memory)
        if tensor is not None:
            return [names[tensor]] if tensor in names else []
    return [*names.values()]


# -- cells -----------------------------------------------------------------------------------------


class Region(NamedTuple):
    """Where a tensor's cells are in the shadow: the cell of the byte at `address` is
    ``first + (address - origin) // granule``."""

    tensor: TensorInfo
    first: int
    origin: int
    granule: int

    def cells(self, addresses: Ints, width: int) -> Ints:
        """[entries, cells] of `width` bytes from each address on."""
        first = self.first + (addresses - self.origin) // self.granule
        return first[:, None] + np.arange(max(1, width // self.granule))

    def memory(self, cell: int, width: int) -> Accessed:
        """The element of a cell, of which an access has `width` bytes."""
        at = self.origin + (cell - self.first) * self.granule
        return Accessed(self.tensor.label, "global", self.tensor.element(at), at - self.tensor.base, width)


def lay_out(tensors: Sequence[TensorInfo], uses: Mapping[str, Use]) -> tuple[dict[str, Region], int]:
    """The regions of the tensors that can race, and how many cells they have. Tensors with bytes in common share
    these; a cell is the widest piece that all their elements are made of."""
    regions: dict[str, Region] = {}
    cells = 0
    for group in _overlapping(tensors):
        use = Use()
        for tensor in group:
            use.add(uses.get(tensor.label, Use()))
        if not use.may_race:
            continue
        start = group[0].host
        granule = gcd(*(tensor.size for tensor in group), *(tensor.host - start for tensor in group))
        for tensor in group:
            regions[tensor.label] = Region(tensor, cells, tensor.low - (tensor.host - start), granule)
        cells += -(-(max(tensor.host + tensor.bytes for tensor in group) - start) // granule)
    return regions, cells


def _overlapping(tensors: Sequence[TensorInfo]) -> list[list[TensorInfo]]:
    groups: list[list[TensorInfo]] = []
    end = 0
    for tensor in sorted((t for t in tensors if t.bytes), key=lambda t: t.host):
        if groups and tensor.host < end:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
        end = max(end, tensor.host + tensor.bytes)
    return groups


# -- what is remembered ------------------------------------------------------------------------------

MANY = 64
"""Added to a lane: others of its warp as well."""


class Entries(NamedTuple):
    """Accesses to cells, each an entry of arrays of one shape: by which agent `who` of the grid, at which of its counts
    (`when`; 0: none), in which lane, how (`PLAIN`, ...), by which op."""

    who: NDArray[Any]
    when: NDArray[Any]
    lane: NDArray[Any]
    how: NDArray[Any]
    op: NDArray[Any]

    def take(self, at: Any) -> Entries:
        return Entries(*(array[at] for array in self))

    def put(self, at: Any, entries: Entries) -> None:
        for array, values in zip(self, entries, strict=True):
            array[at] = values


def no_entries(count: int) -> Entries:
    return Entries(*(np.zeros(count, dtype) for dtype in (np.int64, np.int32, np.int8, np.int8, np.int32)))


MOST_LAYERS = 4


class Accesses:
    """Those of one kind that no other comes after: `layers` hold one a cell each, `more` a list of what does not fit
    there, `crowded` says of which cells. `did`: for messages."""

    def __init__(self, cells: int, did: str) -> None:
        self.cells, self.did = cells, did
        self.layers: list[Entries] = []
        self.crowded: Bools | None = None
        self.more: list[tuple[Ints, Entries]] = []
        self.limit = 1 << 16

    def layer(self, number: int) -> Entries:
        if number == len(self.layers):
            self.layers.append(no_entries(self.cells))
        return self.layers[number]

    def forget(self, cells: Ints) -> None:
        for layer in self.layers:
            layer.when[cells] = 0
        if self.crowded is not None and self.crowded[cells].any():
            self.crowded[cells] = False
            self.more = [(at[keep], entries.take(keep)) for at, entries in self.more if len(keep := self._kept(at))]

    def _kept(self, at: Ints) -> Ints:
        assert self.crowded is not None
        return np.flatnonzero(self.crowded[at])

    def add_more(self, cells: Ints, entries: Entries) -> None:
        if self.crowded is None:
            self.crowded = np.zeros(self.cells, np.bool_)
        self.crowded[cells] = True
        self.more.append((cells, entries))
        if sum(len(at) for at, _ in self.more) > self.limit:
            self.more = [self._last_of_each_thread()]
            self.limit = 2 * len(self.more[0][0]) + (1 << 16)

    def _last_of_each_thread(self) -> tuple[Ints, Entries]:
        cells, entries = self._all()
        order = np.lexsort((entries.when, entries.lane, entries.who, cells))
        keys = np.stack([cells[order], entries.who[order], entries.lane[order]])
        last = np.append((keys[:, 1:] != keys[:, :-1]).any(axis=0), True)
        return cells[order[last]], entries.take(order[last])

    def _all(self) -> tuple[Ints, Entries]:
        columns = zip(*(entries for _, entries in self.more), strict=True)
        return np.concatenate([at for at, _ in self.more]), Entries(*map(np.concatenate, columns))

    def more_at(self, cells: Ints) -> tuple[Ints, Entries] | None:
        """What `more` has of these cells: which of `cells` each is at, and the accesses."""
        if self.crowded is None or not self.crowded[cells].any():
            return None
        at, entries = self._all()
        order = np.argsort(cells, kind="stable")
        low, high = (np.searchsorted(cells[order], at, side) for side in ("left", "right"))
        counts = high - low
        which = np.repeat(np.arange(len(at)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return order[low[which] + within], entries.take(which)

"""Shadow of global memory: which tensors can race at all, and what is remembered of each of their elements.

It is one for all blocks of a run. (What is remembered of each location: C. Flanagan and S. Freund, FastTrack, PLDI
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

from tiledsl.backends.emulator.hooks import Bools, Ints, LaunchInfo, TensorInfo
from tiledsl.backends.emulator.sanitizer.atomics import WIDTH
from tiledsl.errors import Accessed
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.types import PtrType, TileType
from tiledsl.passes.analysis.written import memory_of

PLAIN, BY_TMA = 0, 9
"""How an access was made; an atomic one by the width of its scope, plus 1."""

# -- which tensors can race ------------------------------------------------------------------------


@dataclass
class Use:
    """What kernels do with a tensor. `reach`: the narrowest scope of an atomic operation, by its width."""

    reads: bool = False
    writes: bool = False
    updates: bool = False
    reach: int = WIDTH["sys"]

    def may_race(self, narrow: bool) -> bool:
        """Reads do not conflict with each other, nor do atomic operations among all threads. narrow: are some among
        fewer?"""
        return self.writes or (self.updates and (self.reads or narrow))

    def add(self, other: Use) -> None:
        for name in ("reads", "writes", "updates"):
            setattr(self, name, getattr(self, name) or getattr(other, name))
        self.reach = min(self.reach, other.reach)


def uses_of(kernel: Kernel) -> Mapping[str, Use]:
    """By tensor. A pointer that control flow chose may be into any."""
    names = {a: kernel.abi[a.index].name if kernel.level == "thread" else a.name for a in kernel.body.args}
    uses: defaultdict[str, Use] = defaultdict(Use)
    for op in kernel.walk():
        for access in op.accesses():
            for name in _tensors(kernel, names, access.memory):
                plain, reach = not access.atomic, WIDTH[access.atomic or "sys"]
                use = Use(plain and not access.writes, plain and access.writes, access.atomic != "", reach)
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


class Layout(NamedTuple):
    """The shadow's: `regions`, by the launch's `first` and the tensor, of those that can race; how many `cells` they
    have; `narrow`: can atomic operations race with each other?"""

    regions: dict[tuple[int, str], Region]
    cells: int
    narrow: bool


def lay_out(launches: Sequence[tuple[LaunchInfo, Mapping[str, Use]]]) -> Layout:
    """launches: each with what its kernel does with tensors. Tensors with bytes in common share their cells; a cell is
    the widest piece that all their elements are made of. All of their threads are in the scope of a GPU if one rank
    alone has them."""
    regions: dict[tuple[int, str], Region] = {}
    cells, any_narrow = 0, False
    uses_of_launch = {launch.first: uses for launch, uses in launches}
    for group in _overlapping([(launch, tensor) for launch, _ in launches for tensor in launch.tensors]):
        use = Use()
        for launch, tensor in group:
            use.add(uses_of_launch[launch.first].get(tensor.label, Use()))
        narrow = use.reach < WIDTH["gpu" if len({launch.rank for launch, _ in group}) == 1 else "sys"]
        any_narrow |= narrow
        if not use.may_race(narrow):
            continue
        start, tensors = group[0][1].host, [tensor for _, tensor in group]
        granule = gcd(*(tensor.size for tensor in tensors), *(tensor.host - start for tensor in tensors))
        for launch, tensor in group:
            at = tensor.low - (tensor.host - start)
            regions[launch.first, tensor.label] = Region(tensor, cells, at, granule)
        cells += -(-(max(tensor.host + tensor.bytes for tensor in tensors) - start) // granule)
    return Layout(regions, cells, any_narrow)


def _overlapping(tensors: Sequence[tuple[LaunchInfo, TensorInfo]]) -> list[list[tuple[LaunchInfo, TensorInfo]]]:
    groups: list[list[tuple[LaunchInfo, TensorInfo]]] = []
    end = 0
    for launch, tensor in sorted(((at, t) for at, t in tensors if t.bytes), key=lambda each: each[1].host):
        if groups and tensor.host < end:
            groups[-1].append((launch, tensor))
        else:
            groups.append([(launch, tensor)])
        end = max(end, tensor.host + tensor.bytes)
    return groups


# -- what is remembered ------------------------------------------------------------------------------

MANY = 64
"""Added to a lane: others of its warp as well."""


STRIDE = 1 << 24
"""More than a cluster has agents: agents of a run are numbered by their cluster's number times this, plus theirs."""


class Entries(NamedTuple):
    """Accesses to cells, each an entry of arrays of one shape: by which agent `who` of the run, at which of its counts
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

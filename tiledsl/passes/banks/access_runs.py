"""Runs: loads, or stores, of one tile or tensor that a thread may make at one place of the program.

The accesses of a run are in one block. Their indices differ by constants, along the axis of stride 1 only. Between the
first and the last one nothing touches the same bytes in another way, nothing synchronises, and no loop runs, through
which loaded values would stay in registers. So loads may move up to the first one, and stores down to the last.

Of tensors, the accesses of fragments of indices make runs, guarded ones with the same value past the edge. Other
guarded loads of tensors do so where they read the same element; nothing else makes accesses to tensors wider than the
author wrote them. Tensors that are written overlap no other one (the rule of BLAS, which the runtime checks).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from tiledsl.arch import MOST_ACCESS
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, tile
from tiledsl.ir.types import GlobalType
from tiledsl.layout.shared import Paneled, Swizzled
from tiledsl.passes.analysis.divisibility import power_of_two_in
from tiledsl.passes.analysis.sums import Sum, Sums
from tiledsl.passes.pipelining.body import memories, overlap


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Accesses to `width` elements from `first` on, in program order, each with its offset."""

    first: int
    width: int
    accesses: list[tuple[int, tile.Access]]

    @property
    def is_load(self) -> bool:
        return self.accesses[0][1].varies == "memory"

    @property
    def kept(self) -> tuple[int, tile.Access]:
        """The access in whose place they become one, with its offset: the first load, or the last store."""
        return self.accesses[0 if self.is_load else -1]


@dataclass(eq=False)
class Run:
    """`accesses` in program order, each with its offset in elements, counted from a place that they share.

    axis: along which they lie. aligned: vectors of so many elements are aligned where their offset is a multiple of it.
    """

    block: Block
    memory: Value
    axis: int
    aligned: int
    accesses: list[tuple[int, tile.Access]] = field(default_factory=list[tuple[int, tile.Access]])

    def parts(self, most: int = MOST_ACCESS) -> Iterator[Part]:
        """What can be one access each: aligned, all of its elements wanted, the widest ones first.

        most: elements of one access, unless the kernel itself has a wider one there.
        """
        if len(self.accesses) < 2:
            return
        places: dict[int, list[int]] = {}
        for place, (offset, _) in enumerate(self.accesses):
            places.setdefault(offset, []).append(place)
        given = {(offset, op.vec) for offset, op in self.accesses}
        left, width = {offset + e for offset, op in self.accesses for e in range(op.vec)}, self.aligned
        while width:
            for first in sorted(o for o in left if o % width == 0):
                wanted = range(first, first + width)
                if left.issuperset(wanted) and (width <= most or (first, width) in given):
                    left.difference_update(wanted)
                    found = sorted(place for o in wanted for place in places.get(o, ()))
                    if len(found) > 1:
                        yield Part(first, width, [self.accesses[place] for place in found])
            width //= 2


def access_runs(kernel: Kernel) -> list[Run]:
    """All of a tile-level kernel; those of one access too."""
    return _Finder(kernel).runs


class _Finder:
    """growing: the runs of loads (True) and of stores of a tile or tensor that may still grow where the walk is."""

    def __init__(self, kernel: Kernel) -> None:
        self.runs: list[Run] = []
        self.sums = Sums(kernel)
        self.growing: dict[tuple[bool, Value], dict[Hashable, Run]] = {}
        self.walk(kernel.body)

    def walk(self, block: Block) -> None:
        outer, self.growing = self.growing, {}
        for op in block.ops:
            if not op.blocks and op.is_pure:  # the blocks of an op are walked below, once
                continue
            if not self.join(op, block):
                for inner in op.walk():
                    if not self.growing:
                        break
                    self.close(inner)
            for inside in op.blocks:
                self.walk(inside)
        self.growing = outer

    def join(self, op: Op, block: Block) -> bool:
        """Add `op` to a run and close those that it ends, if it is an access that may have neighbours."""
        kind = _kind(op)
        if kind is None or not isinstance(op, tile.Access):
            return False
        memory, type_ = op.memory, op.memory_type
        axis = type_.unit if type_.unit >= 0 else type_.rank - 1
        rows = [self.sums.of(v) for v in op.indices]
        column = rows.pop(axis)
        offset, aligned = column.constant, self.aligned(op, rows, column)
        is_load = op.varies == "memory"
        if aligned < op.vec or offset % op.vec or (is_load and not op.result.uses):
            return False
        key = kind, *rows, column.terms
        run = self.growing.get((is_load, memory), {}).get(key)
        self.close(op)
        if run is None:
            run = Run(block, memory, axis, aligned)
            self.runs.append(run)
        run.accesses.append((offset, op))
        self.growing.setdefault((is_load, memory), {})[key] = run
        return True

    def aligned(self, op: tile.Access, rows: list[Sum], column: Sum) -> int:
        """How many elements are aligned together in these rows, at `column` but for its constant."""
        type_, alloc, element = op.memory_type, op.memory.op, op.memory_type.dtype.bytes
        known = [self.sums.divisor(Sum(column.terms, 0))]
        if isinstance(alloc, tile.SharedAlloc):
            layout = alloc.placement
            strides = layout.strides(alloc.type.dims)[:-1]
            known += [self.sums.divisor(r) * power_of_two_in(s) for r, s in zip(rows, strides, strict=True)]
            known += [layout.unit] if isinstance(layout, (Swizzled, Paneled)) else []
            return min(*known, MOST_ACCESS // element)
        if not isinstance(type_, GlobalType) or type_.unit < 0 or not op.attrs["gathered"]:
            return 1
        return min(*known, min(MOST_ACCESS, max(type_.align, element)) // element)

    def close(self, op: Op) -> None:
        """End the runs that may not go on behind `op`."""
        if _stops(op):
            self.growing.clear()
        for touched, writes in memories(op):
            for is_load, memory in list(self.growing):
                if (writes or not is_load) and (memory is touched or overlap(memory, touched)):
                    del self.growing[is_load, memory]


def _kind(op: Op) -> Hashable | None:
    """What accesses of one run have in common besides their place; None for what is in no run."""
    if isinstance(op, (tile.Load, tile.Get, tile.Store)) and isinstance(op.memory.type, GlobalType):
        if op.vec == 1 and (op.gathered or isinstance(op, tile.Get)):
            return type(op), op.gathered, _past_the_edge(op)
        return None
    if isinstance(op, tile.Load) or (isinstance(op, tile.Store) and not isinstance(op, tile.Put)):
        return type(op) if isinstance(op.memory.op, tile.SharedAlloc) else None
    return None


def _past_the_edge(op: tile.Access) -> Hashable:
    """What a guarded load gives where it reads nothing, by its bits."""
    if not isinstance(op, tile.Get):
        return None
    other = op.other.op
    return (repr(other.value), op.other.type) if isinstance(other, arith.Constant) else op.other


def _stops(op: Op) -> bool:
    """True for what no access moves past: synchronisation, input and output, raw PTX, loops."""
    return isinstance(op, (control.For, control.While)) or bool(op.effects - {"read", "write", "identity"})

"""Runs: the loads, or the stores, of shared memory that one thread may as well make at one place.

A run is of one block and one tile, to places that differ along the last axis only, by constants. Nothing between its
first and its last access touches the same bytes in another way or synchronises, and no loop runs there, since it would
keep in registers what was loaded before it. Loads may then stand where the first one stands, stores where the last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, tile
from tiledsl.ir.types import SharedType
from tiledsl.layout.shared import Paneled, Swizzled
from tiledsl.passes.divisibility import power_of_two_in
from tiledsl.passes.sums import Sum, Sums

__all__ = ["MOST_BYTES", "Part", "Run", "access_runs"]

MOST_BYTES = 16
"""Of one access. (PTX ISA: ld, st.)"""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Accesses, in program order with their offsets, that together are to `width` elements from `first` on."""

    first: int
    width: int
    accesses: list[tuple[int, tile.Access]]


@dataclass(eq=False)
class Run:
    """`accesses` in program order, each with its offset in elements, counted from a place that they share.

    aligned: vectors of so many elements are aligned where their offset is a multiple of it.
    """

    block: Block
    alloc: tile.SharedAlloc
    aligned: int
    accesses: list[tuple[int, tile.Access]] = field(default_factory=list[tuple[int, tile.Access]])

    def parts(self, most: int = MOST_BYTES) -> Iterator[Part]:
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


_Growing = dict[tile.SharedAlloc, dict[Hashable, Run]]


class _Finder:
    """`loads` and `stores`: the runs that may still grow where the walk is, by tile."""

    def __init__(self, kernel: Kernel) -> None:
        self.runs: list[Run] = []
        self.sums = Sums(kernel)
        self.loads: _Growing = {}
        self.stores: _Growing = {}
        self.walk(kernel.body)

    def walk(self, block: Block) -> None:
        outer, self.loads, self.stores = (self.loads, self.stores), {}, {}
        for op in block.ops:
            if op.is_pure and not op.blocks:
                continue
            if not self.join(op, block):
                for inner in op.walk():
                    self.close(inner)
            for inside in op.blocks:
                self.walk(inside)
        self.loads, self.stores = outer

    def join(self, op: Op, block: Block) -> bool:
        """Add `op` to a run and close those that it ends, if it is an access that may have neighbours."""
        alloc = op.memory.op if isinstance(op, tile.Load) or type(op) is tile.Store else None
        if not isinstance(op, tile.Access) or not isinstance(alloc, tile.SharedAlloc):
            return False
        *rows, column = (self.sums.of(v) for v in op.indices)
        offset, aligned = column.constant, self.aligned(alloc, rows, column)
        is_load = isinstance(op, tile.Load)
        if aligned < op.vec or offset % op.vec or (is_load and not op.result.uses):
            return False
        growing, key = self.loads if is_load else self.stores, (*rows, column.terms)
        run = growing.get(alloc, {}).get(key)
        self.close(op)
        if run is None:
            run = Run(block, alloc, aligned)
            self.runs.append(run)
        run.accesses.append((offset, op))
        growing.setdefault(alloc, {})[key] = run
        return True

    def aligned(self, alloc: tile.SharedAlloc, rows: list[Sum], column: Sum) -> int:
        """How many elements are aligned together in these rows, at `column` but for its constant."""
        dims, layout = alloc.type.dims, alloc.placement
        known = [MOST_BYTES // alloc.type.dtype.bytes, self.sums.divisor(Sum(column.terms, 0))]
        if isinstance(layout, (Swizzled, Paneled)):
            known.append(layout.unit)
        strides = layout.strides(dims)[:-1]
        return min(*known, *(self.sums.divisor(r) * power_of_two_in(s) for r, s in zip(rows, strides, strict=True)))

    def close(self, op: Op) -> None:
        """End the runs that may not go on behind `op`."""
        if _stops(op):
            self.loads.clear()
            self.stores.clear()
        if not op.effects & {"read", "write"}:
            return
        tiles = [v for v in op.operands if isinstance(v.type, SharedType)]
        for growing in (self.loads, self.stores) if "write" in op.effects else (self.stores,):
            for alloc in [a for a in growing if any(_overlap(a, v) for v in tiles)]:
                del growing[alloc]


def _overlap(alloc: tile.SharedAlloc, other: Value) -> bool:
    """True if the two tiles may have bytes in common: one of them was allocated over others."""
    return other.op is alloc or other.op is None or bool(alloc.operands or other.op.operands)


def _stops(op: Op) -> bool:
    """True for what no access moves past: synchronisation, input and output, raw PTX, loops."""
    if op.effects:
        return not (op.effects <= {"read", "write"} or isinstance(op, tile.SharedAlloc))
    if op.blocks:
        return isinstance(op, (control.For, control.While))
    return not (op.is_pure or op.terminator)

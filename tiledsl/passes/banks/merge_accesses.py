"""Merge accesses: neighbouring accesses of a thread become vectors, and equal loads one load.

What merges: unguarded loads, or stores, of shared memory, and guarded ones too of the tensors that fragments of indices
name (see `access_runs`), of 2, 4, 8 or 16 neighbouring elements that make at most 16 bytes, are known
to be aligned and may stand at one place (`access_runs`); the widest vectors first, and of nothing that the kernel
does not ask for. LLVM's own vectorizer is off, so that after this what the IR says is what the machine does.

Under a layout that keeps a vector together it takes no more wavefronts than its elements one by one: a phase has some
of the lanes, and in each bank words that one of the elements finds there too; where pairs of lanes share, phases merge
and it takes half as many. So what is aligned in a layout
that the user gave is merged. Of a tile whose layout is still to be chosen, vectors rule out layouts: there they are
made as wide as they can be without more wavefronts in the kernel's best layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tiledsl.arch import MOST_ACCESS
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import tile
from tiledsl.layout.shared import AUTO
from tiledsl.passes.analysis.structure import replace_op
from tiledsl.passes.banks.access_runs import Part, Run, access_runs
from tiledsl.passes.banks.bank_conflicts import bank_report
from tiledsl.passes.distribute.vectors import elements_of, never_split, vector_of

__all__ = ["MergeAccesses"]


@dataclass(frozen=True)
class MergeAccesses:
    """Runs at tile level, on accesses that `check-accesses` has approved, before layouts are chosen.

    limit: bytes of shared memory that a block may have; None for no limit.
    """

    limit: int | None = None
    name: ClassVar[str] = "merge-accesses"

    def run(self, kernel: Kernel) -> None:
        if any(isinstance(op, (tile.Load, tile.Get, tile.Store)) for op in kernel.walk()):
            runs = access_runs(kernel)
            _merge(runs, _Widths(kernel, runs, self.limit).chosen)


class _Widths:
    """`chosen`: the most elements of an access to each tile that the compiler lays out."""

    def __init__(self, kernel: Kernel, runs: list[Run], limit: int | None) -> None:
        self.kernel, self.limit = kernel, limit
        self.allocs = [op for op in kernel.walk() if isinstance(op, tile.SharedAlloc)]
        self.chosen = {a: _widest(a) for a in self.allocs if a.layout == AUTO}
        for alloc in self.chosen:
            widths = [part.width for run in runs if run.memory.op is alloc for part in run.parts()]
            self.widen(alloc, max(widths, default=1))

    def widen(self, alloc: tile.SharedAlloc, width: int) -> None:
        """Choose `width` or the next one below it that costs nothing."""
        least = self.wavefronts(self.chosen) if width > self.chosen[alloc] else 0
        while width > self.chosen[alloc]:
            if self.wavefronts({**self.chosen, alloc: width}) <= least:
                self.chosen[alloc] = width
            width //= 2

    def wavefronts(self, widths: Mapping[tile.SharedAlloc, int]) -> float:
        """Of the whole kernel in its best layouts, if accesses are merged up to `widths`."""
        trial = self.kernel.clone()
        allocs = [op for op in trial.walk() if isinstance(op, tile.SharedAlloc)]
        _merge(access_runs(trial), {new: widths[a] for a, new in zip(self.allocs, allocs, strict=True) if a in widths})
        counts = [report.wavefronts for report in bank_report(trial, self.limit).tiles]
        return sum(float("inf") if count is None else float(count) for count in counts)


def _widest(alloc: tile.SharedAlloc) -> int:
    """Elements of the widest access as the kernel was written: every candidate keeps those together anyway."""
    return max((op.vec for op, _ in alloc.result.uses if isinstance(op, tile.Access)), default=1)


def _merge(runs: list[Run], most: Mapping[tile.SharedAlloc, int]) -> None:
    """Make each part of each run one access. `most`: its elements, for the tiles that have a limit."""
    instead: dict[Op, list[Op]] = {}
    changed: dict[Block, None] = {}
    for run in runs:
        alloc = run.memory.op
        for part in run.parts(most.get(alloc, MOST_ACCESS) if isinstance(alloc, tile.SharedAlloc) else MOST_ACCESS):
            is_load = part.accesses[0][1].varies == "memory"
            instead.update(_load(part, run.axis) if is_load else _store(part, run.axis))
            changed[run.block] = None
    for block in changed:
        ops, block.ops = block.ops, []
        for op in ops:
            for new in instead.get(op, (op,)):
                block.append(new)


def _load(part: Part, axis: int) -> dict[Op, list[Op]]:
    """What stands in place of each load: all at the first one."""
    offset, first = part.accesses[0]
    here = Block()
    b = Builder(here, first.loc)
    instead: dict[Op, list[Op]] = {op: [] for _, op in part.accesses}
    instead[first] = here.ops
    if first.vec == part.width:
        whole, others = here.append(first).results[0], part.accesses[1:]
    else:
        others = [vector_of(b, [first.other], part.width)] if isinstance(first, tile.Get) else []
        indices = _indices(b, part, axis, offset, first)
        whole = b.value(type(first)(first.memory, *indices, *others, **_attributes(first, part)))
        others = part.accesses
    for at, op in others:
        if whole.type != op.value_type:
            replace_op(op, [vector_of(b, elements_of(b, whole, op.vec, at - part.first), op.vec)])
        else:
            replace_op(op, [whole])
    return instead


def _store(part: Part, axis: int) -> dict[Op, list[Op]]:
    """What stands in place of each store: all at the last one. Of an element that is written twice the last value."""
    offset, last = part.accesses[-1]
    here = Block()
    b = Builder(here, last.loc)
    elements: dict[int, Value] = {}
    for at, op in part.accesses:
        elements.update(enumerate(elements_of(b, op.operands[-1], op.vec), at))
    whole = vector_of(b, [elements[at] for at in sorted(elements)], part.width)
    b.add(type(last)(last.memory, *_indices(b, part, axis, offset, last), whole, **_attributes(last, part)))
    for _, op in part.accesses:
        replace_op(op, [])
    return {**{op: [] for _, op in part.accesses}, last: here.ops}


def _attributes(op: tile.Access, part: Part) -> dict[str, Any]:
    """Those of `op`, as wide as the part. A guarded vector does not lie across the edge of a tensor of whole ones."""
    whole = {"whole": part.width > 1 and never_split(op.memory)} if "whole" in op.attrs else {}
    return {**op.attrs, **whole, "vec": part.width}


def _indices(b: Builder, part: Part, axis: int, offset: int, op: tile.Access) -> list[Value]:
    """Those of the part's first element, from those of `op`, which is at `offset` along `axis`."""
    indices = list(op.indices)
    if offset != part.first:
        index = indices[axis]
        indices[axis] = b.scalar("add", index, part.first - offset)
    return indices

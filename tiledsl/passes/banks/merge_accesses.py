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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledsl.arch import MOST_ACCESS
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import tile
from tiledsl.layout.shared import AUTO
from tiledsl.passes.analysis.structure import replace_op, rewrite
from tiledsl.passes.banks.access_runs import Part, Run, access_runs
from tiledsl.passes.banks.bank_conflicts import SharedUse, least_wavefronts, shared_use
from tiledsl.passes.distribute.vectors import elements_of, never_split, vector_of

if TYPE_CHECKING:  # it needs NumPy, which importing the pipeline must not load
    from tiledsl.passes.banks.shared_accesses import SharedAccess


def merge_accesses(kernel: Kernel, limit: int | None = None) -> None:
    """Runs at tile level, on accesses that `check-accesses` has approved, before layouts are chosen.

    limit: bytes of shared memory that a block may have; None for no limit.
    """
    if any(isinstance(op, (tile.Load, tile.Get, tile.Store)) for op in kernel.walk()):
        runs = access_runs(kernel)
        _merge(kernel, runs, _widths(kernel, runs, limit))


def _widths(kernel: Kernel, runs: list[Run], limit: int | None) -> dict[tile.SharedAlloc, int]:
    """The most elements of an access to each tile that the compiler lays out: as many as cost no wavefronts."""
    allocs = [op for op in kernel.walk() if isinstance(op, tile.SharedAlloc)]
    chosen = {a: _widest(a) for a in allocs if a.layout == AUTO}
    trials = _Trials(kernel, runs, limit)
    for alloc in chosen:
        width = max((part.width for run in runs if run.memory.op is alloc for part in run.parts()), default=1)
        least = trials.wavefronts(chosen) if width > chosen[alloc] else 0
        while width > chosen[alloc]:
            if trials.wavefronts({**chosen, alloc: width}) <= least:
                chosen[alloc] = width
            width //= 2
    return chosen


class _Trials:
    """What a kernel's accesses would cost if they were merged. The kernel stays as it is: only the accesses change."""

    def __init__(self, kernel: Kernel, runs: list[Run], limit: int | None) -> None:
        self.kernel, self.runs, self.limit = kernel, runs, limit
        self._counted: dict[tuple[int, ...], float] = {}

    def wavefronts(self, widths: Mapping[tile.SharedAlloc, int]) -> float:
        """Of the whole kernel in its best layouts, if accesses are merged up to `widths`. Each trial once: what one
        tile has chosen is where the next one starts."""
        key = tuple(widths.values())
        if key not in self._counted:
            use = replace(self._use, accesses=self._merged(widths))
            self._counted[key] = least_wavefronts(self.kernel, self.limit, use)
        return self._counted[key]

    @cached_property
    def _use(self) -> SharedUse:
        use = shared_use(self.kernel)
        assert use is not None, "without shared tiles there are no widths to choose"
        return use

    def _merged(self, widths: Mapping[tile.SharedAlloc, int]) -> list[SharedAccess]:
        """All accesses to shared tiles, with the one that `_merge` would make of each part in place of its accesses."""
        accesses = self._use.accesses
        alone = {access.op: access for access in accesses}
        instead: dict[Op, SharedAccess | None] = {}
        for run, part in _parts(self.runs, widths):
            if isinstance(run.memory.op, tile.SharedAlloc):
                offset, kept = part.kept
                instead.update((op, None) for _, op in part.accesses)
                instead[kept] = alone[kept].widened(part.width, part.first - offset)
        return [new for access in accesses if (new := instead.get(access.op, access)) is not None]


def _widest(alloc: tile.SharedAlloc) -> int:
    """Elements of the widest access as the kernel was written: every candidate keeps those together anyway."""
    return max((op.vec for op, _ in alloc.result.uses if isinstance(op, tile.Access)), default=1)


def _parts(runs: Iterable[Run], most: Mapping[tile.SharedAlloc, int]) -> Iterator[tuple[Run, Part]]:
    """Those of all runs. `most`: elements of one access, for the tiles that have a limit."""
    for run in runs:
        alloc = run.memory.op
        limit = most.get(alloc, MOST_ACCESS) if isinstance(alloc, tile.SharedAlloc) else MOST_ACCESS
        for part in run.parts(limit):
            yield run, part


def _merge(kernel: Kernel, runs: list[Run], most: Mapping[tile.SharedAlloc, int]) -> None:
    """Make each part of each run one access. `most`: see `_parts`."""
    instead: dict[Op, list[Op]] = {}
    for run, part in _parts(runs, most):
        instead.update(_load(part, run.axis) if part.is_load else _store(part, run.axis))
    rewrite(kernel.body, instead.get)


def _load(part: Part, axis: int) -> dict[Op, list[Op]]:
    """What stands in place of each load: all at the first one."""
    offset, first = part.kept
    b = Builder(Block(), first.loc)
    instead: dict[Op, list[Op]] = {op: [] for _, op in part.accesses}
    instead[first] = b.block.ops
    if first.vec == part.width:
        whole, others = b.value(first), part.accesses[1:]
    else:
        past = [vector_of(b, [first.other], part.width)] if isinstance(first, tile.Get) else []
        whole, others = b.add(_widened(b, part, axis, offset, first, past)).result, part.accesses
    for at, op in others:
        if whole.type == op.value_type:
            replace_op(op, [whole])
        else:
            replace_op(op, [vector_of(b, elements_of(b, whole, op.vec, at - part.first), op.vec)])
    return instead


def _store(part: Part, axis: int) -> dict[Op, list[Op]]:
    """What stands in place of each store: all at the last one. Of an element that is written twice the last value."""
    offset, last = part.kept
    b = Builder(Block(), last.loc)
    elements: dict[int, Value] = {}
    for at, op in part.accesses:
        elements.update(enumerate(elements_of(b, op.operands[-1], op.vec), at))
    whole = vector_of(b, [elements[at] for at in sorted(elements)], part.width)
    b.add(_widened(b, part, axis, offset, last, [whole]))
    for _, op in part.accesses:
        replace_op(op, [])
    return {**{op: [] for _, op in part.accesses}, last: b.block.ops}


def _widened(b: Builder, part: Part, axis: int, offset: int, op: tile.Access, values: list[Value]) -> Op:
    """`op`, which is at `offset` along `axis`, as wide as the part. A guarded vector does not lie across the edge of a
    tensor of whole ones."""
    indices = list(op.indices)
    if offset != part.first:
        indices[axis] = b.scalar("add", indices[axis], part.first - offset)
    attrs: dict[str, Any] = {**op.attrs, "vec": part.width}
    if "whole" in attrs:
        attrs["whole"] = part.width > 1 and never_split(op.memory)
    return type(op)(op.memory, *indices, *values, **attrs)

"""Distribute: fragments that warps hold together become accesses of one lane.

- `matrix.load` and `matrix.store` of matrix instructions become `matrix.ldmatrix` and `matrix.stmatrix`, four matrices
  each where possible. Their addresses have one variable part and differ by constants, which end up as immediates.
- Those of plain accesses become `tile.load` and `tile.store`, guarded where a tensor may end within the fragment.
- `matrix.coordinates` becomes index arithmetic, `matrix.convert` a permutation of a thread's registers.

Writers give the values that stand for an op's results; CompileError where the layout does not allow what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from itertools import islice
from typing import Any

from tiledsl.arch import WARP
from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import gpu, matrix, tile
from tiledsl.ir.types import INDEX, FragmentType
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.distribute.matrix_map import Matrices, Run, matrices, place, runs, widths
from tiledsl.passes.distribute.positions import Position, index, indices
from tiledsl.passes.distribute.vectors import elements_of, may_leave, read, vector_of, write, zeros


def write_load(kernel: Kernel, op: matrix.Load, b: Builder) -> Sequence[Value]:
    part = _Part(kernel, op.type, b)
    return [_load_matrices(op, part) if op.vec == 0 else _load_elements(op, part)]


def write_store(kernel: Kernel, op: matrix.Store, b: Builder) -> Sequence[Value]:
    """What several warps hold, the first of them writes."""
    part = _Part(kernel, op.fragment.fragment, b)
    holder = part.layout.holder(part.warp)
    several = isinstance(holder, Position) and holder.variable
    with b.when(b.scalar("eq", several, 0)) if several else nullcontext():
        _store_matrices(op, part) if op.vec == 0 else _store_elements(op, part)
    return ()


def write_coordinates(kernel: Kernel, op: matrix.Coordinates, b: Builder) -> Sequence[Value]:
    at = _Part(kernel, op.type, b).first[op.axis]
    further = [place(op.type, register)[op.axis] for register in range(op.type.size)]
    return [b.value(tile.Pack(*(index(b, None, at + more) for more in further), type=op.type))]


def write_convert(_: Kernel, op: matrix.Convert, b: Builder) -> Sequence[Value]:
    """Whole words where they stay together, else element by element."""
    sources, per_word = op.sources, op.type.per_register
    assert sources is not None, "the verifier has seen that threads hold what they need"
    firsts = sources[::per_word]
    whole = [first + e for first in firsts for e in range(per_word) if first % per_word == 0]
    if per_word > 1 and whole == list(sources):
        words = b.add(matrix.ToWords(op.fragment)).results
        return [b.value(matrix.FromWords(*(words[first // per_word] for first in firsts), type=op.type))]
    elements = [b.value(tile.Extract(op.fragment, at=(r,))) for r in sources]
    return [b.value(tile.Pack(*elements, type=op.type))]


class _Part:
    """What one thread holds of a fragment. `first`: row and column of its first element in the block tile."""

    def __init__(self, kernel: Kernel, type_: FragmentType, b: Builder) -> None:
        self.kernel, self.type, self.layout, self.b = kernel, type_, type_.held_as, b
        self.lane = Position(b, WARP, cache(lambda: b.value(gpu.LaneId(dtype=INDEX))))
        self.warp = Position(b, self.layout.threads // WARP, cache(self._warp), constant=self.layout.first)
        self.first = self.layout.place(type_.dims, type_.dtype.bits, 0, self.warp, self.lane)

    def _warp(self) -> Value:
        """The number of the warp among those that hold the fragment, which may be some of the block's."""
        layout, warp = self.layout, self.b.value(gpu.WarpId(dtype=INDEX))
        if layout.first:
            warp = self.b.scalar("sub", warp, layout.first)
        if self.kernel.thread_count == layout.first * WARP + layout.threads:
            return warp
        return self.b.scalar("mod", warp, layout.threads // WARP)

    def access(self, side: tile.Side, run: Run) -> list[Value]:
        """The indices of a run."""
        return indices(self.b, side, (at + more for at, more in zip(self.first, run.at, strict=True)))

    def instruction(self, op: matrix.Load | matrix.Store, found: Matrices) -> tuple[list[Value], dict[str, Any]]:
        """Of an ldmatrix or stmatrix the indices, of the row whose address the lane gives, and the attributes."""
        at = found.row_of(self.lane, op.side, self.layout.origin(self.type.dims, self.warp))
        attributes = {"vec": matrix.MATRIX_BYTES // self.type.dtype.bytes, "num": found.num, "trans": op.transposed}
        return indices(self.b, op.side, at), attributes


# -- ldmatrix and stmatrix -------------------------------------------------------------------------


def _load_matrices(op: matrix.Load, part: _Part) -> Value:
    words: list[Value] = []
    for found in matrices(op.type):
        at, attributes = part.instruction(op, found)
        words += part.b.add(matrix.LdMatrix(op.memory, *at, **attributes)).results
    return part.b.value(matrix.FromWords(*words, type=op.type))


def _store_matrices(op: matrix.Store, part: _Part) -> None:
    words = iter(part.b.add(matrix.ToWords(op.fragment)).results)
    for found in matrices(part.type):
        at, attributes = part.instruction(op, found)
        part.b.add(matrix.StMatrix(op.memory, *at, *islice(words, found.num), **attributes))


# -- plain accesses --------------------------------------------------------------------------------


def _load_elements(op: matrix.Load, part: _Part) -> Value:
    b, type_, count = part.b, op.type, op.vec // op.type.dtype.bytes
    found = _runs(op, type_)
    other = zeros(b, type_.dtype, count) if may_leave(op.side, type_.dims) else None
    elements: dict[int, Value] = {}
    for run in found:
        value = read(b, op.memory, part.access(op.side, run), other, count)
        elements.update(zip(run.registers, elements_of(b, value, count), strict=True))
    return b.value(tile.Pack(*(elements[r] for r in range(type_.size)), type=type_))


def _store_elements(op: matrix.Store, part: _Part) -> None:
    b, count, guarded = part.b, op.vec // part.type.dtype.bytes, may_leave(op.side, part.type.dims)
    for run in _runs(op, part.type):
        value = vector_of(b, [b.value(tile.Extract(op.fragment, at=(r,))) for r in run.registers], count)
        write(b, op.memory, part.access(op.side, run), value, count, guarded=guarded)


def _runs(op: matrix.Load | matrix.Store, type_: FragmentType) -> list[Run]:
    side, size = op.side, type_.dtype.bytes
    found = runs(type_, side.unit, op.vec // size)
    if found is None:
        possible = widths(type_, side.unit)
        held = f"{possible[-1] // size} {type_.dtype}" if len(possible) > 1 else "single elements"
        message = f"of {type_.held_as} a lane holds {held} side by side in {name_of(side.memory)}"
        fix = f"use vec={' or '.join(map(str, possible))}"
        raise CompileError(f"{called(op)} with vec={op.vec}: {message}", op.loc, fix, code="C401")
    return found

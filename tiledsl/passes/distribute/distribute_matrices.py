"""Distribute: fragments that warps hold together become accesses of one lane.

- `matrix.load` and `matrix.store` of matrix instructions become `matrix.ldmatrix` and `matrix.stmatrix`, four matrices
  each where possible. Their addresses have one variable part and differ by constants, which end up as immediates.
- Those of plain accesses become `tile.load` and `tile.store`, guarded where a tensor may end within the fragment.
- `matrix.coordinates` becomes index arithmetic, `matrix.convert` a permutation of a thread's registers.

Writers give the values that stand for an op's results; CompileError where the layout does not allow what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tiledsl.arch import WARP
from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import gpu, matrix, tile
from tiledsl.ir.types import INDEX, FragmentType
from tiledsl.layout.fragments import WORD_BITS
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.distribute.matrix_map import Matrices, Place, Run, matrices, place, runs, widths
from tiledsl.passes.distribute.positions import Position, index
from tiledsl.passes.distribute.vectors import elements_of, may_leave, read, vector_of, write, zeros


def write_load(kernel: Kernel, op: matrix.Load, b: Builder) -> Sequence[Value]:
    part = _Part(kernel, op.type, b)
    return [_load_matrices(op, part) if op.vec == 0 else _load_elements(op, part)]


def write_store(kernel: Kernel, op: matrix.Store, b: Builder) -> Sequence[Value]:
    """What several warps hold, one of them writes."""
    type_, store = op.fragment.type, _store_matrices if op.vec == 0 else _store_elements
    assert isinstance(type_, FragmentType)
    part = _Part(kernel, type_, b)
    holder = type_.held_as.holder(part.warp)
    if isinstance(holder, int) or holder.variable is None:
        store(op, part)
        return ()
    with b.when(b.scalar("eq", holder.variable, 0)):
        store(op, part)
    return ()


def write_coordinates(kernel: Kernel, op: matrix.Coordinates, b: Builder) -> Sequence[Value]:
    at = _Part(kernel, op.type, b).first[op.axis]
    firsts = [place(op.type, register)[op.axis] for register in range(op.type.size)]
    return [b.value(tile.Pack(*(index(b, None, at + first) for first in firsts), type=op.type))]


def write_convert(_: Kernel, op: matrix.Convert, b: Builder) -> Sequence[Value]:
    src, dst = op.fragment.type, op.type
    assert isinstance(src, FragmentType)
    sources = _sources(src, dst)
    if sources is None:
        raise CompileError(
            f"a thread does not hold all elements of {dst.held_as} that it needs: they are held as {src.held_as}",
            op.loc,
            "go through shared memory: store() the fragment into a tile, barrier(), load_matrix() it",
        )
    return [_permuted(op.fragment, src, dst, sources, b)]


class _Part:
    """What one thread holds of a fragment. `first`: row and column of its first element in the block tile."""

    def __init__(self, kernel: Kernel, type_: FragmentType, b: Builder) -> None:
        self.kernel, self.type, self.layout, self.b = kernel, type_, type_.held_as, b
        self.lane = Position(b, WARP, lambda: self._lane)
        self.warp = Position(b, self.layout.threads // WARP, lambda: self._warp, constant=self.layout.first)
        self.first = self.layout.place(type_.dims, type_.dtype.bits, 0, self.warp, self.lane)

    @cached_property
    def _lane(self) -> Value:
        return self.b.value(gpu.LaneId(dtype=INDEX))

    @cached_property
    def _warp(self) -> Value:
        """The number of the warp among those that hold the fragment, which may be some of the block's."""
        layout, warp = self.layout, self.b.value(gpu.WarpId(dtype=INDEX))
        if layout.first:
            warp = self.b.scalar("sub", warp, layout.first)
        if self.kernel.thread_count == layout.first * WARP + layout.threads:
            return warp
        return self.b.scalar("mod", warp, layout.threads // WARP)

    def at(self, side: tile.Side, place: Sequence[Position | int]) -> list[Value]:
        """The indices of a row and column of the fragment."""
        at = list(side.origin)
        for axis, position in enumerate(side.axes):
            at[position] = index(self.b, side.origin[position], place[axis])
        return at

    def after(self, side: tile.Side, more: Place) -> list[Value]:
        """The indices of what lies so many rows and columns after the first element."""
        return self.at(side, (self.first[0] + more[0], self.first[1] + more[1]))

    def row_of(self, side: tile.Side, found: Matrices) -> list[Value]:
        """The indices of the row of a matrix whose address the lane gives."""
        return self.at(side, found.row_of(self.lane, side, self.layout.origin(self.type.dims, self.warp)))


# -- ldmatrix and stmatrix -------------------------------------------------------------------------


def _load_matrices(op: matrix.Load, part: _Part) -> Value:
    trans, b, row = _transposed("load_fragment()", op, op.side, op.type), part.b, _row(op.type)
    words: list[Value] = []
    for found in matrices(op.type):
        at = part.row_of(op.side, found)
        words += b.add(matrix.LdMatrix(op.side.memory, *at, vec=row, num=found.num, trans=trans)).results
    return b.value(matrix.FromWords(*words, type=op.type))


def _store_matrices(op: matrix.Store, part: _Part) -> None:
    trans, b, row = _transposed("store()", op, op.side, part.type), part.b, _row(part.type)
    words = b.add(matrix.ToWords(op.fragment)).results
    for found in matrices(part.type):
        at, (own, words) = part.row_of(op.side, found), (words[: found.num], words[found.num :])
        b.add(matrix.StMatrix(op.side.memory, *at, *own, vec=row, num=found.num, trans=trans))


def _row(type_: FragmentType) -> int:
    """Elements of a row of a matrix."""
    return matrix.MATRIX_BYTES // type_.dtype.bytes


def _transposed(plain: str, op: Op, side: tile.Side, type_: FragmentType) -> bool:
    """True if rows of memory run across the words of a lane, so that the instruction transposes. CompileError where it
    cannot."""
    layout, dtype = type_.held_as, type_.dtype
    use = f"use {plain}, which moves element by element"
    if dtype.bits > WORD_BITS or (layout.operand == "acc" and dtype.bits != 16):
        message = f"{called(op)} of {dtype} held as {layout}: a lane does not hold words of its rows"
        raise CompileError(message, op.loc, use)
    if side.unit is None:
        raise CompileError(f"{called(op)} from a view without the axis along which the tile's rows run", op.loc, use)
    trans = side.unit != layout.inner
    if trans and dtype.bits != 16:
        raise CompileError(
            f"{called(op)} of {dtype} would have to transpose, since the tile's rows do not run along "
            f"{'k' if layout.operand != 'acc' else 'the columns'} of {layout}; it transposes 16-bit elements only",
            op.loc,
            f"{use}, or store the tile transposed",
        )
    return trans


# -- plain accesses --------------------------------------------------------------------------------


def _load_elements(op: matrix.Load, part: _Part) -> Value:
    b, type_, side = part.b, op.type, op.side
    found, count = _runs(op, side, type_, op.vec), op.vec // type_.dtype.bytes
    other = zeros(b, type_.dtype, count) if may_leave(side, type_.dims) else None
    elements: dict[int, Value] = {}
    for run in found:
        value = read(b, side.memory, part.after(side, run.at), other, count)
        elements.update(zip(run.registers, elements_of(b, value, count), strict=True))
    return b.value(tile.Pack(*(elements[r] for r in range(type_.size)), type=type_))


def _store_elements(op: matrix.Store, part: _Part) -> None:
    b, type_, side = part.b, part.type, op.side
    found, count, guarded = _runs(op, side, type_, op.vec), op.vec // type_.dtype.bytes, may_leave(side, type_.dims)
    for run in found:
        value = vector_of(b, [b.value(tile.Extract(op.fragment, at=(r,))) for r in run.registers], count)
        write(b, side.memory, part.after(side, run.at), value, count, guarded=guarded)


def _runs(op: Op, side: tile.Side, type_: FragmentType, vec: int) -> list[Run]:
    found = runs(type_, side.unit, vec // type_.dtype.bytes)
    if found is not None:
        return found
    possible = widths(type_, side.unit)
    held = f"{possible[-1] // type_.dtype.bytes} {type_.dtype}" if len(possible) > 1 else "single elements"
    raise CompileError(
        f"{called(op)} with vec={vec}: of {type_.held_as} a lane holds {held} side by side in {name_of(side.memory)}",
        op.loc,
        f"use vec={' or '.join(map(str, possible))}",
    )


# -- conversion ------------------------------------------------------------------------------------


def _sources(src: FragmentType, dst: FragmentType) -> list[int] | None:
    """For each element of `dst` that a thread holds, which of `src` it is, in all threads alike; None if one is not."""
    if _parts(src) != _parts(dst):
        return None
    register = {place(src, r): r for r in range(src.size)}
    found = [register.get(place(dst, r)) for r in range(dst.size)]
    known = [r for r in found if r is not None]
    return known if len(known) == len(found) else None


def _parts(type_: FragmentType) -> list[tuple[int, int]]:
    """How far from the first thread's elements those of each thread lie."""
    warps = range(type_.held_as.threads // WARP)
    return [place(type_, 0, warp, lane) for warp in warps for lane in range(WARP)]


def _permuted(value: Value, src: FragmentType, dst: FragmentType, sources: list[int], b: Builder) -> Value:
    """Whole words where they stay together, else element by element."""
    per_word = src.per_register
    firsts = sources[::per_word]
    together = all(
        first % per_word == 0 and sources[i * per_word + e] == first + e
        for i, first in enumerate(firsts)
        for e in range(per_word)
    )
    if together and per_word > 1:
        words = b.add(matrix.ToWords(value)).results
        return b.value(matrix.FromWords(*(words[first // per_word] for first in firsts), type=dst))
    elements = [b.value(tile.Extract(value, at=(r,))) for r in sources]
    return b.value(tile.Pack(*elements, type=dst))

"""Distribute: fragments that warps hold together become accesses of one lane.

- `matrix.load` and `matrix.store` of matrix instructions become `matrix.ldmatrix` and `matrix.stmatrix`, four matrices
  each where possible. Their addresses have one variable part and differ by constants, which end up as immediates.
- Those of plain accesses become `tile.load` and `tile.store`, guarded where a tensor may end within the fragment.
- `matrix.coordinates` becomes index arithmetic, `matrix.convert` a permutation of a thread's registers.

Writers give the values that stand for an op's results; CompileError where the layout does not allow what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

from tiledsl.arch import LANE_BITS, WARP
from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, gpu, matrix, tile
from tiledsl.ir.types import INDEX, FragmentType
from tiledsl.layout.fragments import WORD_BITS, FragmentLayout
from tiledsl.passes.analysis.called import called, name_of
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.distribute.distribute_copies import may_leave, never_split
from tiledsl.passes.distribute.matrix_map import Field, Matrices, Run, lane_steps, matrices, runs, widths

__all__ = ["write_convert", "write_coordinates", "write_load", "write_store"]


def write_load(op: matrix.Load, b: Builder) -> Sequence[Value]:
    return [_load_matrices(op, b) if op.vec == 0 else _load_elements(op, b)]


def write_store(op: matrix.Store, b: Builder) -> Sequence[Value]:
    """What several warps hold, one of them writes."""
    type_, write = op.fragment.type, _store_matrices if op.vec == 0 else _store_elements
    assert isinstance(type_, FragmentType)
    layout = type_.held_as
    if layout.holders == 1:
        write(op, type_, b)
        return ()
    along_n = b.constant(layout.warps[1], INDEX)
    number = b.scalar("mod" if layout.operand == "a" else "floordiv", _local_warp(op, layout, b), along_n)
    then, orelse = Block(), Block()
    inner = Builder(then, b.loc)
    write(op, type_, inner)
    for block in (inner, Builder(orelse, b.loc)):
        block.add(control.Yield())
    b.add(control.If(b.scalar("eq", number, b.constant(0, INDEX)), blocks=[then, orelse]))
    return ()


def write_coordinates(op: matrix.Coordinates, b: Builder) -> Sequence[Value]:
    places = _Places(op, op.type, b)
    steps = lane_steps(op.type, op.axis)
    firsts = [_place(op.type, register)[op.axis] for register in range(op.type.size)]
    return [b.value(tile.Pack(*(places.index(None, op.axis, steps, first) for first in firsts), type=op.type))]


def write_convert(op: matrix.Convert, b: Builder) -> Sequence[Value]:
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


# -- indices ---------------------------------------------------------------------------------------


class _Places:
    """Indices of one thread's part of a fragment that `op` moves. `known`: variable parts, written once each;
    `begins`: where the warp's part begins along each axis, as a sum."""

    def __init__(self, op: Op, type_: FragmentType, b: Builder) -> None:
        self.op, self.type, self.b = op, type_, b
        self.layout = type_.held_as
        self.known: dict[object, Value] = {}
        self.begins: dict[int, list[Value]] = {}

    def index(self, origin: Value | None, axis: int, steps: list[Field], constant: int) -> Value:
        """origin + the thread's part + `constant`, which comes last: it becomes an immediate.

        axis: 0 for rows of the fragment, 1 for columns.
        """
        known = None if origin is None else integer(origin)
        constant += known or 0
        base = self.base(origin if known is None else None, axis, steps)
        if base is not None and constant == 0:
            return base
        if (base, constant) not in self.known:
            shift = self.b.constant(constant, INDEX)
            self.known[base, constant] = shift if base is None else self.b.scalar("add", base, shift)
        return self.known[base, constant]

    def base(self, origin: Value | None, axis: int, steps: list[Field]) -> Value | None:
        """What of an index is only known at run time, or None. The thread's part on its own: no loop changes it."""
        thread = self.sum((axis, *steps), *self.warp(axis), *map(self.lane, steps))
        return self.sum((origin, thread), origin, thread)

    def sum(self, key: object, *terms: Value | None) -> Value | None:
        given = [term for term in terms if term is not None]
        if len(given) < 2:
            return given[0] if given else None
        if key not in self.known:
            self.known[key] = reduce(lambda a, c: self.b.scalar("add", a, c), given)
        return self.known[key]

    def warp(self, axis: int) -> list[Value]:
        if axis not in self.begins:
            self.begins[axis] = self._warp(axis) if self.layout.grid[axis] > 1 else []
        return self.begins[axis]

    def _warp(self, axis: int) -> list[Value]:
        layout, number = self.layout, self.position("warp")
        if axis == 0 and layout.warps[1] > 1:
            number = self.apply("floordiv", number, layout.warps[1])
        elif axis == 1 and layout.warps[0] > 1:
            number = self.apply("mod", number, layout.warps[1])
        parts, interleaved = layout.grid[axis], layout.interleaved
        size = self.type.dims[axis] // parts
        if axis == 1 or interleaved == 1:
            return [self.apply("mul", number, size)]
        if parts == interleaved:
            return [self.apply("mul", number, layout.tile[0])]
        within = self.apply("mul", self.apply("mod", number, interleaved), layout.tile[0])
        return [self.apply("mul", self.apply("floordiv", number, interleaved), interleaved * size), within]

    def lane(self, field: Field) -> Value:
        if field not in self.known:
            value = self.position("lane")
            if field.low:
                value = self.apply("floordiv", value, 1 << field.low)
            if field.low + field.count < LANE_BITS:
                value = self.apply("mod", value, 1 << field.count)
            self.known[field] = value if field.weight == 1 else self.apply("mul", value, field.weight)
        return self.known[field]

    def position(self, what: Literal["lane", "warp"]) -> Value:
        """The lane, or the number of the warp among those that hold the fragment."""
        if what not in self.known:
            lane = what == "lane"
            value = self.b.value(gpu.LaneId(dtype=INDEX)) if lane else _local_warp(self.op, self.layout, self.b)
            self.known[what] = value
        return self.known[what]

    def apply(self, fn: str, value: Value, number: int) -> Value:
        return self.b.scalar(fn, value, self.b.constant(number, INDEX))


def _local_warp(op: Op, layout: FragmentLayout, b: Builder) -> Value:
    """The number of the warp among those that hold a fragment, which may be some of the block's."""
    warp = b.value(gpu.WarpId(dtype=INDEX))
    if layout.first:
        warp = b.scalar("sub", warp, b.constant(layout.first, INDEX))
    if _kernel_of(op).thread_count == layout.first * WARP + layout.threads:
        return warp
    return b.scalar("mod", warp, b.constant(layout.threads // WARP, INDEX))


def _kernel_of(op: Op) -> Kernel:
    assert op.parent is not None
    owner = op.parent.parent
    assert owner is not None
    return owner if isinstance(owner, Kernel) else _kernel_of(owner)


# -- ldmatrix and stmatrix -------------------------------------------------------------------------


def _load_matrices(op: matrix.Load, b: Builder) -> Value:
    trans = _transposed("load_fragment()", op, op.side, op.type)
    places = _Places(op, op.type, b)
    words: list[Value] = []
    for part in matrices(op.type):
        at = _row_of(places, op.side, part)
        words += b.add(matrix.LdMatrix(op.side.memory, *at, vec=_row(op.type), num=part.num, trans=trans)).results
    return b.value(matrix.FromWords(*words, type=op.type))


def _store_matrices(op: matrix.Store, type_: FragmentType, b: Builder) -> None:
    trans = _transposed("store()", op, op.side, type_)
    places = _Places(op, type_, b)
    words = b.add(matrix.ToWords(op.fragment)).results
    for part in matrices(type_):
        at, (own, words) = _row_of(places, op.side, part), (words[: part.num], words[part.num :])
        b.add(matrix.StMatrix(op.side.memory, *at, *own, vec=_row(type_), num=part.num, trans=trans))


def _row(type_: FragmentType) -> int:
    """Elements of a row of a matrix."""
    return matrix.MATRIX_BYTES // type_.dtype.bytes


def _row_of(places: _Places, side: tile.Side, part: Matrices) -> list[Value]:
    """The indices of the row that a lane addresses. Rows are side by side along the axis that is not the unit one."""
    assert side.unit is not None
    at = list(side.origin)
    for axis, position in enumerate(side.axes):
        steps = part.fields(axis, along=1 - side.unit)
        at[position] = places.index(side.origin[position], axis, steps, part.at[axis])
    return at


def _transposed(plain: str, op: Op, side: tile.Side, type_: FragmentType) -> bool:
    """Do the matrices lie in memory across the words of a lane? CompileError where the instruction has no such form."""
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
            f"{use}, or store the tile the other way round",
        )
    return trans


# -- plain accesses --------------------------------------------------------------------------------


def _load_elements(op: matrix.Load, b: Builder) -> Value:
    type_, side = op.type, op.side
    parts = _runs(op, side, type_, op.vec)
    places, count = _Places(op, type_, b), op.vec // type_.dtype.bytes
    guarded = may_leave(side, type_.dims)
    zero = b.constant(type_.dtype.python(0), type_.dtype) if guarded else None
    if zero is not None and count > 1:
        zero = b.value(tile.Pack(zero, type=FragmentType(type_.dtype, (count,))))
    elements: dict[int, Value] = {}
    for part in parts:
        at = _element_of(places, side, part)
        if zero is None:
            value = b.value(tile.Load(side.memory, *at, vec=count))
        else:
            value = b.value(tile.Get(side.memory, *at, zero, vec=count, whole=count > 1 and never_split(side.memory)))
        for position, register in enumerate(part.registers):
            elements[register] = value if count == 1 else b.value(tile.Extract(value, at=(position,)))
    return b.value(tile.Pack(*(elements[r] for r in range(type_.size)), type=type_))


def _store_elements(op: matrix.Store, type_: FragmentType, b: Builder) -> None:
    side = op.side
    parts = _runs(op, side, type_, op.vec)
    places, count = _Places(op, type_, b), op.vec // type_.dtype.bytes
    guarded = may_leave(side, type_.dims)
    for part in parts:
        values = [b.value(tile.Extract(op.fragment, at=(r,))) for r in part.registers]
        if count > 1:
            values = [b.value(tile.Pack(*values, type=FragmentType(type_.dtype, (count,))))]
        at = _element_of(places, side, part)
        if guarded:
            b.add(tile.Put(side.memory, *at, *values, vec=count, whole=count > 1 and never_split(side.memory)))
        else:
            b.add(tile.Store(side.memory, *at, *values, vec=count))


def _element_of(places: _Places, side: tile.Side, part: Run) -> list[Value]:
    at = list(side.origin)
    for axis, position in enumerate(side.axes):
        steps = lane_steps(places.type, axis)
        at[position] = places.index(side.origin[position], axis, steps, part.at[axis])
    return at


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
    register = {_place(src, r): r for r in range(src.size)}
    found = [register.get(_place(dst, r)) for r in range(dst.size)]
    known = [r for r in found if r is not None]
    return known if len(known) == len(found) else None


def _parts(type_: FragmentType) -> list[tuple[int, int]]:
    """How far from the first thread's elements those of each thread lie."""
    warps = range(type_.held_as.threads // WARP)
    return [_place(type_, 0, warp, lane) for warp in warps for lane in range(WARP)]


def _place(type_: FragmentType, register: int, warp: int = 0, lane: int = 0) -> tuple[int, int]:
    """warp: counted from the first that holds a part."""
    layout = type_.held_as
    return layout.place(type_.dims, type_.dtype.bits, register, layout.first + warp, lane)


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

"""Expand: tensors, shared tiles and the accesses to them, with addresses and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tiledsl.ir.atomics import ATOMICS
from tiledsl.ir.core import OPS, Op, Value
from tiledsl.ir.ops import async_copy, mem, tile
from tiledsl.ir.types import I32
from tiledsl.layout.shared import Paneled, Swizzled
from tiledsl.passes.lower.addresses import (
    Memory,
    below,
    both,
    bounds,
    element,
    inside_from,
    pointer_to,
    unsigned_extent,
)
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import vector


def _dim(x: Expander, op: tile.Dim) -> None:
    memory = x.memories[op.tensor]
    size = (memory.strides if isinstance(op, tile.Stride) else memory.extents)[op.axis]
    x.give(op.result, [x.b.constant(size, x.index) if isinstance(size, int) else size])


def _shared_alloc(x: Expander, op: tile.SharedAlloc) -> None:
    slot = x.layout.slots[op]
    base = mem.SharedBase(dtype=op.type.dtype, offset=slot.offset, bytes=slot.bytes, label=slot.label)
    pointer = x.b.value(base)
    pointer.name = op.result.name
    type_, layout, dims, width = op.type, op.placement, op.type.dims, 0
    if isinstance(layout, Paneled):
        layout, dims, width = layout.inner, layout.unfolded(dims), layout.width
    swizzle = layout if isinstance(layout, Swizzled) else None
    x.memories[op.result] = Memory(pointer, type_.dims, layout.strides(dims), type_.unit, False, swizzle, dims, width)


# -- plain accesses --------------------------------------------------------------------------------


def _address(x: Expander, op: tile.Access, *, guarded: bool = False) -> Value:
    """guarded: the rule compares the indices itself."""
    x.require_within(op, op.memory, op.indices, None if guarded else vector(op.memory_type, op.vec))
    return pointer_to(x.b, x.memories[op.memory], x.all(op.indices))


def _load(x: Expander, op: tile.Load) -> None:
    x.give(op.result, x.b.add(mem.Load(_address(x, op), vec=op.vec)).results)


def _store(x: Expander, op: tile.Store) -> None:
    values = x.mapping[op.value]
    x.b.add(mem.Store(_address(x, op), *values, vec=op.vec))


def _atomic(x: Expander, op: tile.Atomic) -> None:
    values = [x.one(v) for v in op.values]
    made = x.b.add(mem.atomic(op.fn.name, _address(x, op), *values, order=op.order, reach=op.reach))
    x.give_each(op.results, made.results)


def _get(x: Expander, op: tile.Get) -> None:
    pointer = _address(x, op, guarded=True)
    others = x.mapping[op.other]

    def load(first: int, count: int) -> Sequence[Value]:
        return x.b.add(mem.Load(element(x.b, pointer, first), vec=count)).results

    x.give(op.result, _guarded(x, op, load, others))


def _put(x: Expander, op: tile.Put) -> None:
    pointer = _address(x, op, guarded=True)
    values = x.mapping[op.value]

    def store(first: int, count: int) -> Sequence[Value]:
        return x.b.add(mem.Store(element(x.b, pointer, first), *values[first : first + count], vec=count)).results

    _guarded(x, op, store, ())


def _guarded(
    x: Expander, op: tile.Get | tile.Put, access: Callable[[int, int], Sequence[Value]], outside: Sequence[Value]
) -> Sequence[Value]:
    """One access where all `vec` elements are inside; else those that are, one by one.

    `access` makes one of so many elements from a number on; `outside` is the result where nothing is read.
    """
    memory, indices = x.memories[op.memory], x.all(op.indices)
    b, whole, never_splits = x.b, partial(access, 0, op.vec), op.whole or memory.never_splits(op.vec)
    if op.vec == 1:
        condition = bounds(b, memory, indices)
        return whole() if condition is None else x.b.either(condition, whole, outside)
    axis = memory.unit
    index, extent = indices[axis], memory.extents[axis]
    rest = bounds(b, memory, indices, skip=axis)
    # The index is a multiple of vec, so all are inside exactly if it is below the rounded extent.
    rounded = unsigned_extent(b, extent, index.dtype, multiple_of=1 if never_splits else op.vec)
    condition = both(b, rest, below(b, index, rounded))
    if never_splits:
        return x.b.either(condition, whole, outside)
    limit = unsigned_extent(b, extent, index.dtype)

    def one_by_one() -> Sequence[Value]:
        results: list[Value] = []
        for position in range(op.vec):
            moved = b.scalar("add", index, position) if position else index
            inside = both(b, rest, below(b, moved, limit))
            results += x.b.either(inside, partial(access, position, 1), outside[position : position + 1])
        return results

    return x.b.either(condition, whole, one_by_one)


# -- asynchronous copies ---------------------------------------------------------------------------
# Past an edge fewer bytes are read, down to none; the address is computed all the same, and not used then. All or
# nothing costs a comparison: ptxas makes a predicate of it. Part of the bytes costs five instructions more, by which
# ptxas moves the address as the hardware's zero fill wants it: only for tensors whose rows may end inside a vector, and
# those make a specialisation of their own.


def _cp(x: Expander, op: async_copy.Cp) -> None:
    source = op.source
    to = x.address(op, op.memory, op.indices, vector(op.memory_type, op.vec))
    at = x.address(op, source.memory, source.origin, None if op.guard else vector(source.type, op.vec))
    size = op.vec * op.memory_type.dtype.bytes
    never_splits = x.memories[source.memory].never_splits(op.vec)
    count = [_all_or_none(x, op, size) if never_splits else _part(x, op)] if op.guard else []
    x.b.add(mem.CpAsync(to, at, *count, bytes=size))


def _all_or_none(x: Expander, op: async_copy.Cp, size: int) -> Value:
    """How many bytes to read. What the innermost loop does not change is taken into the limit of what it does: one
    comparison is left in it."""
    b, memory, indices = x.b, x.memories[op.source.memory], x.all(op.source.origin)
    depths = [x.depth(v) for v in op.source.origin]
    last = max(range(len(depths)), key=lambda axis: depths[axis])
    index = indices[last]
    limit = unsigned_extent(b, memory.extents[last], index.dtype)
    rest = bounds(b, memory, indices, skip=last)
    if rest is not None and max(d for axis, d in enumerate(depths) if axis != last) < depths[last]:
        limit, rest = b.select(rest, limit, 0), None
    return b.select(both(b, rest, below(b, index, limit)), b.constant(size, I32), b.constant(0, I32))


def _part(x: Expander, op: async_copy.Cp) -> Value:
    """How many bytes lie inside, where the last vector of a row may lie across the edge."""
    b, memory, indices = x.b, x.memories[op.source.memory], x.all(op.source.origin)
    axis = memory.unit
    inside = inside_from(b, indices[axis], memory.extents[axis], op.vec)
    count = b.scalar("mul", inside, op.memory_type.dtype.bytes)
    rest = bounds(b, memory, indices, skip=axis)
    return count if rest is None else b.select(rest, count, 0)


MEMORY_RULES: dict[type[Op], Rule] = {
    tile.Dim: _dim,
    tile.Stride: _dim,
    tile.SharedAlloc: _shared_alloc,
    tile.Load: _load,
    tile.Get: _get,
    tile.Store: _store,
    tile.Put: _put,
    async_copy.Cp: _cp,
    **dict.fromkeys((OPS[f"tile.atomic_{row}"] for row in ATOMICS), _atomic),
}

"""Expand: tensors, shared tiles and the accesses to them, with addresses and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tiledsl.ir.atomics import ATOMICS
from tiledsl.ir.core import OPS, Op, Value
from tiledsl.ir.ops import mem, tile
from tiledsl.layout.shared import Layout, Paneled, Swizzled
from tiledsl.passes.lower.addresses import Memory, below, both, bounds, element, pointer_to, unsigned_extent
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import Reach

__all__ = ["MEMORY_RULES"]


def _dim(x: Expander, op: tile.Dim) -> None:
    memory = x.memories[op.tensor]
    size = (memory.strides if isinstance(op, tile.Stride) else memory.extents)[op.axis]
    x.give(op.result, [x.b.constant(size, x.index) if isinstance(size, int) else size])


def _shared_alloc(x: Expander, op: tile.SharedAlloc) -> None:
    slot = x.layout.slots[op]
    base = mem.SharedBase(dtype=op.type.dtype, offset=slot.offset, bytes=slot.bytes, label=x.layout.label(op))
    pointer = x.b.value(base)
    pointer.name = op.result.name
    dims, layout, width, swizzle = op.type.dims, op.placement, 0, None
    places: Layout = layout
    parts, panels = dims, 1
    if isinstance(layout, Paneled):
        places, parts, width, swizzle = layout.inner, layout.unfolded(dims), layout.width, layout.inner
    elif isinstance(layout, Swizzled):
        swizzle, panels = layout, layout.panels(dims)
    rows, strides = places.row_strides(parts), places.strides(parts)
    x.memories[op.result] = Memory(pointer, dims, strides, len(dims) - 1, False, swizzle, rows, panels, width)


# -- plain accesses --------------------------------------------------------------------------------


def _address(x: Expander, op: tile.Access, *, guarded: bool = False) -> Value:
    """guarded: the rule compares the indices itself."""
    x.require_within(op, op.memory, op.indices, None if guarded else Reach.vector(op.memory_type, op.vec))
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
    b, whole = x.b, partial(access, 0, op.vec)
    if op.vec == 1:
        condition = bounds(b, memory, indices)
        return whole() if condition is None else x.branch(condition, whole, outside)
    axis = memory.unit
    index, extent = indices[axis], memory.extents[axis]
    rest = bounds(b, memory, indices, skip=axis)
    # The index is a multiple of vec, so all are inside exactly if it is below the rounded extent.
    rounded = unsigned_extent(b, extent, index.dtype, multiple_of=1 if op.whole else op.vec)
    condition = both(b, rest, below(b, index, rounded))
    if op.whole or (isinstance(extent, int) and extent % op.vec == 0):
        return x.branch(condition, whole, outside)
    limit = unsigned_extent(b, extent, index.dtype)

    def one_by_one() -> Sequence[Value]:
        results: list[Value] = []
        for position in range(op.vec):
            shift = b.constant(position, index.dtype)
            moved = b.scalar("add", index, shift) if position else index
            inside = both(b, rest, below(b, moved, limit))
            results += x.branch(inside, partial(access, position, 1), outside[position : position + 1])
        return results

    return x.branch(condition, whole, one_by_one)


MEMORY_RULES: dict[type[Op], Rule] = {
    tile.Dim: _dim,
    tile.Stride: _dim,
    tile.SharedAlloc: _shared_alloc,
    tile.Load: _load,
    tile.Get: _get,
    tile.Store: _store,
    tile.Put: _put,
    **dict.fromkeys((OPS[f"tile.atomic_{row}"] for row in ATOMICS), _atomic),
}

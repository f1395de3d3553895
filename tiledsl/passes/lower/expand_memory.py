"""Expand: tensors, shared tiles and the accesses to them, with addresses and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiledsl.ir.atomics import ATOMICS
from tiledsl.ir.core import OPS, Op, Value
from tiledsl.ir.ops import mem, tile
from tiledsl.layout.shared import Paneled, Swizzled
from tiledsl.passes.lower.addresses import Memory, below, both, bounds, element, pointer_to, unsigned_extent
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import Reach

__all__ = ["MEMORY_RULES"]

Emit = Callable[[], Sequence[Value]]


def _dim(x: Expander, op: tile.Dim) -> None:
    memory = x.memories[op.tensor]
    size = (memory.strides if isinstance(op, tile.Stride) else memory.extents)[op.axis]
    x.give(op.result, [x.b.constant(size, x.index) if isinstance(size, int) else size])


def _shared_alloc(x: Expander, op: tile.SharedAlloc) -> None:
    slot = x.layout.slots[op]
    base = mem.SharedBase(dtype=op.type.dtype, offset=slot.offset, bytes=slot.bytes, label=x.layout.label(op))
    pointer = x.b.value(base)
    pointer.name = op.result.name
    dims, layout = op.type.dims, op.placement
    if isinstance(layout, Paneled):
        parts = layout.unfolded(dims)
        rows, strides = layout.inner.row_strides(parts), layout.inner.strides(parts)
        x.memories[op.result] = Memory(
            pointer, dims, strides, len(dims) - 1, False, layout.inner, rows, width=layout.width
        )
        return
    swizzle = layout if isinstance(layout, Swizzled) else None
    rows, panels = layout.row_strides(dims), swizzle.panels(dims) if swizzle is not None else 1
    strides = layout.strides(dims)
    x.memories[op.result] = Memory(pointer, dims, strides, len(dims) - 1, False, swizzle, rows, panels)


# -- plain accesses --------------------------------------------------------------------------------


def _address(x: Expander, op: tile.Access, *, guarded: bool = False) -> tuple[Memory, list[Value], Value]:
    """guarded: the rule compares the indices itself."""
    x.require_within(op, op.memory, op.indices, None if guarded else Reach.vector(op.memory_type, op.vec))
    memory = x.memories[op.memory]
    indices = x.all(op.indices)
    return memory, indices, pointer_to(x.b, memory, indices)


def _load(x: Expander, op: tile.Load) -> None:
    x.give(op.result, x.b.add(mem.Load(_address(x, op)[2], vec=op.vec)).results)


def _store(x: Expander, op: tile.Store) -> None:
    values = x.mapping[op.value]
    x.b.add(mem.Store(_address(x, op)[2], *values, vec=op.vec))


def _atomic(x: Expander, op: tile.Atomic) -> None:
    values = [x.one(v) for v in op.values]
    made = x.b.add(mem.atomic(op.fn.name, _address(x, op)[2], *values, order=op.order, reach=op.reach))
    x.give_each(op.results, made.results)


def _get(x: Expander, op: tile.Get) -> None:
    others = x.mapping[op.other]
    memory, indices, pointer = _address(x, op, guarded=True)

    def element_or_other(position: int) -> Callable[[Value], Sequence[Value]]:
        def read(condition: Value) -> Sequence[Value]:
            at = element(x.b, pointer, position)
            return x.branch(condition, lambda: x.b.add(mem.Load(at)).results, [others[position]])

        return read

    def whole() -> Sequence[Value]:
        return x.b.add(mem.Load(pointer, vec=op.vec)).results

    x.give(op.result, _guarded(x, op, memory, indices, whole, element_or_other, others))


def _put(x: Expander, op: tile.Put) -> None:
    values = x.mapping[op.value]
    memory, indices, pointer = _address(x, op, guarded=True)

    def element_if(position: int) -> Callable[[Value], Sequence[Value]]:
        def write(condition: Value) -> Sequence[Value]:
            at = element(x.b, pointer, position)

            def store() -> Sequence[Value]:
                return x.b.add(mem.Store(at, values[position])).results

            return x.branch(condition, store, ())

        return write

    def whole() -> Sequence[Value]:
        return x.b.add(mem.Store(pointer, *values, vec=op.vec)).results

    _guarded(x, op, memory, indices, whole, element_if, ())


def _guarded(
    x: Expander,
    op: tile.Get | tile.Put,
    memory: Memory,
    indices: list[Value],
    whole: Emit,
    single: Callable[[int], Callable[[Value], Sequence[Value]]],
    outside: Sequence[Value],
) -> Sequence[Value]:
    """One access where all `vec` elements are inside; else those that are, one by one.

    `single(i)` accesses element i under a condition; `outside` is the result where nothing is read.
    """
    b = x.b
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
            results += single(position)(both(b, rest, below(b, moved, limit)))
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

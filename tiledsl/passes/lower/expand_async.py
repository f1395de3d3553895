"""Expand: asynchronous copies, with the number of bytes that each reads.

Past an edge fewer bytes are read, down to none; the address is computed all the same, and not used then. All or nothing
costs a comparison: ptxas makes a predicate of it. Part of the bytes costs five instructions more, by which ptxas moves
the address as the hardware's zero fill wants it: only for tensors whose rows may end inside a vector, and those make a
specialisation of their own.
"""

from __future__ import annotations

from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import async_copy, mem
from tiledsl.ir.types import I32
from tiledsl.passes.lower.addresses import below, both, bounds, inside_from, unsigned_extent
from tiledsl.passes.lower.expander import Expander, Rule
from tiledsl.passes.lower.within import Reach

__all__ = ["ASYNC_RULES"]


def _cp(x: Expander, op: async_copy.Cp) -> None:
    source = op.source
    to = x.address(op, op.memory, op.indices, Reach.vector(op.memory_type, op.vec))
    at = x.address(op, source.memory, source.origin, None if op.guard else Reach.vector(source.type, op.vec))
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
        limit, rest = b.select(rest, limit, b.constant(0, limit.dtype)), None
    return b.select(both(b, rest, below(b, index, limit)), b.constant(size, I32), b.constant(0, I32))


def _part(x: Expander, op: async_copy.Cp) -> Value:
    """How many bytes lie inside, where the last vector of a row may lie across the edge."""
    b, memory, indices = x.b, x.memories[op.source.memory], x.all(op.source.origin)
    axis = memory.unit
    inside = inside_from(b, indices[axis], memory.extents[axis], op.vec)
    count = b.scalar("mul", inside, b.constant(op.memory_type.dtype.bytes, I32))
    rest = bounds(b, memory, indices, skip=axis)
    return count if rest is None else b.select(rest, count, b.constant(0, I32))


ASYNC_RULES: dict[type[Op], Rule] = {async_copy.Cp: _cp}

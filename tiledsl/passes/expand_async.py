"""Expand: asynchronous copies, with the number of bytes that each reads.

Past an edge fewer bytes are read, down to none; the address is computed all the same, and not used then. All or
nothing costs a comparison: ptxas makes a predicate of it. Part of the bytes costs five instructions more, by which
ptxas moves the address as the hardware's zero fill wants it. So both have code of their own, and the extent alone
decides, once for all copies that stand together. Rows that end inside a vector are rare: a matrix whose rows are
aligned to vectors and have no gaps between them has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import arith, async_copy, gpu, mem, tile
from tiledsl.ir.types import I32
from tiledsl.passes.addresses import Memory, below, both, bounds, inside_from, unsigned_extent
from tiledsl.passes.expander import Expander, Rule

__all__ = ["ASYNC_RULES"]

_INDEX_OPS = (arith.Constant, arith.Scalar, arith.Cast, arith.Select, gpu.Position, tile.Dim)


def _cp(x: Expander, op: async_copy.Cp) -> None:
    """All copies that follow `op`, at once: between them only indices are computed."""
    copies = [_Copy(x, each) for each in _together(x, op)]
    whole = [c.whole() if c.op.guard else None for c in copies]
    splits = {(c.extent, c.op.vec): None for c in copies if c.op.guard and c.may_split}
    if not splits:
        _add(x, copies, whole)
        return
    aligned = [_is_multiple(x, extent, vec) for extent, vec in splits]

    def all_or_none() -> Sequence[Value]:
        _add(x, copies, whole)
        return ()

    def in_part() -> Sequence[Value]:
        _add(x, copies, [c.part() if c.op.guard else None for c in copies])
        return ()

    x.branch(reduce(lambda left, right: both(x.b, left, right), aligned), all_or_none, in_part, likely=True)


def _together(x: Expander, op: async_copy.Cp) -> list[async_copy.Cp]:
    """`op` and the copies after it, as long as nothing else stands there than what computes their indices."""
    assert op.parent is not None
    ops = op.parent.ops
    found: list[async_copy.Cp] = []
    for other in ops[ops.index(op) :]:
        if isinstance(other, async_copy.Cp):
            found.append(other)
            x.written.add(other)
        elif isinstance(other, _INDEX_OPS):
            x.write(other)
        else:
            break
    return found


def _is_multiple(x: Expander, extent: Value | int, vec: int) -> Value:
    size = unsigned_extent(x.b, extent, x.index)
    zero, mask = (x.b.constant(number, size.dtype) for number in (0, vec - 1))
    return x.b.scalar("eq", x.b.scalar("and", size, mask), zero)


def _add(x: Expander, copies: Sequence[_Copy], counts: Sequence[Value | None]) -> None:
    for copy, count in zip(copies, counts, strict=True):
        given = [] if count is None else [count]
        x.b.loc = copy.op.loc
        x.b.add(mem.CpAsync(copy.to, copy.at, *given, bytes=copy.bytes))


class _Copy:
    """One access: its addresses and, at the place where it is asked for, how many bytes to read."""

    def __init__(self, x: Expander, op: async_copy.Cp) -> None:
        self.x, self.op = x, op
        x.b.loc = op.loc
        self.memory: Memory = x.memories[op.source.memory]
        self.indices = x.all(op.source.origin)
        self.to = x.address(op.memory, op.indices)
        self.at = x.address(op.source.memory, op.source.origin)
        self.bytes = op.vec * op.memory_type.dtype.bytes

    @property
    def extent(self) -> Value | int:
        """Of the axis of stride 1, along which the access runs; that of single elements does not matter."""
        return self.memory.extents[self.memory.unit]

    @property
    def may_split(self) -> bool:
        """False where no vector can lie across the edge, in any launch."""
        vec, extent = self.op.vec, self.extent
        return vec > 1 and not (isinstance(extent, int) and extent % vec == 0)

    def whole(self) -> Value:
        """All bytes or none.

        What the innermost loop does not change is taken into the limit of what it does: one comparison is left in it.
        """
        self.x.b.loc = self.op.loc
        b = self.x.b
        depths = [self.x.depth(v) for v in self.op.source.origin]
        last = max(range(len(depths)), key=lambda axis: depths[axis])
        index = self.indices[last]
        limit = unsigned_extent(b, self.memory.extents[last], index.dtype)
        rest = bounds(b, self.memory, self.indices, skip=last)
        if rest is not None and max(d for axis, d in enumerate(depths) if axis != last) < depths[last]:
            limit, rest = b.select(rest, limit, b.constant(0, limit.dtype)), None
        return self._if(both(b, rest, below(b, index, limit)))

    def part(self) -> Value:
        """As many bytes as lie inside, where the last vector of a row may lie across the edge."""
        if not self.may_split:
            return self.whole()
        self.x.b.loc = self.op.loc
        b, axis = self.x.b, self.memory.unit
        inside = inside_from(b, self.indices[axis], self.extent, self.op.vec)
        count = b.scalar("mul", inside, b.constant(self.op.memory_type.dtype.bytes, I32))
        rest = bounds(b, self.memory, self.indices, skip=axis)
        return count if rest is None else b.select(rest, count, b.constant(0, I32))

    def _if(self, condition: Value) -> Value:
        return self.x.b.select(condition, self.x.b.constant(self.bytes, I32), self.x.b.constant(0, I32))


ASYNC_RULES: dict[type[Op], Rule] = {async_copy.Cp: _cp}

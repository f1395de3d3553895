"""One thread's accesses to a tensor or tile: guards at edges, and vectors of elements."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import DType, FragmentType, GlobalType
from tiledsl.passes.analysis.constants import integer


def may_leave(side: tile.Side, shape: tuple[int, ...]) -> bool:
    """True where the copied part of a global tensor may reach past its edge. A view of a shared tile does not."""
    type_ = side.type
    if not isinstance(type_, GlobalType):
        return False
    sizes = dict(zip(side.axes, shape, strict=True))
    for axis, (value, extent) in enumerate(zip(side.origin, type_.dims, strict=True)):
        first = integer(value)
        if first is None or not isinstance(extent, int) or not 0 <= first <= extent - sizes.get(axis, 1):
            return True
    return False


def never_split(memory: Value) -> bool:
    """True for a tensor whose rows are whole vectors, in any launch that the specialisation is for."""
    return isinstance(memory.type, GlobalType) and memory.type.whole


def vector_of(b: Builder, elements: Sequence[Value], width: int) -> Value:
    """What an access of `width` elements moves: a scalar, or a fragment of these elements or of one in every place."""
    if width == 1:
        return elements[0]
    return b.value(tile.Pack(*elements, type=FragmentType(elements[0].dtype, (width,))))


def elements_of(b: Builder, value: Value, width: int, first: int = 0) -> list[Value]:
    """`width` elements of a fragment, from number `first` on; a scalar is its only element."""
    if not isinstance(value.type, FragmentType):
        return [value]
    return [b.value(tile.Extract(value, at=(first + e,))) for e in range(width)]


def zeros(b: Builder, dtype: DType, width: int) -> Value:
    """What an access of `width` elements reads past the edge of a tensor."""
    return vector_of(b, [b.constant(dtype.python(0), dtype)], width)


def read(
    b: Builder, memory: Value, at: Sequence[Value], other: Value | None, vec: int, *, whole: bool = False
) -> Value:
    """other: what stands past the edge; None where all is inside. whole: no vector lies across the edge."""
    if other is None:
        return b.value(tile.Load(memory, *at, vec=vec))
    return b.value(tile.Get(memory, *at, other, vec=vec, whole=vec > 1 and (whole or never_split(memory))))


def write(
    b: Builder, memory: Value, at: Sequence[Value], value: Value, vec: int, *, guarded: bool, whole: bool = False
) -> None:
    """guarded: leave out what lies past the edge. whole: no vector lies across it."""
    if guarded:
        b.add(tile.Put(memory, *at, value, vec=vec, whole=vec > 1 and (whole or never_split(memory))))
    else:
        b.add(tile.Store(memory, *at, value, vec=vec))

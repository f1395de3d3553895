"""Thread level memory: explicit addresses. Only `expand` creates these. (PTX ISA: ld, st, atom.)"""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.core import Op, Value, attribute, operand
from tiledsl.ir.ops.tile import VECTOR_BYTES
from tiledsl.ir.ops.tile import AtomicAdd as TileAtomicAdd
from tiledsl.ir.types import I32, I64, DType, PtrType, Type

__all__ = ["AtomicAdd", "Load", "Offset", "SharedBase", "Store"]


def _pointee(op: Op) -> DType:
    type_ = op.operands[0].type
    op.require(isinstance(type_, PtrType), f"{type_} is not a pointer")
    assert isinstance(type_, PtrType)
    return type_.dtype


class SharedBase(Op):
    """The address `offset` bytes into the block's shared memory. `bytes`, `label`: extent and name
    of the tile there, for bounds checks and messages."""

    name = "mem.shared_base"
    level = "thread"
    dtype = attribute(DType)
    offset = attribute(int)
    bytes = attribute(int)
    label = attribute(str, "")

    def infer(self) -> Sequence[Type]:
        return (PtrType("shared", self.dtype),)


class Offset(Op):
    """An address `index` elements (i32 or i64, signed) further."""

    name = "mem.offset"
    level = "thread"
    base, index = operand(0), operand(1)

    def infer(self) -> Sequence[Type]:
        return (self.operands[0].type,)

    def verify(self) -> None:
        _pointee(self)
        self.require(self.index.type in (I32, I64), f"offset of type {self.index.type}")


class _Vector(Op):
    level = "thread"
    vec = attribute(int, 1)
    ptr = operand(0)

    def verify(self) -> None:
        dtype = _pointee(self)
        size = self.vec * dtype.bytes
        self.require(self.vec == 1 or size in VECTOR_BYTES, f"a vector of {size} bytes")


class Load(_Vector):
    """`vec` neighbouring elements, as that many results, in one access aligned to its width."""

    name = "mem.load"
    effects = frozenset({"read"})

    def infer(self) -> Sequence[Type]:
        return (_pointee(self),) * self.vec


class Store(_Vector):
    """Writes operands 1.. to neighbouring elements in one access aligned to its width."""

    name = "mem.store"
    effects = frozenset({"write"})

    @property
    def values(self) -> list[Value]:
        return self.operands[1:]

    def verify(self) -> None:
        super().verify()
        self.require(len(self.values) == self.vec, f"takes {self.vec} values")
        self.require(all(v.type == _pointee(self) for v in self.values), "values differ in dtype")


class AtomicAdd(Op):
    """Adds `value` to an element as one indivisible step; the result is the old element."""

    name = "mem.atomic_add"
    level = "thread"
    effects = frozenset({"read", "write"})
    ptr, value = operand(0), operand(1)

    def infer(self) -> Sequence[Type]:
        return (_pointee(self),)

    def verify(self) -> None:
        dtype = _pointee(self)
        self.require(self.value.type == dtype, "the value differs in dtype")
        self.require(dtype.name in TileAtomicAdd.dtypes, f"not defined for {dtype}")

"""Types of the IR: scalar dtypes, memory (global tensors, shared tiles, pointers) and fragments.

Text forms: ``f32``; ``global<f32, [M, K], unit=1, align=16>``; ``shared<f32, [16, 16]>``;
``ptr<global, f32>``; ``fragment<f32, [8, 8]>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

__all__ = [
    "BF16",
    "BOOL",
    "DTYPES",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "INDEX",
    "U8",
    "U16",
    "U32",
    "U64",
    "DType",
    "FragmentType",
    "GlobalType",
    "PtrType",
    "SharedType",
    "Space",
    "Type",
    "is_memory",
]

Kind = Literal["float", "int", "uint", "bool", "index"]
Space = Literal["global", "shared"]


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type. `bits` is its width in memory; a bool takes one byte there.

    `index` is the type of sizes, strides and block/thread/loop indices. It exists above `expand`
    only, which turns it into i32 where the specialisation proves that safe and i64 otherwise.
    """

    name: str
    kind: Kind
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed, unsigned or index; bool is not an integer."""
        return self.kind in ("int", "uint", "index")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "index", "float")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


F64 = DType("f64", "float", 64)
F32 = DType("f32", "float", 32)
F16 = DType("f16", "float", 16)
BF16 = DType("bf16", "float", 16)
I8, I16, I32, I64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
BOOL = DType("bool", "bool", 8)
INDEX = DType("index", "index", 64)

DTYPES: dict[str, DType] = {
    t.name: t for t in (F64, F32, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, INDEX)
}


def _dims(dims: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(str(d) for d in dims) + "]"


@dataclass(frozen=True, slots=True)
class GlobalType:
    """A tensor in global memory, as a launch was specialised for it.

    `dims`: an int is a static extent; a str names a run-time one (equal names are equal extents).
    `unit`: the axis whose stride is 1, or -1 if none is.
    `align`: the largest of 16, 8, 4, 2, 1 bytes that divides the base address and, in bytes, every
    stride but the unit one.
    """

    dtype: DType
    dims: tuple[int | str, ...]
    unit: int
    align: int

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        return f"global<{self.dtype}, {_dims(self.dims)}, unit={self.unit}, align={self.align}>"


@dataclass(frozen=True, slots=True)
class SharedType:
    """A tile in shared memory: row-major, extents in elements."""

    dtype: DType
    dims: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def bytes(self) -> int:
        return prod(self.dims) * self.dtype.bytes

    def __str__(self) -> str:
        return f"shared<{self.dtype}, {_dims(self.dims)}>"


@dataclass(frozen=True, slots=True)
class FragmentType:
    """A register tile private to each thread: an immutable SSA value of prod(dims) scalars."""

    dtype: DType
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.dims)

    def __str__(self) -> str:
        return f"fragment<{self.dtype}, {_dims(self.dims)}>"


@dataclass(frozen=True, slots=True)
class PtrType:
    """An address of a `dtype` element in one memory space (thread level only)."""

    space: Space
    dtype: DType

    def __str__(self) -> str:
        return f"ptr<{self.space}, {self.dtype}>"


Type = DType | GlobalType | SharedType | FragmentType | PtrType
MemoryType = GlobalType | SharedType


def is_memory(type_: Type) -> bool:
    """True for the types that tile-level loads and stores accept."""
    return isinstance(type_, (GlobalType, SharedType))

"""Types of the IR: scalar dtypes, memory (global tensors, shared tiles, pointers) and fragments.

Text forms: ``f32``; ``global<f32, [M, K], unit=1, align=16>``; ``shared<f32, [16, 16]>``;
``ptr<global, f32>``; ``fragment<f32, [8, 8]>``; ``fragment<f32, [64, 64], mma.m16n8k16.acc(2, 2)>``; ``token``;
``pending<fragment<...>>``; ``ring<4>``; ``cursor``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

from tiledsl.layout.fragments import FragmentLayout

Kind = Literal["float", "matrix", "int", "uint", "bool", "index"]
Space = Literal["global", "shared"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A scalar type. `bits` is its width in memory; a bool takes one byte there. Those of `DTYPES` are all there are.

    `index` is the type of sizes, strides and block/thread/loop indices. It exists above `expand`
    only, which turns it into i32 where the specialisation proves that safe and i64 otherwise.

    The kind "matrix" has the formats of matrix operands: floats without arithmetic, which are moved, converted and
    bit cast only. tf32 is an f32 whose low 13 bits the tensor cores ignore; they are kept wherever it is moved.
    """

    name: str
    kind: Kind
    bits: int
    is_integer: bool = field(init=False)
    """Signed, unsigned or index; bool is not an integer. Asked of each value: no property, which takes longer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_integer", self.kind in ("int", "uint", "index"))

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_matrix(self) -> bool:
        """A format of matrix operands: no arithmetic, comparison or atomics."""
        return self.kind == "matrix"

    @property
    def python(self) -> type[float] | type[int] | type[bool]:
        """The Python type of its constants; ``dtype.python(0)`` is its zero."""
        return float if self.is_float or self.is_matrix else bool if self.kind == "bool" else int

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer; an index has 64 bits."""
        if self.kind in ("bool", "uint"):
            return 0, 1 if self.kind == "bool" else (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "index", "float")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> str:
        return self.name.upper()  # its name in this module: a copy would be another dtype, since `==` is identity


F64 = DType("f64", "float", 64)
F32 = DType("f32", "float", 32)
F16 = DType("f16", "float", 16)
BF16 = DType("bf16", "float", 16)
TF32 = DType("tf32", "matrix", 32)
E4M3 = DType("e4m3", "matrix", 8)
E5M2 = DType("e5m2", "matrix", 8)
I8, I16, I32, I64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
BOOL = DType("bool", "bool", 8)
INDEX = DType("index", "index", 64)

DTYPES: dict[str, DType] = {
    t.name: t for t in (F64, F32, F16, BF16, TF32, E4M3, E5M2, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, INDEX)
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
    `whole`: it divides the extent along the unit axis, too, so that no vector crosses the edge.
    """

    dtype: DType
    dims: tuple[int | str, ...]
    unit: int
    align: int
    whole: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        whole = ", whole" if self.whole else ""
        return f"global<{self.dtype}, {_dims(self.dims)}, unit={self.unit}, align={self.align}{whole}>"


@dataclass(frozen=True, slots=True)
class TileType:
    """A tile in a memory of the block: row-major, extents in elements. Each such memory has a class of its own."""

    dtype: DType
    dims: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def unit(self) -> int:
        """The axis of stride 1."""
        return len(self.dims) - 1

    @property
    def bytes(self) -> int:
        return prod(self.dims) * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class SharedType(TileType):
    """A tile in shared memory."""

    def __str__(self) -> str:
        return f"shared<{self.dtype}, {_dims(self.dims)}>"


@dataclass(frozen=True)
class FragmentType:
    """A register tile: an immutable SSA value.

    Without a layout it is private to each thread, prod(dims) scalars. With one, the threads of the block hold `dims`
    elements together (`layout.fragments`), and each holds `size` of them, in the layout's order.
    """

    dtype: DType
    dims: tuple[int, ...]
    layout: FragmentLayout | None = None

    @property
    def held_as(self) -> FragmentLayout:
        """The layout, of a fragment that must have one."""
        assert self.layout is not None, f"{self} has no layout"
        return self.layout

    @cached_property
    def size(self) -> int:
        """Elements that one thread holds."""
        return prod(self.dims) if self.layout is None else self.layout.size(self.dims)

    @cached_property
    def local(self) -> tuple[int, ...]:
        """Extents of what one thread holds, which `tile.extract` and the like index."""
        return self.dims if self.layout is None else (self.size,)

    @cached_property
    def per_register(self) -> int:
        """Elements in one thread-level value: with a layout, narrow ones share the u32 that instructions take, where a
        lane holds whole words of them. Booleans, which no instruction takes, never do."""
        if self.layout is None or self.dtype == BOOL:
            return 1
        count = max(1, 32 // self.dtype.bits)
        return count if self.layout.tile_size % count == 0 else 1

    @cached_property
    def registers(self) -> tuple[DType, ...]:
        """Types of the thread-level values that hold it (an index stands for i32 or i64)."""
        shared = self.per_register
        return (self.dtype if shared == 1 else U32,) * (self.size // shared)

    def __str__(self) -> str:
        layout = "" if self.layout is None else f", {self.layout}"
        return f"fragment<{self.dtype}, {_dims(self.dims)}{layout}>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """Asynchronous copies in flight (tile level only): made by ``copy_async``, taken by a wait."""

    def __str__(self) -> str:
        return "token"


@dataclass(frozen=True, slots=True)
class PendingType:
    """An accumulator of a warpgroup that products are still being added to (tile level only): see `ops.wgmma`."""

    fragment: FragmentType

    def __str__(self) -> str:
        return f"pending<{self.fragment}>"


@dataclass(frozen=True, slots=True)
class PtrType:
    """An address of a `dtype` element in one memory space (thread level only)."""

    space: Space
    dtype: DType

    def __str__(self) -> str:
        return f"ptr<{self.space}, {self.dtype}>"


@dataclass(frozen=True, slots=True)
class RingType:
    """A ring of `stages` stages (tile level only): see `ops.rings`."""

    stages: int

    def __str__(self) -> str:
        return f"ring<{self.stages}>"


@dataclass(frozen=True, slots=True)
class CursorType:
    """Where one role is in a ring (tile level only): its slot there, that slot's phase, and how many slots before it
    the role has used and not released."""

    def __str__(self) -> str:
        return "cursor"


CURSOR = CursorType()

KINDS: dict[type, str] = {
    DType: "a scalar",
    GlobalType: "in global memory",
    SharedType: "in shared memory",
    FragmentType: "a fragment",
    PtrType: "a pointer",
    TokenType: "a token",
    PendingType: "a pending accumulator",
    RingType: "a ring",
}
"""What a value of such a type is, for errors."""

Type = DType | GlobalType | TileType | FragmentType | PtrType | TokenType | PendingType | RingType | CursorType
MemoryType = GlobalType | SharedType
"""What tile-level loads and stores accept."""


MOST_SLOTS = 32
"""Of a ring."""
MOST_RANK = 5
"""Axes of a tensor or tile. (CUDA driver API: cuTensorMapEncodeTiled.)"""
MOST_EXTENT = 2**31 - 1
"""Of an axis that is known at compile time; also bytes of a shared tile, before a target's limit is known."""
MOST_HELD = 2**16
"""Elements of a fragment that one thread holds: more than there are registers, by far."""
ALIGNMENTS = (1, 2, 4, 8, 16)


def problem(type_: Type) -> str:
    """What is wrong with a type by itself; "" for one that a kernel may have. All passes may rely on it."""
    return next((message for holds, message in _conditions(type_) if not holds), "")


def _conditions(type_: Type) -> Iterator[tuple[bool, str]]:
    """What must hold for a type, each with the message where it does not."""
    if isinstance(type_, PtrType | GlobalType | TileType):
        yield type_.dtype is not INDEX, f"{type_}: an index has no size in memory"
    if isinstance(type_, GlobalType | TileType | FragmentType):
        dims, least = type_.dims, 0 if isinstance(type_, GlobalType) else 1
        yield 1 <= len(dims) <= MOST_RANK, f"{type_} has {len(dims)} axes; 1 to {MOST_RANK} are possible"
        in_range = all(isinstance(d, str) or least <= d <= MOST_EXTENT for d in dims)
        yield in_range, f"{type_} has an extent that is not from {least} to {MOST_EXTENT}"
    match type_:
        case GlobalType(dtype, _, unit, align):
            yield -1 <= unit < type_.rank, f"{type_} has no axis {unit}"
            possible = align in ALIGNMENTS and align >= dtype.bytes
            yield possible, f"{type_}: elements of {dtype.bytes} bytes at multiples of {align}"
        case TileType():
            yield type_.bytes <= MOST_EXTENT, f"{type_} has more than {MOST_EXTENT} bytes"
        case FragmentType(dtype, dims, layout):
            if layout is not None:
                bad = layout.problem(dims, dtype.bits)
                yield bad is None, "" if bad is None else bad.message
            yield type_.size <= MOST_HELD, f"{type_} has more than {MOST_HELD} elements a thread"
        case RingType(stages):
            yield 1 <= stages <= MOST_SLOTS, f"{type_} has not 1 to {MOST_SLOTS} stages"
        case PendingType(fragment):
            yield from _conditions(fragment)
            layout = fragment.layout
            warpgroups = layout is not None and layout.operand == "acc" and layout.interleaved > 1
            yield warpgroups, f"{type_} is no accumulator of warpgroups"
        case _:
            pass

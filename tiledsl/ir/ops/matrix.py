"""Matrix operands: fragments that the warps of a block hold together, and the products of them.

`matrix.load`, `matrix.store` and `matrix.mma` are what a kernel's author writes; `distribute` gives the first two their
accesses (`matrix.ldmatrix`, `matrix.stmatrix`, or plain loads and stores), `expand` makes the last one `ptx.mma_sync`.
"""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.core import Op, Pure, Value, attribute, operand, operands
from tiledsl.ir.facts import NOTHING, by, reads, writes
from tiledsl.ir.ops.tile import VECTOR_BYTES, Access, Follows, Side
from tiledsl.ir.types import INDEX, U32, FragmentType, MemoryType, SharedType, Type
from tiledsl.layout.fragments import ROWS, WORD_BITS, converted
from tiledsl.layout.mma import MmaRow, find_row

MATRIX_ROWS = ROWS
"""Of each matrix that ldmatrix and stmatrix move; as many lanes give the addresses of its rows."""

MATRIX_BYTES = 16
"""Of each of these rows. (PTX ISA: ldmatrix.)"""


def _distributed(op: Op, type_: Type) -> FragmentType:
    fragment = op.expect(type_, FragmentType)
    op.require(fragment.layout is not None, f"{fragment} has no layout among threads")
    return fragment


HELD = "what a lane holds of a matrix"


class _Moves(Op):
    """`held`: the fragment that the threads which move it hold together. vec: bytes of one access of a lane; 0 stands
    for ldmatrix or stmatrix, which access shared memory."""

    sync, stays, features = NOTHING, "", ()
    scope, alike = "warp", ("memory", "origin")
    level = "tile"
    memory: operand
    origin: operands
    axes = attribute[tuple[int, ...]](tuple)
    vec = attribute(int, 0)

    @property
    def held(self) -> FragmentType:
        raise NotImplementedError

    @property
    def side(self) -> Side:
        return Side(self.memory, tuple(self.origin), self.axes)

    @property
    def transposed(self) -> bool:
        """Do rows of memory run across the words of a lane, so that a matrix instruction transposes?"""
        return self.side.unit != self.held.held_as.inner

    def verify(self) -> None:
        self.require(isinstance(self.memory.type, MemoryType), f"cannot access {self.memory.type}")
        type_, side, vec = _distributed(self, self.held), self.side, self.vec
        side.check(self, 2, type_.dtype)
        bits, size = type_.dtype.bits, type_.dtype.bytes
        self.require(vec in (0, size) or (vec in VECTOR_BYTES and vec % size == 0), f"accesses of {vec} bytes")
        if vec == 0:
            self.require(isinstance(side.type, SharedType), "matrix instructions read and write shared memory only")
            words = bits <= WORD_BITS and (bits == 16 or type_.held_as.operand != "acc")
            straight = side.unit is not None and (bits == 16 or not self.transposed)
            self.require(words and straight, f"no matrices make {type_} along axes {self.axes} of {side.type}")


class Load(_Moves):
    """The fragment `type` from the elements of a tensor or tile that begin at an origin.

    Operands: the memory, then the origin, an index an axis. Rows and columns of the fragment run along `axes` of it.
    What is past the edge of a global tensor reads as zero.
    """

    name = "matrix.load"
    touches = (reads("memory", guarded=True),)
    varies, nan = "thread", "sees"
    cause = HELD
    called = by(lambda op: "load_matrix()" if op.vec == 0 else "load_fragment()")
    gives = ("type",)
    type = attribute(FragmentType)
    memory, origin = operand(0), operands(1)

    @property
    def held(self) -> FragmentType:
        return self.type


class Store(_Moves):
    """Writes a fragment to the elements of a tensor or tile that begin at an origin; no barrier is implied.

    Operands: the fragment, the memory, the origin, with `axes` as for `Load`. What is past the edge of a global tensor
    is not written.
    """

    name = "matrix.store"
    touches = (writes("memory", guarded=True),)
    called = by(lambda op: "store_matrix()" if op.vec == 0 else "store()")
    fragment, memory, origin = operand(0), operand(1), operands(2)

    @property
    def held(self) -> FragmentType:
        return self.expect(self.fragment.type, FragmentType)


class _Held(Pure):
    varies, nan = "thread", "sees"
    cause = HELD
    level = "tile"


class Mma(_Held):
    """``a b + acc`` on tensor cores, as a sequence of `ptx.mma_sync` along k in ascending order.

    The operands' layouts are those of one accumulator layout, and the table of products has their dtypes.
    """

    name = "matrix.mma"
    scope, alike = "warp", ()
    called = "mma()"
    gives = ("acc",)
    a, b, acc = operand(0), operand(1), operand(2)

    @property
    def row(self) -> MmaRow:
        """The kind of product."""
        a, b, acc = (_distributed(self, v.type) for v in self.operands)
        row = find_row(acc.held_as.shape, a.dtype.name, b.dtype.name, acc.dtype.name)
        return self.found(row, f"no product {acc.held_as.shape} of {a.dtype} and {b.dtype} into {acc.dtype}")

    def verify(self) -> None:
        a, b, acc = (_distributed(self, v.type) for v in self.operands)
        layout = acc.held_as
        self.require(layout.operand == "acc", f"accumulates in {layout}")
        self.require(a.layout == layout.a and b.layout == layout.b, f"{a.layout} x {b.layout} -> {layout}")
        shapes = (a.dims[0], b.dims[1]), a.dims[1]
        self.require(shapes == (acc.dims, b.dims[0]), f"{a.dims} x {b.dims} -> {acc.dims}")
        _ = self.row


class Coordinates(_Held):
    """Of every element of an accumulator, its row (axis 0) or column (axis 1) in the block tile: an index fragment."""

    name = "matrix.coordinates"
    cause = "the coordinates of an element"
    gives = ("type",)
    type = attribute(FragmentType)
    axis = attribute(int, most=1)

    def verify(self) -> None:
        type_ = _distributed(self, self.type)
        fits = type_.dtype == INDEX and type_.held_as.operand == "acc"
        self.require(fits, "gives indices in an accumulator's layout")


class Convert(Follows):
    """The same elements in the layout of `type`, where every thread already holds the elements that it needs."""

    name = "matrix.convert"
    gives = ("type",)
    type = attribute(FragmentType)
    fragment = operand(0)

    def verify(self) -> None:
        src, dst = _distributed(self, self.fragment.type), _distributed(self, self.type)
        self.require((src.dtype, src.dims) == (dst.dtype, dst.dims), f"{src} and {dst} differ in more than the layout")
        self.require(self.sources is not None, f"threads lack elements of {dst} when they hold {src}")

    @property
    def sources(self) -> tuple[int, ...] | None:
        """For each element of the result that a thread holds, which of the fragment's it is."""
        src, dst = self.fragment.fragment, self.type
        return converted(src.held_as, dst.held_as, dst.dims, dst.dtype.bits)


class Slice(Follows):
    """Some columns of an accumulator, as one of fewer columns in the same layout: each thread keeps what it holds.

    columns: (first, count), both multiples of the columns of one instruction.
    """

    name = "matrix.slice"
    columns = attribute[tuple[int, ...]](tuple)
    fragment = operand(0)

    def infer(self) -> Sequence[Type]:
        type_ = _distributed(self, self.operands[0].type)
        self.require(len(self.columns) == 2, "takes the first column and how many")
        return (FragmentType(type_.dtype, (type_.dims[0], self.columns[1]), type_.layout),)

    def verify(self) -> None:
        type_ = _distributed(self, self.fragment.type)
        layout, (first, count) = type_.held_as, self.columns
        self.require(layout.operand == "acc" and layout.warps[1] == 1, f"takes columns out of {layout}")
        width = layout.tile[1]
        whole = first % width == 0 and count % width == 0
        self.require(whole and count > 0 and 0 <= first <= type_.dims[1] - count, f"columns {self.columns} of {type_}")

    @property
    def kept(self) -> list[int]:
        """Which of the fragment's elements a thread keeps, in order: of each row of instructions, those of some."""
        type_ = self.fragment.fragment
        (rows, columns), size = type_.held_as.tiles(type_.dims), type_.held_as.tile_size
        first, count = (n // type_.held_as.tile[1] * size for n in self.columns)
        return [row * columns * size + first + e for row in range(rows) for e in range(count)]


class FromWords(Follows):
    """A fragment from the u32 registers that hold it, each the next elements of a thread, the first one lowest."""

    name = "matrix.from_words"
    gives = ("type",)
    type = attribute(FragmentType)
    words = operands(0)

    def verify(self) -> None:
        count = _words(self, self.type)
        self.require([v.type for v in self.words] == [U32] * count, f"takes {count} u32")


class ToWords(Follows):
    """The u32 registers that hold a fragment, as many results: the inverse of `FromWords`."""

    name = "matrix.to_words"
    fragment = operand(0)

    def infer(self) -> Sequence[Type]:
        return (U32,) * _words(self, self.fragment.type)


def _words(op: Op, type_: Type) -> int:
    """How many u32 of each thread hold a fragment of this type."""
    fragment = _distributed(op, type_)
    op.require(fragment.dtype.bits <= 32, f"{fragment.dtype} elements are wider than a register")
    return fragment.size * fragment.dtype.bits // 32


class Matrices(Op):
    """`num` matrices of 8 rows x 16 bytes, at either level. `trans`: of 16-bit elements, the transposed matrix is
    distributed."""

    scope, alike = "whole warp", ()
    num = attribute(int, 4, among=(1, 2, 4))
    trans = attribute(bool, False)


class _IndexedMatrices(Matrices, Access):
    """Lane i gives the indices of row i % 8 of matrix i // 8; those of the lanes from 8 * num on do not matter."""

    def verify(self) -> None:
        type_ = self.expect(self.memory.type, SharedType)
        self.require(self.vec * type_.dtype.bytes == MATRIX_BYTES, f"rows of {self.vec * type_.dtype.bytes} bytes")
        self.require(not self.trans or type_.dtype.bytes == 2, f"transposes 16-bit elements, not {type_.dtype}")
        self.require_indices(self.indices, type_.rank)

    @property
    def words(self) -> list[Value]:
        """What follows the indices."""
        return self.operands[1 + self.memory_type.rank :]


class LdMatrix(_IndexedMatrices):
    """``ldmatrix``: `num` u32 a lane. Of matrix j lane 4g + t gets the t-th 32 bits of row g. (PTX ISA: ldmatrix.)"""

    name = "matrix.ldmatrix"
    touches = (reads("memory", matrix=True),)
    varies, cause = "thread", HELD
    called = "ptx.ldmatrix()"
    parts = ("memory", "indices")

    def infer(self) -> Sequence[Type]:
        return (U32,) * self.num

    def verify(self) -> None:
        super().verify()
        self.require(not self.words, "takes nothing but indices")


class StMatrix(_IndexedMatrices):
    """``stmatrix``: writes `num` u32 of each lane, the last operands, to where `LdMatrix` reads them. (PTX ISA:
    stmatrix.)"""

    name = "matrix.stmatrix"
    touches = (writes("memory", matrix=True),)
    called = "ptx.stmatrix()"
    parts = ("memory", "indices", "words")

    def verify(self) -> None:
        super().verify()
        self.require([v.type for v in self.words] == [U32] * self.num, f"takes {self.num} u32")

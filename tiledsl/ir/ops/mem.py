"""Thread level memory: explicit addresses. Only `expand` creates these. (PTX ISA: ld, st, atom.)"""

from __future__ import annotations

from typing import Any, Sequence

from tiledsl.arch import WARP
from tiledsl.ir.core import OPS, Kernel, Op, Pure, Value, attribute, operand, operands
from tiledsl.ir.facts import NOTHING, reads, writes
from tiledsl.ir.ops.async_copy import CP_BYTES, SENT_ELEMENTS
from tiledsl.ir.ops.matrix import HELD, Matrices
from tiledsl.ir.ops.tile import VECTOR_BYTES, AtomicOp, define_atomics
from tiledsl.ir.types import BOOL, I32, I64, U32, U64, DType, PtrType, Type


def pointer(op: Op, position: int = 0) -> PtrType:
    """The type of an address, the operand at this position."""
    return op.expect(op.operands[position].type, PtrType)


def check_shared(op: Op, place: Value) -> None:
    """Check that this is a pointer to shared memory."""
    type_ = op.expect(place.type, PtrType)
    op.require(type_.space == "shared", f"{type_} is not in shared memory")


class _Address(Pure):
    varies = "operands"
    nan = "sees"
    level = "thread"


class _Memory(Op):
    """Of one thread."""

    sync, stays, scope, features = NOTHING, "", "thread", ()
    nan = "sees"
    level = "thread"

    def check_values(self, values: Sequence[Value], count: int) -> None:
        self.require(len(values) == count, f"takes {count} values")
        self.require(all(v.type == pointer(self).dtype for v in values), "values differ in dtype")


class SharedBase(_Address):
    """The address `offset` bytes into the block's shared memory. `bytes`, `label`: extent and name
    of the tile there, for bounds checks and messages."""

    name = "mem.shared_base"
    dtype = attribute(DType)
    offset = attribute(int)
    bytes = attribute(int)
    label = attribute(str, "")

    def infer(self) -> Sequence[Type]:
        return (PtrType("shared", self.dtype),)

    def verify_in(self, kernel: Kernel) -> None:
        last, size = self.offset + self.bytes, kernel.shared_bytes
        self.require(last <= size, f"reaches byte {last} of {size} bytes of shared memory")
        self.require(self.offset % self.dtype.bytes == 0, f"byte {self.offset} is no multiple of {self.dtype.bytes}")


class Offset(_Address):
    """An address `index` elements (i32 or i64, signed) further."""

    name = "mem.offset"
    gives = ("base",)
    base, index = operand(0, PtrType), operand(1)

    def verify(self) -> None:
        self.require(self.index.type in (I32, I64), f"offset of type {self.index.type}")


class _Vector(_Memory):
    vec = attribute(int, 1, most=16)
    ptr = operand(0)

    def verify(self) -> None:
        size = self.vec * pointer(self).dtype.bytes
        self.require(self.vec == 1 or size in VECTOR_BYTES, f"a vector of {size} bytes")


class Load(_Vector):
    """`vec` neighbouring elements, as that many results, in one access aligned to its width."""

    name = "mem.load"
    touches = (reads("ptr"),)
    varies = "memory"
    called = "load()"

    def infer(self) -> Sequence[Type]:
        return (pointer(self).dtype,) * self.vec


class Store(_Vector):
    """Writes operands 1.. to neighbouring elements in one access aligned to its width."""

    name = "mem.store"
    touches = (writes("ptr"),)
    called = "store()"
    values = operands(1)

    def verify(self) -> None:
        super().verify()
        self.check_values(self.values, self.vec)


class Atomic(AtomicOp, _Memory):
    """Base of the ops that the table of atomics generates: ``mem.atomic_<row>``."""

    ptr, values = operand(0), operands(1)

    @property
    def dtype(self) -> DType:
        return pointer(self).dtype

    def verify(self) -> None:
        super().verify()
        self.check_values(self.values, self.fn.values)


define_atomics(Atomic, "mem", "ptr")


def atomic(fn: str, ptr: Value, *values: Value, **kwargs: Any) -> Op:
    """The op of a row of the table: ``atomic("max", address, v)``."""
    return OPS[f"mem.atomic_{fn}"](ptr, *values, **kwargs)


class _Matrices(Matrices, _Memory):
    ptr = operand(0)

    def verify(self) -> None:
        check_shared(self, self.ptr)


class LdMatrix(_Matrices):
    """`num` matrices of 8 rows x 16 bytes, as `num` u32: see `matrix.ldmatrix`. `ptr`: this lane's row."""

    name = "mem.ldmatrix"
    touches = (reads("ptr", matrix=True),)
    varies, cause = "thread", HELD
    called = "ldmatrix"

    def infer(self) -> Sequence[Type]:
        return (U32,) * self.num


class StMatrix(_Matrices):
    """Writes `num` matrices: see `matrix.stmatrix`. Operands: the address of this lane's row, then `num` u32."""

    name = "mem.stmatrix"
    touches = (writes("ptr", matrix=True),)
    features = ("stmatrix",)
    called = "stmatrix"
    words = operands(1)

    def verify(self) -> None:
        super().verify()
        self.require([v.type for v in self.words] == [U32] * self.num, f"takes {self.num} u32")


class CpAsync(_Memory):
    """Begins a copy of `bytes` from global memory, operand 1, to shared memory, operand 0.

    Two more operands may follow. An i32: how many of the bytes to read; the others arrive as zeros (PTX ISA: cp.async,
    src-size). A bool, the instruction's predicate: where it is false, nothing is copied.
    """

    name = "mem.cp_async"
    touches = (reads("src"), writes("dst", done="cp_async"))
    called = "ptx.cp_async()"
    bytes = attribute(int, among=CP_BYTES)
    dst, src, more = operand(0), operand(1), operands(2)

    @property
    def src_bytes(self) -> Value | None:
        return next((v for v in self.more if v.type == I32), None)

    @property
    def condition(self) -> Value | None:
        return next((v for v in self.more if v.type == BOOL), None)

    def verify(self) -> None:
        given = [v.type for v in self.more]
        known = given in ([], [I32], [BOOL], [I32, BOOL])
        self.require(known, "takes two addresses, how many bytes to read (an i32) and a condition (a bool)")
        for place, space in ((self.dst, "shared"), (self.src, "global")):
            type_ = self.expect(place.type, PtrType)
            self.require(type_.space == space, f"{type_} is not in {space} memory")
            self.require(self.bytes % type_.dtype.bytes == 0, "copies a part of an element")


class Send(_Vector):
    """Writes values to shared memory of the block of a rank in the cluster, at the place that the pointer names in each
    block; they count at that block's mbarrier. Operands: the pointer, that of the mbarrier, the rank (an i32), the
    values. (PTX ISA: st.async.)"""

    name = "mem.send"
    touches = (writes("ptr", done="mbarrier"), writes("mbarrier", atomic="cluster"))
    features = ("cluster",)
    called = "ptx.st_async()"
    mbarrier, rank, values = operand(1, PtrType("shared", U64)), operand(2, I32), operands(3)

    def verify(self) -> None:
        super().verify()
        check_shared(self, self.ptr)
        self.check_values(self.values, self.vec)
        size = pointer(self).dtype.bytes
        possible = size in SENT_ELEMENTS and self.vec * size in CP_BYTES
        self.require(possible, f"stores {self.vec} elements of {size} bytes")


class Within(_Memory):
    """The access that follows stays inside its memory: an error on the emulator where it does not, nothing on a GPU.

    Operands: its indices, one an axis, then those extents that are known at run time. extents: all of them, -1 for
    those. counts: how many elements are accessed from each index on. axes: which are to be checked, the others being
    proven. lanes: how many of a warp's, from the first on, have indices. label, access: what to call memory and access.
    """

    name = "mem.within"
    touches = ()
    stays = "guard"  # in front of its access, under the same conditions
    called = "a check of bounds"
    numbers = operands(0)
    extents = attribute[tuple[int, ...]](tuple, most=2**63 - 1)
    counts = attribute[tuple[int, ...]](tuple)
    axes = attribute[tuple[int, ...]](tuple)
    lanes = attribute(int, WARP)
    label = attribute(str, "")
    access = attribute(str, "")

    @property
    def rank(self) -> int:
        return len(self.extents)

    def verify(self) -> None:
        self.require(len(self.counts) == self.rank, f"{len(self.counts)} counts of {self.rank} axes")
        self.require(all(n >= -1 for n in self.extents), f"extents {self.extents}")
        self.require(all(n >= 1 for n in self.counts) and 1 <= self.lanes <= WARP, "counts and lanes are positive")
        self.require(all(0 <= axis < self.rank for axis in self.axes), f"axes {self.axes} of {self.rank}")
        given = self.rank + self.extents.count(-1)
        self.require(len(self.operands) == given, f"takes {given} operands: indices, then extents that are -1")
        self.require(all(v.type in (I32, I64) for v in self.operands), "indices and extents are i32 or i64")

"""Tile level: tensors and shared tiles accessed by index, and per-thread fragments.

`expand` turns all of these into the `mem` family, the only place where addresses are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Iterator, Sequence

from tiledsl.errors import VerifyError
from tiledsl.ir.atomics import ACQUIRING, ATOMICS, RELEASING, SCOPE_FEATURES, AtomicFn
from tiledsl.ir.core import Op, Pure, Value, attribute, operand, operands
from tiledsl.ir.declare import MOST_STAGES
from tiledsl.ir.facts import NOTHING, Sync, by, reads, writes
from tiledsl.ir.facts import Access as Touch
from tiledsl.ir.types import (
    INDEX,
    DType,
    FragmentType,
    GlobalType,
    MemoryType,
    SharedType,
    Type,
)
from tiledsl.layout.shared import AUTO, ROW, Layout, parse_layout, row_major

VECTOR_BYTES = (2, 4, 8, 16)


class Follows(Pure):
    """Base of tile-level ops that move values: their results vary as the operands do."""

    varies, nan = "operands", "sees"
    level = "tile"


class Dim(Follows):
    """Extent of a global tensor along `axis`, an index."""

    name = "tile.dim"
    gives = (INDEX,)
    axis = attribute(int)
    tensor = operand(0)

    def verify(self) -> None:
        self.require(self.axis < self.expect(self.tensor.type, GlobalType).rank, f"no axis {self.axis}")


class Stride(Dim):
    """Distance in elements between neighbours of a global tensor along `axis`, an index."""

    name = "tile.stride"


class SharedAlloc(Op):
    """A tile in shared memory. Operands: earlier allocations whose bytes it may reuse (`over=`).

    Allocations without `over` are disjoint. The tile starts at a multiple of 16 bytes.

    layout: the text form of a `layout.shared.Layout`, or "auto": the pass `bank-conflict` chooses. At this level
    it means nothing; `expand` computes addresses by it, and takes an "auto" that is left for row order.
    stages: of a tile that a pipelined loop fills, the extent of axis 0, which is one tile each; 1 for any other.
    """

    name = "tile.shared_alloc"
    level = "tile"
    touches, sync, scope, features = (), NOTHING, "thread", ()
    stays = "identity"
    varies, nan = "operands", "sees"
    called = "shared()"
    gives = ("type",)
    over = operands(0)
    type = attribute(SharedType)
    layout = attribute(str, AUTO)
    stages = attribute(int, 1, most=MOST_STAGES)

    @property
    def placement(self) -> Layout:
        """The layout; row order where none is chosen."""
        return ROW if self.layout == AUTO else parse_layout(self.layout, self.type.dtype.bytes)

    def verify(self) -> None:
        self.require(all(isinstance(v.type, SharedType) for v in self.over), "over= takes shared tiles")
        self.require(self.stages in (1, *self.type.dims[:1]), f"{self.stages} stages are not axis 0 of {self.type}")
        try:
            _ = self.placement
        except ValueError as error:
            self.require(False, str(error))


def allocation(memory: Value) -> SharedAlloc:
    """What allocates a shared tile."""
    assert isinstance(memory.op, SharedAlloc), f"{memory} is no shared tile"
    return memory.op


class Access(Op):
    """Base of loads and stores. Operands: the memory, its indices, then what the subclass adds.

    `vec` elements are accessed from the indices on, along the unit-stride axis (the last one of a
    shared tile): 1, or as many as make 2, 4, 8 or 16 bytes, which must be aligned.
    """

    sync, stays, scope, features = NOTHING, "", "thread", ()
    nan = "sees"
    level = "tile"
    variadic = True
    vec = attribute(int, 1)
    memory = operand(0)
    extra = 0
    """How many operands follow the indices."""

    @property
    def memory_type(self) -> MemoryType:
        assert isinstance(self.memory.type, MemoryType)
        return self.memory.type

    @property
    def indices(self) -> list[Value]:
        return self.operands[1 : 1 + self.memory_type.rank]

    @property
    def value_type(self) -> Type:
        """dtype of one element, or a fragment of `vec` of them."""
        dtype = self.memory_type.dtype
        return dtype if self.vec == 1 else FragmentType(dtype, (self.vec,))

    def verify(self) -> None:
        self.require(isinstance(self.memory.type, MemoryType), f"cannot access {self.memory.type}")
        rank = self.memory_type.rank
        self.require(len(self.operands) == 1 + rank + self.extra, f"takes {rank} indices")
        self.require_indices(self.indices, rank)
        if self.vec != 1:
            size = self.vec * self.memory_type.dtype.bytes
            self.require(size in VECTOR_BYTES, f"a vector of {size} bytes; 2, 4, 8 or 16 are possible")
        for value in self.operands[1 + rank :]:
            self.require(value.type == self.value_type, f"{value.type} where {self.value_type} is accessed")


class Load(Access):
    """``A[i, j]``. Out of bounds is an error of the kernel (found on the emulator).

    gathered: one of the accesses of fragments of indices, whose neighbours in global memory it may be merged with. For
    other accesses to global memory, their width is what the author wrote.
    """

    name = "tile.load"
    touches = (reads("memory"),)
    varies = "memory"
    called = "load()"
    parts = ("memory", "indices")
    gives = ("value_type",)
    gathered = attribute(bool, False)


class Get(Access):
    """``A.get(i, j, other=x)``: like `Load`, but elements out of bounds are `other`'s, unread.

    whole: the extent is known to be a multiple of `vec`, so that no vector crosses the edge. gathered: as for
    `Load`.
    """

    name = "tile.get"
    touches = (reads("memory", guarded=True),)
    varies = "memory"
    called = "get()"
    parts = ("memory", "indices", "other")
    extra = 1
    gives = ("value_type",)
    whole = attribute(bool, False)
    gathered = attribute(bool, False)
    other = operand(-1)


class Store(Access):
    """``A[i, j] = v``. gathered: as for `Load`."""

    name = "tile.store"
    touches = (writes("memory"),)
    called = "store()"
    parts = ("memory", "indices", "value")
    extra = 1
    gathered = attribute(bool, False)
    value = operand(-1)


class Put(Store):
    """``A.put(i, j, v)``: like `Store`, but elements out of bounds are not written. whole: as for `Get`."""

    name = "tile.put"
    touches = (writes("memory", guarded=True),)
    called = "put()"
    whole = attribute(bool, False)


class AtomicOp(Op):
    """Base of atomic ops at either level: an element is accessed in one indivisible step; the result is the old one.

    Nothing may move, merge, remove or repeat it, whatever its order. order, reach: what else it orders, and among whom
    (`ir.atomics`).
    """

    fn: ClassVar[AtomicFn]
    sync = by(lambda op: _atomic_sync(op))
    features = by(lambda op: SCOPE_FEATURES[op.reach])
    called = by(lambda op: f"atomic_{op.fn.name}()")
    order = attribute(str, "relaxed")
    reach = attribute(str, "gpu")

    @property
    def dtype(self) -> DType:
        """Of the element."""
        raise NotImplementedError

    def accesses(self) -> list[Touch]:
        return [access._replace(atomic=self.reach) for access in super().accesses()]

    def infer(self) -> Sequence[Type]:
        return (self.dtype,) if self.fn.reads else ()

    def verify(self) -> None:
        super().verify()
        problem = self.fn.problem(self.dtype, self.order, self.reach)
        self.require(problem is None, problem or "")


class Atomic(AtomicOp, Access):
    """``A.atomic_max(i, j, v)``: base of the ops that the table of atomics generates, ``tile.atomic_<row>``."""

    parts = ("memory", "indices", "values")
    vec = attribute(int, 1, among=(1,))

    @property
    def dtype(self) -> DType:
        return self.memory_type.dtype

    @property
    def values(self) -> list[Value]:
        return self.operands[1 + self.memory_type.rank :]


def _atomic_sync(op: Any) -> Sync:
    """A volatile load is one of acquire order, and a volatile store one of release order, for all that passes do."""
    volatile = op.order == "volatile"
    releases = op.order in RELEASING or (volatile and op.fn.writes)
    acquires = op.order in ACQUIRING or (volatile and op.fn.reads)
    return Sync(releases=op.reach if releases else "", acquires=op.reach if acquires else "")


def define_atomics(base: type[AtomicOp], family: str, part: str) -> None:
    """An op class for each row of the table. part: its memory. The old value may be another one for each thread."""
    for fn in ATOMICS.values():
        touches = [reads(part, atomic="gpu")] * fn.reads + [writes(part, atomic="gpu")] * fn.writes
        cause = "what an atomic load reads" if fn.name == "load" else f"the old value that an atomic {fn.name} returns"
        facts = {"touches": tuple(touches), "varies": "thread", "cause": cause, "extra": fn.values, "fn": fn}
        nan = "absorbs" if fn.name == "add" else "sees"
        type(f"Atomic_{fn.name}", (base,), {"name": f"{family}.atomic_{fn.name}", "nan": nan, **facts})


define_atomics(Atomic, "tile", "memory")


# -- whole-block copies ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a copy: the elements of `memory` from `origin` on, where `axes[i]` is the axis of
    `memory` along which axis i of the copied shape runs."""

    memory: Value
    origin: tuple[Value, ...]
    axes: tuple[int, ...]

    def __iter__(self) -> Iterator[Value]:
        """As operands: the memory and the origin."""
        yield from (self.memory, *self.origin)

    @property
    def type(self) -> MemoryType:
        assert isinstance(self.memory.type, MemoryType)
        return self.memory.type

    @property
    def unit(self) -> int | None:
        """The axis of the copied shape along which neighbours are contiguous in memory, if there is one."""
        axis = self.type.unit
        return self.axes.index(axis) if axis in self.axes else None

    def check(self, op: Op, count: int, dtype: DType, of: str = "") -> None:
        """Check the indices, that `count` different axes are named, and the dtype; `of` says of what, for errors."""
        type_, axes = self.type, self.axes
        op.require_indices(self.origin, type_.rank, of)
        named = len(axes) == count == len(set(axes)) and set(axes) <= set(range(type_.rank))
        op.require(named, f"axes {axes}{of} are not {count} of {type_.rank}")
        op.require(type_.dtype == dtype, f"{type_} has no {dtype} elements")


class Copy(Op):
    """``copy(src, dst)`` by all threads of the block: `shape` elements; no barrier is implied.

    Operands: the source, its origin (an index an axis), the destination, its origin. Axis i of `shape` runs
    along axis `src_axes[i]` of the source and `dst_axes[i]` of the destination; the other axes stay at
    their origin. What is past the edge of a global tensor reads as zero and is not written. `vec`: bytes
    of one access, on the sides whose unit-stride axis is that of the vectors (see `passes.thread_map`).
    """

    name = "tile.copy"
    level = "tile"
    touches = (reads("src", guarded=True), writes("dst", guarded=True))
    sync, stays, features = NOTHING, "", ()
    scope, alike = "cta", ("src", "dst")
    called = "copy()"
    variadic = True
    parts = ("src", "dst")
    shape = attribute[tuple[int, ...]](tuple)
    src_axes = attribute[tuple[int, ...]](tuple)
    dst_axes = attribute[tuple[int, ...]](tuple)
    vec = attribute(int, 16)

    @property
    def src(self) -> Side:
        return Side(self.operands[0], tuple(self.operands[1 : self._split]), self.src_axes)

    @property
    def dst(self) -> Side:
        return Side(self.operands[self._split], tuple(self.operands[self._split + 1 :]), self.dst_axes)

    @property
    def _split(self) -> int:
        """Position of the destination among the operands."""
        type_ = self.operands[0].type
        if not isinstance(type_, (GlobalType, SharedType)):
            raise VerifyError(f"{self.name}: cannot copy {type_}", self.loc)
        self.require(len(self.operands) > 1 + type_.rank, f"takes {type_.rank} indices of the source")
        return 1 + type_.rank

    @property
    def dtype(self) -> DType:
        return self.src.type.dtype

    def verify(self) -> None:
        self.require(len(self.operands) > 0 and len(self.shape) > 0, "has no operands or no shape")
        self.require(all(type(n) is int and n > 0 for n in self.shape), "extents are positive")
        self.require(isinstance(self.operands[self._split].type, MemoryType), "the destination is no memory")
        for what, side in (("source", self.src), ("destination", self.dst)):
            side.check(self, len(self.shape), self.dtype, f" of the {what}")
            for axis, size in zip(side.axes, self.shape, strict=True):
                extent = side.type.dims[axis]
                self.require(not isinstance(extent, int) or size <= extent, f"{size} elements of {extent} ({what})")
        size = self.dtype.bytes
        wide = self.vec in VECTOR_BYTES and self.vec % size == 0
        self.require(wide or self.vec == size, f"accesses of {self.vec} bytes on elements of {size}")


# -- per-thread fragments --------------------------------------------------------------------------


class Pack(Follows):
    """A fragment from all elements that a thread holds, in order; or from one, in every place."""

    name = "tile.pack"
    gives = ("type",)
    type = attribute(FragmentType)
    elements = operands(0)

    def verify(self) -> None:
        self.require(len(self.elements) in (1, self.type.size), f"takes 1 or {self.type.size} elements")
        self.require(all(v.type == self.type.dtype for v in self.elements), "elements differ in dtype")


class _Element(Follows):
    """Base of ops on one element of a fragment. `at` is static: registers cannot be indexed at run time."""

    at = attribute[tuple[int, ...]](tuple)
    fragment = operand(0)

    @property
    def position(self) -> int:
        """The number of the element among those that a thread holds, which are in row-major order."""
        return sum(i * step for i, step in zip(self.at, row_major(self.fragment.fragment.local), strict=True))

    def verify(self) -> None:
        type_, at = self.expect(self.fragment.type, FragmentType), self.at
        self.require(len(at) == len(type_.local), f"takes {len(type_.local)} indices")
        self.require(all(0 <= i < n for i, n in zip(at, type_.local, strict=True)), f"{at} outside {type_}")


class Extract(_Element):
    """One element of a fragment."""

    name = "tile.extract"

    @property
    def packed(self) -> Value | None:
        """The value that is taken out of a fragment again, such as one of the coordinates of a matrix fragment."""
        pack = self.fragment.op
        if not isinstance(pack, Pack):
            return None
        return pack.operands[self.position if len(pack.operands) > 1 else 0]

    def infer(self) -> Sequence[Type]:
        type_ = self.operands[0].type
        return (type_.dtype if isinstance(type_, FragmentType) else type_,)


class Insert(_Element):
    """The fragment with one element replaced."""

    name = "tile.insert"
    gives = ("fragment",)
    element = operand(1)

    def verify(self) -> None:
        super().verify()
        self.require(self.element.type == self.fragment.fragment.dtype, "dtype differs")

"""Tensor memory access: boxes of a tensor to and from shared memory by tensor maps. (PTX ISA: cp.async.bulk.tensor.)

A box is as many elements along each axis of the tensor. It is a tile's last axes, its first elements along all others;
`TensorMap` says how the tensor is described to the hardware. The box of a tile op may be wider than what one
instruction moves (`layout.shared.Paneled`): `expand` splits it.
"""

from __future__ import annotations

from math import prod

from tiledsl.arch import TMA_ALIGNMENT, TMA_MOST_RANK
from tiledsl.ir.core import Kernel, Op, Value, attribute, operand
from tiledsl.ir.facts import NOTHING, Sync, by, reads, writes
from tiledsl.ir.ops.mem import check_shared
from tiledsl.ir.ops.tile import Side
from tiledsl.ir.types import I32, INDEX, U16, U64, GlobalType, PtrType, RingType, SharedType

HINTS = ("", "evict_first", "evict_last")
"""What a load tells the L2 cache; "" nothing."""


_LOAD_FEATURES = by(lambda op: ("tma", "multicast") if op.multicast else ("tma",))


class _Tma(Op):
    sync, stays, scope, features = NOTHING, "", "thread", ("tma",)


class _Box(_Tma):
    """Operands: the tile, its indices (where the box begins there), the tensor, its indices.

    box: extents along the tensor's axes, all but two of them 1. axes: which axis of the tensor runs along the tile's
    rows (its last but one axis) and which along its columns (its last one).
    """

    level = "tile"
    variadic = True
    box = attribute[tuple[int, ...]](tuple)
    axes = attribute[tuple[int, ...]](tuple)
    tile = operand(0)

    @property
    def place(self) -> list[Value]:
        return self.operands[1 : 1 + self.expect(self.tile.type, SharedType).rank]

    @property
    def tensor(self) -> Value:
        return self.operands[1 + len(self.place)]

    @property
    def origin(self) -> list[Value]:
        start = 2 + len(self.place)
        return self.operands[start : start + self.expect(self.tensor.type, GlobalType).rank]

    @property
    def more(self) -> list[Value]:
        return self.operands[2 + len(self.place) + len(self.origin) :]

    @property
    def rows(self) -> int:
        """Of the box, as it lies in the tile."""
        return self.box[self.axes[0]]

    @property
    def columns(self) -> int:
        return self.box[self.axes[1]]

    @property
    def bytes(self) -> int:
        """Of the whole box, elements past the tensor's edge included."""
        return prod(self.box) * self.expect(self.tile.type, SharedType).dtype.bytes

    def verify(self) -> None:
        tile, tensor = self.expect(self.tile.type, SharedType), self.expect(self.tensor.type, GlobalType)
        box, axes = self.box, self.axes
        Side(self.tensor, tuple(self.origin), axes).check(self, 2, tile.dtype, " of the tensor")
        self.require(len(box) == tensor.rank and all(n >= 1 for n in box), f"a box {box} of {tensor}")
        self.require(all(n == 1 for axis, n in enumerate(box) if axis not in axes), "a box of more than two axes")
        self.require_indices(self.place, tile.rank, " of the tile")
        fits = tile.rank >= 2 and self.rows <= tile.dims[-2] and self.columns <= tile.dims[-1]
        self.require(fits, f"a box {box} in {tile}")


class Load(_Box):
    """Begins to fill a box of a shared tile; its bytes count at the mbarrier that follows the tensor's indices (a tile
    of u64 and its indices, or a ring and the number of its slot). Elements past the tensor's edge arrive as zeros and
    count. One thread executes it.

    multicast: "m" or "n": the last operand, a u16, has a bit for each block of the cluster that gets the box, those
    along that axis, at the same place of its shared memory, and whose mbarrier at the same place counts it. hint: see
    HINTS. every, first: row i of the box is row first + every * (origin + i) of the tensor; with every > 1 the box
    begins at the last multiple of 16 bytes in memory at or before its first column.
    """

    name = "tma.load"
    touches = (
        reads("tensor", proxy="async", done="mbarrier", guarded=True),
        writes("tile", proxy="async", done="mbarrier", align=TMA_ALIGNMENT),
        writes("mbarrier", atomic="cluster"),
    )
    features = _LOAD_FEATURES
    called = "tma_load()"
    parts = ("tile", "place", "tensor", "origin", "mbarrier", "receivers")
    multicast = attribute(str, "", among=("", "m", "n"))
    hint = attribute(str, "", among=HINTS)
    every = attribute(int, 1)
    first = attribute(int, 0)

    @property
    def mbarrier(self) -> list[Value]:
        """The tile of mbarriers and its indices."""
        return self.more[: len(self.more) - bool(self.multicast)]

    @property
    def receivers(self) -> list[Value]:
        return self.more[len(self.more) - bool(self.multicast) :]

    def verify(self) -> None:
        super().verify()
        type_, *indices = (v.type for v in self.mbarrier)
        tile_ = type_ if isinstance(type_, SharedType) and type_.dtype == U64 else None
        self.require(tile_ is not None or isinstance(type_, RingType), f"{type_} has no mbarriers")
        rank = 1 if tile_ is None else tile_.rank
        self.require(indices == [INDEX] * rank, f"takes {rank} indices of the mbarriers")
        self.require(not self.multicast or self.operands[-1].type == U16, "the blocks are a u16")
        self.require(0 <= self.first < self.every, f"row {self.first} of every {self.every}")


class Store(_Box):
    """Begins to write a box of a shared tile to the tensor; elements past its edge are left out. It belongs to this
    thread's next bulk group. One thread executes it."""

    name = "tma.store"
    touches = (
        reads("tile", proxy="async", done="bulk", align=TMA_ALIGNMENT),
        writes("tensor", proxy="async", done="bulk", guarded=True),
    )
    called = "store_tma()"
    parts = ("tile", "place", "tensor", "origin")

    def verify(self) -> None:
        super().verify()
        self.require(not self.more, "takes a tile and a tensor, with their indices")


class Prefetch(_Tma):
    """The tensor maps of the operand, a tensor, are brought near. (PTX ISA: prefetch.tensormap.)"""

    name = "tma.prefetch"
    level = "tile"
    touches = ()
    stays = "pinned"
    called = "tma_prefetch()"
    tensor = operand(0, GlobalType)


class BulkCommit(_Tma):
    """The stores that this thread has begun since its last bulk group are a group.

    (PTX ISA: cp.async.bulk.commit_group.)
    """

    name = "tma.commit_group"
    touches = ()
    sync = Sync(commits="bulk")
    called = "tma_commit()"


class BulkWait(_Tma):
    """Waits until at most `pending` of this thread's bulk groups are unfinished. read: until they have read their
    source, which may then be written again. (PTX ISA: cp.async.bulk.wait_group.)"""

    name = "tma.wait_group"
    touches = ()
    sync = Sync(completes="bulk")
    called = "tma_wait()"
    pending = attribute(int)
    read = attribute(bool, False)


# -- thread level ----------------------------------------------------------------------------------


class _Mapped(_Tma):
    """`map`: number of the tensor map in `Kernel.tensor_maps`. Coordinates are i32, the fastest axis first."""

    level = "thread"
    map = attribute(int)

    @property
    def coordinates(self) -> list[Value]:
        return []

    def verify(self) -> None:
        if self.operands:
            check_shared(self, self.operands[0])
            self.require(1 <= len(self.coordinates) <= TMA_MOST_RANK, f"{len(self.coordinates)} coordinates")
        self.require(all(v.type == I32 for v in self.coordinates), "coordinates are i32")

    def verify_in(self, kernel: Kernel) -> None:
        count = len(kernel.tensor_maps)
        self.require(self.map < count, f"names tensor map {self.map} of {count}")
        given, map_ = len(self.coordinates), kernel.tensor_maps[self.map]
        self.require(given in (0, len(map_.axes)), f"has {given} coordinates in {map_}")


class MapLoad(_Mapped):
    """One box by one instruction. Operands: destination and mbarrier (shared pointers), the coordinates, then the u16
    of `multicast`. (PTX ISA: cp.async.bulk.tensor.)"""

    name = "mem.tma_load"
    touches = (
        reads("map", proxy="async", done="mbarrier", guarded=True),
        writes("dst", proxy="async", done="mbarrier", align=TMA_ALIGNMENT),
        writes("mbarrier", atomic="cluster"),
    )
    features = _LOAD_FEATURES
    called = "tma_load()"
    variadic = True
    parts = ("dst", "mbarrier", "coordinates", "receivers")
    multicast = attribute(bool, False)
    hint = attribute(str, "", among=HINTS)
    dst, mbarrier = operand(0), operand(1, PtrType("shared", U64))

    @property
    def coordinates(self) -> list[Value]:
        return self.operands[2 : len(self.operands) - self.multicast]

    @property
    def receivers(self) -> list[Value]:
        return self.operands[len(self.operands) - self.multicast :]

    def verify(self) -> None:
        super().verify()
        self.require(not self.multicast or self.operands[-1].type == U16, "the blocks are a u16")


class MapStore(_Mapped):
    """One box by one instruction. Operands: the source (a shared pointer), the coordinates."""

    name = "mem.tma_store"
    touches = (
        reads("src", proxy="async", done="bulk", align=TMA_ALIGNMENT),
        writes("map", proxy="async", done="bulk", guarded=True),
    )
    called = "store_tma()"
    variadic = True
    parts = ("src", "coordinates")
    src = operand(0)

    @property
    def coordinates(self) -> list[Value]:
        return self.operands[1:]


class MapPrefetch(_Mapped):
    """``prefetch.tensormap``."""

    name = "mem.tma_prefetch"
    touches = ()
    stays = "pinned"
    called = "tma_prefetch()"

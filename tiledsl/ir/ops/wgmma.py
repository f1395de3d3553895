"""Products of a warpgroup, from shared memory and without waiting. (PTX ISA: wgmma.mma_async.)

An accumulator of products in flight has a `PendingType`: nothing but further products and a wait takes it, so that no
value is read too early. At thread level accumulators are plain registers, and the order of ops alone says when they may
be read.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from tiledsl.arch import WARPGROUP, WARPGROUP_WARPS
from tiledsl.ir.core import Op, Pure, Value, attribute, operand, operands
from tiledsl.ir.facts import NOTHING, Access, Sync, by, reads
from tiledsl.ir.ops.matrix import HELD
from tiledsl.ir.ops.mem import check_shared
from tiledsl.ir.types import BOOL, DTYPES, I64, U32, DType, FragmentType, PendingType, SharedType, Type
from tiledsl.layout.shared import SPANS
from tiledsl.layout.wgmma import WgmmaRow, find_wgmma


class _Registers(Pure):
    varies, nan = "thread", "sees"
    cause = HELD


class _Group(Op):
    """Of a whole warpgroup. Results, if there are any, are registers of the accumulator."""

    stays, features = "", ("wgmma",)
    scope, alike = "warpgroup", ()
    varies, nan, cause = "thread", "sees", HELD


class Begin(_Registers):
    """A pending accumulator of any content: the first product into it does not accumulate."""

    name = "wgmma.begin"
    features = ("wgmma",)
    level = "tile"
    gives = ("type",)
    type = attribute(PendingType)


class Fence(_Group):
    """Registers written before it may be used by later products. (PTX ISA: wgmma.fence.)"""

    name = "wgmma.fence"
    touches = ()
    sync = Sync(orders="registers")
    called = "ptx.wgmma_fence()"


class Commit(_Group):
    """The products that this warpgroup has begun since its last group are a group. (PTX ISA: wgmma.commit_group.)"""

    name = "wgmma.commit_group"
    touches = ()
    sync = Sync(commits="wgmma")
    called = "ptx.wgmma_commit()"


class SharedOperand(NamedTuple):
    """An operand of a product in shared memory. axes: of the tile, along which m or n runs, then along which k does;
    extent: along m or n."""

    tile: Value
    origin: list[Value]
    axes: tuple[int, ...]
    extent: int

    @property
    def type(self) -> SharedType:
        type_ = self.tile.type
        assert isinstance(type_, SharedType)
        return type_

    @property
    def k_major(self) -> bool:
        """Does k run along the rows of the tile?"""
        return self.axes[1] == len(self.origin) - 1


class Mma(_Group):
    """Begins ``a b + acc``, or ``a b`` where `accumulate`, a bool that is the same in the warpgroup, is false.

    Operands: acc (pending), accumulate, then a: a shared tile and the indices where its part begins, or a fragment in
    the layout ``acc.a``; then b: a shared tile and its indices. a_axes, b_axes: which axes of the tile are rows and
    columns of the operand (m and k of a, k and n of b). The tiles have a layout that the instruction reads.
    k: of the product, a multiple of the instruction's. a_axes is empty where a is a fragment.
    """

    name = "wgmma.mma"
    level = "tile"
    touches = (reads("a", proxy="async", done="wgmma"), reads("b", proxy="async", done="wgmma"))
    sync = NOTHING
    alike = ("accumulate", "a_origin", "b_origin")
    called = "wgmma()"
    variadic = True
    parts = ("acc", "accumulate", "a", "a_origin", "b", "b_origin")
    k = attribute(int)
    a_axes = attribute[tuple[int, ...]](tuple, ())
    b_axes = attribute[tuple[int, ...]](tuple)
    gives = ("acc",)
    acc, accumulate, a = operand(0, PendingType), operand(1, BOOL), operand(2)

    @property
    def a_origin(self) -> list[Value]:
        type_ = self.a.type
        return self.operands[3 : 3 + type_.rank] if isinstance(type_, SharedType) else []

    @property
    def b(self) -> Value:
        return self.operands[3 + len(self.a_origin)]

    @property
    def b_origin(self) -> list[Value]:
        return self.operands[4 + len(self.a_origin) :]

    @property
    def held(self) -> Type:
        return self.fragment

    @property
    def shared_operands(self) -> list[SharedOperand]:
        """b, or a and b."""
        m, n = self.fragment.dims
        b = SharedOperand(self.b, self.b_origin, self.b_axes[::-1], n)
        return [SharedOperand(self.a, self.a_origin, self.a_axes, m), b] if self.a_axes else [b]

    def accesses(self) -> list[Access]:
        """Its left operand may be in registers."""
        return [each for each in super().accesses() if each.part == "b" or isinstance(self.a.type, SharedType)]

    @property
    def fragment(self) -> FragmentType:
        """What the accumulator will be."""
        return self.expect(self.acc.type, PendingType).fragment

    @property
    def row(self) -> WgmmaRow:
        """The kind of product."""
        acc = self.fragment
        names = [v.type.dtype.name for v in (self.a, self.b) if isinstance(v.type, (SharedType, FragmentType))]
        row = find_wgmma(names[0], names[1], acc.dtype.name) if len(names) == 2 else None
        return self.found(row, f"no wgmma of {' x '.join(names)} into {acc.dtype}")

    def verify(self) -> None:
        acc, row = self.fragment, self.row
        self.require(self.k > 0 and self.k % row.k == 0, f"k is {self.k}; a multiple of {row.k}")
        self.require(acc.dims[1] in row.widths(), f"{acc.dims[1]} columns")
        self.require(len(self.b_axes) == 2 and len(self.a_axes) in (0, 2), "two axes of a tile")
        self.require_indices(self.a_origin, len(self.a_origin))
        self.require_indices(self.b_origin, self.expect(self.b.type, SharedType).rank, " of b")
        layout = acc.held_as
        whole = layout.interleaved == WARPGROUP_WARPS and layout.first % WARPGROUP_WARPS == 0
        self.require(whole, f"{layout} is not of warpgroups")
        a = self.a.type
        if isinstance(a, FragmentType):
            self.require((a.layout, a.dims) == (layout.a, (acc.dims[0], self.k)), f"a is {a}")
        self.require(bool(self.a_axes) == isinstance(a, SharedType), f"axes {self.a_axes} of {a}")
        for each in self.shared_operands:
            for axis, size in zip(each.axes, (each.extent, self.k), strict=True):
                inside = 0 <= axis < each.type.rank and size <= each.type.dims[axis]
                self.require(inside, f"{size} elements along axis {axis} of {each.type}")


class Wait(_Group):
    """Waits until at most `pending` groups of this warpgroup are in flight. Operands: pending accumulators.
    finish: they become fragments, which needs pending=0; otherwise they stay pending. (PTX ISA: wgmma.wait_group.)"""

    name = "wgmma.wait"
    level = "tile"
    touches = ()
    sync = Sync(completes="wgmma")
    called = by(lambda op: "wait()" if op.operands else "ptx.wgmma_wait()")
    pending = attribute(int, 0)
    finish = attribute(bool, True)
    accumulators = operands(0)

    def infer(self) -> Sequence[Type]:
        types = [self.expect(v.type, PendingType) for v in self.accumulators]
        return [t.fragment for t in types] if self.finish else types

    def verify(self) -> None:
        self.require(self.pending == 0 or not self.finish, f"{self.pending} pending groups")


# -- thread level ----------------------------------------------------------------------------------


class Registers(_Registers):
    """So many registers of any content: an accumulator that no product has been added to."""

    name = "ptx.wgmma_registers"
    level = "thread"
    dtype = attribute(DType)
    count = attribute(int, most=256)

    def infer(self) -> Sequence[Type]:
        return (self.dtype,) * self.count


class Descriptor(Pure):
    """The descriptor of a shared operand, whose first element the pointer has: an i64. (PTX ISA: matrix descriptor.)

    advance: bytes that the operand begins behind the pointer. leading, stride: the leading and the stride byte offset.
    swizzle: bytes of the span.
    """

    name = "ptx.wgmma_descriptor"
    varies, nan = "operands", "sees"
    level = "thread"
    advance = attribute(int, 0)
    leading = attribute(int)
    stride = attribute(int)
    swizzle = attribute(int, among=SPANS)
    gives = (I64,)
    ptr = operand(0)

    @property
    def bits(self) -> int:
        """All of it but the address that the pointer has."""
        mode = SPANS.index(self.swizzle) + 1
        return self.advance >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | mode << 62

    def verify(self) -> None:
        check_shared(self, self.ptr)
        numbers = (self.advance, self.leading, self.stride)
        self.require(all(0 <= n < 1 << 18 and n % 16 == 0 for n in numbers), f"byte offsets {numbers}")


class Instruction(_Group):
    """One ``wgmma.mma_async``: m64 n `n` k `row.k`. Operands: accumulate (bool), a (an i64 descriptor, or 4 u32), the
    i64 descriptor of b, then the registers of the accumulator; results: those registers.

    turned_a, turned_b: the shared operand is contiguous along m (n), not k; 16-bit elements only.
    """

    name = "ptx.wgmma"
    level = "thread"
    touches = (reads("left", proxy="async", done="wgmma"), reads("right", proxy="async", done="wgmma"))
    sync = NOTHING
    called = "wgmma()"
    variadic = True
    parts = ("accumulate", "left", "right", "accumulators")
    accumulate = operand(0, BOOL)
    n = attribute(int, most=256)
    a, b, acc = attribute(DType), attribute(DType), attribute(DType)
    turned_a = attribute(bool, False)
    turned_b = attribute(bool, False)

    @property
    def row(self) -> WgmmaRow:
        row = find_wgmma(self.a.name, self.b.name, self.acc.name)
        return self.found(row, f"no wgmma of {self.a} x {self.b} into {self.acc}")

    def accesses(self) -> list[Access]:
        """Its left operand may be in registers."""
        return [each for each in super().accesses() if each.part == "right" or not self.a_registers]

    @property
    def a_registers(self) -> int:
        """4 where a comes from registers, else 0."""
        return 4 if self.operands[1].type == U32 else 0

    @property
    def left(self) -> list[Value]:
        """The descriptor or the registers of a."""
        return self.operands[1 : 1 + max(1, self.a_registers)]

    @property
    def right(self) -> Value:
        return self.operands[1 + len(self.left)]

    @property
    def accumulators(self) -> list[Value]:
        return self.operands[2 + len(self.left) :]

    @property
    def acc_types(self) -> tuple[DType, ...]:
        """Types of the accumulator's registers: f32 or i32, or u32 with two f16 each."""
        count = 64 * self.n // WARPGROUP
        return (U32,) * (count // 2) if self.acc.name == "f16" else (DTYPES[self.acc.name],) * count

    def infer(self) -> Sequence[Type]:
        return self.acc_types

    def verify(self) -> None:
        row = self.row
        self.require(self.n in row.widths(), f"n = {self.n}")
        self.require([v.type for v in self.left] in ([I64], [U32] * 4), "a is a descriptor or four u32")
        self.require(self.right.type == I64, "b is a descriptor")
        self.require([v.type for v in self.accumulators] == list(self.acc_types), "registers of the accumulator")
        self.require(not (self.turned_a or self.turned_b) or row.bits == 16, "only 16-bit operands are transposed")


class WaitGroup(_Group):
    """``wgmma.wait_group pending``, tied to the registers of accumulators: operands and results are those."""

    name = "ptx.wgmma_wait"
    level = "thread"
    touches = ()
    sync = Sync(completes="wgmma")
    called = "wait()"
    pending = attribute(int, 0)
    registers = operands(0)

    def infer(self) -> Sequence[Type]:
        return [v.type for v in self.registers]

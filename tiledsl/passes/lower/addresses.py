"""From indices to addresses and bounds: the arithmetic that `expand` emits for one memory access.

An address is the base, plus one variable offset (the sum of index * stride in elements), plus one
constant offset. Constants are peeled off the indices, so that ``As[ty, k]`` for k = 0 .. 15 becomes
one shared base and sixteen immediates once common subexpressions are merged. The sum does not wrap
(`nowrap`): the specialisation's index width holds every offset inside a tensor, and an offset outside is
never used.

In a swizzled tile the last index is first XORed with a few bits of the panel's number. Where that is a constant so
is what the index is XORed with; constants that the XOR does not touch are peeled as before. In a tile of panels the
last index is taken apart first, into the panel and the place in it; a constant that cannot carry is peeled off both.

A bound is one unsigned comparison an axis: a negative index is a huge unsigned number, so that
0 <= i < extent costs one compare, and stays right where 32-bit index arithmetic wrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.builder import CachingBuilder
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import arith, mem
from tiledsl.ir.types import I32, I64, U32, U64, DType
from tiledsl.layout.shared import Swizzled
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.divisibility import divisor_of
from tiledsl.passes.analysis.intervals import Intervals

NEAR = (1 << 31) - INDEX32_LIMIT
"""The largest constant that is taken out of an index: what is left of an index in bounds then fits 32 bits, too. Of one
that is farther away it may have wrapped, and an address has 64 bits."""


class Writer(CachingBuilder):
    """`intervals`: what values can be."""

    def __init__(self, block: Block, intervals: Intervals) -> None:
        super().__init__(block)
        self.intervals = intervals


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor or tile at thread level. Extents and strides, in elements, are constants or values.

    `unit` is the axis of stride 1, or -1. `whole`: of a tensor, no vector lies across its edge (`GlobalType.whole`).
    `swizzle`: how a shared tile of extents `dims` is permuted, if it is. `width`: of a tile in panels that follow each
    other, the columns of one; `strides` and `dims` are then those of panels, rows and columns of a panel.
    """

    base: Value
    extents: tuple[Value | int, ...]
    strides: tuple[Value | int, ...]
    unit: int
    whole: bool = False
    swizzle: Swizzled | None = None
    dims: tuple[int, ...] = ()
    width: int = 0

    def never_splits(self, vec: int) -> bool:
        """True where no vector of `vec` elements lies across the edge along `unit`, in any launch."""
        extent = self.extents[self.unit]
        return vec == 1 or self.whole or (isinstance(extent, int) and extent % vec == 0)


def pointer_to(
    b: Writer, memory: Memory, indices: Sequence[Value], depths: Sequence[int] = (), *, permuted: bool = True
) -> Value:
    """The address of the element at `indices`.

    depths: by how many loops each index is changed. What fewer change is added first, so that such a sum leaves a loop
    whole; without them terms are added in the order of the axes.
    permuted: False for an address that a swizzle permutes later.
    """
    if memory.width:
        indices, depths = _unfolded(b, memory.width, indices, depths)
    if memory.swizzle is not None and permuted:
        indices = [*indices[:-1], _swizzled(b, memory.swizzle, memory.dims, indices)]
    constant = 0
    terms: list[Value] = []
    order = sorted(range(len(indices)), key=lambda axis: depths[axis]) if depths else range(len(indices))
    for axis in order:
        term, peeled = _term(b, indices[axis], memory.strides[axis])
        constant += peeled
        terms += [] if term is None else [term]
    pointer = memory.base
    if terms:
        variable = reduce(lambda left, right: b.scalar("add", left, right, nowrap=True), terms)
        pointer = b.value(mem.Offset(pointer, variable))
    return element(b, pointer, constant)


def element(b: Writer, pointer: Value, distance: int) -> Value:
    """The address `distance` elements after `pointer`."""
    if distance == 0:
        return pointer
    dtype = I32 if -(1 << 31) <= distance < 1 << 31 else I64
    return b.value(mem.Offset(pointer, b.constant(distance, dtype)))


def _unfolded(
    b: Writer, width: int, indices: Sequence[Value], depths: Sequence[int]
) -> tuple[Sequence[Value], Sequence[int]]:
    """The indices with the number of the panel before the row, and the column in its panel."""
    *lead, row, column = indices
    panel, inside = _split(b, column, width)
    moved = [*depths[:-2], depths[-1], depths[-2], depths[-1]] if depths else depths
    return [*lead, panel, row, inside], moved


def _split(b: Writer, column: Value, width: int) -> tuple[Value, Value]:
    """``(column // width, column % width)``."""
    dtype = column.dtype
    variable, constant = _peel(b, column)
    whole, rest = divmod(constant, width)
    if variable is None:
        return b.constant(whole, dtype), b.constant(rest, dtype)
    moved = b.scalar("add", variable, rest) if rest else variable
    least, most = b.intervals.of(variable)
    if least >= 0 and most + rest < width:
        return b.constant(whole, dtype), moved
    panel = b.scalar("shr", moved, width.bit_length() - 1)
    if whole:
        panel = b.scalar("add", panel, whole)
    return panel, b.scalar("and", moved, width - 1)


def _swizzled(b: Writer, swizzle: Swizzled, dims: Sequence[int], indices: Sequence[Value]) -> Value:
    """Where in its row the element lies, as an index."""
    column = indices[-1]
    bits = _xored_bits(b, swizzle, dims, indices)
    if bits == 0:
        return column
    variable, constant = _peel(b, column)
    # What the XOR does not touch may be added after it: whole panels, and the place inside a unit.
    inside = constant % swizzle.panel
    if variable is None or multiple_of(variable) >= swizzle.unit:
        inside -= inside % swizzle.unit
    if variable is None:
        if isinstance(bits, int):
            return b.constant(constant - inside + (inside ^ bits), column.dtype)
        moved = b.scalar("xor", bits, inside) if inside else bits
    else:
        within = b.scalar("add", variable, inside) if inside else variable
        moved = b.scalar("xor", within, bits)
    return b.scalar("add", moved, constant - inside) if constant != inside else moved


def _xored_bits(b: Writer, swizzle: Swizzled, dims: Sequence[int], indices: Sequence[Value]) -> Value | int:
    """``panel // every % span * unit``. What moves the panel's number by whole periods does not matter."""
    panel: Value | None = None
    constant = 0
    strides = [rows * swizzle.panels(dims) for rows in swizzle.row_strides(dims)]
    parts = [_term(b, index, s) for index, s in zip(indices[:-1], strides, strict=True) if s % swizzle.period]
    if not swizzle.by_rows_only(dims):
        parts.append(_panel_in_row(b, swizzle, indices[-1]))
    for term, peeled in parts:
        constant += peeled
        if term is not None:
            panel = term if panel is None else b.scalar("add", panel, term)
    constant %= swizzle.period
    if panel is None:
        return constant // swizzle.every % swizzle.span * swizzle.unit
    if constant:
        panel = b.scalar("add", panel, constant)
    shift = swizzle.unit.bit_length() - swizzle.every.bit_length()
    if shift:
        panel = b.scalar("shl" if shift > 0 else "shr", panel, abs(shift))
    return b.scalar("and", panel, (swizzle.span - 1) * swizzle.unit)


def _panel_in_row(b: Writer, swizzle: Swizzled, column: Value) -> tuple[Value | None, int]:
    """column // panel, as a value and a constant."""
    variable, constant = _peel(b, column)
    whole = constant // swizzle.panel
    if variable is None:
        return None, whole
    rest = constant % swizzle.panel
    if rest >= multiple_of(variable):  # else it cannot carry into the panel's number
        variable = b.scalar("add", variable, rest)
    return b.scalar("shr", variable, swizzle.panel.bit_length() - 1), whole


def multiple_of(value: Value) -> int:
    """A power of two that divides `value`, read off the ops that made it."""
    return divisor_of(value.op, multiple_of)


def _term(b: Writer, index: Value, stride: Value | int) -> tuple[Value | None, int]:
    """index * stride as a value and a constant; the constant is 0 where the stride is not known."""
    if isinstance(stride, Value):
        return (None, 0) if integer(index) == 0 else (b.scalar("mul", index, stride, nowrap=True), 0)
    variable, constant = _peel(b, index)
    if variable is not None and abs(constant * stride) > NEAR:
        variable, constant = index, 0
    if variable is None or stride == 1:
        return variable, constant * stride
    return b.scalar("mul", variable, stride), constant * stride


def _peel(b: Writer, value: Value) -> tuple[Value | None, int]:
    """Split `value` into a variable part (None for 0) and a constant, which is near 0 if there are both."""
    variable, constant = _parts(b, value)
    return (value, 0) if variable is not None and abs(constant) > NEAR else (variable, constant)


def _parts(b: Writer, value: Value) -> tuple[Value | None, int]:
    known = integer(value)
    if known is not None:
        return None, known
    op = value.op
    name = op.fn.name if isinstance(op, arith.Scalar) else ""
    if op is None or name not in ("add", "sub", "mul"):
        return value, 0
    left, right = op.operands
    if name == "mul":
        factor = integer(right)
        a, ca = (None, 0) if factor is None else _peel(b, left)
        if factor is None or a is None or ca == 0:
            return value, 0
        return b.scalar("mul", a, right), ca * factor
    a, ca = _peel(b, left)
    c, cc = _peel(b, right)
    if name == "sub":
        cc = -cc
    if ca == cc == 0:
        return value, 0
    if c is None:
        return a, ca + cc
    if a is None:
        return (b.scalar("neg", c) if name == "sub" else c), ca + cc
    return b.scalar(name, a, c), ca + cc


def bounds(b: Writer, memory: Memory, indices: Sequence[Value], *, skip: int = -1) -> Value | None:
    """True where every index but that of axis `skip` lies in its extent; None if none is left."""
    condition: Value | None = None
    for axis, (index, extent) in enumerate(zip(indices, memory.extents, strict=True)):
        if axis != skip:
            condition = both(b, condition, below(b, index, unsigned_extent(b, extent, index.dtype)))
    return condition


def inside_from(b: Writer, index: Value, extent: Value | int, count: int) -> Value:
    """Of `count` elements from `index`, a multiple of `count`, how many lie inside: an i32.

    Unsigned, so that a negative index lies far outside: ``min(max(extent, index) - index, count)``.
    """
    limit = unsigned_extent(b, extent, index.dtype)
    first = b.cast(index, limit.dtype)
    left = b.scalar("sub", b.scalar("max", limit, first), first)
    return b.cast(b.scalar("min", left, count), I32)


def both(b: Writer, left: Value | None, right: Value) -> Value:
    return right if left is None else b.scalar("and", left, right)


def below(b: Writer, index: Value, limit: Value) -> Value:
    """0 <= index < limit, as one unsigned comparison; `limit` is unsigned already."""
    return b.scalar("lt", b.cast(index, limit.dtype), limit)


def unsigned_extent(b: Writer, extent: Value | int, index: DType, multiple_of: int = 1) -> Value:
    """An extent as the unsigned twin of the index dtype, rounded down to `multiple_of` (a power of two)."""
    unsigned = U32 if index is I32 else U64
    if isinstance(extent, int):
        return b.constant(extent & -multiple_of, unsigned)
    value = b.cast(extent, unsigned)
    if multiple_of == 1:
        return value
    return b.scalar("and", value, (1 << unsigned.bits) - multiple_of)

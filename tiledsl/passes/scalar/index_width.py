"""Index width: an index is the number that its expression says, also where `expand` keeps 32 bits of it.

A launch proves of a 32-bit specialisation that extents and the offsets of elements fit, not what a kernel makes of
them: ``M * N`` may not. An index of a tile-level kernel has 64 bits; after this pass 32 of them are enough:

- They are where they only lead to memory, which a launch has measured, and to what depends on low bits alone: sums,
  products, choices, what control flow carries, conversions that keep no more.
- Where the number itself counts (a comparison, a quotient, the bounds of a loop, a conversion to i64 or a float, an
  access that compares it with an extent), most indices are proven to fit (`Intervals`).
- What is not is computed in i64. Where that cannot be, since a loop carries it, the kernel's indices get 64 bits; so
  they do where a constant needs them. The index of an access with a guard is clamped to 32 bits, past all extents.
"""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control, tile
from tiledsl.ir.types import I64, INDEX, FragmentType
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.analysis.structure import incoming, reached, replace_op

_LOW_BITS = frozenset({"add", "sub", "mul", "neg", "and", "or", "xor", "not"})
"""Functions whose low bits depend on the low bits of their operands alone."""


FAR = 16
"""Bits of a shift from which on it is no step of a tile."""


def widen_indices(kernel: Kernel, bounds: bool = False) -> None:
    """Make 32 bits enough for every index of a tile-level kernel of 32-bit indices, or give its indices 64 bits.

    Args:
        kernel: The kernel, changed in place.
        bounds: Whether `expand` checks the indices of accesses without a guard, so that their numbers count.
    """
    if kernel.level == "tile" and kernel.index_bits == 32:
        try:
            _Exact(kernel, bounds).block(kernel.body)
        except _NeedsWideIndicesError:
            kernel.index_bits = 64


class _NeedsWideIndicesError(Exception):
    """An index needs 64 bits where i64 cannot stand for it."""


def _counted(op: Op) -> Sequence[Value]:
    """The operands of `op` of which the number counts, not just the low 32 bits."""
    match op:
        case arith.Scalar():
            if op.fn.name in _LOW_BITS:
                return ()
            return op.operands[1:] if op.fn.name == "shl" else op.operands
        case arith.Cast(to=to):
            return () if to.kind in ("int", "uint") and to.bits <= 32 else op.operands
        case control.For():
            return op.operands[:3]
        case arith.Select() | control.If() | control.While() | control.Yield() | control.Condition():
            return ()
        case tile.Pack() | tile.Extract() | tile.Insert():
            return ()
        case _:
            return op.operands


class _Exact:
    """Goes through a kernel and computes in i64 what has to be; raises where that cannot be done."""

    def __init__(self, kernel: Kernel, bounds: bool) -> None:
        self.intervals = Intervals(kernel)
        self.bounds = bounds
        self.wide: dict[tuple[Block, Value], Value] = {}
        self.clamped: dict[tuple[Block, Value], Value] = {}
        self.near: set[Value] = set()
        """The values that are known not to be `is_computed`."""

    def fits(self, value: Value) -> bool:
        low, high = self.intervals.of(value)
        return low >= -(1 << 31) and high < 1 << 31

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            if op.touches:
                self.access(op)
            elif not self.is_exact(op):
                self.exactly(op)
            if self.is_beyond(op):
                raise _NeedsWideIndicesError
            for inner in op.blocks:
                self.block(inner)

    def is_beyond(self, op: Op) -> bool:
        """Does the op make an index that no launch has measured, wherever it leads: a constant that needs 64 bits, or a
        shift that far?"""
        if not op.results or op.results[0].type is not INDEX or self.fits(op.results[0]):
            return False
        if isinstance(op, arith.Scalar) and op.fn.name == "shl":
            converted = all(isinstance(user, arith.Cast) for user, _ in op.results[0].uses)  # and computed in i64 there
            return not converted and self.intervals.of(op.operands[1])[1] >= FAR
        return isinstance(op, arith.Constant)

    def is_exact(self, op: Op) -> bool:
        for value in op.operands:
            if _is_index(value):  # most ops have none: nothing else is asked of them
                return self.all_fit(_counted(op))
        return True

    def all_fit(self, values: Sequence[Value]) -> bool:
        return all(self.fits(v) for v in values if _is_index(v))

    def access(self, op: Op) -> None:
        """Keep the indices of an access that are outside every memory outside, where their numbers count."""
        far = [(place, v) for place, v in enumerate(op.operands) if _is_index(v) and not self.fits(v)]
        if not far:
            return
        guarded = any(access.guarded for access in op.accesses())
        if not guarded and self.bounds:
            raise _NeedsWideIndicesError
        far = [(place, v) for place, v in far if guarded and self.is_computed(v)]
        if any(v.type is not INDEX for _, v in far):
            raise _NeedsWideIndicesError
        b = Builder(op.block, op.loc, before=op)
        for place, value in far:
            low = self.clamped.get((b.block, value))
            if low is None:
                (wide,) = self.in_64_bits(b, [value])
                near = b.scalar("min", b.scalar("max", wide, -INDEX32_LIMIT), INDEX32_LIMIT)
                low = self.clamped[b.block, value] = b.cast(near, INDEX)
                self.intervals.known[low] = -INDEX32_LIMIT, INDEX32_LIMIT
            op.set_operand(place, low)

    def is_computed(self, value: Value) -> bool:
        """Return whether an index comes from integers of another dtype, or from a product that may not fit.

        What is made of positions and extents alone is taken to be near the memory, which a launch has measured.
        """

        def is_source(each: Value) -> bool:
            op = each.op
            if isinstance(op, arith.Cast):
                return op.src.dtype.is_integer
            if not isinstance(op, arith.Scalar) or op.fn.name != "mul" or op.nowrap:
                return False
            return not self.fits(each) and all(integer(v) is None for v in op.operands)

        def made_of(each: Value) -> Sequence[Value]:
            op = each.op
            if each in self.near:
                return ()
            return [*incoming(each), *(() if op is None or op.blocks or op.touches else op.operands)]

        found = reached([value], made_of)
        if any(_is_index(each) and is_source(each) for each in found if each not in self.near):
            return True
        self.near.update(found)
        return False

    def exactly(self, op: Op) -> None:
        """Put the same of i64 in the place of `op`."""
        if not isinstance(op, (arith.Scalar, arith.Cast)):
            raise _NeedsWideIndicesError
        b = Builder(op.block, op.loc, before=op)
        operands = self.in_64_bits(b, op.operands)
        result = b.cast(operands[0], op.to) if isinstance(op, arith.Cast) else b.scalar(op.fn.name, *operands)
        if _is_index(op.results[0]):
            low = b.cast(result, INDEX)
            self.intervals.known[low] = self.intervals.of(op.results[0])
            result = low
        op.block.ops.remove(op)
        replace_op(op, [result])
        self.near.clear()  # what was made of its result is now made of an i64

    def in_64_bits(self, b: Builder, values: Sequence[Value]) -> list[Value]:
        """The numbers that indices stand for as i64; raises where one is not known from the ops that made it."""
        found: list[Value] = []
        for value in values:
            wide = self.wide.get((b.block, value)) if _is_index(value) else value
            if wide is None:
                wide = b.cast(value, I64) if self.fits(value) else self.made_of(b, value.op)
            self.wide[b.block, value] = wide
            found.append(wide)
        return found

    def made_of(self, b: Builder, op: Op | None) -> Value:
        match op:
            case arith.Cast():
                return b.cast(op.src, I64)
            case arith.Scalar() | arith.Select():
                operands = self.in_64_bits(b, op.operands)
                return b.select(*operands) if isinstance(op, arith.Select) else b.scalar(op.fn.name, *operands)
            case _:
                raise _NeedsWideIndicesError


def _is_index(value: Value) -> bool:
    type_ = value.type
    return type_ is INDEX or (type(type_) is FragmentType and type_.dtype is INDEX)

"""Distribute: each whole-block copy becomes the loads and stores of one thread.

A thread first loads, then stores, in batches of `IN_FLIGHT` accesses, so that their latencies overlap. Reads of a
global tensor are guarded with zero, writes to one are left out past its edge, unless a constant origin in static
extents proves them inside. Before: `tile.copy`; after: none, at tile level still, so that the passes on layouts
and the checks of alignment see ordinary accesses at the copy's line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import gpu, tile
from tiledsl.ir.types import BOOL, INDEX, FragmentType, GlobalType
from tiledsl.passes.constants import integer
from tiledsl.passes.thread_map import Coordinate, Plan, plan_copy

__all__ = ["IN_FLIGHT", "Distribute"]

IN_FLIGHT = 8
"""Accesses of one thread that are loaded before the first one is stored: 32 registers of 16-byte vectors."""

MOST_ERRORS = 20


@dataclass(frozen=True)
class Distribute:
    """Needs `check-collectives` to have found that all threads reach each copy."""

    name: ClassVar[str] = "distribute"

    def run(self, kernel: Kernel) -> None:
        errors: dict[Loc, CompileError] = {}  # an unrolled copy is wrong once
        for op in [op for op in kernel.walk() if isinstance(op, tile.Copy)]:
            try:
                plan = plan_copy(op, kernel.thread_count)
            except CompileError as error:
                errors.setdefault(op.loc, error)
                continue
            assert op.parent is not None
            _Writer(kernel, op, plan, Builder(op.parent, op.loc, before=op)).write()
            op.erase()
        if errors:
            raise CompileErrors(list(errors.values())[:MOST_ERRORS])


def _may_leave(side: tile.Side, shape: tuple[int, ...]) -> bool:
    """True where the copied part of a global tensor may reach past its edge. A view of a shared tile does not."""
    type_ = side.type
    if not isinstance(type_, GlobalType):
        return False
    sizes = dict(zip(side.axes, shape, strict=True))
    for axis, (value, extent) in enumerate(zip(side.origin, type_.dims, strict=True)):
        first = integer(value)
        if first is None or not isinstance(extent, int) or not 0 <= first <= extent - sizes.get(axis, 1):
            return True
    return False


class _Writer:
    """Writes the ops of one copy in front of it. `bases`: variable parts of indices, written once each."""

    def __init__(self, kernel: Kernel, op: tile.Copy, plan: Plan, b: Builder) -> None:
        self.kernel, self.op, self.plan, self.b = kernel, op, plan, b
        self.bases: dict[tuple[Value, Coordinate], Value] = {}
        self.terms: dict[Coordinate, Value] = {}
        self.guard_src, self.guard_dst = _may_leave(op.src, op.shape), _may_leave(op.dst, op.shape)
        self.thread = self.linear_thread()
        zero = b.constant(False if op.dtype == BOOL else 0.0 if op.dtype.is_float else 0, op.dtype)
        self.zeros = b.value(tile.Pack(zero, type=self.vector)) if plan.src_vector else zero

    @property
    def vector(self) -> FragmentType:
        return FragmentType(self.op.dtype, (self.plan.map.width,))

    def linear_thread(self) -> Value:
        """The thread's index in the block, x fastest."""
        extents = self.kernel.threads
        linear: Value | None = None
        for axis in reversed(range(len(extents))):
            if extents[axis] == 1 and (linear is not None or axis):
                continue
            position = self.b.value(gpu.ThreadId(axis=axis))
            if linear is not None:
                position = self.b.scalar("add", position, self.times(linear, extents[axis]))
            linear = position
        assert linear is not None
        return linear

    def write(self) -> None:
        steps = self.plan.map.steps
        for first in range(0, steps, IN_FLIGHT):
            batch = range(first, min(first + IN_FLIGHT, steps))
            loaded = [self.load(self.plan.map.place(step)) for step in batch]
            for step, values in zip(batch, loaded, strict=True):
                self.store(self.plan.map.place(step), values)

    # -- accesses ------------------------------------------------------------------------------

    def load(self, place: tuple[Coordinate, ...]) -> list[Value]:
        """The elements of one access: one fragment, or `width` scalars."""
        side, vector = self.op.src, self.plan.src_vector
        values: list[Value] = []
        for e in range(1 if vector else self.plan.map.width):
            at, vec = self.indices(side, place, e), self.plan.map.width if vector else 1
            if self.guard_src:
                values.append(self.b.value(tile.Get(side.memory, *at, self.zeros, vec=vec)))
            else:
                values.append(self.b.value(tile.Load(side.memory, *at, vec=vec)))
        return values

    def store(self, place: tuple[Coordinate, ...], values: list[Value]) -> None:
        side, vector, width = self.op.dst, self.plan.dst_vector, self.plan.map.width
        if vector and not self.plan.src_vector:
            values = [self.b.value(tile.Pack(*values, type=self.vector))]
        elif self.plan.src_vector and not vector:
            values = [self.b.value(tile.Extract(values[0], at=(e,))) for e in range(width)]
        for e, value in enumerate(values):
            at, vec = self.indices(side, place, e), width if vector else 1
            op = tile.Put if self.guard_dst else tile.Store
            self.b.add(op(side.memory, *at, value, vec=vec))

    # -- indices -------------------------------------------------------------------------------

    def indices(self, side: tile.Side, place: tuple[Coordinate, ...], e: int) -> list[Value]:
        """Of the element `e` after `place` along the vectors' axis."""
        indices = list(side.origin)
        for position, (axis, coordinate) in enumerate(zip(side.axes, place, strict=True)):
            further = e if position == self.plan.map.axis else 0
            indices[axis] = self.index(side.origin[axis], coordinate, further)
        return indices

    def index(self, origin: Value, place: Coordinate, further: int) -> Value:
        """origin + coordinate + further, the constants added last: they become immediates of one address."""
        known = integer(origin)
        constant = (known or 0) + place.after * place.scale + further
        base = self.base(None if known is not None else origin, replace(place, after=0))
        if base is None:
            return self.b.constant(constant, INDEX)
        return base if constant == 0 else self.b.scalar("add", base, self.b.constant(constant, INDEX))

    def base(self, origin: Value | None, place: Coordinate) -> Value | None:
        """What of an index is only known at run time: the origin, the thread's part, their sum or nothing."""
        if place.modulus == 1:
            return origin
        if origin is None:
            return self.term(place)
        key = origin, place
        if key not in self.bases:
            self.bases[key] = self.b.scalar("add", origin, self.term(place))
        return self.bases[key]

    def term(self, place: Coordinate) -> Value:
        if place not in self.terms:
            value = self.thread
            if place.before:
                value = self.b.scalar("add", value, self.b.constant(place.before, INDEX))
            if place.divisor > 1:
                value = self.b.scalar("floordiv", value, self.b.constant(place.divisor, INDEX))
            if place.modulus:
                value = self.b.scalar("mod", value, self.b.constant(place.modulus, INDEX))
            self.terms[place] = self.times(value, place.scale)
        return self.terms[place]

    def times(self, value: Value, factor: int) -> Value:
        return value if factor == 1 else self.b.scalar("mul", value, self.b.constant(factor, INDEX))

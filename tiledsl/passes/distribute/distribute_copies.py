"""Distribute: copies by the whole block become the accesses of one thread.

A thread first loads, then stores, in batches of `IN_FLIGHT` accesses, so that their latencies overlap. Reads of a
global tensor are guarded with zero, writes to one are left out past its edge, unless a constant origin in static
extents proves them inside. Rows that end inside a vector have code of their own. An asynchronous copy holds no
registers: each access is one `async.cp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, tile
from tiledsl.ir.types import INDEX, FragmentType, GlobalType
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.distribute.thread_map import Coordinate, Plan, plan_copy

__all__ = ["IN_FLIGHT", "may_leave", "write_copy"]

IN_FLIGHT = 8
"""Accesses of one thread that are loaded before the first one is stored: 32 registers of 16-byte vectors."""


Places = list[list[list[Value]]]
"""Indices, by step, of the accesses of that step: one, or one for each element."""


def write_copy(kernel: Kernel, op: tile.Copy, b: Builder) -> Sequence[Value]:
    """Writes the accesses of one thread; nothing stands for a token. CompileError if the threads cannot share it."""
    writer = _Writer(kernel, op, plan_copy(op, kernel.thread_count), b)
    if isinstance(op, async_copy.Copy):
        writer.write_async()
    else:
        writer.write()
    return ()


def may_leave(side: tile.Side, shape: tuple[int, ...]) -> bool:
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


def never_split(memory: Value) -> bool:
    """True for a tensor whose rows are whole vectors, in any launch that the specialisation is for."""
    return isinstance(memory.type, GlobalType) and memory.type.whole


class _Writer:
    """Writes the ops of one copy in front of it. `bases`: variable parts of indices, written once each."""

    def __init__(self, kernel: Kernel, op: tile.Copy, plan: Plan, b: Builder) -> None:
        self.kernel, self.op, self.plan, self.b = kernel, op, plan, b
        self.bases: dict[tuple[Value, Coordinate], Value] = {}
        self.terms: dict[Coordinate, Value] = {}
        self.guard_src, self.guard_dst = may_leave(op.src, op.shape), may_leave(op.dst, op.shape)
        self.thread = self.linear_thread()

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

    def write_async(self) -> None:
        """The tensor's side and the tile's, at once. All indices first: the accesses stand together for `expand`."""
        src, dst, plan = self.op.src, self.op.dst, self.plan.map
        places = [plan.place(step) for step in range(plan.steps)]
        pairs = [(self.indices(dst, place, 0), self.indices(src, place, 0)) for place in places]
        for to, at in pairs:
            cp = async_copy.Cp(dst.memory, *to, src.memory, *at, vec=plan.width, guard=self.guard_src)
            self.b.add(cp)

    def write(self) -> None:
        extent = self.splitting_extent()
        src = self.all_indices(self.op.src, self.plan.src_vector)
        dst = self.all_indices(self.op.dst, self.plan.dst_vector)
        if extent is None:
            self.vectors(src, dst, whole=False)
            return
        rest = self.b.scalar("mod", extent, self.b.constant(self.plan.map.width, INDEX))
        even = self.b.scalar("eq", rest, self.b.constant(0, INDEX))
        blocks = Block(), Block()
        outer, self.b = self.b, Builder(blocks[0], self.b.loc)
        self.vectors(src, dst, whole=True)
        self.b = Builder(blocks[1], outer.loc)
        self.elements()
        for block in blocks:
            Builder(block, outer.loc).add(control.Yield())
        self.b = outer
        self.b.add(control.If(even, blocks=blocks, likely=True))

    def splitting_extent(self) -> Value | None:
        """The extent of the tensor along the vectors' axis, where only a launch tells if they divide it evenly.

        If they do, every vector lies inside or outside as a whole. Otherwise the copy goes by elements, in a loop:
        rows whose length is no multiple of what their alignment permits are rare, and code for both cases at each
        access would be several times as long.
        """
        for side, guard in ((self.op.src, self.guard_src), (self.op.dst, self.guard_dst)):
            axis = side.axes[self.plan.map.axis]
            open_end = isinstance(side.type.dims[axis], str) and not never_split(side.memory)
            if guard and self.plan.map.width > 1 and open_end:
                return self.b.value(tile.Dim(side.memory, axis=axis))
        return None

    # -- accesses ------------------------------------------------------------------------------

    def all_indices(self, side: tile.Side, vector: bool) -> Places:
        """Of all accesses on this side."""
        width = 1 if vector else self.plan.map.width
        places = [self.plan.map.place(step) for step in range(self.plan.map.steps)]
        return [[self.indices(side, place, e) for e in range(width)] for place in places]

    def vectors(self, src: Places, dst: Places, *, whole: bool) -> None:
        """As the thread map says. whole: no vector lies across an edge."""
        zero = self.b.constant(self.op.dtype.python(0), self.op.dtype)
        zeros = self.b.value(tile.Pack(zero, type=self.vector)) if self.plan.src_vector else zero
        vec = self.plan.map.width if self.plan.src_vector else 1
        for first in range(0, len(src), IN_FLIGHT):
            batch = slice(first, first + IN_FLIGHT)
            loaded = [[self.load(at, zeros, vec, whole) for at in step] for step in src[batch]]
            for values, step in zip(loaded, dst[batch], strict=True):
                self.store_access(step, values, whole)

    def load(self, at: list[Value], zeros: Value, vec: int = 1, whole: bool = False) -> Value:
        memory = self.op.src.memory
        if self.guard_src:
            return self.b.value(tile.Get(memory, *at, zeros, vec=vec, whole=vec > 1 and (whole or never_split(memory))))
        return self.b.value(tile.Load(memory, *at, vec=vec))

    def store(self, at: list[Value], value: Value, vec: int = 1, whole: bool = False) -> None:
        memory = self.op.dst.memory
        if self.guard_dst:
            self.b.add(tile.Put(memory, *at, value, vec=vec, whole=vec > 1 and (whole or never_split(memory))))
        else:
            self.b.add(tile.Store(memory, *at, value, vec=vec))

    def store_access(self, places: list[list[Value]], values: list[Value], whole: bool) -> None:
        """One access of the copy: a fragment or its elements to one place or to one for each element."""
        vector, width = self.plan.dst_vector, self.plan.map.width
        if vector and not self.plan.src_vector:
            values = [self.b.value(tile.Pack(*values, type=self.vector))]
        elif self.plan.src_vector and not vector:
            values = [self.b.value(tile.Extract(values[0], at=(e,))) for e in range(width)]
        for at, value in zip(places, values, strict=True):
            self.store(at, value, width if vector else 1, whole)

    def elements(self) -> None:
        """A loop in which neighbouring threads copy neighbouring elements, one by one."""
        plan, outer = self.plan.map, self.b
        zero = outer.constant(self.op.dtype.python(0), self.op.dtype)
        body = Block([INDEX], ["element"])
        self.b = Builder(body, outer.loc)
        place: dict[int, Value] = {}
        inner = 1
        for axis in plan.order:
            at = body.args[0]
            if inner > 1:
                at = self.b.scalar("floordiv", at, self.b.constant(inner, INDEX))
            inner *= plan.shape[axis]
            last = axis == plan.order[-1]
            place[axis] = at if last else self.b.scalar("mod", at, self.b.constant(plan.shape[axis], INDEX))
        src, dst = ([*side.origin] for side in (self.op.src, self.op.dst))
        for side, indices in ((self.op.src, src), (self.op.dst, dst)):
            for position, axis in enumerate(side.axes):
                indices[axis] = self.b.scalar("add", indices[axis], place[position])
        self.store(dst, self.load(src, zero))
        self.b.add(control.Yield())
        count, threads = (outer.constant(n, INDEX) for n in (inner, plan.threads))
        outer.add(control.For(self.thread, count, threads, blocks=[body]))
        self.b = outer

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

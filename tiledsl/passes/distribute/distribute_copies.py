"""Distribute: copies by the whole block become the accesses of one thread.

A thread first loads, then stores, in batches of `IN_FLIGHT` accesses, so that their latencies overlap. Reads of a
global tensor are guarded with zero, writes to one are left out past its edge, unless a constant origin in static
extents proves them inside. Rows that end inside a vector have code of their own. An asynchronous copy holds no
registers: each access is one `async.cp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, tile
from tiledsl.ir.types import INDEX
from tiledsl.passes.distribute.positions import Position, indices
from tiledsl.passes.distribute.thread_map import ThreadMap, plan_copy
from tiledsl.passes.distribute.vectors import elements_of, may_leave, never_split, read, vector_of, write, zeros

IN_FLIGHT = 8
"""Accesses of one thread that are loaded before the first one is stored: 32 registers of 16-byte vectors."""

Places = list[list[list[Value]]]
"""Indices, by step, of the accesses of that step: one, or one for each element."""


def write_copy(kernel: Kernel, op: tile.Copy, b: Builder) -> Sequence[Value]:
    """Writes the accesses of one thread; nothing stands for a token. CompileError if the threads cannot share it."""
    writer = _Writer(kernel, op, b)
    if isinstance(op, async_copy.Copy):
        writer.write_async(op)
    else:
        writer.write()
    return ()


class _Writer:
    """Writes the ops of one copy in front of it."""

    def __init__(self, kernel: Kernel, op: tile.Copy, b: Builder) -> None:
        self.op, self.b = op, b
        self.map = plan_copy(op, kernel.thread_count)
        self.guard_src, self.guard_dst = may_leave(op.src, op.shape), may_leave(op.dst, op.shape)
        self.thread = thread = _linear_thread(kernel.threads, b)
        position = Position(b, kernel.thread_count, lambda: thread)
        self.steps = [self.map.place(step, position) for step in range(self.map.steps)]

    def write_async(self, op: async_copy.Copy) -> None:
        """The tensor's side and the tile's, at once. All indices first: the accesses stand together for `expand`."""
        pairs = [(self.indices(op.dst, place), self.indices(op.src, place)) for place in self.steps]
        for to, at in pairs:
            cp = async_copy.Cp(op.dst.memory, *to, op.src.memory, *at, vec=self.map.width, guard=self.guard_src)
            self.b.add(cp)

    def write(self) -> None:
        extent, b = self.splitting_extent(), self.b
        src, dst = self.places(self.op.src), self.places(self.op.dst)
        if extent is None:
            self.vectors(src, dst, whole=False)
            return
        even = b.scalar("eq", b.scalar("mod", extent, self.map.width), 0)
        b.either(even, partial(self.vectors, src, dst, whole=True), self.elements, likely=True)

    def splitting_extent(self) -> Value | None:
        """The extent of the tensor along the vectors' axis, where only a launch tells if they divide it evenly.

        If they do, every vector lies inside or outside as a whole. Otherwise the copy goes by elements, in a loop:
        rows whose length is no multiple of what their alignment permits are rare, and code for both cases at each
        access would be several times as long.
        """
        for side, guard in ((self.op.src, self.guard_src), (self.op.dst, self.guard_dst)):
            axis = side.axes[self.map.axis]
            open_end = isinstance(side.type.dims[axis], str) and not never_split(side.memory)
            if guard and self.map.width > 1 and open_end:
                return self.b.value(tile.Dim(side.memory, axis=axis))
        return None

    # -- accesses ------------------------------------------------------------------------------

    def vectors(self, src: Places, dst: Places, *, whole: bool) -> None:
        """As the thread map says. whole: no vector lies across an edge."""
        b, vec, to_vec = self.b, self.map.width_on(self.op.src), self.map.width_on(self.op.dst)
        other = zeros(b, self.op.dtype, vec) if self.guard_src else None
        for first in range(0, len(src), IN_FLIGHT):
            batch = slice(first, first + IN_FLIGHT)
            loaded = [[read(b, self.op.src.memory, at, other, vec, whole=whole) for at in step] for step in src[batch]]
            for values, step in zip(loaded, dst[batch], strict=True):
                if vec < to_vec:
                    values = [vector_of(b, values, to_vec)]
                elif vec > to_vec:
                    values = elements_of(b, values[0], vec)
                for at, value in zip(step, values, strict=True):
                    write(b, self.op.dst.memory, at, value, to_vec, guarded=self.guard_dst, whole=whole)

    def elements(self) -> None:
        """A loop in which neighbouring threads copy neighbouring elements, one by one."""
        b, op = self.b, self.op
        other = zeros(b, op.dtype, 1) if self.guard_src else None
        body, count = Block([INDEX], ["element"]), prod(op.shape)
        with b.inside(body):
            place = ThreadMap(op.shape, self.map.axis, 1, count).place(0, Position(b, count, lambda: body.args[0]))
            src, dst = self.indices(op.src, place), self.indices(op.dst, place)
            write(b, op.dst.memory, dst, read(b, op.src.memory, src, other, 1), 1, guarded=self.guard_dst)
            b.add(control.Yield())
        bounds = (b.constant(n, INDEX) for n in (count, self.map.threads))
        b.add(control.For(self.thread, *bounds, blocks=[body]))

    # -- indices -------------------------------------------------------------------------------

    def places(self, side: tile.Side) -> Places:
        """Of all accesses on this side."""
        elements = range(0, self.map.width, self.map.width_on(side))
        return [[self.indices(side, place, e) for e in elements] for place in self.steps]

    def indices(self, side: tile.Side, place: list[Position], e: int = 0) -> list[Value]:
        """Of the element `e` after `place` along the vectors' axis."""
        return indices(self.b, side, (at + e if axis == self.map.axis else at for axis, at in enumerate(place)))


def _linear_thread(extents: tuple[int, ...], b: Builder) -> Value:
    """The thread's index in the block, x fastest."""
    linear: Value | None = None
    for axis in reversed(range(len(extents))):
        if extents[axis] == 1 and (linear is not None or axis):
            continue
        position = b.value(gpu.ThreadId(axis=axis))
        linear = position if linear is None else b.scalar("add", position, b.scalar("mul", linear, extents[axis]))
    assert linear is not None
    return linear

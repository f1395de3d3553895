"""Tensor memory access: boxes of tensors to and from shared memory.

At tile level shared memory is in row order, at thread level tensor maps say how a box lies there. Both read and write
the tensor now; see `async_copies` for what arrives when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import TMA_ALIGNMENT, TMA_GRAIN
from tiledsl.backends.emulator.async_copies import Transfer
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Access, AccessKind, Bools, Ints, Until
from tiledsl.backends.emulator.mbarriers import ENTRY
from tiledsl.backends.emulator.memory import checked, require_writable
from tiledsl.backends.emulator.rules.barriers import columns_of
from tiledsl.backends.emulator.rules.matrices import swizzled
from tiledsl.backends.emulator.rules.memory import located, span_of
from tiledsl.backends.emulator.rules.places import Place, require_within
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SharedType
from tiledsl.layout.shared import CHUNK


@dataclass(frozen=True)
class _Box:
    """Boxes of a tensor, one an entry. `axes`: those of the tensor that run along a box, slowest first; `extents`: of
    the box along them; `start` [entries, rank]: its first element."""

    tensor: Span
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    start: Ints

    @cached_property
    def elements(self) -> tuple[Ints, Bools]:
        """For every element of each box, [entries, elements] in row order: where it is among the tensor's elements, and
        whether it is inside."""
        span = self.tensor
        along = np.ogrid[tuple(slice(extent) for extent in self.extents)]
        start = self.start.reshape(*self.start.shape, *[1] * len(self.axes))
        index: Any = (span.base - span.origin) // span.elements.itemsize
        inside: Any = np.True_
        for axis, extent in enumerate(span.dims):
            at = start[:, axis] + (along[self.axes.index(axis)] if axis in self.axes else 0)
            index = index + at * span.strides[axis]
            inside = inside & (at >= 0) & (at < extent)
        full, flat = (len(start), *self.extents), (len(start), -1)
        return np.broadcast_to(index, full).reshape(flat), np.broadcast_to(inside, full).reshape(flat)

    def access(self, c: Cohort, op: Op, kind: AccessKind, until: Until, homes: Ints, mbarriers: Ints | None) -> Access:
        """What hooks hear of the tensor, an entry an element. homes: the blocks of the mbarriers, for each box."""
        index, inside = self.elements
        box = np.repeat(np.arange(len(index)), np.count_nonzero(inside, axis=1))
        span, (blocks, threads) = self.tensor, c.threads()
        size, places = span.elements.itemsize, None if mbarriers is None else mbarriers[box]
        return Access(
            op, kind, "global", span.label, span.base, span.origin + index[inside] * size, size,
            homes[box], threads[box], until=until, owners=blocks[box], mbarriers=places,
        )  # fmt: skip

    def read(self) -> NDArray[np.uint8]:
        """[entries, chunks, 16]; zeros past the edge."""
        index, inside = self.elements
        source = self.tensor.elements
        values = source.take(index, mode="clip") if source.size else np.zeros(index.shape, source.dtype)
        if not inside.all():
            values[~inside] = 0
        return values.view(np.uint8).reshape(len(index), -1, CHUNK)

    def write(self, op: Op, data: NDArray[np.uint8]) -> None:
        span = self.tensor
        require_writable(op, span)
        index, inside = self.elements
        values = data.reshape(len(index), -1).view(span.elements.dtype)
        span.elements[index[inside]] = values[inside]


# -- where things are ------------------------------------------------------------------------------


def _lanes_of(c: Cohort, values: Sequence[Any]) -> Ints:
    """[active lanes, values]."""
    lanes = c.active()
    found = np.empty((int(lanes.sum()), len(values)), np.int64)
    for column, value in enumerate(values):
        found[:, column] = c.spread(value)[lanes]
    return found


def _rows(span: Span, axes: Sequence[int], every: int, first: int) -> tuple[Span, int]:
    """Every so many-th row of a tensor, as a `TensorMap` describes it, and what the coordinate of column 0 is then.
    axes: along a column, and along a row."""
    if every == 1:
        return span, 0
    (down, across), dims, strides = axes, list(span.dims), list(span.strides)
    before = first * strides[down]
    dims[down], dims[across] = -(-(dims[down] - first) // every), dims[across] + before
    strides[down] *= every
    return replace(span, dims=tuple(dims), strides=tuple(strides)), before


def _sides(c: Cohort, op: Op, values: tuple[Any, ...]) -> tuple[_Box, Transfer]:
    """The box, and where it is in shared memory."""
    box, transfer = (_tile_sides if isinstance(op, (tma.Load, tma.Store)) else _map_sides)(c, op, values)
    column, grain = box.start[:, box.axes[-1]], TMA_GRAIN // box.tensor.elements.itemsize
    if (wrong := column % grain != 0).any():
        message = f"{op.name} begins at element {int(column[np.argmax(wrong)])} of a row of {box.tensor.label}"
        fix = f"begin at a multiple of {grain} elements: 16 bytes, else a GPU stops with an illegal instruction"
        raise EmulatorError(message, op.loc, fix, code="T505")
    return box, transfer


def _map_sides(c: Cohort, op: Op, values: tuple[Any, ...]) -> tuple[_Box, Transfer]:
    assert isinstance(op, (tma.MapLoad, tma.MapStore))
    described = c.chunk.run.kernel.tensor_maps[op.map]
    tensor, first = c.chunk.run.tensors[described.tensor], op.operands.index(op.coordinates[0])
    start = np.zeros((int(c.active().sum()), len(tensor.dims)), np.int64)
    start[:, list(described.axes)] = _lanes_of(c, values[first : first + len(op.coordinates)])
    tensor, _ = _rows(tensor, described.axes[1::-1], described.every, described.first)
    box = _Box(tensor, described.axes[::-1], described.box[::-1], start)
    span, size = span_of(c, op, values[0]), prod(described.box) * tensor.elements.itemsize
    chunk = _lanes_of(c, [checked(c, op, span, values[0], size, TMA_ALIGNMENT)]) // CHUNK
    at = swizzled(chunk + np.arange(size // CHUNK), described.swizzle) * CHUNK
    return box, _transfer(c, op, span.label, span.base, at)


def _tile_sides(c: Cohort, op: Op, values: tuple[Any, ...]) -> tuple[_Box, Transfer]:
    assert isinstance(op, (tma.Load, tma.Store))
    rank, type_ = len(op.place), op.tile.type
    assert isinstance(type_, SharedType)
    tile, place, tensor, origin = values[0], values[1 : 1 + rank], values[1 + rank], values[2 + rank :]
    first = _lanes_of(c, origin[: len(op.origin)])
    if isinstance(op, tma.Load):
        tensor, before = _rows(tensor, op.axes, op.every, op.first)
        if op.every > 1:
            grain = TMA_GRAIN // tensor.elements.itemsize
            first[:, op.axes[1]] = (first[:, op.axes[1]] + before) // grain * grain
    box = _Box(tensor, op.axes, (op.rows, op.columns), first)
    require_within(c, op, op.name, tile.label, place, tile.dims, (*[1] * (rank - 2), op.rows, op.columns))
    start = _lanes_of(c, [Place(c, op, tile, place, type_, 1).address])
    row, pitch = (columns * type_.dtype.bytes for columns in (op.columns, type_.dims[-1]))
    if row % CHUNK or pitch % CHUNK or (start % CHUNK).any():
        raise EmulatorError(f"{op.name} of rows of {row} bytes", op.loc, "use rows of whole 16 bytes", code="T505")
    within = np.arange(op.rows)[:, None] * pitch + np.arange(0, row, CHUNK)
    return box, _transfer(c, op, tile.label, tile.offset, start + within.ravel())


def _transfer(c: Cohort, op: Op, label: str, base: int, at: Ints) -> Transfer:
    blocks, threads = c.threads()
    rows = blocks - c.chunk.first
    return Transfer(op, label, base, rows, threads, rows, at)


# -- loads and stores ------------------------------------------------------------------------------


@rule(tma.Load, tma.MapLoad)
def load(c: Cohort, op: tma.Load | tma.MapLoad, *values: Any) -> None:
    box, transfer = _sides(c, op, values)
    position = 1 if isinstance(op, tma.MapLoad) else len(values) - len(op.more)
    span, address, _ = located(c, op, position, values[position:])
    at = c.spread(checked(c, op, span, address, ENTRY, ENTRY))[c.active()]
    data = box.read()
    once = np.arange(len(at))
    if op.multicast:
        transfer, which = _to_cluster(c, op, transfer, c.spread(values[-1])[c.active()])
        at, data = at[which], data[which]
        once = np.searchsorted(which, once)
    columns = columns_of(c, op, span, transfer.rows, at)
    c.chunk.require_running(op, transfer.owners, transfer.rows)
    if c.chunk.watched:  # of a box for several blocks the first one's mbarrier stands for all
        homes = transfer.rows[once] + c.chunk.first
        c.chunk.hook.on_access(box.access(c, op, "fetch", "mbarrier", homes, at[once]))
    c.chunk.copies.load(transfer, data, columns)


@rule(tma.Store, tma.MapStore)
def store(c: Cohort, op: Op, *values: Any) -> None:
    box, transfer = _sides(c, op, values)
    if (before := (box.start < 0).any(axis=1)).any():
        first = ", ".join(map(str, box.start[np.argmax(before)]))
        message = f"{op.name} begins at ({first}), before the first element of {box.tensor.label}"
        fix = "begin at 0 or later: TMA loads zeros from there, but a store stops a GPU with an illegal instruction"
        raise EmulatorError(message, op.loc, fix, code="T505")
    data = c.chunk.copies.store(transfer)
    if c.chunk.watched:
        c.chunk.hook.on_access(box.access(c, op, "async", "bulk", c.threads()[0], None))
    box.write(op, data)


def _to_cluster(c: Cohort, op: Op, transfer: Transfer, masks: Ints) -> tuple[Transfer, Ints]:
    """An entry for each block that gets a box, and which of the old entries it is."""
    clusters = c.chunk.clusters
    bits = masks[:, None].astype(np.int64) >> np.arange(16) & 1
    if (wrong := bits[:, clusters.size :].any(axis=1) | ~bits.any(axis=1)).any():
        mask = int(masks[np.argmax(wrong)])
        raise EmulatorError(
            f"{op.name} to the blocks {mask:#b} of a cluster of {clusters.size}",
            op.loc,
            "set a bit for each that gets it",
            code="T508",
        )
    which, ranks = np.nonzero(bits)
    sent = transfer.part(which)
    return replace(sent, rows=clusters.members[sent.owners, ranks]), which

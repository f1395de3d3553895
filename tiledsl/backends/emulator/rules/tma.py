"""Tensor memory access: boxes of tensors to and from shared memory.

At tile level shared memory is in row order, at thread level tensor maps say how a box lies there. Both read and write
the tensor now; see `async_copies` for what arrives when.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Sequence

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import TMA_ALIGNMENT
from tiledsl.backends.emulator.async_copies import Transfer
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import name_threads, require_writable
from tiledsl.backends.emulator.rules.barriers import columns_of
from tiledsl.backends.emulator.rules.matrices import swizzled
from tiledsl.backends.emulator.rules.memory import located, span_of
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import SharedTile, Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.ops import tma
from tiledsl.layout.shared import CHUNK

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Box:
    """Boxes of a tensor, one an entry. `axes`: those of the tensor that run along a box, slowest first; `extents`: of
    the box along them; `start` [entries, rank]: its first element."""

    tensor: Span
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    start: Ints

    def elements(self) -> tuple[Ints, NDArray[np.bool_]]:
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

    def read(self) -> NDArray[np.uint8]:
        """[entries, chunks, 16]; zeros past the edge."""
        index, inside = self.elements()
        source = self.tensor.elements
        values = source.take(index, mode="clip") if source.size else np.zeros(index.shape, source.dtype)
        if not inside.all():
            values[~inside] = 0
        return values.view(np.uint8).reshape(len(index), -1, CHUNK)

    def write(self, op: Op, data: NDArray[np.uint8]) -> None:
        span = self.tensor
        require_writable(op, span)
        index, inside = self.elements()
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


def _tile_side(c: Cohort, op: tma.Load | tma.Store, values: tuple[Any, ...]) -> tuple[_Box, Transfer, tuple[Any, ...]]:
    """The box, where it is in shared memory, and the values of the operands behind both."""
    rank = len(op.place)
    tile: SharedTile = values[0]
    tensor: Span = values[1 + rank]
    origin = values[2 + rank : 2 + rank + len(op.origin)]
    rows, columns = (op.box[axis] for axis in op.axes)
    box = _Box(tensor, op.axes, (rows, columns), _lanes_of(c, origin))
    size, (height, width) = tile.dtype.bytes, tile.dims[-2:]
    places = _lanes_of(c, values[1 : 1 + rank])
    strides = np.array([prod(tile.dims[axis + 1 :]) for axis in range(rank)])
    limits = np.array([*tile.dims[:-2], height - rows + 1, width - columns + 1])
    start = (places * strides).sum(axis=1) * size
    wrong = ((places < 0) | (places >= limits)).any(axis=1)
    if wrong.any():
        at = ", ".join(map(str, places[np.argmax(wrong)].tolist()))
        raise EmulatorError(
            f"out of bounds: {op.name} of {rows} x {columns} elements at {tile.label}[{at}], but {tile.label} has "
            f"{' x '.join(map(str, tile.dims))}",
            op.loc,
            "correct the index",
        )
    if columns * size % CHUNK or (start % CHUNK).any() or width * size % CHUNK:
        raise EmulatorError(f"{op.name} of rows of {columns * size} bytes", op.loc, "use rows of whole 16 bytes")
    within = np.arange(rows)[:, None] * (width * size) + np.arange(0, columns * size, CHUNK)
    transfer = _transfer(c, op, tile.label, tile.offset, tile.offset + start[:, None] + within.ravel())
    return box, transfer, values[2 + rank + len(op.origin) :]


def _transfer(c: Cohort, op: Op, label: str, base: int, at: Ints) -> Transfer:
    blocks, threads = c.threads()
    rows = blocks - c.chunk.first
    return Transfer(op, label, base, rows, threads, rows, at)


def _map_side(
    c: Cohort, op: tma.MapLoad | tma.MapStore, address: Any, coordinates: Sequence[Any]
) -> tuple[_Box, Transfer]:
    described = c.chunk.run.kernel.tensor_maps[op.map]
    tensor = c.chunk.run.tensors[described.tensor]
    start = np.zeros((int(c.active().sum()), len(tensor.dims)), np.int64)
    start[:, list(described.axes)] = _lanes_of(c, coordinates)
    box = _Box(tensor, described.axes[::-1], described.box[::-1], start)
    span = span_of(c, op, address)
    first = _lanes_of(c, [address])
    size = prod(described.box) * tensor.elements.itemsize
    wrong = ((first < span.low) | (first + size > span.high) | (first % TMA_ALIGNMENT != 0)).ravel()
    if wrong.any():
        raise EmulatorError(
            f"{op.name} of {size} bytes at byte {int(first[np.argmax(wrong), 0]) - span.base} of {span.label}, which "
            f"has {span.high - span.low}; a box begins at a multiple of {TMA_ALIGNMENT}; {name_threads(c, c.active())}",
            op.loc,
            "make the tile as large as the box, and let it begin at a multiple of 128 bytes",
        )
    at = swizzled(first // CHUNK + np.arange(size // CHUNK), described.swizzle) * CHUNK
    return box, _transfer(c, op, span.label, span.base, at)


# -- loads -----------------------------------------------------------------------------------------


@rule(tma.Load)
def load_box(c: Cohort, op: tma.Load, *values: Any) -> None:
    box, transfer, more = _tile_side(c, op, values)
    position = len(values) - len(more)
    _load(c, op, box, transfer, position, more[: len(op.mbarrier)], more[-1] if op.multicast else None)


@rule(tma.MapLoad)
def load_mapped(c: Cohort, op: tma.MapLoad, address: Any, *values: Any) -> None:
    box, transfer = _map_side(c, op, address, values[1 : 1 + len(op.coordinates)])
    _load(c, op, box, transfer, 1, values[:1], values[-1] if op.multicast else None)


def _load(
    c: Cohort, op: Op, box: _Box, transfer: Transfer, position: int, mbarrier: tuple[Any, ...], blocks: Any
) -> None:
    """`mbarrier`: the operands from `position` on; `blocks`: None, or bits of the blocks of the cluster that get it."""
    span, address, _ = located(c, op, position, mbarrier)
    at = c.spread(address)[c.active()]
    data = box.read()
    if blocks is not None:
        transfer, which = _to_cluster(c, op, transfer, c.spread(blocks)[c.active()])
        at, data = at[which], data[which]
    columns = columns_of(c, op, span, transfer.rows, at)
    c.chunk.require_running(op, transfer.owners, transfer.rows)
    c.chunk.bulk.load(transfer, data, columns)


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
        )
    which, ranks = np.nonzero(bits)
    rows = clusters.members[transfer.owners[which], ranks]
    threads, owners = transfer.threads[which], transfer.owners[which]
    return Transfer(op, transfer.label, transfer.base, owners, threads, rows, transfer.at[which]), which


# -- stores ----------------------------------------------------------------------------------------


@rule(tma.Store)
def store_box(c: Cohort, op: tma.Store, *values: Any) -> None:
    box, transfer, _ = _tile_side(c, op, values)
    _store(c, op, box, transfer)


@rule(tma.MapStore)
def store_mapped(c: Cohort, op: tma.MapStore, address: Any, *coordinates: Any) -> None:
    _store(c, op, *_map_side(c, op, address, coordinates))


def _store(c: Cohort, op: Op, box: _Box, transfer: Transfer) -> None:
    box.write(op, c.chunk.bulk.store(transfer))


@rule(tma.Prefetch, tma.MapPrefetch)
def prefetch(c: Cohort, op: Op, *tensor: Any) -> None:
    """Nothing to be seen."""


# -- groups ----------------------------------------------------------------------------------------


@rule(tma.BulkCommit)
def commit(c: Cohort, op: tma.BulkCommit) -> None:
    c.chunk.hook.on_commit(op, "bulk", *c.threads())


@rule(tma.BulkWait)
def wait(c: Cohort, op: tma.BulkWait) -> None:
    c.chunk.hook.on_wait(op, "bulk", *c.threads(), op.pending)

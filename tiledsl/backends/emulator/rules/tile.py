"""Tile level: tensors and tiles accessed by index, and fragments as tuples of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules.places import (
    Memory,
    Place,
    read_guarded,
    read_place,
    shifted,
    write_guarded,
    write_place,
)
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import SharedTile, Span
from tiledsl.ir.ops import tile
from tiledsl.passes.distribute.thread_map import ThreadMap, plan_copy

# -- tensors ---------------------------------------------------------------------------------------


@rule(tile.Dim)
def dim(c: Cohort, op: tile.Dim, tensor: Span) -> Any:
    return np.array(tensor.dims[op.axis], np.int64)


@rule(tile.Stride)
def stride(c: Cohort, op: tile.Stride, tensor: Span) -> Any:
    return np.array(tensor.strides[op.axis], np.int64)


@rule(tile.SharedAlloc)
def shared_alloc(c: Cohort, op: tile.SharedAlloc, *over: SharedTile) -> SharedTile:
    return c.chunk.run.tiles[op]


# -- accesses --------------------------------------------------------------------------------------


@rule(tile.Get)
def get(c: Cohort, op: tile.Get, memory: Memory, *operands: Any) -> Any:
    *indices, other = operands
    place = Place(c, op, memory, indices, op.memory_type, op.vec)
    values = read_guarded(place, other if op.vec > 1 else (other,))
    return values if op.vec > 1 else values[0]


@rule(tile.Put)
def put(c: Cohort, op: tile.Put, memory: Memory, *operands: Any) -> None:
    *indices, value = operands
    write_guarded(Place(c, op, memory, indices, op.memory_type, op.vec), value if op.vec > 1 else (value,))


@rule(tile.Copy)
def copy(c: Cohort, op: tile.Copy, *operands: Any) -> None:
    """By the thread map that `distribute` writes out, one access after the other; global tensors are guarded."""
    x, y, z = c.chunk.run.launch.threads
    threads = plan_copy(op, x * y * z)
    thread = c.warps[:, :, None].astype(np.int64) * WARP + np.arange(WARP)
    split = 1 + op.src.type.rank
    for step in range(threads.steps):
        start = threads.place(step, thread)
        values: list[Any] = []
        for place in _places(c, op, op.src, operands[:split], threads, start):
            values += read_place(place)
        at = 0
        for place in _places(c, op, op.dst, operands[split:], threads, start):
            write_place(place, tuple(values[at : at + place.vec]))
            at += place.vec


def _places(
    c: Cohort, op: tile.Copy, side: tile.Side, given: tuple[Any, ...], threads: ThreadMap, start: list[Any]
) -> list[Place]:
    """Where one access of a copy goes on one side: one place, or one for each element."""
    memory, *origin = given
    width = threads.width_on(side)
    places: list[Place] = []
    for e in range(0, threads.width, width):
        offsets = [coordinate + (e if axis == threads.axis else 0) for axis, coordinate in enumerate(start)]
        places.append(Place(c, op, memory, shifted(origin, side.axes, offsets), side.type, width))
    return places


# -- fragments -------------------------------------------------------------------------------------


@rule(tile.Pack)
def pack(c: Cohort, op: tile.Pack, *elements: Any) -> tuple[Any, ...]:
    return elements if len(elements) == op.type.size else elements * op.type.size


@rule(tile.Extract)
def extract(c: Cohort, op: tile.Extract, fragment: tuple[Any, ...]) -> Any:
    return fragment[op.position]


@rule(tile.Insert)
def insert(c: Cohort, op: tile.Insert, fragment: tuple[Any, ...], element: Any) -> tuple[Any, ...]:
    return (*fragment[: op.position], element, *fragment[op.position + 1 :])

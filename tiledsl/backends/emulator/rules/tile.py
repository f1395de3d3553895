"""Tile level: tensors and tiles accessed by index, and fragments as tuples of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import load, store
from tiledsl.backends.emulator.rules.atomics import access_atomically
from tiledsl.backends.emulator.rules.places import (
    Memory,
    Place,
    is_global,
    load_inside,
    read_guarded,
    store_inside,
    write_guarded,
)
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import GlobalBuffer, SharedTile
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import FragmentType
from tiledsl.passes.distribute.thread_map import ThreadMap, plan_copy

__all__: list[str] = []


# -- tensors ---------------------------------------------------------------------------------------


@rule(tile.Dim)
def dim(c: Cohort, op: tile.Dim, tensor: GlobalBuffer) -> Any:
    return np.array(tensor.shape[op.axis], np.int64)


@rule(tile.Stride)
def stride(c: Cohort, op: tile.Stride, tensor: GlobalBuffer) -> Any:
    return np.array(tensor.strides[op.axis], np.int64)


@rule(tile.SharedAlloc)
def shared_alloc(c: Cohort, op: tile.SharedAlloc, *over: SharedTile) -> SharedTile:
    return c.chunk.run.tiles[op]


# -- accesses --------------------------------------------------------------------------------------


@rule(tile.Load)
def load_tile(c: Cohort, op: tile.Load, memory: Memory, *indices: Any) -> Any:
    place = _place(c, op, memory, indices)
    place.require_inside(place.whole)
    return _packed(op, load(c, op, place.span, place.address, op.vec))


@rule(tile.Store)
def store_tile(c: Cohort, op: tile.Store, memory: Memory, *operands: Any) -> None:
    *indices, value = operands
    place = _place(c, op, memory, indices)
    place.require_inside(place.whole)
    store(c, op, place.span, place.address, value if op.vec > 1 else (value,))


@rule(tile.Atomic)
def atomic(c: Cohort, op: tile.Atomic, memory: Memory, *operands: Any) -> Any:
    rank = op.memory_type.rank
    place = _place(c, op, memory, operands[:rank])
    place.require_inside(place.whole)
    return access_atomically(c, op, place.span, op.memory_type.dtype, place.address, *operands[rank:])


@rule(tile.Get)
def get(c: Cohort, op: tile.Get, memory: Memory, *operands: Any) -> Any:
    *indices, other = operands
    return _packed(op, read_guarded(_place(c, op, memory, indices), other if op.vec > 1 else (other,)))


@rule(tile.Put)
def put(c: Cohort, op: tile.Put, memory: Memory, *operands: Any) -> None:
    *indices, value = operands
    write_guarded(_place(c, op, memory, indices), value if op.vec > 1 else (value,))


@rule(tile.Copy)
def copy(c: Cohort, op: tile.Copy, *operands: Any) -> None:
    """By the thread map that `distribute` writes out, one access after the other; global tensors are guarded."""
    x, y, z = c.chunk.run.launch.threads
    threads = plan_copy(op, x * y * z)
    thread = c.warps[:, :, None].astype(np.int64) * WARP + np.arange(WARP)
    split = 1 + op.src.type.rank
    for step in range(threads.steps):
        start = [coordinate.of(thread) for coordinate in threads.place(step)]
        values: list[Any] = []
        for place in _places(c, op, op.src, operands[:split], threads, start):
            zero = np.zeros((), numpy_dtype(op.dtype))
            values += read_guarded(place, (zero,) * place.vec) if is_global(place) else load_inside(place)
        at = 0
        for place in _places(c, op, op.dst, operands[split:], threads, start):
            part = tuple(values[at : at + place.vec])
            at += place.vec
            write_guarded(place, part) if is_global(place) else store_inside(place, part)


def _places(
    c: Cohort, op: tile.Copy, side: tile.Side, given: tuple[Any, ...], threads: ThreadMap, start: list[Any]
) -> list[Place]:
    """Where one access of a copy goes on one side: one place, or one for each element."""
    memory, *origin = given
    width = threads.width_on(side)
    places: list[Place] = []
    for e in range(0, threads.width, width):
        indices = [np.asarray(i) for i in origin]
        for axis, coordinate in enumerate(start):
            indices[side.axes[axis]] = indices[side.axes[axis]] + coordinate + (e if axis == threads.axis else 0)
        places.append(Place(c, op, memory, indices, side.type, width))
    return places


def _packed(op: tile.Access, values: tuple[Any, ...]) -> Any:
    return values if op.vec > 1 else values[0]


def _place(c: Cohort, op: tile.Access, memory: Memory, indices: Any) -> Place:
    return Place(c, op, memory, indices, op.memory_type, op.vec)


# -- fragments -------------------------------------------------------------------------------------


@rule(tile.Pack)
def pack(c: Cohort, op: tile.Pack, *elements: Any) -> tuple[Any, ...]:
    return elements if len(elements) == op.type.size else elements * op.type.size


def _position(at: tuple[int, ...], fragment: Value) -> int:
    """Where an element is in the tuple: row-major order of what one thread holds."""
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    linear = 0
    for index, extent in zip(at, type_.local, strict=True):
        linear = linear * extent + index
    return linear


@rule(tile.Extract)
def extract(c: Cohort, op: tile.Extract, fragment: tuple[Any, ...]) -> Any:
    return fragment[_position(op.at, op.fragment)]


@rule(tile.Insert)
def insert(c: Cohort, op: tile.Insert, fragment: tuple[Any, ...], element: Any) -> tuple[Any, ...]:
    at = _position(op.at, op.fragment)
    return (*fragment[:at], element, *fragment[at + 1 :])

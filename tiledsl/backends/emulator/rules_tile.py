"""Tile level: tensors and tiles accessed by index, and fragments as tuples of values."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.atomics import atomic_add
from tiledsl.backends.emulator.cohort import Cohort, blend
from tiledsl.backends.emulator.memory import GlobalBuffer, SharedTile, Span, load, name_threads, store
from tiledsl.backends.emulator.rules import rule
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import tile
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import FragmentType, MemoryType
from tiledsl.passes.thread_map import Plan, plan_copy

__all__: list[str] = []

Memory = GlobalBuffer | SharedTile


# -- tensors ---------------------------------------------------------------------------------------


@rule(tile.Dim)
def dim(c: Cohort, op: tile.Dim, tensor: GlobalBuffer) -> Any:
    return np.array(tensor.shape[op.axis], np.int64)


@rule(tile.Stride)
def stride(c: Cohort, op: tile.Stride, tensor: GlobalBuffer) -> Any:
    return np.array(tensor.strides[op.axis], np.int64)


@rule(tile.SharedAlloc)
def shared_alloc(c: Cohort, op: tile.SharedAlloc, *over: SharedTile) -> SharedTile:
    return c.chunk.machine.tiles[op]


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


@rule(tile.AtomicAdd)
def add_atomically(c: Cohort, op: tile.AtomicAdd, memory: Memory, *operands: Any) -> Any:
    *indices, value = operands
    place = _place(c, op, memory, indices)
    place.require_inside(place.whole)
    return atomic_add(c, op, place.span, op.value.dtype, place.address, value)


@rule(tile.Get)
def get(c: Cohort, op: tile.Get, memory: Memory, *operands: Any) -> Any:
    *indices, other = operands
    return _packed(op, _read(_place(c, op, memory, indices), other if op.vec > 1 else (other,)))


@rule(tile.Put)
def put(c: Cohort, op: tile.Put, memory: Memory, *operands: Any) -> None:
    *indices, value = operands
    _write(_place(c, op, memory, indices), value if op.vec > 1 else (value,))


@rule(tile.Copy)
def copy(c: Cohort, op: tile.Copy, *operands: Any) -> None:
    """By the thread map that `distribute` writes out, one access after the other; global tensors are guarded."""
    x, y, z = c.chunk.machine.launch.threads
    plan = plan_copy(op, x * y * z)
    thread = c.warps[:, :, None].astype(np.int64) * 32 + np.arange(32)
    split = 1 + op.src.type.rank
    for step in range(plan.map.steps):
        start = [coordinate.of(thread) for coordinate in plan.map.place(step)]
        values: list[Any] = []
        for place in _places(c, op, op.src, operands[:split], plan, plan.src_vector, start):
            zero = np.zeros((), numpy_dtype(op.dtype))
            values += _read(place, (zero,) * place.vec) if _is_global(place) else _load(place)
        at = 0
        for place in _places(c, op, op.dst, operands[split:], plan, plan.dst_vector, start):
            part = tuple(values[at : at + place.vec])
            at += place.vec
            _write(place, part) if _is_global(place) else _store(place, part)


def _places(
    c: Cohort, op: tile.Copy, side: tile.Side, given: tuple[Any, ...], plan: Plan, vector: bool, start: list[Any]
) -> list[_Place]:
    """Where one access of a copy goes on one side: one place, or one for each element."""
    memory, *origin = given
    width = plan.map.width
    places: list[_Place] = []
    for e in range(1 if vector else width):
        indices = [np.asarray(i) for i in origin]
        for axis, coordinate in enumerate(start):
            indices[side.axes[axis]] = indices[side.axes[axis]] + coordinate + (e if axis == plan.map.axis else 0)
        places.append(_Place(c, op, memory, indices, side.type, width if vector else 1))
    return places


def _is_global(place: _Place) -> bool:
    return isinstance(place.memory, GlobalBuffer)


def _load(place: _Place) -> tuple[Any, ...]:
    place.require_inside(place.whole)
    return load(place.c, place.op, place.span, place.address, place.vec)


def _store(place: _Place, values: tuple[Any, ...]) -> None:
    place.require_inside(place.whole)
    store(place.c, place.op, place.span, place.address, values)


def _read(place: _Place, others: tuple[Any, ...]) -> tuple[Any, ...]:
    """A vector that is inside as a whole is one access; otherwise its elements are accessed one by one."""
    c, op = place.c, place.op
    values = list(others)
    with _Lanes(c, place.whole) as some:
        if some:
            read = load(c, op, place.span, place.address, place.vec)
            values = [blend(_mask(place.whole), new, old) for new, old in zip(read, others, strict=True)]
    for e in range(place.vec if place.vec > 1 else 0):
        rest = place.element(e) & ~place.whole
        with _Lanes(c, rest) as some:
            if some:
                (read,) = load(c, op, place.span, place.address + e * place.size)
                values[e] = blend(_mask(rest), read, values[e])
    return tuple(values)


def _write(place: _Place, values: tuple[Any, ...]) -> None:
    c, op = place.c, place.op
    with _Lanes(c, place.whole) as some:
        if some:
            store(c, op, place.span, place.address, values)
    for e in range(place.vec if place.vec > 1 else 0):
        with _Lanes(c, place.element(e) & ~place.whole) as some:
            if some:
                store(c, op, place.span, place.address + e * place.size, (values[e],))


def _packed(op: tile.Access, values: tuple[Any, ...]) -> Any:
    return values if op.vec > 1 else values[0]


def _place(c: Cohort, op: tile.Access, memory: Memory, indices: Any) -> _Place:
    return _Place(c, op, memory, indices, op.memory_type, op.vec)


def _mask(lanes: Any) -> Any:
    """Lanes as `blend` takes them: None for all."""
    return None if np.all(lanes) else np.asarray(lanes)


class _Lanes:
    """Restricts the cohort's mask inside ``with``, which gives whether any active lane is left."""

    def __init__(self, c: Cohort, lanes: Any) -> None:
        self.c, self.lanes = c, lanes

    def __enter__(self) -> bool:
        self.saved = self.c.mask
        if not np.all(self.lanes):
            self.c.mask = np.asarray(self.lanes & (True if self.saved is None else self.saved))
            if self.c.mask.ndim == 0:
                self.c.mask = self.c.mask.reshape(1, 1, 1)
            return bool(self.c.mask.any())
        return True

    def __exit__(self, *error: object) -> None:
        self.c.mask = self.saved


class _Place:
    """Where an access goes: `address` in bytes, and `whole`: which lanes have all `vec` elements inside."""

    def __init__(self, c: Cohort, op: Op, memory: Memory, indices: Any, type_: MemoryType, vec: int) -> None:
        self.c, self.op, self.memory, self.vec = c, op, memory, vec
        self.indices = [np.asarray(i) for i in indices]
        dtype = type_.dtype
        self.size = dtype.bytes
        if isinstance(memory, GlobalBuffer):
            self.extents, strides, start = memory.shape, memory.strides, memory.pointer
            self.span: Span = memory.span
            self.axis = getattr(type_, "unit", -1)
        else:
            self.extents, start = memory.dims, memory.offset
            strides = tuple(prod(memory.dims[a + 1 :]) for a in range(len(memory.dims)))
            self.span = memory.span(c, numpy_dtype(dtype))
            self.axis = len(self.extents) - 1
        offset = np.zeros((), np.int64)
        for index, step in zip(self.indices, strides, strict=True):
            offset = offset + index * np.int64(step)
        self.address: Any = start + offset * self.size
        self.whole = self.element(0)
        if vec > 1:
            self.whole = self.whole & self.element(vec - 1)

    def element(self, e: int) -> Any:
        """Which lanes have element `e` of the vector inside the memory's extents."""
        inside: Any = np.True_
        for axis, (index, extent) in enumerate(zip(self.indices, self.extents, strict=True)):
            shifted = index + e if axis == self.axis else index
            inside = inside & (shifted >= 0) & (shifted < extent)
        return inside

    def require_inside(self, inside: NDArray[np.bool_]) -> None:
        if np.all(inside):
            return
        wrong = self.c.active() & ~inside
        if not wrong.any():
            return
        at = ", ".join(str(int(self.c.spread(i)[wrong][0])) for i in self.indices)
        vector = f" and the {self.vec - 1} elements after it" if self.vec > 1 else ""
        extents = " x ".join(map(str, self.extents))
        name = self.span.label
        raise EmulatorError(
            f"out of bounds: {self.op.name} at {name}[{at}]{vector}, but {name} has {extents} elements; "
            + name_threads(self.c, wrong),
            self.op.loc,
            f"guard the access ({name}.get, {name}.put) or correct the index",
        )


# -- fragments -------------------------------------------------------------------------------------


@rule(tile.Pack)
def pack(c: Cohort, op: tile.Pack, *elements: Any) -> tuple[Any, ...]:
    return elements if len(elements) == op.type.size else elements * op.type.size


def _position(at: tuple[int, ...], fragment: Value) -> int:
    """Where an element is in the tuple: row-major order."""
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    linear = 0
    for index, extent in zip(at, type_.dims, strict=True):
        linear = linear * extent + index
    return linear


@rule(tile.Extract)
def extract(c: Cohort, op: tile.Extract, fragment: tuple[Any, ...]) -> Any:
    return fragment[_position(op.at, op.fragment)]


@rule(tile.Insert)
def insert(c: Cohort, op: tile.Insert, fragment: tuple[Any, ...], element: Any) -> tuple[Any, ...]:
    at = _position(op.at, op.fragment)
    return (*fragment[:at], element, *fragment[at + 1 :])

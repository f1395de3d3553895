"""Accesses by index, as tile-level ops make them: where they go, what lies past an edge, which lanes take part."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort, blend
from tiledsl.backends.emulator.memory import load, name_threads, store
from tiledsl.backends.emulator.spans import GlobalBuffer, SharedTile, Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import MemoryType

Memory = GlobalBuffer | SharedTile


class Masked:
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


class Place:
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
            self.span = memory.span(c.chunk.memory, c.blocks, numpy_dtype(dtype))
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
        if wrong.any():
            counts = tuple(self.vec if axis == self.axis else 1 for axis in range(len(self.extents)))
            fail_outside(self.c, self.op, self.op.name, self.span.label, self.indices, self.extents, counts, wrong)


def require_box(c: Cohort, op: Op, tile: SharedTile, indices: Sequence[Any], counts: Sequence[int]) -> None:
    """Raise EmulatorError unless `counts` elements along each axis, from `indices` on, are in the tile."""
    wrong = np.zeros(c.shape, np.bool_)
    for index, extent, count in zip(indices, tile.dims, counts, strict=True):
        wrong |= (np.asarray(index) < 0) | (np.asarray(index) > extent - count)
    wrong &= c.active()
    if wrong.any():
        fail_outside(c, op, op.name, tile.label, indices, tile.dims, counts, wrong)


def fail_outside(
    c: Cohort,
    op: Op,
    access: str,
    name: str,
    indices: Sequence[Any],
    extents: Sequence[int],
    counts: Sequence[int],
    wrong: NDArray[np.bool_],
) -> None:
    """Raise EmulatorError: the lanes of `wrong` access `counts` elements from `indices` on, not all of them inside."""
    at = ", ".join(str(int(c.spread(i)[wrong][0])) for i in indices)
    several = [n for n in counts if n > 1]
    more = f" and the {several[0] - 1} elements after it" if len(several) == 1 else ""
    box = f" of {' x '.join(map(str, several))} elements" if len(several) > 1 else ""
    raise EmulatorError(
        f"out of bounds: {access}{box} at {name}[{at}]{more}, but {name} has {' x '.join(map(str, extents))} elements; "
        + name_threads(c, wrong),
        op.loc,
        f"guard the access ({name}.get, {name}.put) or correct the index",
    )


def shifted(origin: Sequence[Any], axes: Sequence[int], offsets: Sequence[Any]) -> list[Any]:
    """The indices `origin` with offsets along some of their axes."""
    indices = [np.asarray(i) for i in origin]
    for axis, offset in zip(axes, offsets, strict=True):
        indices[axis] = indices[axis] + offset
    return indices


def read_place(place: Place) -> tuple[Any, ...]:
    """As copies read: of a tensor zeros past its edge, of a tile what is inside."""
    if not isinstance(place.memory, GlobalBuffer):
        return load_inside(place)
    return read_guarded(place, (np.zeros((), place.span.elements.dtype),) * place.vec)


def write_place(place: Place, values: tuple[Any, ...]) -> None:
    """As copies write: past the edge of a tensor nothing."""
    (write_guarded if isinstance(place.memory, GlobalBuffer) else store_inside)(place, values)


def load_inside(place: Place) -> tuple[Any, ...]:
    place.require_inside(place.whole)
    return load(place.c, place.op, place.span, place.address, place.vec)


def store_inside(place: Place, values: tuple[Any, ...]) -> None:
    place.require_inside(place.whole)
    store(place.c, place.op, place.span, place.address, values)


def read_guarded(place: Place, others: tuple[Any, ...]) -> tuple[Any, ...]:
    """A vector that is inside as a whole is one access; otherwise its elements are accessed one by one."""
    c, op = place.c, place.op
    values = list(others)
    with Masked(c, place.whole) as some:
        if some:
            read = load(c, op, place.span, place.address, place.vec)
            values = [blend(_mask(place.whole), new, old) for new, old in zip(read, others, strict=True)]
    for e in range(place.vec if place.vec > 1 else 0):
        rest = place.element(e) & ~place.whole
        with Masked(c, rest) as some:
            if some:
                (read,) = load(c, op, place.span, place.address + e * place.size)
                values[e] = blend(_mask(rest), read, values[e])
    return tuple(values)


def write_guarded(place: Place, values: tuple[Any, ...]) -> None:
    c, op = place.c, place.op
    with Masked(c, place.whole) as some:
        if some:
            store(c, op, place.span, place.address, values)
    for e in range(place.vec if place.vec > 1 else 0):
        with Masked(c, place.element(e) & ~place.whole) as some:
            if some:
                store(c, op, place.span, place.address + e * place.size, (values[e],))


def _mask(lanes: Any) -> Any:
    """Lanes as `blend` takes them: None for all."""
    return None if np.all(lanes) else np.asarray(lanes)

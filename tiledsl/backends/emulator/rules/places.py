"""Accesses by index, as tile-level ops make them: where they go, what lies past an edge, which lanes take part."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort, blend
from tiledsl.backends.emulator.memory import first_of, load, name_threads, store
from tiledsl.backends.emulator.spans import SharedTile, Span
from tiledsl.errors import Accessed, EmulatorError
from tiledsl.ir.core import Op
from tiledsl.ir.types import MemoryType

Memory = Span | SharedTile
"""A tensor, or a tile."""


@contextmanager
def masked(c: Cohort, lanes: Any) -> Generator[bool]:
    """Restricts the cohort's mask inside ``with``, which gives whether any active lane is left."""
    saved, some = c.mask, True
    if not np.all(lanes):
        c.mask = np.atleast_3d(lanes & (True if saved is None else saved))
        some = bool(c.mask.any())
    yield some
    c.mask = saved


class Place:
    """Where an access goes: `address` in bytes, and `whole`: which lanes have all `vec` elements inside."""

    def __init__(self, c: Cohort, op: Op, memory: Memory, indices: Any, type_: MemoryType, vec: int) -> None:
        self.c, self.op, self.vec, self.axis = c, op, vec, type_.unit
        self.span = span = memory.span(c.chunk.memory, c.blocks) if isinstance(memory, SharedTile) else memory
        self.size = type_.dtype.bytes
        self.indices = [np.asarray(i) for i in indices]
        offset = np.zeros((), np.int64)
        for index, step in zip(self.indices, span.strides, strict=True):
            offset = offset + index * np.int64(step)
        self.address: Any = span.base + offset * self.size
        self.whole = self.element(0)
        if vec > 1:
            self.whole = self.whole & self.element(vec - 1)

    def element(self, e: int) -> Any:
        """Which lanes have element `e` of the vector inside the memory's extents."""
        inside: Any = np.True_
        for axis, (index, extent) in enumerate(zip(self.indices, self.span.dims, strict=True)):
            shifted = index + e if axis == self.axis else index
            inside = inside & (shifted >= 0) & (shifted < extent)
        return inside

    def require_inside(self) -> None:
        if np.all(self.whole):
            return
        counts = [self.vec if axis == self.axis else 1 for axis in range(len(self.indices))]
        require_within(self.c, self.op, self.op.name, self.span.label, self.indices, self.span.dims, counts)

    def parts(self) -> Iterator[tuple[int, int, Any]]:
        """The accesses of a guarded vector, each with its first element, their number, and the lanes that make it, to
        which the mask is restricted: as a whole where all are inside, element by element at an edge."""
        with masked(self.c, self.whole) as some:
            if some:
                yield 0, self.vec, self.whole
        for e in range(0 if self.vec == 1 or np.all(self.whole) else self.vec):
            alone = self.element(e) & ~self.whole
            with masked(self.c, alone) as some:
                if some:
                    yield e, 1, alone


def require_within(
    c: Cohort,
    op: Op,
    access: str,
    name: str,
    indices: Sequence[Any],
    extents: Sequence[int],
    counts: Sequence[int],
    axes: Iterable[int] | None = None,
    lanes: int = WARP,
) -> None:
    """Raise EmulatorError unless `counts` elements along each of the `axes`, all by default, from `indices` on, are
    inside for the first active `lanes` of each warp. Of lanes that a mask turns off indices may be anything."""
    outside: Any = False
    for axis in range(len(indices)) if axes is None else axes:
        outside = outside | _beyond(np.asarray(indices[axis]), extents[axis] - counts[axis])
    if not np.any(outside):
        return
    wrong = c.active() & outside & (np.arange(WARP) < lanes)
    if not wrong.any():
        return
    at = ", ".join(str(int(c.spread(i)[wrong][0])) for i in indices)
    several = [n for n in counts if n > 1]
    more = f" and the {several[0] - 1} elements after it" if len(several) == 1 else ""
    box = f" of {' x '.join(map(str, several))} elements" if len(several) > 1 else ""
    raise EmulatorError(
        f"out of bounds: {access}{box} at {name}[{at}]{more}, but {name} has {' x '.join(map(str, extents))} elements; "
        + name_threads(c, wrong),
        op.loc,
        f"guard the access ({name}.get, {name}.put) or correct the index",
        code="T501",
        sides=(first_of(c, op, wrong, access),),
        memory=Accessed(name, "", tuple(int(c.spread(i)[wrong][0]) for i in indices)),
    )


def _beyond(index: NDArray[Any], last: int) -> Any:
    """Where an index is not one of 0 ... `last`: as unsigned numbers, negative ones are beyond."""
    if last < 0:
        return True
    return index.view(f"u{index.itemsize}") > last


def shifted(origin: Sequence[Any], axes: Sequence[int], offsets: Sequence[Any]) -> list[Any]:
    """The indices `origin` with offsets along some of their axes."""
    indices = [np.asarray(i) for i in origin]
    for axis, offset in zip(axes, offsets, strict=True):
        indices[axis] = indices[axis] + offset
    return indices


def read_place(place: Place) -> tuple[Any, ...]:
    """As copies read: of a tensor zeros past its edge, of a tile what is inside."""
    if place.span.space == "shared":
        place.require_inside()
    return read_guarded(place, (np.zeros((), place.span.elements.dtype),) * place.vec)


def write_place(place: Place, values: tuple[Any, ...]) -> None:
    """As copies write: past the edge of a tensor nothing."""
    if place.span.space == "shared":
        place.require_inside()
    write_guarded(place, values)


def read_guarded(place: Place, others: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is inside, and `others` past an edge."""
    values = list(others)
    for first, count, lanes in place.parts():
        read = load(place.c, place.op, place.span, place.address + first * place.size, count)
        which = None if np.all(lanes) else np.asarray(lanes)
        for e, value in enumerate(read, first):
            values[e] = blend(which, value, values[e])
    return tuple(values)


def write_guarded(place: Place, values: tuple[Any, ...]) -> None:
    for first, count, _ in place.parts():
        address = place.address + first * place.size
        store(place.c, place.op, place.span, address, values[first : first + count])

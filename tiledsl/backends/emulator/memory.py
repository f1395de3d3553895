"""Global tensors and shared memory as spans of addresses; loads and stores on them.

A pointer is an int64: a virtual address for global memory, where each tensor has a range of 2^40 bytes
to itself so that a stray address is recognised, and a byte offset into the block for shared memory.
Reads by lanes that a mask turns off are harmless as long as they stay inside the span, so masks cost
nothing on the fast path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator import native
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.options import Access, AccessKind
from tiledsl.errors import EmulatorError, KernelArgumentError
from tiledsl.ir.core import Op
from tiledsl.ir.types import DType, Space

__all__ = [
    "ADDRESS_BITS",
    "GlobalBuffer",
    "SharedTile",
    "Span",
    "access_index",
    "assign",
    "load",
    "name_threads",
    "notify",
    "require_writable",
    "store",
]

ADDRESS_BITS = 40
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Memory that an access may touch: the elements at addresses `low` ... `high` (bytes, end exclusive).

    `elements` is flat; the element at address a is ``elements[(a - origin) / itemsize + rows]``, where
    `rows` [groups, 1, 1] is None or selects the shared memory of each group's block. `valid`: None, or
    which elements belong to the tensor (a strided tensor has gaps). `extents`: what to call it in messages.
    """

    space: Space
    label: str
    elements: NDArray[Any]
    origin: int
    low: int
    high: int
    rows: Ints | None = None
    valid: NDArray[np.bool_] | None = None
    base: int = 0
    extents: str = ""
    strides: tuple[int, ...] = ()
    writable: bool = True


class GlobalBuffer:
    """A tensor argument: any strides, read and written in place.

    `pointer`: the virtual address of its element [0, ..., 0], with the host address's alignment.
    """

    def __init__(self, name: str, array: NDArray[Any], number: int, dtype: DType) -> None:
        size = array.itemsize
        if any(s % size for s in array.strides):
            raise KernelArgumentError(
                f"{name}: strides of {array.strides} bytes are not multiples of its item size, {size}; pass a copy"
            )
        self.name, self.array, self.dtype = name, array, dtype
        self.shape = array.shape
        self.strides = tuple(s // size for s in array.strides)
        flipped = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
        count = 1 + sum((n - 1) * abs(s) for n, s in zip(array.shape, self.strides, strict=True)) if array.size else 0
        # As plain words: NumPy's array interface does not know all dtypes of ml_dtypes.
        elements = np.lib.stride_tricks.as_strided(flipped.view(f"u{size}"), (count,), (size,)).view(array.dtype)
        host = flipped.__array_interface__["data"][0]
        start = (number << ADDRESS_BITS) + (1 << (ADDRESS_BITS - 1)) + host % 4096
        below = sum((n - 1) * -s for n, s in zip(array.shape, self.strides, strict=True) if s < 0)
        self.pointer = start + max(below, 0) * size
        self.span = Span(
            "global",
            name,
            elements,
            start,
            start,
            start + count * size,
            valid=self.gaps(elements, below),
            base=self.pointer,
            extents=" x ".join(map(str, array.shape)),
            strides=self.strides,
            writable=array.flags.writeable,
        )

    def gaps(self, elements: NDArray[Any], below: int) -> NDArray[np.bool_] | None:
        if elements.size <= self.array.size:
            return None
        valid = np.zeros(elements.shape, np.bool_)
        view = np.lib.stride_tricks.as_strided(valid[below:], self.shape, self.strides)
        view[...] = True
        return valid


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile in shared memory: `bytes` from `offset` on; `dims` in elements, row-major."""

    label: str
    dtype: DType
    offset: int
    bytes: int
    dims: tuple[int, ...] = ()

    def span(self, cohort: Cohort, dtype: np.dtype[Any]) -> Span:
        chunk = cohort.chunk
        elements = chunk.shared_as(dtype)
        rows = ((cohort.blocks - chunk.first) * (chunk.pitch // dtype.itemsize))[:, None, None]
        extents = " x ".join(map(str, self.dims)) or f"{self.bytes // dtype.itemsize}"
        return Span(
            "shared", self.label, elements, 0, self.offset, self.offset + self.bytes, rows, None, self.offset, extents
        )


# -- accesses --------------------------------------------------------------------------------------


def load(c: Cohort, op: Op, span: Span, address: Any, vec: int = 1) -> tuple[Any, ...]:
    """`vec` neighbouring elements from each lane's address. Raises EmulatorError outside the span."""
    address = np.asarray(address, np.int64)
    hooks = c.chunk.machine.hooks
    if not hooks and span.valid is None and (fast := native.gather(span, address, vec, c.mask)) is not None:
        return fast
    size = span.elements.itemsize
    inside = _inside(span, address, vec)
    if not inside.all():
        _check_lanes(c, op, span, address, inside, vec)
        address = np.where(inside, address, np.int64(span.low))
    if hooks:
        notify(c, op, "read", span, address, vec * size)
    if span.high - span.low < vec * size:
        empty = np.zeros(address.shape, span.elements.dtype)
        return (empty,) * vec
    index = _index(span, address)
    return tuple(span.elements.take(index + e if e else index) for e in range(vec))


def store(c: Cohort, op: Op, span: Span, address: Any, values: tuple[Any, ...]) -> None:
    """Each active lane writes neighbouring elements; of lanes with one address the last one stays."""
    address = np.asarray(address, np.int64)
    hooks = c.chunk.machine.hooks
    require_writable(op, span)
    if not hooks and span.valid is None and native.scatter(span, address, values, c.mask):
        return
    inside = _inside(span, address, len(values))
    if not inside.all():
        _check_lanes(c, op, span, address, inside, len(values))
    if hooks:
        notify(c, op, "write", span, address, len(values) * span.elements.itemsize)
    index = _index(span, address)
    for e, value in enumerate(values):
        assign(span.elements, index + e, value, c.mask)


def require_writable(op: Op, span: Span) -> None:
    if not span.writable:
        raise EmulatorError(f"{span.label} is read-only, but the kernel writes to it", op.loc, "pass a writable array")


def access_index(c: Cohort, op: Op, span: Span, address: Ints, kind: AccessKind, vec: int = 1, align: int = 0) -> Ints:
    """Check `vec` elements a lane, tell the hooks, and give the first one's index into ``span.elements``.

    align: of what the address shall be a multiple, if not of the width.
    """
    inside = _inside(span, address, vec, align)
    if not inside.all():
        _check_lanes(c, op, span, address, inside, vec, align)
    if c.chunk.machine.hooks:
        notify(c, op, kind, span, address, vec * span.elements.itemsize)
    return _index(span, address)


def assign(elements: NDArray[Any], index: Ints, value: Any, mask: Any) -> None:
    value = np.asarray(value, elements.dtype)
    if mask is None:
        shape = np.broadcast_shapes(index.shape, value.shape)
        elements[np.broadcast_to(index, shape)] = value
        return
    shape = np.broadcast_shapes(index.shape, value.shape, mask.shape)
    lanes = np.broadcast_to(mask, shape)
    elements[np.broadcast_to(index, shape)[lanes]] = np.broadcast_to(value, shape)[lanes]


def _index(span: Span, address: Ints) -> Ints:
    index = (address - span.origin) // span.elements.itemsize
    return index if span.rows is None else index + span.rows


def _inside(span: Span, address: Ints, vec: int, align: int = 0) -> NDArray[np.bool_]:
    """Which addresses are aligned and name elements of the span."""
    width = vec * span.elements.itemsize
    inside = (address >= span.low) & (address <= span.high - width) & (address % (align or width) == 0)
    if span.valid is not None and inside.any():
        index = _index(span, np.where(inside, address, np.int64(span.low)))
        for e in range(vec):
            inside &= span.valid.take(np.minimum(index + e, span.valid.size - 1))
    return inside


def notify(c: Cohort, op: Op, kind: AccessKind, span: Span, address: Ints, width: int) -> None:
    """Tell the hooks of an access by the active lanes."""
    lanes = c.active()
    blocks, threads = c.lanes_of(lanes)
    access = Access(op, kind, span.space, span.label, span.base, c.spread(address)[lanes], width, blocks, threads)
    for hook in c.chunk.machine.hooks:
        hook.on_access(access)


# -- errors ----------------------------------------------------------------------------------------


def _check_lanes(
    c: Cohort, op: Op, span: Span, address: Ints, inside: NDArray[np.bool_], vec: int, align: int = 0
) -> None:
    wrong = c.active() & ~inside
    if wrong.any():
        _report(c, op, span, int(c.spread(address)[wrong][0]), wrong, vec, align)


def _report(c: Cohort, op: Op, span: Span, address: int, wrong: NDArray[np.bool_], vec: int, align: int) -> None:
    """Raise EmulatorError for the first lane of `wrong`, whose address this is."""
    size = span.elements.itemsize
    width = vec * size
    align = align or width
    who = name_threads(c, wrong)
    if span.low <= address <= span.high - width and address % align:
        raise EmulatorError(
            f"misaligned access: {op.name} of {width} bytes at an address that is {address % align} past a multiple "
            f"of {align}, byte {address - span.base} of {span.label}; {who}",
            op.loc,
            f"make the address a multiple of {align} bytes, or access fewer elements at once",
        )
    offset = address - span.base
    place = _element(span, offset // size) if offset % size == 0 else ""
    raise EmulatorError(
        f"out of bounds: {op.name} of {width} bytes at byte {offset} of {span.label}{place}, which holds "
        f"{span.extents or 'no'} elements of {size} bytes; {who}",
        op.loc,
        "guard the access (A.get, A.put) or correct the index",
    )


def _element(span: Span, offset: int) -> str:
    """The index, counted from the largest stride down, that an offset in elements would have."""
    if not span.strides or any(s <= 0 for s in span.strides):
        return ""
    index = [0] * len(span.strides)
    for axis in sorted(range(len(index)), key=lambda a: -span.strides[a]):
        index[axis], offset = divmod(offset, span.strides[axis])
    return f" (element [{', '.join(map(str, index))}])"


def name_threads(c: Cohort, lanes: NDArray[np.bool_]) -> str:
    """The first thread of `lanes`, its block, and how many more there are."""
    launch = c.chunk.machine.launch
    blocks, threads = c.lanes_of(lanes)
    others = len(threads) - 1
    more = f" and {others} more" if others else ""
    return f"thread {launch.thread_index(int(threads[0]))} of block {launch.block_index(int(blocks[0]))}{more}"

"""Loads and stores of cohorts on spans of addresses.

Reads by lanes that a mask turns off are harmless as long as they stay inside the span, so masks cost
nothing on the fast path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Access, AccessKind, Bools, Ints
from tiledsl.backends.emulator.native import loops as native
from tiledsl.backends.emulator.spans import Span
from tiledsl.errors import Accessed, EmulatorError, Side
from tiledsl.ir.core import Op

# -- accesses --------------------------------------------------------------------------------------


def load(c: Cohort, op: Op, span: Span, address: Any, vec: int = 1, **more: Any) -> tuple[Any, ...]:
    """`vec` neighbouring elements from each lane's address. more: of what hooks hear."""
    if not c.chunk.watched and span.valid is None:
        found = native.gather(span, np.asarray(address, np.int64), vec)
        if found is not None:
            return found
    index = access_index(c, op, span, address, "read", vec, **more)
    if span.high - span.low < vec * span.elements.itemsize:
        return (np.zeros(index.shape, span.elements.dtype),) * vec
    return tuple(span.elements.take(index + e if e else index, mode="clip") for e in range(vec))


def store(c: Cohort, op: Op, span: Span, address: Any, values: tuple[Any, ...], **more: Any) -> None:
    """Each active lane writes neighbouring elements; of lanes with one address the last one stays. more: as above."""
    require_writable(op, span)
    index = access_index(c, op, span, address, "write", len(values), **more)
    for e, value in enumerate(values):
        assign(span.elements, index + e, value, c.mask)


def require_writable(op: Op, span: Span) -> None:
    if not span.writable:
        message = f"{span.label} is read-only, but the kernel writes to it"
        raise EmulatorError(message, op.loc, "pass a writable array", code="T503")


def access_index(
    c: Cohort, op: Op, span: Span, address: Any, kind: AccessKind, vec: int = 1, align: int = 0, **more: Any
) -> Ints:
    """Check `vec` elements a lane, tell the hooks, and give the first one's index into ``span.elements``.

    Raises EmulatorError outside the span; lanes that a mask turns off get any index inside. align: of what the address
    must be a multiple, if not of the width. more: of what hooks hear.
    """
    width = vec * span.elements.itemsize
    address = checked(c, op, span, address, width, align or width)
    if c.chunk.watched:
        lanes = c.active()
        blocks, threads = c.lanes_of(lanes)
        at = c.spread(address)[lanes]
        access = Access(op, kind, span.space, span.label, span.base, at, width, blocks, threads, **more)
        c.chunk.hook.on_access(access)
    return _index(span, address)


def checked(c: Cohort, op: Op, span: Span, address: Any, width: int, align: int) -> Ints:
    """The addresses; any inside of lanes that a mask turns off. Raises EmulatorError unless `width` bytes from each one
    on are in the span, and it is a multiple of `align`."""
    address = np.asarray(address, np.int64)
    inside = _inside(span, address, width, align)
    if inside.all():
        return address
    wrong = c.active() & ~inside
    if wrong.any():
        _fail(c, op, span, int(c.spread(address)[wrong][0]), wrong, width, align)
    return np.where(inside, address, np.int64(span.low))


def assign(elements: NDArray[Any], index: Ints, value: Any, mask: Any) -> None:
    value = np.asarray(value, elements.dtype)
    if mask is None:
        elements[_spread(index, np.broadcast(index, value).shape)] = value
        return
    shape = np.broadcast(index, value, mask).shape
    lanes = _spread(mask, shape)
    elements[_spread(index, shape)[lanes]] = _spread(value, shape)[lanes]


def _spread(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """`np.broadcast_to`, which takes microseconds also where there is nothing to do."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _index(span: Span, address: Ints) -> Ints:
    """Of the element at each address. The size of an element is a power of two."""
    index = address - span.origin
    index >>= span.elements.itemsize.bit_length() - 1  # in place: arrays of 65536 threads are slow to make
    return index if span.rows is None else index + span.rows


def _inside(span: Span, address: Ints, width: int, align: int) -> Bools:
    """Which addresses are aligned and begin `width` bytes of the span. `align`: a power of two."""
    inside = (address >= span.low) & (address <= span.high - width) & (address & (align - 1) == 0)
    if span.valid is not None and inside.any():
        index = _index(span, np.where(inside, address, np.int64(span.low)))
        for e in range(width // span.elements.itemsize):
            inside &= span.valid.take(np.minimum(index + e, span.valid.size - 1))
    return inside


# -- errors ----------------------------------------------------------------------------------------


def _fail(c: Cohort, op: Op, span: Span, address: int, wrong: Bools, width: int, align: int) -> None:
    """Raise EmulatorError for the first lane of `wrong`, whose address this is."""
    size, who, offset = span.elements.itemsize, name_threads(c, wrong), address - span.base
    sides, memory = (first_of(c, op, wrong, "accesses"),), Accessed(span.label, span.space, byte=offset, bytes=width)
    if span.low <= address <= span.high - width and address % align:
        raise EmulatorError(
            f"misaligned access: {op.name} of {width} bytes at an address that is {address % align} past a multiple "
            f"of {align}, byte {offset} of {span.label}; {who}",
            op.loc,
            f"make the address a multiple of {align} bytes, or access fewer elements at once",
            code="T502",
            sides=sides,
            memory=memory,
        )
    place = f" (element {offset // size})" if offset % size == 0 else ""
    raise EmulatorError(
        f"out of bounds: {op.name} of {width} bytes at byte {offset} of {span.label}{place}, which holds "
        f"{' x '.join(map(str, span.dims)) or 'no'} elements of {size} bytes; {who}",
        op.loc,
        "guard the access (A.get, A.put) or correct the index",
        code="T501",
        sides=sides,
        memory=memory,
    )


def name_threads(c: Cohort, lanes: Bools) -> str:
    """The first thread of `lanes`, its block, and how many more there are."""
    blocks, threads = c.lanes_of(lanes)
    others = len(threads) - 1
    return c.chunk.run.launch.thread_of_block(threads[0], blocks[0]) + (f" and {others} more" if others else "")


def first_of(c: Cohort, op: Op, lanes: Bools, does: str) -> Side:
    """Of a finding: the first thread of `lanes`."""
    blocks, threads = c.lanes_of(lanes)
    return c.chunk.run.launch.side(op, does, int(blocks[0]), thread=int(threads[0]))

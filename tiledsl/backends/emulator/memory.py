"""Loads and stores of cohorts on spans of addresses.

Reads by lanes that a mask turns off are harmless as long as they stay inside the span, so masks cost
nothing on the fast path.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Access, AccessKind
from tiledsl.backends.emulator.native import loops as native
from tiledsl.backends.emulator.spans import Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op

__all__ = ["access_index", "assign", "load", "name_threads", "require_writable", "store"]

Ints = NDArray[np.int64]


# -- accesses --------------------------------------------------------------------------------------


def load(c: Cohort, op: Op, span: Span, address: Any, vec: int = 1, **more: Any) -> tuple[Any, ...]:
    """`vec` neighbouring elements from each lane's address. Raises EmulatorError outside the span. more: of what hooks
    hear."""
    address = np.asarray(address, np.int64)
    hooks = c.chunk.run.hooks
    if not hooks and span.valid is None and (fast := native.gather(span, address, vec, c.mask)) is not None:
        return fast
    size = span.elements.itemsize
    inside = _inside(span, address, vec)
    if not inside.all():
        _check_lanes(c, op, span, address, inside, vec)
        address = np.where(inside, address, np.int64(span.low))
    if hooks:
        _notify(c, op, "read", span, address, vec * size, **more)
    if span.high - span.low < vec * size:
        empty = np.zeros(address.shape, span.elements.dtype)
        return (empty,) * vec
    index = _index(span, address)
    return tuple(span.elements.take(index + e if e else index) for e in range(vec))


def store(c: Cohort, op: Op, span: Span, address: Any, values: tuple[Any, ...], **more: Any) -> None:
    """Each active lane writes neighbouring elements; of lanes with one address the last one stays. more: as above."""
    address = np.asarray(address, np.int64)
    hooks = c.chunk.run.hooks
    require_writable(op, span)
    if not hooks and span.valid is None and native.scatter(span, address, values, c.mask):
        return
    inside = _inside(span, address, len(values))
    if not inside.all():
        _check_lanes(c, op, span, address, inside, len(values))
    if hooks:
        _notify(c, op, "write", span, address, len(values) * span.elements.itemsize, **more)
    index = _index(span, address)
    for e, value in enumerate(values):
        assign(span.elements, index + e, value, c.mask)


def require_writable(op: Op, span: Span) -> None:
    if not span.writable:
        raise EmulatorError(f"{span.label} is read-only, but the kernel writes to it", op.loc, "pass a writable array")


def access_index(
    c: Cohort, op: Op, span: Span, address: Ints, kind: AccessKind, vec: int = 1, align: int = 0, **more: Any
) -> Ints:
    """Check `vec` elements a lane, tell the hooks, and give the first one's index into ``span.elements``.

    align: of what the address shall be a multiple, if not of the width. more: of what hooks hear.
    """
    inside = _inside(span, address, vec, align)
    if not inside.all():
        _check_lanes(c, op, span, address, inside, vec, align)
    if c.chunk.run.hooks:
        _notify(c, op, kind, span, address, vec * span.elements.itemsize, **more)
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


def _notify(c: Cohort, op: Op, kind: AccessKind, span: Span, address: Ints, width: int, **more: Any) -> None:
    """Tell the hooks of an access by the active lanes."""
    lanes = c.active()
    blocks, threads = c.lanes_of(lanes)
    at = c.spread(address)[lanes]
    access = Access(op, kind, span.space, span.label, span.base, at, width, blocks, threads, **more)
    for hook in c.chunk.run.hooks:
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
    launch = c.chunk.run.launch
    blocks, threads = c.lanes_of(lanes)
    others = len(threads) - 1
    more = f" and {others} more" if others else ""
    return f"thread {launch.thread_index(int(threads[0]))} of block {launch.block_index(int(blocks[0]))}{more}"

"""Thread level memory: pointers, loads, stores and atomics at explicit addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort, is_fragment
from tiledsl.backends.emulator.hooks import Ints
from tiledsl.backends.emulator.memory import load, name_threads, store
from tiledsl.backends.emulator.rules.atomics import Update, access_atomically
from tiledsl.backends.emulator.rules.places import Place, require_within
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.backends.emulator.spans import ADDRESS_BITS, SharedTile, Span
from tiledsl.errors import EmulatorError
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import mem, tile, wgmma
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DType, GlobalType, PtrType, SharedType


@rule(mem.SharedBase)
def shared_base(c: Cohort, op: mem.SharedBase) -> Any:
    return np.array(op.offset, np.int64)


@rule(mem.Offset)
def offset(c: Cohort, op: mem.Offset, base: Any, index: Any) -> Any:
    return np.add(base, np.multiply(index, mem.pointer(op).dtype.bytes, dtype=np.int64))


def located(c: Cohort, op: Op, position: int, values: Sequence[Any], vec: int = 1) -> tuple[Span, Ints, Sequence[Any]]:
    """Where `vec` elements a lane are: the operands from `position` on name a memory and its indices, or a pointer.

    `values` begin with theirs. Gives the span, the address of each lane, and the values behind. Raises EmulatorError
    for indices outside of the memory.
    """
    type_ = op.operands[position].type
    if isinstance(type_, PtrType):
        return span_of(c, op, values[0], position), np.asarray(values[0], np.int64), values[1:]
    assert isinstance(type_, (GlobalType, SharedType))
    place = Place(c, op, values[0], values[1 : 1 + type_.rank], type_, vec)
    place.require_inside()
    return place.span, np.asarray(place.address, np.int64), values[1 + type_.rank :]


@rule(tile.Load, mem.Load)
def load_elements(c: Cohort, op: tile.Load | mem.Load, *operands: Any) -> Any:
    span, address, _ = located(c, op, 0, operands, op.vec)
    values = load(c, op, span, address, op.vec)
    return values if op.vec > 1 else values[0]


@rule(tile.Store, mem.Store)
def store_elements(c: Cohort, op: tile.Store | mem.Store, *operands: Any) -> None:
    span, address, values = located(c, op, 0, operands, op.vec)
    store(c, op, span, address, values[0] if is_fragment(values[0]) else tuple(values))


@rule(tile.Atomic, mem.Atomic)
def atomic(c: Cohort, op: tile.Atomic | mem.Atomic, *operands: Any, update: Update | None = None) -> Any:
    span, address, values = located(c, op, 0, operands)
    return access_atomically(c, op, span, address, *values, update=update)


@rule(mem.Within)
def within(c: Cohort, op: mem.Within, *operands: Any) -> None:
    given = iter(operands[op.rank :])
    extents = [int(next(given)) if extent < 0 else extent for extent in op.extents]
    require_within(c, op, op.access, op.label, operands[: op.rank], extents, op.counts, op.axes, op.lanes)


def span_of(c: Cohort, op: Op, address: Any, position: int = 0) -> Span:
    """What an access through the op's operand at `position` may touch: the tile or tensor that it was derived from."""
    pointer, type_ = op.operands[position], mem.pointer(op, position)
    if type_.space == "global":
        return _global_span(c, op, pointer, np.asarray(address), type_.dtype)
    base = _root(pointer).op
    label, start, size = "shared memory", 0, c.chunk.memory.bytes
    if isinstance(base, mem.SharedBase):
        label, start, size = base.label or label, base.offset, base.bytes
    return SharedTile(label, type_.dtype, start, size).span(c.chunk.memory, c.blocks)


def tile_at(byte: int, values: Sequence[Value]) -> mem.SharedBase | None:
    """The tile that has this byte, among those that pointers, or descriptors of operands, were derived from."""
    makers = (value.op for value in values)
    pointers = [made.ptr if isinstance(made, wgmma.Descriptor) else made.results[0] for made in makers if made]
    roots = (_root(pointer).op for pointer in pointers)
    tiles = (root for root in roots if isinstance(root, mem.SharedBase))
    return next((tile for tile in tiles if tile.offset <= byte < tile.offset + tile.bytes), None)


def _root(pointer: Value) -> Value:
    """The pointer that offsets were added to; a block argument or a selection ends the search."""
    while isinstance(pointer.owner, mem.Offset):
        pointer = pointer.owner.base
    return pointer


def _global_span(c: Cohort, op: Op, pointer: Value, address: NDArray[Any], dtype: DType) -> Span:
    """Found by address, since a pointer may have come through a selection; all lanes use one tensor."""
    run = c.chunk.run
    root = _root(pointer)
    if root.owner is run.kernel.body:
        return run.tensors[run.kernel.abi[root.index].name]
    lanes = c.active()
    numbers = np.unique(c.spread(address)[lanes] >> ADDRESS_BITS)
    spans = [span for span in run.tensors.values() if span.base >> ADDRESS_BITS in numbers]
    if len(numbers) == 1 and len(spans) == 1 and spans[0].elements.dtype == numpy_dtype(dtype):
        return spans[0]
    raise EmulatorError(
        f"{op.name} through a pointer into "
        + (" and ".join(s.label for s in spans) if len(spans) > 1 else "no tensor of its dtype")
        + f"; {name_threads(c, lanes)}",
        op.loc,
        "derive the pointer from one tensor in every lane",
        code="T504",
    )

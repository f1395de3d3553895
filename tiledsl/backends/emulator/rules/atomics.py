"""Atomic operations with a defined order: lanes go in block, warp and lane order.

A run of the emulator is one of those that the memory model allows, with every write seen at once. What an order or a
scope adds is for the checks: each access has both (`hooks.Access`).
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import Ints
from tiledsl.backends.emulator.memory import access_index, load, require_writable, store
from tiledsl.backends.emulator.spans import Span
from tiledsl.ir import semantics
from tiledsl.ir.ops import mem, tile
from tiledsl.ir.types import F32, GlobalType, PtrType

Atomic = tile.Atomic | mem.Atomic
Update = Callable[..., Any]


def access_atomically(
    c: Cohort, op: Atomic, span: Span, address: Any, *values: Any, update: Update | None = None
) -> Any:
    """What each active lane found, [groups, warps, 32]; None for a store. Lanes at one element go in turn. update: what
    becomes of elements, from the old ones and the values, if it is not what the op says."""
    heard: dict[str, Any] = {"order": op.order, "reach": op.reach}
    if not op.fn.writes:
        return load(c, op, span, address, **heard)[0]
    if not op.fn.reads:
        return store(c, op, span, address, values, **heard)
    require_writable(op, span)
    index = c.spread(access_index(c, op, span, np.asarray(address, np.int64), "atomic", **heard))
    lanes = c.active()
    update = update or _update(op)
    where, given = index[lanes], [c.spread(v)[lanes] for v in values]
    old = np.zeros(len(where), span.elements.dtype)
    # The n-th lane that comes to an address has its turn in round n.
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(ordered) else order
    counts = np.diff(np.append(starts, len(ordered)))
    if update is not _global_f32 or not _add_up(span.elements, where, given[0], old, order, starts, counts):
        turn = np.arange(len(ordered)) - np.repeat(starts, counts)
        by_turn = order[np.argsort(turn, kind="stable")]
        for members in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if len(turn) else ():
            old[members] = span.elements[where[members]]
            span.elements[where[members]] = update(old[members], *(v[members] for v in given))
    if not np.array_equal(span.elements[where], old):
        c.chunk.changes.count += 1
    result = np.zeros(c.shape, span.elements.dtype)
    result[lanes] = old
    return result


def _update(op: Atomic) -> Update:
    memory = op.operands[0].type
    in_tensor = isinstance(memory, GlobalType) or (isinstance(memory, PtrType) and memory.space == "global")
    match op.fn.name:
        case "exchange":
            return _exchange
        case "cas":
            return _compare_and_swap
        case "add" if op.dtype == F32 and in_tensor:
            return _global_f32
        case name:
            return semantics.function(name, op.dtype)


def _exchange(old: Any, value: Any) -> Any:
    return value


def _compare_and_swap(old: NDArray[Any], compare: NDArray[Any], value: NDArray[Any]) -> Any:
    bits = f"u{old.itemsize}"
    same = old.view(bits) == np.ascontiguousarray(compare).view(bits)
    return np.where(same, value, old)


def _global_f32(old: Any, added: Any) -> Any:
    """atom.add.f32 on global memory takes subnormals as zeros of their sign, and gives such zeros
    (PTX ISA: atom). On shared memory it keeps them, as all other arithmetic does."""
    return _flushed(_ADD_F32(_flushed(old), _flushed(added)))


_ADD_F32 = semantics.function("add", F32)
_LEAST_NORMAL = np.finfo(np.float32).tiny


def _add_up(
    elements: NDArray[Any], where: Ints, added: NDArray[Any], old: NDArray[Any], order: Ints, starts: Ints, counts: Ints
) -> bool:
    """All turns of `_global_f32` at once, as running sums: many lanes at one address take less time than turn by turn.

    `order` names the lanes by address, `counts` of them from each of `starts` on. False, and nothing is done, if a sum
    is no finite number, or is below the least normal one.
    """
    sums: list[tuple[Ints, NDArray[Any]]] = []
    for count in np.unique(counts).tolist():
        lanes = order[starts[counts == count][:, None] + np.arange(count)]
        first = elements[where[lanes[:, 0]]]
        found = np.add.accumulate(_flushed(np.column_stack([first, added[lanes]])), axis=1)
        if not np.isfinite(found).all() or ((found != 0) & (np.abs(found) < _LEAST_NORMAL)).any():
            return False
        sums.append((lanes, found))
    for lanes, found in sums:
        first = lanes[:, 0]
        old[first] = elements[where[first]]
        old[lanes[:, 1:]] = found[:, 1:-1]
        elements[where[first]] = found[:, -1]
    return True


def _flushed(x: NDArray[Any]) -> NDArray[Any]:
    small = np.abs(x) < _LEAST_NORMAL
    return np.where(small, np.copysign(np.float32(0), x), x) if small.any() else x

"""Atomic addition with a defined order: lanes add in block, warp and lane order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import Span, access_index
from tiledsl.ir import semantics
from tiledsl.ir.core import Op
from tiledsl.ir.types import F32, DType, GlobalType, PtrType

__all__ = ["atomic_add"]


def atomic_add(c: Cohort, op: Op, span: Span, dtype: DType, address: Any, value: Any) -> Any:
    """Each active lane adds; the result is what it found, [groups, warps, 32]."""
    index = c.spread(access_index(c, op, span, np.asarray(address, np.int64), "atomic"))
    lanes = c.active()
    add = _global_f32 if dtype == F32 and _is_global(op) else partial(semantics.apply, "add", dtype)
    where, added = index[lanes], c.spread(value)[lanes]
    old = np.zeros(len(where), span.elements.dtype)
    # The n-th lane that comes to an address adds in round n.
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    turn = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
    by_turn = order[np.argsort(turn, kind="stable")]
    rounds = np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]) if len(turn) else []
    for members in rounds:
        old[members] = span.elements[where[members]]
        span.elements[where[members]] = add(old[members], added[members])
    result = np.zeros(c.shape, span.elements.dtype)
    result[lanes] = old
    return result


def _is_global(op: Op) -> bool:
    memory = op.operands[0].type
    return isinstance(memory, GlobalType) or (isinstance(memory, PtrType) and memory.space == "global")


def _global_f32(old: Any, added: Any) -> Any:
    """atom.add.f32 on global memory takes subnormals as zeros of their sign, and gives such zeros
    (PTX ISA: atom). On shared memory it keeps them, as all other arithmetic does."""
    return _flushed(semantics.apply("add", F32, _flushed(old), _flushed(added)))


def _flushed(x: Any) -> Any:
    flushed: Any = np.array(x)
    flushed[np.abs(flushed) < np.finfo(np.float32).tiny] *= 0  # a zero of the same sign
    return flushed

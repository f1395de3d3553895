"""Atomic addition with a defined order: lanes add in block, warp and lane order."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.memory import Span, access_index
from tiledsl.ir import semantics
from tiledsl.ir.core import Op
from tiledsl.ir.types import DType

__all__ = ["atomic_add"]


def atomic_add(c: Cohort, op: Op, span: Span, dtype: DType, address: Any, value: Any) -> Any:
    """Each active lane adds; the result is what it found, [groups, warps, 32]."""
    index = c.spread(access_index(c, op, span, np.asarray(address, np.int64), "atomic"))
    lanes = c.active()
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
        span.elements[where[members]] = semantics.apply("add", dtype, old[members], added[members])
    result = np.zeros(c.shape, span.elements.dtype)
    result[lanes] = old
    return result

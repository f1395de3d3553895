"""Exchange between the lanes of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.arch import WARP
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules.gpu import require_whole_warps
from tiledsl.backends.emulator.rules.registry import rule
from tiledsl.ir.ops import warp

__all__: list[str] = []

_LANES = np.arange(WARP)


@rule(warp.Shuffle)
def shuffle(c: Cohort, op: warp.Shuffle, value: Any, lane: Any) -> Any:
    """A source outside the group, or a lane that the block does not have, gives the lane's own value."""
    require_whole_warps(c, op)
    lane = np.asarray(lane, np.int64)
    within, first = _LANES % op.width, _LANES - _LANES % op.width
    target = {
        "idx": lambda: lane % op.width,
        "up": lambda: within - lane,
        "down": lambda: within + lane,
        "xor": lambda: within ^ lane,
    }[op.mode]()
    source = np.where((target >= 0) & (target < op.width), first + target, _LANES)
    if c.exists is not None:
        spread = np.broadcast_to(source, c.shape)
        source = np.where(np.take_along_axis(c.spread(c.exists), spread, axis=2), spread, _LANES)
    values = np.asarray(value)
    if values.ndim == 0 or values.shape[2] == 1:
        return value
    shape = np.broadcast_shapes(source.shape, values.shape)
    return np.take_along_axis(np.broadcast_to(values, shape), np.broadcast_to(source, shape), axis=2)


@rule(warp.Uniform)
def uniform(c: Cohort, op: warp.Uniform, value: Any) -> Any:
    return value


@rule(warp.Vote)
def vote(c: Cohort, op: warp.Vote, predicate: Any) -> Any:
    require_whole_warps(c, op)
    active = c.spread(True if c.exists is None else c.exists)
    predicate = np.asarray(predicate)
    if op.mode == "all":
        return (predicate | ~active).all(axis=2, keepdims=True)
    holds = predicate & active
    if op.mode == "any":
        return holds.any(axis=2, keepdims=True)
    bits = np.uint32(1) << _LANES.astype(np.uint32)
    return np.where(holds, bits, np.uint32(0)).sum(axis=2, keepdims=True, dtype=np.uint32)

"""The unit of execution: many (block, warp) pairs at one program point.

A value of a cohort is a scalar (0-d) or an array [groups, warps, 32] any of whose axes may be 1 where
the value does not vary along it. That is what makes wide emulation cheap: a thread index is a pattern
[1, warps, 32], a block index [groups, 1, 1], and arithmetic on them stays that small. Every group
belongs to one block. In a *regular* cohort all groups hold the same warps; any other set of pairs
is held as one pair a group. A fragment is a tuple of such values.

Masks are values of bools; None stands for all lanes.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Callable, Sequence, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends.emulator.chunk import Chunk
from tiledsl.backends.emulator.hooks import Bools, Ints
from tiledsl.ir.core import Op

Mask = Bools | None

FEW = 1 << 13
"""Lanes of which a copy is made in less time than a view by `np.broadcast_to`."""


def is_array(value: Any) -> TypeGuard[NDArray[Any]]:
    """True for a value that varies: an array [groups, warps, lanes]."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def is_fragment(value: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


@lru_cache(maxsize=64)
def all_lanes(shape: tuple[int, int, int]) -> NDArray[np.bool_]:
    """A mask that is set everywhere (read only)."""
    return np.broadcast_to(np.True_, shape)


class Cohort:
    """`blocks` [groups]: linear block indices. `warps` [1 or groups, warps]: which warps of the block.

    `pc`, `regs` and `mask` are the whole state: values, loop counters and the masks of enclosing regions
    live in `regs`. `exists` is None or False for the lanes of a last warp that the block does not have.
    `parked`: it gave way at a point where it may merge with others at the same `pc`. `visits`, `repeats`: its last
    states at the heads of the loops that it is in, and at which number of changes it came to one of them twice
    (`repeats.visit`).
    """

    __slots__ = (
        "_everyone", "blocks", "chunk", "exists", "mask", "parked", "pc", "regs", "repeats", "visits", "warps",
    )  # fmt: skip

    def __init__(
        self, chunk: Chunk, blocks: Ints, warps: Ints, regs: list[Any], mask: Mask, exists: Mask, pc: int = 0
    ) -> None:
        self.chunk, self.blocks, self.warps = chunk, blocks, warps
        self.regs, self.mask, self.exists, self.pc = regs, mask, exists, pc
        self.parked, self.repeats = False, -1
        self.visits: dict[Op, Any] = {}
        self._everyone: tuple[Ints, Ints] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.blocks), self.warps.shape[1], WARP

    @property
    def is_regular(self) -> bool:
        return self.warps.shape[0] == 1

    def spread(self, value: Any) -> NDArray[Any]:
        """The value with one entry a lane, [groups, warps, 32] (read only)."""
        shape = self.shape
        if np.shape(value) == shape:
            return value
        if prod(shape) > FEW:
            return np.broadcast_to(value, shape)
        copy = np.empty(shape, np.asarray(value).dtype)
        copy[...] = value
        return copy

    def active(self) -> Bools:
        """Which lanes are active, [groups, warps, 32]."""
        return all_lanes(self.shape) if self.mask is None else self.spread(self.mask)

    def existing(self) -> Bools:
        """Which lanes there are, [groups, warps, 32]."""
        return all_lanes(self.shape) if self.exists is None else self.spread(self.exists)

    def lanes_of(self, lanes: Bools) -> tuple[Ints, Ints]:
        """Linear block and thread index of every lane that is set in `lanes` [groups, warps, 32]."""
        if self._everyone is None:
            threads = self.spread(self.warps[:, :, None] * WARP + np.arange(WARP)).ravel()
            self._everyone = np.repeat(self.blocks, self.shape[1] * WARP), threads
        blocks, threads = self._everyone
        if lanes.all():
            return blocks, threads
        which = lanes.ravel()
        return blocks[which], threads[which]

    def threads(self) -> tuple[Ints, Ints]:
        """Linear block and thread index of every active lane."""
        return self.lanes_of(self.active())

    def active_warps(self) -> tuple[Ints, Ints, Bools]:
        """Block and warp of each warp of which a lane is active, and which of all the cohort's warps these are."""
        which = self.active().any(axis=2).ravel()
        blocks = np.repeat(self.blocks, self.shape[1])
        return blocks[which], np.broadcast_to(self.warps, self.shape[:2]).ravel()[which], which

    def of_lanes(self, value: Any, lanes: Any) -> Any:
        """The value in these lanes, or this one; of a fragment, each element."""
        return tuple(self.of_lanes(v, lanes) for v in value) if is_fragment(value) else self.spread(value)[lanes]

    def select(self, keep: Bools) -> Cohort:
        """A cohort of the pairs that are set in `keep` [groups, warps]; arrays are copied, scalars shared."""
        some_groups: Bools = np.any(keep, axis=1)
        some_columns: Bools = np.any(keep, axis=0)
        if np.array_equal(keep, some_groups[:, None] & some_columns):
            groups, columns = np.ix_(some_groups, some_columns)
        else:  # one pair a group of the result
            groups, columns = (places[:, None] for places in np.nonzero(keep))

        def taken(value: Any) -> Any:
            if is_fragment(value):
                return tuple(taken(v) for v in value)
            if not is_array(value) or value.shape[:2] == (1, 1):
                return value
            at = groups if value.shape[0] > 1 else 0, columns if value.shape[1] > 1 else 0
            return np.ascontiguousarray(value[at])

        regs = [None if v is None else taken(v) for v in self.regs]  # most are free
        blocks = self.blocks[groups[:, 0]]
        return Cohort(self.chunk, blocks, taken(self.warps), regs, taken(self.mask), taken(self.exists), self.pc)


def blend(mask: Mask, new: Any, old: Any) -> Any:
    """`new` where `mask` is set, `old` elsewhere; `old` may be None (nothing yet)."""
    if old is None or mask is None or new is old:
        return new
    if is_fragment(new):
        return tuple(blend(mask, a, b) for a, b in zip(new, old, strict=True))
    return np.where(mask, np.asarray(new), np.asarray(old))


def merge(cohorts: Sequence[Cohort], fills: dict[int, bool]) -> Cohort:
    """One cohort of all the pairs of `cohorts`, which stand at one `pc`.

    `fills`: for registers that hold masks, what an absent one (None) means in each lane.
    """
    first = cohorts[0]
    if len(cohorts) == 1:
        return first
    side_by_side = all(c.is_regular and np.array_equal(c.blocks, first.blocks) for c in cohorts)
    blocks, warps, concatenate = (_columns if side_by_side else _rows)(cohorts)

    def join(values: Sequence[Any], fill: bool | None) -> Any:
        if _shared_value(values):
            return values[0]
        present = next(v for v in values if v is not None)
        if is_fragment(present):
            parts = [(None,) * len(present) if v is None else v for v in values]
            return tuple(join(column, fill) for column in zip(*parts, strict=True))
        # A None that is no mask is a register that is dead in that cohort.
        absent = np.zeros((), np.asarray(present).dtype) if fill is None else np.asarray(fill)
        arrays = [absent if v is None else np.asarray(v) for v in values]
        return concatenate(arrays, max((a.shape or (1,))[-1] for a in arrays))

    regs = [join(values, fills.get(i)) for i, values in enumerate(zip(*(c.regs for c in cohorts), strict=True))]
    mask, exists = (join(masks, True) for masks in ([c.mask for c in cohorts], [c.exists for c in cohorts]))
    return Cohort(first.chunk, blocks, warps, regs, mask, exists, first.pc)


def _shared_value(values: Sequence[Any]) -> bool:
    """True if the values are one, the same in all lanes of all cohorts."""
    first = values[0]
    for value in values:
        if value is not first:
            break
    else:
        return not is_array(first) or first.shape[:2] == (1, 1)
    if any(v is None or is_fragment(v) or is_array(v) for v in values):
        return False
    return all(np.asarray(v).tobytes() == np.asarray(first).tobytes() for v in values)


Joined = tuple[Ints, Ints, Callable[[list[NDArray[Any]], int], NDArray[Any]]]
"""Blocks and warps of a merged cohort, and what makes a value of one from those of all, with so many lanes."""


def _columns(cohorts: Sequence[Cohort]) -> Joined:
    """Cohorts of the same blocks: their warps side by side, so that what no block varies stays small."""
    warps = np.concatenate([c.warps for c in cohorts], axis=1)
    order = np.argsort(warps[0], kind="stable")

    def concatenate(values: list[NDArray[Any]], lanes: int) -> NDArray[Any]:
        groups = max(v.shape[0] if v.ndim else 1 for v in values)
        spread = [np.broadcast_to(v, (groups, c.shape[1], lanes)) for v, c in zip(values, cohorts, strict=True)]
        return np.ascontiguousarray(np.concatenate(spread, axis=1)[:, order])

    return cohorts[0].blocks, warps[:, order], concatenate


def _rows(cohorts: Sequence[Cohort]) -> Joined:
    """Any cohorts: pair by pair, sorted, and regular again if every block has the same warps."""
    blocks = np.concatenate([np.repeat(c.blocks, c.shape[1]) for c in cohorts])
    warps = np.concatenate([np.broadcast_to(c.warps, c.shape[:2]).ravel() for c in cohorts])
    order = np.lexsort((warps, blocks))
    blocks, warps = blocks[order], warps[order][:, None]
    distinct, counts = np.unique(blocks, return_counts=True)
    table = warps.reshape(len(distinct), -1) if (counts == counts[0]).all() else None
    if table is not None and (table == table[0]).all():
        blocks, warps = distinct, table[:1]

    def concatenate(values: list[NDArray[Any]], lanes: int) -> NDArray[Any]:
        rows = [np.broadcast_to(v, (*c.shape[:2], lanes)) for v, c in zip(values, cohorts, strict=True)]
        ordered = np.concatenate([row.reshape(-1, lanes) for row in rows])[order]
        return ordered.reshape(len(blocks), -1, lanes)

    return blocks, warps, concatenate

"""Describe who waits or spins, and where: in words, and as data of a finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiledsl.backends.emulator.chunk import Roles
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.repeats import read_by
from tiledsl.errors import Loc, Side
from tiledsl.ir.core import Op

Described = tuple[str, Side | None]
"""A line of text about some warps, and the same as data if they wait."""


def role_of(roles: Roles, warps: Sequence[int]) -> Loc | None:
    """Return the role that the warps belong to, or None if they belong to none."""
    for (first, count), loc in roles.items():
        if warps and first <= warps[0] and warps[-1] < first + max(count, 1):
            return loc
    return None


def spinning(loop: Op, cohorts: Sequence[Cohort]) -> Described:
    """Describe cohorts of one launch that spin in a loop: their first block, and how many others do."""
    each = [cohort.active_warps() for cohort in cohorts]
    blocks, warps = (np.concatenate(arrays) for arrays in list(zip(*each, strict=True))[:2])
    run, block, others = cohorts[0].chunk.run, int(blocks.min()), len(np.unique(blocks)) - 1
    mine, launch = np.unique(warps[blocks == block]).tolist(), run.launch
    who, role, index = name_warps(mine, "spins", "spin"), role_of(run.roles, mine), launch.block_index(block)
    waits = f"waiting for {' or '.join(read_by(loop)) or 'memory'} to change"
    more = f"; so do warps of {others} more block{'s' * (others > 1)}" if others else ""
    named = who.rpartition(" ")[0]
    side = Side(loop.loc, loop.name, named, f"spins, {waits}", index, None, (*mine,), role, launch.rank)
    return f"{launch.block_name(block)}: {who} at {loop.loc}, {waits}{more}", side


def sides_of(described: list[Described]) -> tuple[Side, ...]:
    """Return the data of those that wait."""
    return tuple(side for _, side in described if side is not None)


def warps_of(cohort: Cohort, block: int) -> list[int]:
    """Return the warps of the block that are in the cohort."""
    return np.broadcast_to(cohort.warps, cohort.shape[:2])[cohort.blocks == block].ravel().tolist()


def name_warps(warps: Sequence[int], one: str, several: str) -> str:
    """Name the warps, with the verb: ``warp 3 waits``, ``warps 4, 5, 6, 7 wait``."""
    named = ", ".join(map(str, warps[:8])) + (", ..." if len(warps) > 8 else "")
    return f"warp {named} {one}" if len(warps) == 1 else f"warps {named} {several}"

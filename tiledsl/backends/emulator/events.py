"""What rules tell the hooks besides accesses: fences, and groups of asynchronous work."""

from __future__ import annotations

from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.hooks import FenceKind, Group
from tiledsl.ir.core import Op

__all__ = ["commits", "fences", "waits"]


def fences(c: Cohort, op: Op, kind: FenceKind) -> None:
    """The active threads execute a fence."""
    if c.chunk.run.hooks:
        blocks, threads = c.lanes_of(c.active())
        for hook in c.chunk.run.hooks:
            hook.on_fence(op, kind, blocks, threads)


def commits(c: Cohort, op: Op, group: Group) -> None:
    """What the active threads have begun is a group."""
    if c.chunk.run.hooks:
        blocks, threads = c.lanes_of(c.active())
        for hook in c.chunk.run.hooks:
            hook.on_commit(op, group, blocks, threads)


def waits(c: Cohort, op: Op, group: Group, pending: int) -> None:
    """The active threads have waited for all of their groups but the last `pending`."""
    if c.chunk.run.hooks:
        blocks, threads = c.lanes_of(c.active())
        for hook in c.chunk.run.hooks:
            hook.on_wait(op, group, blocks, threads, pending)

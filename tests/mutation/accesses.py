"""Decide whether accesses may change places, by what threads access in runs of the unmutated kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.mutation.places import kernel_of
from tests.mutation.subjects import Built
from tiledsl.backends.emulator import Access, Hook, Prepared
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.facts import NOTHING

__all__ = ["is_alone", "other_elements", "run_with"]


def run_with(made: Built, kernel: Kernel, *hooks: Hook) -> None:
    """Run the kernel on every input."""
    for run in made.runs:
        Prepared(kernel).run(run.arguments(), options=run.options(made.subject, hooks=hooks))


class _Touched(Hook):
    """The bytes, in steps of two, that each thread accesses with these ops."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops, self.found = ops, list[tuple[bool, np.ndarray]]()

    def on_access(self, access: Access) -> None:
        if access.op in self.ops:
            at = access.addresses[:, None] // 2 + np.arange(max(1, access.width // 2))
            space = int(access.space == "shared")
            thread = access.threads * (not access.held)  # the rows of a matrix are of the whole warp
            threads = (access.blocks * 1024 + thread)[:, None] * 2 + space
            self.found.append((access.kind != "read", np.unique(threads << 40 | at)))

    def cells(self, writes: bool | None) -> np.ndarray:
        found = [cells for wrote, cells in self.found if writes is None or wrote == writes]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def other_elements(made: Built, op: Op, past: Sequence[Op]) -> bool:
    """Return whether all are plain accesses of single threads, and no thread touches with `op` what it touches with
    the others, where one of the two writes."""
    others = [each for around in past for each in around.walk()]
    matrices = {a.matrix for each in (op, *others) for a in each.accesses()}
    if len(matrices) > 1:
        return False
    for each in (op, *others):
        if each.sync != NOTHING or any(a.done or a.atomic for a in each.accesses()):
            return False
    mine, theirs = _Touched([op]), _Touched(others)
    for run in made.runs:
        options = run.options(made.subject, hooks=(mine, theirs))
        Prepared(kernel_of(op)).run(run.arguments(), options=options)
    if not mine.found or not theirs.found:
        return False  # not reached, or a kernel of roles: it runs as a copy
    met = [(mine.cells(None), theirs.cells(True)), (mine.cells(True), theirs.cells(None))]
    return not any(np.isin(a, b).any() for a, b in met)


class _Sharing(Hook):
    """The bytes of memory that an op accesses, with their threads, and those that all other ops access."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.mine, self.others = (set[tuple[str, int, int, int]]() for _ in range(2))

    def on_access(self, access: Access) -> None:
        found = self.mine if access.op is self.op else self.others
        alone = not any(each.proxy == "async" or each.done or each.matrix for each in access.op.accesses())
        own = access.threads if alone else np.full_like(access.threads, -1)
        steps = range(0, max(1, access.width), 2)
        for block, thread, at in zip(access.blocks.tolist(), own.tolist(), access.addresses.tolist(), strict=True):
            found.update((access.space, block, thread, at + step) for step in steps)

    def alone(self) -> bool:
        """Return whether no thread accesses what another one does with the op. False if the op is not reached."""
        where = {self._cell(each): each[1:3] for each in self.mine}
        shared = any(where.get(self._cell(each), each[1:3]) != each[1:3] for each in (*self.mine, *self.others))
        return bool(where) and not shared

    @staticmethod
    def _cell(access: tuple[str, int, int, int]) -> tuple[str, int, int]:
        space, block, _, at = access
        return space, 0 if space == "global" else block, at


def is_alone(made: Built, op: Op, past: Sequence[Op]) -> bool:
    """Return whether, of an access and an op that orders threads, the access touches only what no other thread does."""
    others = [each for each in past if each.effects]
    accesses = [each for each in (op, *others) if each.sync == NOTHING and each.accesses()]
    if any(each.sync.kernels for each in (op, *others)):
        return False  # another kernel may access it
    if len(others) != 1 or len(accesses) != 1 or any(a.done or a.atomic or a.matrix for a in accesses[0].accesses()):
        return False
    for run in made.runs:
        hook = _Sharing(accesses[0])
        Prepared(kernel_of(op)).run(run.arguments(), options=run.options(made.subject, hooks=(hook,)))
        if not hook.alone():
            return False
    return True

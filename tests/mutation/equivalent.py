"""Proofs that a mutant is no fault. Each says so of a mutant that was not found, by a rule that a machine can check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np

from tests.mutation.operators import Change
from tests.mutation.places import kernel_of
from tests.mutation.subjects import Built
from tiledsl.arch import TARGETS
from tiledsl.backends.emulator import Access, Hook, Prepared
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.facts import NOTHING
from tiledsl.passes.manager import run_passes
from tiledsl.passes.pipeline import named_passes
from tiledsl.recursion import deep_recursion

__all__ = ["why_equivalent"]

_CLEANING = "canonicalize", "cse", "licm", "cse", "dce", "order-chains"


def why_equivalent(made: Built, mutant: Kernel, op: Op | None, change: Change) -> str:
    """The class of equivalents that a mutant belongs to, or "". mutant: at thread level. op: the one that `change`
    would change, in the kernel as it was."""
    if change.stronger:
        return "a stronger wait"
    if _text(made.lowered) == _text(mutant):
        return "the same IR"
    if _ptx(made.lowered, made.arch) == _ptx(mutant, made.arch):
        return "the same PTX"
    if op is not None and _joins_earlier_group(op, change):
        return "a stronger wait"
    if op is not None and _merges_groups(op, change, mutant):
        return "merged groups, all waited for"
    if op is not None and change.past and _other_elements(made, op, change.past):
        return "moved past accesses of its thread to other elements"
    return ""


def _text(kernel: Kernel) -> list[Any]:
    """The IR without locations, after the passes that follow `expand`: what has an effect, in order, and what is
    computed for it, in any."""
    passes = named_passes(shared_limit=0, target="")
    cleaned = run_passes(kernel.clone(), [passes[name] for name in _CLEANING])
    names: dict[Value, Any] = {value: ("parameter", at) for at, value in enumerate(cleaned.body.args)}
    return [str(cleaned.tensor_maps), *_block(cleaned.body, names, count())]


def _block(block: Block, names: dict[Value, Any], numbers: Iterator[int]) -> list[Any]:
    """names: of values: what is computed has that of its computation, the rest those of a number in order."""
    found: list[Any] = []
    for op in block.ops:
        inside: list[Any] = []
        for each in op.blocks:
            number = next(numbers)
            names.update({value: (number, at) for at, value in enumerate(each.args)})
            inside.append(_block(each, names, numbers))
        attributes = sorted((name, str(value)) for name, value in op.attrs.items())
        does = [op.name, attributes, [names[value] for value in op.operands], inside]
        if op.effects or op.blocks or op.terminator:
            found.append(does)
            key: Any = next(numbers)
        else:
            key = sha256(repr(does).encode()).hexdigest()
        names.update({value: (key, at) for at, value in enumerate(op.results)})
    return found


@deep_recursion()
def _ptx(kernel: Kernel, arch: str) -> str:
    text = emit_ptx(kernel.clone(), TARGETS[arch])[1]
    return re.sub(r"(?m)^\s*(\.loc|\.file|//).*\n|\$L__\w+", "", text)


def _joins_earlier_group(op: Op, change: Change) -> bool:
    """Does a copy or a product get into the group before its own, which is waited for no later?"""
    past = [each for each in change.past if each.effects]
    begins, commits = {access.done for access in op.accesses()} - {""}, op.sync.commits
    if not past or op.sync.releases:
        return False
    if change.what.startswith("before"):
        return bool(begins) and all(each.sync.commits in begins and not each.sync.releases for each in past)
    begun = [{access.done for access in each.accesses()} for each in past]
    return bool(commits) and all(commits in each for each in begun)


def _merges_groups(op: Op, change: Change, mutant: Kernel) -> bool:
    """Does it move or delete where a group ends, in a kernel whose every wait is for all groups? That what is in no
    group is waited for is a finding's matter."""
    commits = [each.sync.commits for each in (op, *change.past) if each.sync.commits and not each.sync.releases]
    waits = [each.attrs.get("pending") for each in mutant.walk() if each.sync.completes in commits]
    return bool(commits) and not any(waits) and all(each.sync.completes not in commits for each in change.past)


class _Touched(Hook):
    """Which bytes, in steps of two, each thread accesses with these ops."""

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


def _other_elements(made: Built, op: Op, past: Sequence[Op]) -> bool:
    """Are both plain accesses of single threads, and does none touch with `op` what it touches with the others, of
    which one writes?"""
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

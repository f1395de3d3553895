"""What ops declare is what happens when the emulator runs them: the kernels of all filetests, at both levels.

Each access that a hook sees is one that its op declares, each one declared is seen, and values that are uniform by
what ops declare are the same for threads of the group.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.filetest import FileTest
from tests.test_filetests import TESTS
from tiledsl.backends.emulator import Access, Hook, Options, Prepared
from tiledsl.errors import TileError
from tiledsl.ir import facts
from tiledsl.ir.core import OPS, Kernel, Op, Value
from tiledsl.ir.facts import reads, writes
from tiledsl.ir.ops import control, gpu, mem, tile, wgmma
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import PtrType
from tiledsl.passes.analysis.structure import ops_around
from tiledsl.passes.analysis.uniformity import LEVELS, Uniformity
from tiledsl.passes.analysis.written import memory_of
from tiledsl.passes.pipeline import run_pipeline

"""They share the kernels at their levels."""

RUNNING = [
    test for test in TESTS if test.runs and test.path.parent.name != "scalar" and not any(test.expected)
]  # of functions of scalars only values matter


@cache
def levels(test: FileTest) -> list[Prepared]:
    """As the emulator runs the kernel and, of a tile-level one, as all passes leave it; each op in its own line."""
    kernel = as_written(test)
    if kernel.level == "thread":
        return [Prepared(kernel)]
    both = [Prepared(kernel).kernel, run_pipeline(kernel.clone(), bounds=True)]
    lowered = [parse_kernel(print_kernel(each)) for each in both]
    for each in lowered:
        each.externals = kernel.externals
    return [Prepared(each) for each in lowered]


def kernels(test: FileTest) -> list[Kernel]:
    return [prepared.kernel for prepared in levels(test)]


@cache
def as_written(test: FileTest) -> Kernel:
    return test.kernel()


def emulate(test: FileTest, prepared: Prepared, **options: Any) -> Any:
    arguments = test.runs[0].arguments(as_written(test))
    return prepared.run(arguments, options=Options(stdout=io.StringIO(), **options))


def test_operands_are_those_of_the_groups() -> None:
    for op in (op for test in RUNNING for kernel in (as_written(test), *kernels(test)) for op in kernel.walk()):
        assert [value for group in op.groups.values() for value in group] == op.operands, op.name


# -- accesses --------------------------------------------------------------------------------------


class Accesses(Hook):
    """What ops did, and those of it that they did not declare."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, facts.Access]] = set()
        self.undeclared: list[str] = []

    def on_access(self, access: Access) -> None:
        fitting = [declared for declared in access.op.accesses() if fits(access, declared)]
        if len(access.addresses) and not fitting:
            self.undeclared.append(f"{access.op.name} does not declare: {access.kind} of {access.label}")
        self.seen.update((access.op.name, touch) for touch in access.op.touches if any(
            (touch.part, touch.writes) == (each.part, each.writes) for each in fitting
        ))  # fmt: skip

    def on_barrier(self, op: Op, blocks: Any) -> None:
        self.met(op, "cta")

    def on_sync_warp(self, op: Op, blocks: Any, warps: Any) -> None:
        self.met(op, "warp")

    def met(self, op: Op, reach: str) -> None:
        if op.sync.meets != reach:
            self.undeclared.append(f"{op.name} does not declare: meets {reach}")


def fits(seen: Access, declared: facts.Access) -> bool:
    """Is it what the op declares? Copies by groups or tokens may as well be complete at once."""
    if label(declared) not in (None, seen.label):
        return False
    at_once = declared.proxy == "generic" and declared.done in ("", "cp_async", "token")
    match seen.kind:
        case "read" | "write":
            same = declared.writes == (seen.kind == "write") and at_once
            return same and declared.atomic == (seen.reach or "")
        case "atomic":
            return declared.atomic == seen.reach
        case "async":
            return declared.writes and declared.done != ""
        case "fetch":
            return not declared.writes and declared.proxy == "async"
        case "mbarrier":
            return declared.writes and declared.atomic == "cluster"


def label(declared: facts.Access) -> str | None:
    """What the emulator calls the memory; None where control flow chose it."""
    memory = memory_of(declared.memory) if isinstance(declared.memory, Value) else None
    if memory is None:
        return None
    return memory.op.label if isinstance(memory.op, mem.SharedBase) else memory.name


def accesses_of(test: FileTest) -> Accesses:
    found = Accesses()
    for prepared in levels(test):
        emulate(test, prepared, hooks=(found,))
    return found


def test_accesses_are_those_that_are_declared() -> None:
    """All of them, and no others. Of an mbarrier that counts bytes, hooks see those that arrive."""
    seen: set[tuple[str, facts.Access]] = set()
    for test in RUNNING:
        found = accesses_of(test)
        assert not found.undeclared, test.name
        seen |= found.seen
    declared = {(name, touch) for name, op in OPS.items() for touch in op.touches}
    counted = {(name, "mbarrier") for name in ("tma.load", "mem.tma_load", "async.send", "mem.send")}
    assert {(name, touch.part) for name, touch in declared - seen} == counted


# -- uniformity ------------------------------------------------------------------------------------

Places = tuple[int, int]
"""A block and a thread of it."""


def traced(test: FileTest, prepared: Prepared, place: Places) -> dict[int, list[Any]]:
    """The results of each op, by its line, as one thread computed them."""
    found: dict[int, list[Any]] = {}
    for row in emulate(test, prepared, trace=place).trace:
        found.setdefault(row.loc.line, []).append(row.values)
    return found


def group_of(level: str, place: Places) -> tuple[int, ...]:
    """Threads with the same one are of one group."""
    block, thread = place
    size = {"warpgroup": 128, "warp": 32}.get(level)
    return () if level == "grid" else (block,) if size is None else (block, thread // size)


def together(kernel: Kernel, uniformity: Uniformity, op: Op) -> int:
    """How uniform the conditions around the op are: who reaches it as often."""
    values: list[Value] = []
    for around, _ in ops_around(op.parent):
        match around:
            case control.If():
                values.append(around.condition)
            case control.For():
                values += around.operands[:3]
            case _:
                values += around.blocks[0].terminator.operands[:1]
    return max((LEVELS.index(uniformity.of(v)) for v in values), default=0)


def not_uniform(test: FileTest) -> list[str]:
    """Ops whose results differ between threads that should agree on them."""
    wrong: list[str] = []
    for prepared in levels(test):
        kernel = prepared.kernel
        last = kernel.thread_count - 1
        places = [(0, thread) for thread in sorted({0, min(5, last), min(31, last), min(32, last), last})]
        try:
            traces = {place: traced(test, prepared, place) for place in [*places, (1, 0)]}
        except TileError:  # a grid of one block
            traces = {place: traced(test, prepared, place) for place in places}
        uniformity = Uniformity(kernel)
        for op in kernel.walk():
            if any(isinstance(r.type, PtrType) for r in op.results):
                continue  # tensors lie elsewhere in each run
            level = max((LEVELS.index(uniformity.of(r)) for r in op.results), default=len(LEVELS) - 1)
            level = max(level, together(kernel, uniformity, op))
            if LEVELS[level] != "thread" and not alike(op, LEVELS[level], traces):
                wrong.append(f"{op.name} is not the same for the {LEVELS[level]}")
    return wrong


def alike(op: Op, level: str, traces: Mapping[Places, Mapping[int, list[Any]]]) -> bool:
    groups: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, rows in traces.items():
        groups.setdefault(group_of(level, place), []).append(rows.get(op.loc.line, []))
    return all(same(found[0], other) for found in groups.values() for other in found[1:])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))  # pyright: ignore[reportUnknownArgumentType]
    return bool(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=False)) or repr(a) == repr(b)


PRODUCTS = ("load", "mma", "mma_sync", "store", "tma", "wgmma")
"""Files of many like kernels, whose values are what each lane holds of a matrix."""
SEVERAL = [t for t in RUNNING if t.path.stem not in PRODUCTS and as_written(t).thread_count > 1]


@pytest.mark.parametrize("test", SEVERAL, ids=lambda test: test.name)
def test_values_are_as_uniform_as_declared(test: FileTest) -> None:
    assert not not_uniform(test)


# -- wrong declarations are found ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "touches"),
    [
        (tile.Store, (reads("memory"),)),
        (mem.Load, ()),
        (tile.Copy, (reads("src"),)),
        (mem.CpAsync, (reads("src"), writes("dst"))),
        (wgmma.Mma, (reads("a", proxy="async", done="wgmma"),)),
        (OPS["mem.atomic_add"], (reads("ptr"), writes("ptr"))),
    ],
    ids=str,
)
def test_a_wrong_access_is_found(op: type[Op], touches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "touches", touches)
    if op.name == "mem.atomic_add":
        monkeypatch.setattr(mem.Atomic, "accesses", Op.accesses)
    assert any(op.name in text for test in RUNNING for text in undeclared_in(test, op))


def undeclared_in(test: FileTest, op: type[Op]) -> list[str]:
    used = any(isinstance(each, op) for kernel in kernels(test) for each in kernel.walk())
    return accesses_of(test).undeclared if used else []


@pytest.mark.parametrize("op", [gpu.Barrier, gpu.SyncWarp], ids=str)
def test_a_barrier_that_is_none_is_found(op: type[Op], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "sync", facts.NOTHING)
    assert any(op.name in text for test in RUNNING for text in undeclared_in(test, op))


@pytest.mark.parametrize(
    ("op", "varies"), [(gpu.LaneId, "operands"), (gpu.BlockId, "grid"), (OPS["warp.shuffle"], "cta")], ids=str
)
def test_a_wrong_uniformity_is_found(op: type[Op], varies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "varies", varies)
    of_it = [test for test in SEVERAL if any(isinstance(each, op) for each in as_written(test).walk())]
    assert any(op.name in text for test in of_it for text in not_uniform(test))

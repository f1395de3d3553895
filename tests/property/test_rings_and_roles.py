"""Nothing that rings and roles become is superfluous, in kernels that show each of it once: their filetests."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pytest
from taken_out import is_stopped, not_found, not_found_of_text, ordering

from tests.filetest import FileTest, read_filetests
from tiledsl.backends import emulator
from tiledsl.backends.emulator import Options
from tiledsl.ir.core import Kernel
from tiledsl.passes.pipeline import run_pipeline

FOLDER = Path(__file__).parents[1] / "filetests" / "passes"
TESTS = {
    test.name: test
    for name in ("lower_rings", "lower_roles")
    for test in read_filetests(FOLDER / f"{name}.tir")
    if test.runs
}

NOT_AGAIN = "nobody fills the slots of the last uses again"


class Left(NamedTuple):
    """What is not found, with the reason: of the text, and at thread level."""

    text: tuple[tuple[str, str], ...] = ()
    thread: tuple[tuple[str, str], ...] = ()


LEFT = {
    "passes/lower_rings:two_rings": Left(
        (("ring.drain", NOT_AGAIN),),
        (
            ("mbarrier.wait", "the other ring is shorter, and keeps the role from filling this one too early"),
            ("ptx.wgmma_wait", "the use inside has waited for all products"),
            ("mbarrier.arrive", NOT_AGAIN),
        ),
    ),
    "passes/lower_rings:two_in_flight": Left((("ring.drain", NOT_AGAIN),), (("mbarrier.arrive", NOT_AGAIN),) * 2),
    "passes/lower_rings:taken": Left(
        (("ring.free", NOT_AGAIN),),
        (("fence.proxy_async", NOT_AGAIN), ("mbarrier.arrive", NOT_AGAIN), ("gpu.sync_warp", NOT_AGAIN)),
    ),
    "passes/lower_rings:written": Left(
        thread=(("fence.mbarrier_init", "neither TMA nor another block reaches these mbarriers"),)
    ),
}


@cache
def lowered(name: str) -> Kernel:
    return run_pipeline(TESTS[name].kernel(), bounds=True)


def run(test: FileTest, kernel: Kernel) -> None:
    for each in test.runs:
        emulator.run(kernel, each.arguments(test.kernel()), options=Options(checks=True))


@cache
def is_found(name: str, numbers: tuple[int, ...]) -> bool:
    return is_stopped(lowered(name), numbers, partial(run, TESTS[name]))


@pytest.mark.parametrize("name", TESTS)
def test_nothing_is_found_as_it_stands(name: str) -> None:
    """At both levels."""
    run(TESTS[name], lowered(name))
    run(TESTS[name], TESTS[name].kernel())


@pytest.mark.parametrize("name", TESTS)
def test_each_barrier_fence_arrive_and_wait_is_needed(name: str) -> None:
    left = not_found(lowered(name), partial(is_found, name))
    assert left == sorted(op for op, _ in LEFT.get(name, Left()).thread)


@pytest.mark.parametrize("name", TESTS)
def test_each_op_of_the_text_is_needed(name: str) -> None:
    assert ordering(lowered(name))
    left = not_found_of_text(TESTS[name].kernel(), lowered(name), partial(is_found, name))
    assert left == sorted(op for op, _ in LEFT.get(name, Left()).text)

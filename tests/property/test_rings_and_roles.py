"""Nothing that rings and roles become is superfluous, in kernels that show each of it once: their filetests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from taken_out import not_found, not_found_of_text, ordering

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

CLOCKS = "clocks are of warps: that all lanes have read before one of them arrives (PTX ISA: bar.warp.sync)"


class Left(NamedTuple):
    """What is not found, with the reason: of the text, and at thread level."""

    text: tuple[tuple[str, str], ...] = ()
    thread: tuple[tuple[str, str], ...] = ()


LEFT: dict[str, Left] = {}


@cache
def lowered(name: str) -> Kernel:
    return run_pipeline(TESTS[name].kernel(), bounds=True)


def run(test: FileTest, kernel: Kernel) -> None:
    for each in test.runs:
        emulator.run(kernel, each.arguments(test.kernel()), options=Options(checks=True))


@pytest.mark.parametrize("name", TESTS)
def test_nothing_is_found_as_it_stands(name: str) -> None:
    """At both levels."""
    run(TESTS[name], lowered(name))
    run(TESTS[name], TESTS[name].kernel())


@pytest.mark.parametrize("name", TESTS)
def test_each_barrier_fence_arrive_and_wait_is_needed(name: str) -> None:
    left = not_found(lowered(name), lambda kernel: run(TESTS[name], kernel))
    assert left == sorted(op for op, _ in LEFT.get(name, Left()).thread)


@pytest.mark.parametrize("name", TESTS)
def test_each_op_of_the_text_is_needed(name: str) -> None:
    assert ordering(lowered(name))
    left = not_found_of_text(TESTS[name].kernel(), lowered(name), lambda kernel: run(TESTS[name], kernel))
    assert left == sorted(op for op, _ in LEFT.get(name, Left()).text)

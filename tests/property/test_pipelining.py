"""Pipelined loops compute what plain loops do, without a race, whatever the tiles, stages, ranges and surroundings.

The oracle is the kernel before the pass, at tile level: program order, every copy complete at once.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.random_pipelines import Shape, random_shape
from tests.property.random_products import Product, random_product
from tiledsl.backends import emulator
from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import async_copy, control, gpu
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import I32, INDEX
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.passes.pipelining.loops import loop_plans, pipeline_loops

LIMIT = 1 << 31
SEEDS = st.integers(0, 2**32 - 1)
PLAIN, CHECKED = emulator.Options(), emulator.Options(checks=True)


Case = Shape | Product


def result(kernel: Kernel, case: Case, options: emulator.Options = PLAIN) -> dict[str, Any]:
    arguments = case.arguments()
    emulator.run(kernel, arguments, options=options)
    return arguments


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name, expected in a.items():
        assert np.array_equal(expected, b[name]), name


def check(case: Case) -> dict[str, Any]:
    """The oracle, after the pass and after all passes; what they all compute."""
    kernel = case.kernel()
    verify(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    expected = result(kernel.clone(), case)
    passed = kernel.clone()
    pipeline_loops(passed)
    verify(passed)
    assert not any(isinstance(op, control.For) and op.stages for op in passed.walk())
    assert_same(expected, result(passed, case))
    assert_same(expected, result(run_pipeline(kernel, verify_each=True), case, CHECKED))
    return expected


@settings(max_examples=40)
@given(seed=SEEDS, is_async=st.booleans())
def test_pipelined_loops_compute_what_plain_loops_do(seed: int, is_async: bool) -> None:
    check(random_shape(Random(seed), is_async=is_async))


@settings(max_examples=20)
@given(seed=SEEDS, is_async=st.booleans())
def test_pipelined_products(seed: int, is_async: bool) -> None:
    """Fragments that warps hold together are carried from one iteration to the next."""
    got = check(random_product(Random(seed), is_async=is_async))
    assert np.array_equal(got["OUT"], got["A"].astype(np.float64) @ got["B"].astype(np.float64))


def test_the_shapes_are_of_every_kind() -> None:
    """The property above would hold of loops that do nothing, and says little if they are all alike."""
    seen: set[object] = set()
    worked = 0
    for seed in range(150):
        shape = random_shape(Random(seed), is_async=seed % 2 == 0)
        (plan,) = loop_plans(shape.kernel())
        seen |= {("stages", plan.stages), ("steps", len(plan.steps)), ("async", plan.is_async), ("trips", shape.trips)}
        seen.add(("entry", plan.shares_with is not None))
        worked += bool(result(shape.kernel(), shape)["OUT"].any())
    assert {("stages", n) for n in (1, 2, 3, 4)} | {("steps", n) for n in (0, 1, 2, 3)} <= seen
    assert {("trips", n) for n in range(7)} | {("entry", True), ("entry", False)} <= seen
    assert worked > 100


@settings(max_examples=25)
@given(
    lo=st.integers(-LIMIT, LIMIT - 1),
    step=st.integers(-LIMIT, LIMIT - 1).filter(bool),
    trips=st.integers(0, 5),
    stages=st.integers(2, 4),
    fragments=st.integers(1, 2),
)
def test_ranges_up_to_the_ends_of_i32(lo: int, step: int, trips: int, stages: int, fragments: int) -> None:
    """Iterations are counted and not compared, so nothing overflows where the plain loop would not."""
    room = (LIMIT - 2 - lo) // step if step > 0 else (1 - LIMIT - lo) // step
    trips = max(0, min(trips, room + 1))
    hi = lo + (trips - 1) * step + (1 if step > 0 else -1) if trips else lo
    known = step < 0  # a run-time step is positive
    shape = replace(SMALL, dtype=I32, lo=None, step=step if known else None, stages=stages, fragments=fragments)
    kernel = shape.kernel()
    results: list[Any] = []
    for each in (kernel.clone(), run_pipeline(kernel)):
        arguments = shape.arguments((lo, max(-LIMIT, min(LIMIT - 1, hi)), step))
        emulator.run(each, arguments)
        results.append(arguments["OUT"])
    assert np.array_equal(*results)
    assert not trips or results[0].any()


# -- nothing that the pass inserts is superfluous ----------------------------------------------------

SMALL = Shape(
    tiles=((8, 8, "auto", False), (16, 8, "auto", False)),
    stages=3,
    fragments=0,
    is_async=True,
    dtype=INDEX,
    lo=0,
    step=1,
    constant_hi=False,
    trips=6,
    steps=2,
    around=0,
    inner=False,
    stores=False,
    seed=7,
)


def inserted(kernel: Kernel) -> list[Op]:
    """Barriers and waits at the line of the loop, after the pass."""
    (line,) = {op.loc for op in kernel.walk() if isinstance(op, control.For) and op.stages}
    pipeline_loops(kernel)
    return [op for op in kernel.walk() if isinstance(op, (gpu.Barrier, async_copy.WaitGroup)) and op.loc == line]


@pytest.mark.parametrize("around", [0, 2])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_each_barrier_and_wait_is_needed(stages: int, fragments: int, is_async: bool, around: int) -> None:
    """Without any one of them, the checks of the emulator stop the kernel; with all, they are silent."""
    if stages == 1 and fragments == 2:
        fragments = 0
    shape = replace(SMALL, stages=stages, fragments=fragments, is_async=is_async, around=around)
    count = len(inserted(shape.kernel()))
    entry = around > 0
    waits = (1 if stages == 1 or fragments == 1 else 2) * is_async
    assert count == (2 if stages == 1 else 1 if fragments == 1 else 2) + waits + entry
    result(run_pipeline(shape.kernel()), shape, CHECKED)
    for number in range(count):
        kernel = shape.kernel()
        inserted(kernel)[number].erase()
        lowered = run_pipeline(kernel)
        with pytest.raises(HazardError):
            result(lowered, shape, CHECKED)

"""The static count of wavefronts is what the emulator counts from real addresses, whatever the layout."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bank_counts import emulated_counts, executions, static_counts
from tests.property.random_shared import BLOCKS, OUTPUTS, random_shared_kernel
from tiledsl.backends import emulator
from tiledsl.backends.emulator.wavefronts import WavefrontCount
from tiledsl.ir.core import Kernel
from tiledsl.passes.pipeline import pipeline

seeds = st.integers(0, 2**32 - 1)


def arguments(kernel: Kernel) -> dict[str, Any]:
    return {"OUT": np.zeros((kernel.thread_count * BLOCKS, OUTPUTS), np.int64), "n": np.int32(3)}


def run(kernel: Kernel) -> tuple[np.ndarray[Any, Any], WavefrontCount]:
    given_arguments, hook = arguments(kernel), WavefrontCount()
    emulator.run(kernel, given_arguments, options=emulator.Options(hooks=(hook,)))
    return given_arguments["OUT"], hook


@settings(max_examples=120)
@given(seed=seeds)
def test_static_count_times_executions_is_the_emulators_count(seed: int) -> None:
    kernel = random_shared_kernel(seed)
    passes = pipeline()
    names = [p.name for p in passes]
    for item in passes[: names.index("bank-conflict") + 1]:
        item.run(kernel)
    expected, at_tile_level = run(kernel)
    row_order = static_counts(kernel, "row", executions(at_tile_level))
    laid_out = static_counts(kernel, "chosen", executions(at_tile_level))
    for item in passes[names.index("bank-conflict") + 1 :]:
        item.run(kernel)
    got, at_thread_level = run(kernel)
    assert np.array_equal(got, expected), "a layout changed what the loads give"
    for static, emulated in ((row_order, at_tile_level), (laid_out, at_thread_level)):
        counted = emulated_counts(emulated)
        assert counted.keys() <= static.keys()
        for key, bounds in static.items():
            if bounds is not None:
                least, most = bounds
                assert least <= counted[key] <= most, (key, bounds, counted[key])


def test_most_random_accesses_are_counted_exactly() -> None:
    """The property above would hold of a count that always says it does not know."""
    exact = total = 0
    for seed in range(60):
        kernel = random_shared_kernel(seed)
        _, hook = run(kernel)
        static = static_counts(kernel, "row", executions(hook))
        total += len(static)
        exact += sum(bounds is not None and bounds[0] == bounds[1] for bounds in static.values())
    assert Fraction(exact, total) > Fraction(1, 2)

"""The static count of wavefronts is what the emulator counts from real addresses, whatever the layout."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bank_counts import emulated_counts, executions, static_counts
from tests.property.random_shared import BLOCKS, OUTPUTS, SOURCES, random_shared_kernel
from tiledsl.backends import emulator
from tiledsl.backends.emulator.wavefronts import WavefrontCount
from tiledsl.ir.core import Kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import GlobalType, PtrType
from tiledsl.layout.banks import Kind
from tiledsl.passes.pipeline import pipeline

seeds = st.integers(0, 2**32 - 1)


def run(kernel: Kernel) -> tuple[np.ndarray[Any, Any], WavefrontCount]:
    """OUT, and what the emulator counted."""
    source = kernel.body.args[1].type
    assert isinstance(source, (GlobalType, PtrType))
    given_arguments: dict[str, Any] = {
        "OUT": np.zeros((kernel.thread_count * BLOCKS, OUTPUTS), np.int64),
        "SRC": np.arange(SOURCES).astype(numpy_dtype(source.dtype)),
        "n": np.int32(3),
    }
    hook = WavefrontCount()
    emulator.run(kernel, given_arguments, options=emulator.Options(hooks=(hook,)))
    return given_arguments["OUT"], hook


@settings(max_examples=50)
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
    """The property above would hold of a count that never knows, or of kernels without such accesses."""
    exact, total = Counter[Kind](), Counter[Kind]()
    for seed in range(60):
        kernel = random_shared_kernel(seed)
        _, hook = run(kernel)
        for key, bounds in static_counts(kernel, "row", executions(hook)).items():
            total[key.kind] += 1
            exact[key.kind] += bounds is not None and bounds[0] == bounds[1]
    assert exact.total() > total.total() / 2
    for kind in ("ldmatrix", "stmatrix", "cp_async"):
        assert exact[kind] > total[kind] / 2 > 5, kind

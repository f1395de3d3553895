"""Every pass preserves what the emulator computes, bit for bit, and leaves a kernel that verifies; printing and parsing
are inverse before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.random_kernels import Case, cases, same_bits
from tiledsl.backends import emulator
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.banks.merge_accesses import merge_accesses
from tiledsl.passes.distribute.distribute import distribute
from tiledsl.passes.lower.expand import expand
from tiledsl.passes.manager import Pass
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.passes.scalar.canonicalize import canonicalize
from tiledsl.passes.scalar.cse import merge_common_subexpressions
from tiledsl.passes.scalar.dce import drop_dead_code
from tiledsl.passes.scalar.licm import move_loop_invariants
from tiledsl.passes.scalar.unroll import unroll

BOTH_LEVELS: tuple[Pass, ...] = (
    Pass("canonicalize", canonicalize),
    Pass("cse", merge_common_subexpressions),
    Pass("dce", drop_dead_code),
    Pass("licm", move_loop_invariants),
    Pass("merge-accesses", merge_accesses),
    Pass("unroll", unroll),
)


def result_of(kernel: Kernel, case: Case) -> dict[str, Any]:
    arguments = case.arguments()
    emulator.run(kernel, arguments)
    return arguments


def expect(kernel: Kernel, case: Case, expected: dict[str, Any], after: str) -> None:
    for name, got in result_of(kernel.clone(), case).items():
        if isinstance(got, np.ndarray) and not same_bits(got, expected[name]):
            pytest.fail(f"{name} changed after {after}:\n{expected[name]}\n{got}\n{print_kernel(kernel)}")


def round_trip(kernel: Kernel, *, locs: bool = True) -> None:
    text = print_kernel(kernel, locs=locs)
    again = parse_kernel(text)
    verify(again)
    assert print_kernel(again, locs=locs) == text
    for old, new in zip(kernel.walk(), again.walk(), strict=True):
        assert repr(old.attrs) == repr(new.attrs) and [type(old)] == [type(new)]
        assert [r.type for r in old.results] == [r.type for r in new.results]
        assert not locs or old.loc == new.loc


@settings(max_examples=30)
@given(case=cases(), bounds=st.booleans())
def test_pipeline(case: Case, bounds: bool) -> None:
    """With checks of bounds, too, which are silent: these kernels leave no memory."""
    verify(case.kernel)
    round_trip(case.kernel)
    round_trip(case.kernel, locs=False)
    expected = result_of(case.kernel.clone(), case)
    texts = [""]

    def check(stage: str, kernel: Kernel) -> None:
        verify(kernel)
        text = print_kernel(kernel)
        if text != texts[-1]:  # most passes leave a small kernel as it was
            expect(kernel, case, expected, stage)
        texts.append(text)

    round_trip(run_pipeline(case.kernel, bounds=bounds, observe=check))


@pytest.mark.parametrize("level", ["tile", "thread"])
@settings(max_examples=25)
@given(case=cases(), order=st.lists(st.sampled_from(BOTH_LEVELS), min_size=1, max_size=4))
def test_any_order(level: str, case: Case, order: list[Pass]) -> None:
    kernel = case.kernel
    expected = result_of(kernel.clone(), case)
    if level == "thread":
        distribute(kernel)
        expand(kernel)
        round_trip(kernel)
    for item in order:
        item.run(kernel)
        verify(kernel)
        expect(kernel, case, expected, item.name)

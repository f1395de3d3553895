"""Printing and parsing are inverse, at both levels, with and without source locations."""

from __future__ import annotations

from hypothesis import given, settings

from tests.property.random_kernels import Case, cases
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.distribute.distribute import distribute
from tiledsl.passes.lower.expand import expand
from tiledsl.passes.pipeline import run_pipeline


def check(kernel: Kernel, *, locs: bool = True) -> None:
    verify(kernel)
    text = print_kernel(kernel, locs=locs)
    again = parse_kernel(text)
    verify(again)
    assert print_kernel(again, locs=locs) == text
    for old, new in zip(kernel.walk(), again.walk(), strict=True):
        assert repr(old.attrs) == repr(new.attrs) and [type(old)] == [type(new)]
        assert [r.type for r in old.results] == [r.type for r in new.results]
        assert not locs or old.loc == new.loc


@settings(max_examples=60)
@given(case=cases())
def test_round_trip(case: Case) -> None:
    check(case.kernel)
    check(case.kernel, locs=False)
    kernel = case.kernel.clone()
    distribute(kernel)
    expand(kernel)
    check(kernel)
    check(run_pipeline(case.kernel))

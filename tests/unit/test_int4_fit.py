"""The fit of the costs of int4's tiles, on the committed times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from copy import deepcopy

import pytest

from benchmarks.int4_fit import chosen, fit, load, main
from tiledsl.gemm.int4_call import COSTS, FEW, SPLIT, TILE


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    kept = [(table, deepcopy(table)) for table in (COSTS, TILE, SPLIT)]
    yield
    for table, values in kept:
        table.update(values)


@pytest.mark.parametrize("rounded", [False, True])
def test_the_choice_is_good_where_it_was_measured_and_a_fit_finds_its_way_back(rounded: bool) -> None:
    some = [each for each in load() if (each.shape[0] > FEW) == rounded][::2]
    before = statistics.fmean(chosen(some))
    assert before < 1.03
    costs = COSTS[rounded]
    costs |= {rows: of._replace(unpacked=9 * of.unpacked, column=of.column / 9) for rows, of in costs.items()}
    spoiled = statistics.fmean(chosen(some))
    assert spoiled > before + 0.02
    fit(some, rounded, 60)
    assert statistics.fmean(chosen(some)) < spoiled


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0 and main(["--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert (
        "products of few rows: the chosen tile takes 1.0" in printed and "COSTS by rows, TILE and SPLIT: 0." in printed
    )

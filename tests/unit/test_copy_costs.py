"""The costs of asynchronous copies without a GPU: what is launched, what is predicted, and what was measured."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from benchmarks.copy_costs import (
    COUNTED_BYTES,
    OFF,
    CopyCase,
    as_a_store,
    cases,
    copy_table,
    pairs_of_lines,
    timing_table,
)
from benchmarks.copy_kernels import SHARED, copy_loop, one_copy
from benchmarks.report import RESULTS

LANES = range(32)
LINE = tuple(16 * lane for lane in LANES)

FORMS: list[tuple[dict[str, Any], str]] = [
    ({"width": 4}, "cp.async.ca.shared.global [$], [$], 4;"),
    ({"width": 8}, "cp.async.ca.shared.global [$], [$], 8;"),
    ({"width": 16}, "cp.async.cg.shared.global [$], [$], 16;"),
    ({"width": 16, "through_l1": True}, "cp.async.ca.shared.global [$], [$], 16;"),
    ({"width": 16, "zeros": True}, "cp.async.cg.shared.global [$], [$], 16, n;"),
]


COPIES = r"cp\.async\.c[ag]"


def instructions(ptx: str, beginning: str) -> list[str]:
    """Those that begin so, with their registers left out."""
    return [re.sub(r"%\w+", "$", found) for found in re.findall(rf"{beginning}[^;]*;", ptx)]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("consts", "copy"), FORMS, ids=lambda value: str(value))
def test_a_launch_makes_one_copy(consts: dict[str, Any], copy: str, warm: bool) -> None:
    given = {"through_l1": False, "zeros": False, "warm": warm, **consts}
    ptx = one_copy.compile(arch="sm_90a", **given).ptx
    assert instructions(ptx, COPIES) == [copy]
    assert len(instructions(ptx, r"ld\.global\.ca")) == warm
    assert instructions(ptx, r"ld\.shared") == []


@pytest.mark.parametrize("through_l1", [False, True])
@pytest.mark.parametrize(("copies", "matrices"), [(0, 2), (2, 0), (2, 4)])
def test_a_step_of_the_loop(copies: int, matrices: int, through_l1: bool) -> None:
    """The loop that is timed has these copies and loads, and no other access."""
    ptx = copy_loop.compile(arch="sm_90a", copies=copies, matrices=matrices, through_l1=through_l1).ptx
    cache = "ca" if through_l1 else "cg"
    begun, loads = instructions(ptx, COPIES), instructions(ptx, "ldmatrix")
    assert set(begun) == ({f"cp.async.{cache}.shared.global [$], [$], 16;"} if copies else set())
    steps = len(begun) // copies if copies else len(loads) // matrices  # LLVM unrolls a loop that is short
    assert (len(begun), len(loads)) == (steps * copies, steps * matrices) and steps > 0
    assert len(re.findall(r"%clock;", ptx)) == 2


def test_the_cases() -> None:
    """Places that exist, aligned to the width; first and last a launch in which no lane takes part."""
    tried = cases()
    assert tried[0] == tried[-1] and set(tried[0].to) == {OFF}
    for case in tried[1:-1]:
        assert len(case.source) == len(case.to) == 32
        assert all(at % case.width == 0 and 0 <= at <= COUNTED_BYTES - case.width for at in case.source), case
        assert all(at % case.width == 0 and 0 <= at <= SHARED - case.width for at in case.to), case
    assert len({(c.form, c.name) for c in tried[1:]}) == len(tried) - 1


@pytest.mark.parametrize(
    ("source", "to", "pairs", "store"),
    [
        (LINE, LINE, 4, 4),
        (tuple(lane // 4 * 8192 + lane % 4 * 16 for lane in LANES), LINE, 8, 4),  # rows of 64 bytes
        (LINE, tuple(lane // 4 * 80 + lane % 4 * 16 for lane in LANES), 8, 8),  # to such rows, padded
        (LINE, tuple(at + 16 for at in LINE), 8, 4),
        (LINE, tuple(lane * 128 for lane in LANES), 32, 32),
        (LINE, (*LINE[:8], *(OFF,) * 24), 1, 1),
    ],
)
def test_the_two_predictions(source: tuple[int, ...], to: tuple[int, ...], pairs: int, store: int) -> None:
    case = CopyCase(".cg 16", "", source, to)
    assert (pairs_of_lines(case), as_a_store(case)) == (pairs, store)


def test_the_tables() -> None:
    """Counters are shown less those of a launch that copies nothing."""
    nobody = {"form": "none", "case": "nobody", "pairs": 0, "store": 0, "counters": {"tag stage": 10, "sectors": 1}}
    copy = {"form": ".cg 16", "case": "a -> b", "pairs": 4, "store": 8, "counters": {"tag stage": 15, "sectors": 21}}
    *_, last = copy_table([nobody, copy]).splitlines()
    assert [cell.strip() for cell in last.strip("|").split("|")] == [".cg 16", "a -> b", "4", "8", "5", "20"]
    timed = {"matrices": 2, "copies": 1, "source": "rows 64", "to": "in a line", "cache": "cg", "cycles": 13.4711}
    assert "13.47" in timing_table([timed])


# -- what was measured: benchmarks/results/copy_costs.json, on an H200


def counted() -> list[tuple[CopyCase, dict[str, int]]]:
    """Cases and counters, less those of a launch that copies nothing."""
    records = json.loads((RESULTS / "copy_costs.json").read_text())["counted"]
    base = records[0]["counters"]
    made = [{name: count - base[name] for name, count in r["counters"].items()} for r in records]
    return list(zip(cases(), made, strict=True))[1:-1]


OF_FILLER = 3
"""Wavefronts of the loads without a lane that ptxas puts before copies."""


def test_what_is_fetched_past_l1_passes_no_bank() -> None:
    """Whatever the places; its cost is the pairs of lines."""
    past = [(c, counters) for c, counters in counted() if c.form == ".cg 16"]
    assert len(past) == 164
    for case, counters in past:
        assert counters["all shared wavefronts"] == OF_FILLER, case.name
        assert counters["all wavefronts of the pipe"] == OF_FILLER + 1, case.name
        assert counters["tag stage"] == pairs_of_lines(case) + 1, case.name


def test_zeros_and_what_comes_through_l1_go_as_stores() -> None:
    """Of the latter, those whose phases read from one line."""
    tried = 0
    for case, counters in counted():
        phase = 128 // case.width
        lines = [{at // 128 for at in case.source[first : first + phase]} for first in range(0, 32, phase)]
        if case.zeros or (".ca" in case.form and max(map(len, lines)) == 1):
            tried += 1
            assert counters["all shared wavefronts"] == OF_FILLER + as_a_store(case), (case.form, case.name)
    assert tried == 58


def times() -> dict[tuple[Any, ...], float]:
    """Cycles that the second copy of a step adds."""
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for r in json.loads((RESULTS / "copy_costs.json").read_text())["timed"]:
        key = (r["matrices"], r["source"], r["to"], r["cache"])
        found.setdefault(key, {})[r["copies"]] = r["cycles"]
    return {key: by[2] - by[1] for key, by in found.items() if 2 in by}


def test_the_table_of_the_page() -> None:
    """docs/bank_conflicts.md has what was measured; another run may differ by a few tenths of a clock."""
    sources = {f"rows of {size} bytes": f"rows {size}" for size in (64, 128, 512)}
    places = {"rows of 64, padded by 16": "rows 64, padded 16"}
    page = (RESULTS.parent.parent / "docs" / "bank_conflicts.md").read_text()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if "| `.c" in line]
    assert len(rows) == 8
    added = times()
    for cache, source, to, *clocks in rows:
        for matrices, shown in zip((0, 2, 4, 8), clocks, strict=True):
            time = added[matrices, sources[source], places.get(to, to), cache.strip(".")]
            assert float(shown) == pytest.approx(time, rel=0.1, abs=0.3), (cache, source, to, matrices)


def test_copies_past_l1_hardly_delay_loads() -> None:
    """Beside loads that fill shared memory's clocks, whatever the rows and the layout; through L1 as the bytes take."""
    added = times()
    assert all(time < 1.2 for (matrices, _, _, cache), time in added.items() if cache == "cg" and matrices >= 4)
    assert all(time > 3.8 for (_, _, _, cache), time in added.items() if cache == "ca")

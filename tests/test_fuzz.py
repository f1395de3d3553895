"""A small, fixed sample of what `python -m tests.fuzz` runs; see CONTRIBUTING.md.

It shows that the fuzzer works, and finds what is broken broadly; the long runs find the rest.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.corpus import programs, texts
from tests.fuzz.outcome import ROOT, Outcome, OutOfTime, judge, limit
from tests.fuzz.runner import State, run_cases, single, summary

SEED = 7
CASES = {"sources": 60, "texts": 200, "calls": 120, "integers": 3}


@pytest.mark.parametrize("kind", CASES)
def test_sample(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No finding, and not everything is refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    state = State(tmp_path, kind, SEED).read()
    for case in range(CASES[kind]):
        state.add(case, single(kind, SEED, case)[1])
    assert not any(o.is_finding for o in state.outcomes.values()), summary(state)
    assert Counter(o.kind for o in state.outcomes.values())["ok"] > CASES[kind] // 20


def test_a_case_is_what_its_seed_and_number_say() -> None:
    first, again, other = single("texts", 1, 5), single("texts", 1, 5), single("texts", 2, 5)
    assert first == again
    assert first[0] != other[0]


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    state = State(tmp_path, "texts", SEED).read()
    state.add(0, Outcome("hang", "somewhere"))
    ran = [case for case, _ in run_cases(State(tmp_path, "texts", SEED).read(), count=3, jobs=1)]
    assert ran == [1, 2]
    assert (tmp_path / f"texts-{SEED}-0.tir").exists()
    assert "hang: somewhere  (case 0)" in summary(State(tmp_path, "texts", SEED).read())


def test_a_process_that_ends_is_a_finding_and_the_run_goes_on(tmp_path: Path) -> None:
    state = State(tmp_path, "tests.unit.fuzz_cases", SEED).read()
    outcomes = dict(run_cases(state, count=3, jobs=1))
    assert outcomes == {0: Outcome("died", "exit code 3"), 1: Outcome("ok"), 2: Outcome("ok")}


def spin() -> None:
    while True:
        with suppress(Exception):
            pass


def test_what_takes_too_long_is_stopped_where_it_is() -> None:
    """Also if something catches every exception."""
    with pytest.raises(OutOfTime) as caught, limit(0.2):
        spin()
    assert judge(caught.value).kind == "hang"


def test_what_a_function_of_the_program_called_is_the_programs(tmp_path: Path) -> None:
    """typing, which the program's own function calls, raises here."""
    program = tmp_path / "case.py"
    program.write_text("from typing import Any\ndef of_the_user(*_):\n    return Any(1)\n")
    names: dict[str, Any] = {}
    exec(compile(program.read_text(), program, "exec"), names)
    with pytest.raises(TypeError) as caught:
        call_of_tiledsl(names["of_the_user"])
    assert judge(caught.value).kind == "python"
    with pytest.raises(TypeError) as caught:
        call_of_tiledsl(Any)
    assert judge(caught.value).kind == "internal"


def call_of_tiledsl(function: Any) -> None:
    """Through a frame that stands in tiledsl."""
    names: dict[str, Any] = {}
    exec(compile("def call(function): function()", f"{ROOT}/tiledsl/somewhere.py", "exec"), names)
    names["call"](function)


def test_there_is_enough_to_mutate() -> None:
    assert len(programs()) > 200
    assert len(texts()) > 500

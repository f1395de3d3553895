"""Every known bug is found, with its code at its line; its mended twin is clean, under other orders, too."""

from __future__ import annotations

import re

import pytest

from known_bugs import PUBLIC, Case
from known_bugs.case import REFUSED

ALL = [*PUBLIC]
SEEDS = 2
"""Orders under which a mended twin is checked."""


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What spins for ever is stopped soon; no case needs more."""
    monkeypatch.setenv("TILEDSL_MAX_STEPS", "5000")


def named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.mark.parametrize("case", named(ALL))
def test_the_bug_is_found_at_its_line(case: Case) -> None:
    result = case.check(safe=False, seeds=case.seeds)
    if case.missed:
        assert not case.expected and result.verdict == "clean", "no longer missed: mark its line"
        return
    if result.verdict == "error":
        line = re.match(rf"{re.escape(str(case.file))}:(\d+):", result.error)
        assert line, result.error
        found = {(REFUSED, int(line[1]))}
    else:
        assert result.verdict == "findings", result
        found = {(finding.code, finding.loc.line) for finding in result.findings}
    assert found == case.expected


@pytest.mark.parametrize("case", named(ALL))
def test_the_mended_twin_is_clean(case: Case) -> None:
    result = case.check(safe=True, seeds=SEEDS)
    assert result.verdict == "clean", result

"""Every known bug is found, with its code at its line; its mended twin is clean, under other orders, too."""

from __future__ import annotations

import pytest
from known_bugs.async_copies import CASES as ASYNC
from known_bugs.case import Case

ALL = [*ASYNC]
SEEDS = 2
"""Orders under which a mended twin is checked."""


def named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


@pytest.mark.parametrize("case", named(ALL))
def test_the_bug_is_found_at_its_line(case: Case) -> None:
    order = {"seeds": case.seeds} if case.seeds else {}
    result = case.kernel.check(**case.arguments(safe=False), SAFE=False, raises=False, **order)
    assert result.verdict == "findings", result
    assert {(found.code, found.loc.line) for found in result.findings} <= case.expected()


@pytest.mark.parametrize("case", named(ALL))
def test_the_mended_twin_is_clean(case: Case) -> None:
    result = case.kernel.check(**case.arguments(safe=True), SAFE=True, raises=False, seeds=SEEDS)
    assert result.verdict == "clean", result

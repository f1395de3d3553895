"""Every known bug is found, with its code at its line; its mended twin is clean, under other orders, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from known_bugs import PUBLIC, TEXTBOOK, Case
from known_bugs.case import REFUSED
from known_bugs.page import PAGE, page
from known_bugs.textbook import ELSEWHERE

ALL = [*PUBLIC, *TEXTBOOK]
UNIT = Path(__file__).parents[1] / "unit"
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


def test_each_bug_of_a_shipped_kernel_has_its_thread() -> None:
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.source) for case in PUBLIC)
    assert len({case.name for case in ALL}) == len(ALL)


def test_the_pairs_that_are_elsewhere_are_there() -> None:
    """As kernels with the const RIGHT; the tests there run whatever PAIRS lists."""
    trees = [ast.parse((UNIT / file).read_text()) for file in ("race_pairs.py", "test_emulator_global_races.py")]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    kernels = {each.name for each in functions if any(arg.arg == "RIGHT" for arg in each.args.kwonlyargs)}
    listed = {
        node.args[0].id
        for node in ast.walk(trees[0])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Pair"
        and isinstance(node.args[0], ast.Name)
    }
    named = {name for names in ELSEWHERE.values() for name in names}
    assert named <= kernels
    assert named - {"histogram"} <= listed


def test_the_page_says_what_is_here() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.known_bugs --docs"

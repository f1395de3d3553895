"""The plugin for the tests of users: its fixture fails with what is found, under as many schedules as are asked for."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import numpy as np
import seeded_kernels
from race_pairs import exchanged

def arrays():
    return np.zeros(128, np.float32), np.zeros(128, np.float32)

def test_right(tiledsl_check):
    assert tiledsl_check(exchanged, *arrays())

def test_wrong(tiledsl_check):
    tiledsl_check(exchanged, *arrays(), RIGHT=False)

def test_wrong_in_some_orders(tiledsl_check):
    tiledsl_check(seeded_kernels.asked_once, **seeded_kernels.arguments(), RIGHT=False)

def test_in_one_order(tiledsl_check):
    assert tiledsl_check(seeded_kernels.asked_once, **seeded_kernels.arguments(), RIGHT=False, seed=0).seeds == (0,)
"""


LOADED = ("-p", "tiledsl.pytest_plugin")


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Of a user. The plugin is loaded by name: the environment of these tests may have been made before it was."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("tiledsl.backends.emulator", "seeded_kernels", "race_pairs"):
        import_module(name)  # pytester forgets what a run imports, and NumPy cannot be imported twice
    pytester.makepyfile(TESTS)
    return pytester


def test_what_is_found_fails_the_test(tests: pytest.Pytester) -> None:
    result = tests.runpytest_inprocess(*LOADED)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*race_pairs.py:*: T102: race: thread (0, 0, 0) of block*", "*fix: put a barrier()*"])


def test_the_option_asks_for_more_schedules(tests: pytest.Pytester) -> None:
    result = tests.runpytest_inprocess(*LOADED, "--tiledsl-seeds", "8")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*T102: race: *", "asked_once: findings (8 schedules; *--seed*"])


def test_it_is_an_entry_point_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tiledsl": "tiledsl.pytest_plugin"}

"""Shared by all tests: hypothesis profiles, golden files and the command-line options."""

from __future__ import annotations

import difflib
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# CI must give the same answer twice: examples are derived from the test, not from the clock.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For a long hunt by hand: pytest --hypothesis-profile=explore
settings.register_profile("explore", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")

# Before NumPy is imported. There is a worker for each core, and threads of BLAS that wait for work keep it busy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing")


NEVER = 1 << 30


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What outlives one look of the garbage collector, it does not look at again: the items, and the kernels that
    modules keep, of which there are a gigabyte. A tenth as much garbage stays among it."""
    gc.set_threshold(10_000, NEVER, NEVER)
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor do tests that collect look at what earlier files left."""
    if nextitem is not None and nextitem.path != item.path:
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Pytest collects five times at its end. All that this would free goes with the process."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tests away from the user's on-disk cache. Processes of one run share theirs: a kernel is built once."""
    folder = tmp_path_factory.getbasetemp()
    run = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    os.environ["TILEDSL_CACHE_DIR"] = str(run / "cache")
    # Where no bytecode may be kept, each process that a test starts would compile all of tiledsl anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden("naive.ptx", text)``: equal to the committed file, which --update-golden writes."""
    update: bool = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        expected = path.read_text() if path.exists() else ""
        if text != expected:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "got", lineterm="")
            pytest.fail("\n".join(diff) + "\nIf the change is meant: pytest --update-golden", pytrace=False)

    return check

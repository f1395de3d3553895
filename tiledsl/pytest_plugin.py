"""A plugin of pytest: ``tiledsl_check(kernel, A, B, C)`` in a test fails it with what the emulator's checks find."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tiledsl.kernel import TileKernel
    from tiledsl.verdict import CheckResult


def pytest_addoption(parser: pytest.Parser) -> None:
    seeds = "run each tiledsl_check under the schedules 0 to N - 1; 1 unless given"
    group = parser.getgroup("tiledsl")
    group.addoption("--tiledsl-seeds", type=int, default=1, metavar="N", help=seeds)
    group.addoption("--tiledsl-baseline", metavar="FILE", help="accept the findings that it lists")


@pytest.fixture
def tiledsl_check(request: pytest.FixtureRequest) -> Callable[..., CheckResult]:
    """``tiledsl_check(kernel, A, B, C, T=16)``: as ``kernel.check(A, B, C, T=16)``, under the schedules of
    ``--tiledsl-seeds`` unless ``seed=`` or ``seeds=`` says otherwise, and with the ``--tiledsl-baseline``.

    Fails the test if something is found or the check fails. Returns the result: ``assert`` it, if lines that no thread
    executed are an error as well.
    """

    def check(kernel: TileKernel, /, *args: Any, **kwargs: Any) -> CheckResult:
        __tracebackhide__ = True
        if not kwargs.keys() & {"seed", "seeds"}:
            kwargs["seeds"] = request.config.getoption("--tiledsl-seeds")
        kwargs.setdefault("baseline", request.config.getoption("--tiledsl-baseline"))
        result = kernel.check(*args, **kwargs, raises=False)
        if result.verdict in ("findings", "error"):
            pytest.fail(str(result), pytrace=False)
        return result

    return check

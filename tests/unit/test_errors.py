"""The error tree: who derives from whom, and that every error is whole in another process and as a copy."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import tiledsl
from tiledsl import errors
from tiledsl.errors import (
    Accessed,
    AssemblerError,
    CompileError,
    CompileErrors,
    EmulatorError,
    HazardError,
    Loc,
    LocatedError,
    Side,
    TileError,
    VerifyError,
)

LOC = Loc(__file__, 5, 3, 9, "inner", Loc(__file__, 7, 1))
ARGUMENTS: dict[str, Any] = {
    "message": "something is wrong",
    "loc": LOC,
    "fix": "write it so",
    "errors": [CompileError("first", LOC, "fix 1", code="C101"), AssemblerError("second", LOC, code="C706")],
    "code": "T102",
    "sides": (Side(LOC, "mem.load", "thread (1, 0, 0)", "reads", (0, 0, 0), (1, 0, 0), (0,)), Side(LOC)),
    "memory": Accessed("A", "global", (3,), 12, 4),
    "missing": "barrier",
    "args": ("something is wrong\n  fix: write it so",),
}
"""By name, what an error is made of. An error with another parameter needs a row here, or these tests fail."""


def _everywhere() -> None:
    """Import all of tiledsl, so that errors which are defined elsewhere are known, too."""
    for module in pkgutil.walk_packages(tiledsl.__path__, "tiledsl."):
        # What needs torch defines no error.
        if not module.name.endswith(("__main__", ".torch")) and "distributed" not in module.name:
            importlib.import_module(module.name)


def _kinds(base: type[TileError]) -> Iterator[type[TileError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


def _make(kind: type[TileError]) -> TileError:
    if kind.__init__ is Exception.__init__:
        return kind(*ARGUMENTS["args"])
    return kind(**{name: ARGUMENTS[name] for name in inspect.signature(kind).parameters})


def _content(error: BaseException) -> Any:
    """Everything that can be seen of an error; errors compare by identity."""
    fields = {n: [_content(e) for e in v] if n == "errors" else v for n, v in vars(error).items()}
    return type(error), error.args, str(error), fields


_everywhere()
KINDS = sorted(set(_kinds(TileError)), key=lambda kind: kind.__name__)


def test_all_errors_are_found() -> None:
    public = {getattr(errors, name) for name in errors.__all__}
    assert {kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_an_error_is_whole(kind: type[TileError]) -> None:
    error = _make(kind)
    error.add_note("a note")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert _content(pickle.loads(pickle.dumps(error, protocol))) == _content(error)
    assert _content(copy.copy(error)) == _content(error)
    assert _content(copy.deepcopy(error)) == _content(error)


def _fail(name: str) -> None:
    raise _make(next(kind for kind in KINDS if kind.__name__ == name))


def test_a_process_pool_returns_every_error() -> None:
    """It would wait for ever for one that cannot be unpickled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for kind in KINDS:
            with pytest.raises(kind) as caught:
                pool.submit(_fail, kind.__name__).result(timeout=60)
            assert type(caught.value) is kind
            assert str(caught.value) == str(_make(kind))


def test_what_runs_wrong_is_no_error_of_compilation() -> None:
    assert not issubclass(EmulatorError, CompileError) and not issubclass(VerifyError, CompileError)
    assert issubclass(HazardError, EmulatorError)
    assert issubclass(CompileErrors, CompileError) and issubclass(AssemblerError, CompileError)
    assert {CompileError, VerifyError, EmulatorError} == set(LocatedError.__subclasses__())


def test_an_error_at_a_line_says_which_kind_and_what_to_do() -> None:
    loc = Loc("no file", 3, 1)
    assert str(VerifyError("no such op", loc)) == "no file:3:1: invalid IR: no such op"
    error = EmulatorError("out of bounds", loc, "guard it", code="T501")
    code = "code: T501; python -m tiledsl error T501 explains it"
    assert str(error) == f"no file:3:1: error: out of bounds\n  fix: guard it\n  {code}"
    error.finding = replace(error.finding, seed=7)
    assert "code: T501 (under seed=7, which replays it);" in str(error)

"""Runs every kernel of tests/filetests on the emulator; see tests/filetest.py for what the files say."""

from __future__ import annotations

import io
from functools import partial

import pytest

from tests.filetest import FileTest, Run, read_filetests
from tests.filetests.made import filetests
from tiledsl.backends import emulator
from tiledsl.errors import LocatedError, TileError
from tiledsl.ir.core import OPS, Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower.expand import expand
from tiledsl.passes.manager import Pass, run_passes
from tiledsl.passes.pipeline import named_passes, pipeline, run_pipeline

TESTS = [test for path in filetests() for test in read_filetests(path)]
SHARED_LIMIT = 232448
"""Bytes a block may have on sm_90a."""

PASSES: dict[str, Pass] = named_passes(shared_limit=SHARED_LIMIT, target="sm_90a")
PASSES["expand(bounds)"] = Pass("expand(bounds)", partial(expand, bounds=True))


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_file(test: FileTest) -> None:
    errors = [e for e in test.expected if e[0] == "error"]
    if errors:
        assert not test.runs, "a wrong kernel does not run"
        expect_errors(test, errors)
        return
    kernel = test.kernel()
    verify(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    assert test.runs or test.checks, f"{test.name} tests nothing"
    for run in test.runs:
        check_run(test, kernel.clone(), run)
        if kernel.level == "tile":
            check_run(test, run_pipeline(kernel.clone(), bounds=True, verify_each=True), run, tile=kernel)
    check_text(test, kernel)


def check_run(test: FileTest, kernel: Kernel, run: Run, tile: Kernel | None = None) -> None:
    """Run one kernel and compare. `tile`: the kernel whose types say how arrays are laid out."""
    arguments = run.arguments(tile or kernel)
    printed = io.StringIO()
    stops = [e for e in test.expected if e[0] == "stops"]
    if stops:
        with pytest.raises(TileError) as caught:
            emulator.run(kernel, arguments, options=emulator.Options(stdout=printed))
        expect_at(caught.value, stops)
    else:
        emulator.run(kernel, arguments, options=emulator.Options(stdout=printed))
    differences = run.differences(arguments)
    assert not differences, f"{test.name}, {run.name}, {kernel.level} level:\n" + "\n".join(differences)
    lines = printed.getvalue().splitlines()
    assert sorted(lines) == sorted(run.printed)


def check_text(test: FileTest, kernel: Kernel) -> None:
    if not test.checks:
        return
    run_passes(kernel, [PASSES[name] for name in test.passes], verify_each=True)
    text = print_kernel(kernel)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    position = 0
    for kind, wanted in test.checks:
        if kind == "check-not":
            assert not any(wanted in line for line in lines), f"{wanted!r} is in\n{text}"
            continue
        found = next((n for n in range(position, len(lines)) if wanted in lines[n]), None)
        assert found is not None, f"{wanted!r} is not in (from line {position})\n{text}"
        position = found + 1


def expect_errors(test: FileTest, wanted: list[tuple[str, int, str]]) -> None:
    passes = [PASSES[name] for name in test.passes] or pipeline(shared_limit=SHARED_LIMIT, target="sm_90a")
    with pytest.raises(TileError) as caught:
        run_passes(test.kernel(), passes, verify_each=True)
    expect_at(caught.value, wanted)


def expect_at(error: TileError, wanted: list[tuple[str, int, str]]) -> None:
    """Every wanted message at its line; `errors` of a CompileErrors are all that there are."""
    found = [e for e in getattr(error, "errors", [error]) if isinstance(e, LocatedError)]
    shown = "\n".join(f"line {e.loc.line}: {e.message}" for e in found)
    for _, line, message in wanted:
        assert any(e.loc.line == line and message in e.message for e in found), f"line {line}: {message}\ngot {shown}"
    assert len(found) == len(wanted), shown


def test_every_op_has_a_filetest() -> None:
    used = {op.name for test in TESTS if not any(e[0] == "error" for e in test.expected) for op in test.kernel().walk()}
    assert not OPS.keys() - used, "ops in no filetest"


def test_every_pass_has_a_filetest() -> None:
    named = {name for test in TESTS for name in test.passes}
    assert not PASSES.keys() - named, "passes in no filetest"

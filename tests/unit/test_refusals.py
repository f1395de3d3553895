"""What is refused has a code, and each code an example that is refused for it and for nothing else."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiledsl.__main__ import main
from tiledsl.commands.error import page
from tiledsl.errors import AssemblerError, CompileError, CompileErrors, InternalError, TileError
from tiledsl.findings import Kind, explain
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.verifier import verify
from tiledsl.refusals import KINDS, program

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("tiledsl", "backends") for path in (ROOT / folder).rglob("*.py")]
WITHOUT_EXAMPLE = {"C901"}
"""A bug of the compiler, of which none is known."""


def outcome(text: str, file: Path) -> TileError:
    """What the program is refused for."""
    file.write_text(text)
    with pytest.raises(TileError) as caught:
        _compile(text, file)
    return caught.value


def _compile(text: str, file: Path) -> None:
    if text.startswith("kernel "):
        verify(parse_kernel(text, str(file)))
        return
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.k.compile()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_example_of_a_code_has_this_error_alone(kind: Kind, tmp_path: Path) -> None:
    assert bool(kind.example) is (kind.code not in WITHOUT_EXAMPLE)
    if kind.example:
        error = outcome(program(kind), tmp_path / "example.py")
        assert [each.code for each in getattr(error, "errors", [error])] == [kind.code]
        assert isinstance(error, CompileError) <= (f"[{kind.code}]" in str(error))
    shown = explain(kind.code.lower())
    assert shown.startswith(f"{kind.code}: {kind.name}\n\n{kind.text}\n\nfix: {kind.fix}")
    assert all(line in shown for line in kind.example.splitlines())


def test_every_code_is_raised_and_no_other() -> None:
    table = ROOT / "tiledsl" / "refusals.py"
    raised = {code for path in SOURCES if path != table for code in re.findall(r'"(C\d\d\d)"', path.read_text())}
    assert raised == set(KINDS)


def test_an_error_of_compilation_cannot_be_without_a_code() -> None:
    for kind in (CompileError, AssemblerError, InternalError):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'code'"):
            kind("something is wrong")  # pyright: ignore[reportCallIssue] - this is what is tried


def test_the_page_is_what_the_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["error", "--page"]) == 0
    assert (ROOT / "docs" / "errors.md").read_text() == capsys.readouterr().out == page() + "\n"


def test_what_the_assembler_says_is_at_the_line_of_python(tmp_path: Path) -> None:
    error: Any = outcome(program(KINDS["C706"]), tmp_path / "example.py")
    text = (tmp_path / "example.py").read_text().splitlines()[error.loc.line - 1]
    assert "bogus.f32" in text and "ptxas refused" in error.message


COPIES = """
from tiledsl import *
from tiledsl.dims import K, M, N

@tile_function
def last(S, i):
    return S[i + 12]

@tile_kernel
def k(X: Global[f32, M]):
    i = grid(M) + threads(1)
    S = shared((8,), f32)
    for j in unroll(4):
        S[8 + j] = X[i]
    X[i] = last(S, 0)
    X[i] = last(S, 0)
    X[i] = last(S, 1)
    a = missing
    X[i] = a + 1
"""


def test_an_error_is_not_followed_by_copies_of_it(tmp_path: Path) -> None:
    """Nor by what follows from it: `a`."""
    error = outcome(COPIES, tmp_path / "copies.py")
    assert isinstance(error, CompileErrors)
    assert [(e.code, e.message.split(" is ")[0]) for e in error.errors] == [
        ("C303", "index 12"), ("C303", "index 13"), ("C303", "index 8"), ("C103", "the name missing"),
    ]  # fmt: skip


@pytest.mark.parametrize("asked", ["0", "1"])
def test_frames_of_tiledsl_are_hidden_unless_asked_for(asked: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(program(KINDS["C201"]) + "\n\nk.compile()\n")
    environment = {"PATH": "", "TILEDSL_TRACEBACK": asked, "TILEDSL_CACHE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "wrong.py")]
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stderr
    frames = re.findall(r'^  File "(.*?)", line', printed, re.MULTILINE)
    assert frames[0] == str(tmp_path / "wrong.py") and "[C201]" in printed
    assert (len(frames) <= 2) is (asked == "0")

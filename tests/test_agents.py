"""AGENTS.md is true: its commands run, and print the schemas and fields that it lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tiledsl.__main__ import main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    tiledsl (.*)$", TEXT, re.MULTILINE)
ROWS = re.findall(r"^\| `(tiledsl[^`]*)`((?: \w+)?) \| (.*) \|$", TEXT, re.MULTILINE)
FIELDS = {schema + action: re.findall(r"`([a-z_]+)`", cell) for schema, action, cell in ROWS}
"""By schema, and the action where a command has several."""
FOUND = {what: re.findall(r"`([a-z_]+)`", cell) for what, cell in re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.M)}


def names(value: Any) -> set[str]:
    """All names of fields, at any depth."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value
        return {*fields}.union(*map(names, fields.values()))
    if isinstance(value, list):
        return set[str]().union(*map(names, value))
    return set()


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_print_the_fields_that_it_lists(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    if command.startswith("cache"):  # what the answer is about
        assert main(["show", "examples/gemm/naive.py", "--stage", "ptx"]) == 0
        assert main(["show", "examples/gemm/naive.py", "--stage", "ptx", "--const", "T=8"]) == 0
        capsys.readouterr()
    assert main(command.replace("/tmp/", f"{tmp_path}/").split()) == 0
    printed = capsys.readouterr().out
    if "--json" not in command:
        assert printed
        return
    found = json.loads(printed)
    schema = found["schema"]
    listed = FIELDS.get(f"{schema} {command.split()[1]}") or FIELDS[schema]
    assert len(listed) >= 2 and [name for name in listed if name not in names(found)] == []
    top = {*found} - {"schema", *listed}
    assert not top, f"{schema}: {top} are not in AGENTS.md"


@pytest.mark.parametrize(
    ("what", "kernel"),
    [("banks", "shared_tiled"), ("pipeline", "mma_pipelined"), ("roles", "hopper_roles"), ("sass", "naive")],
)
def test_the_fields_of_explanations(what: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    generic = [] if kernel in ("shared_tiled", "naive") else ["--dtype", "D=bf16"]
    assert main(["explain", f"{ROOT}/examples/gemm/{kernel}.py", what, *generic, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert len(FOUND[what]) >= 4 and [name for name in FOUND[what] if name not in names(found)] == []


RACE = """\
from tiledsl import Global, f32, grid, shared, threads, tile_kernel
from tiledsl.dims import N

@tile_kernel
def racy(X: Global[f32, N]):
    b, t = grid(1), threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    X[t] = S[63 - t]
"""


def test_the_fields_of_a_finding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "racy.py").write_text(RACE)
    assert main(["check", str(tmp_path / "racy.py"), "--size", "N=64", "--json"]) == 3
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    (table,) = re.findall(r"^\| finding \| \|\n(.*?)(?:\n\n|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"`([a-z_]+)`", table)
    assert len(listed) > 20 and [name for name in listed if name not in names(found)] == []
    assert {*found} <= {*listed}


WRONG = """\
from tiledsl import Global, f32, tile_kernel
from tiledsl.dims import N

@tile_kernel
def wrong(X: Global[f32, N]):
    X[0] = nothing
    X[1] = X[0].nowhere
"""


@pytest.mark.parametrize(
    ("arguments", "code", "kinds"),
    [
        (["explain", "wrong.py", "banks"], 1, ["CompileError", "CompileError"]),
        (["explain", "no.py", "banks"], 2, ["UsageError"]),
        (["gallery", "show", "nothing"], 2, ["UsageError"]),
    ],
)
def test_errors_are_data_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    arguments: list[str], code: int, kinds: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    assert main([*arguments, "--json"]) == code
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["schema"] == "tiledsl.error/1" and [each["kind"] for each in found["errors"]] == kinds
    assert {*found["errors"][0]} | {"errors"} == {*FIELDS["tiledsl.error/1"]}
    for each in found["errors"]:
        assert each["message"] in printed.err and f"  fix: {each['fix']}" in printed.err
        assert (each["location"] is None) is (code == 2)
    assert main(arguments) == code
    again = capsys.readouterr()
    assert (again.out, again.err) == ("", printed.err)


def test_every_schema_is_listed() -> None:
    """As the sources have them."""
    texts = [path.read_text() for path in (ROOT / "tiledsl").rglob("*.py")]
    assert {schema for text in texts for schema in re.findall(r'^SCHEMA = "(.*)"$', text, re.M)} <= {
        row[0] for row in ROWS
    }

"""What the README shows is true: its program runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.__main__ import main

ROOT = Path(__file__).parent.parent
DOCS = (
    "docs/report.md",
    "docs/tuning.md",
    "docs/check.md",
    "docs/known_bugs.md",
    "docs/coming_from.md",
    "docs/distributed.md",
)
PAGES = ("README.md", "AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *DOCS, "examples/gemm/README.md")


def test_the_first_kernel_runs_and_answers_for_itself(tmp_path: Path) -> None:
    first, asking = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "first.py").write_text(first + asking + "print(compiled.resources.spill_stores)\n")
    done = subprocess.run([sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    error, spills = done.stdout.split()
    assert float(error) < 1e-3
    assert spills == "0"


COMMANDS = re.findall(r"^    python -m tiledsl (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("tune")])
def test_its_commands_run(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All but the one that needs a GPU. What they write is in another folder."""
    monkeypatch.chdir(tmp_path)
    arguments = [f"{ROOT}/{part}" if part.startswith(("examples/", "tests/")) else part for part in command.split()]
    assert main(arguments) == 0
    assert capsys.readouterr().out


def test_the_page_on_the_check_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands end with the exit codes that it says, and its programs print what it shows."""
    text = (ROOT / "docs" / "check.md").read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    programs, shown = ([body for kind, body in fenced if kind == wanted] for wanted in ("python", ""))
    for name, program in zip(
        ("exchange.py", "use.py", "chain.py", "sums.py", "same_value.py", "two_gpus.py", "test_exchange.py"),
        programs,
        strict=True,
    ):
        (tmp_path / name).write_text(program)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the environment may be older than the plugin

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == int(code or 0), f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout.replace(f"{tmp_path}/", "")

    commands = re.findall(r"^    python (-m tiledsl .*?)(?:  # exit code (\d))?$", text, re.MULTILINE)
    printed = [run(code, *command.split()) for command, code in commands]
    assert len(commands) == 13 and (tmp_path / "found.sarif").exists()
    assert shown == [printed[1], run("", "use.py"), run("", "two_gpus.py")]
    last = [lines.splitlines()[-1] for lines in printed]
    for verdict in re.findall(r"`(\w+: clean \(.*?\))`", text.replace("\n", " ")):
        assert verdict in last, f"{verdict} is not in {last}"
    (tests,) = re.findall(r"^    pytest (.*)$", text, re.MULTILINE)
    assert "1 passed" in run("", "-m", "pytest", "-p", "tiledsl.pytest_plugin", *tests.split())


def test_the_page_on_ranks_is_true(tmp_path: Path) -> None:
    """Its program for the emulator runs, asserts and all."""
    fenced = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "distributed.md").read_text(), re.DOTALL)
    (program,) = [body for body in fenced if "check_ranks" in body]
    (tmp_path / "ranks.py").write_text(program)
    done = subprocess.run([sys.executable, "ranks.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page: str) -> None:
    """Relative links, and files of the project named in backticks."""
    path = ROOT / page
    text = path.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    named = re.findall(r"`((?:tiledsl|backends|tests|examples|benchmarks|docs)/[\w/.]*)`", text)
    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"{page}: {', '.join(missing)} not there"

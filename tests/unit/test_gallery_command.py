"""``tiledsl gallery``: the examples from the command line, and a kernel to begin with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.__main__ import main
from tiledsl.commands import gallery as command
from tiledsl.commands import starter
from tiledsl.errors import DeviceError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "gemm"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["gallery", *arguments]) == code
    found = capsys.readouterr()
    return found.err if code else found.out


def test_all_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each kernel's file, with one idea; in 80 columns."""
    lines = printed(capsys, "list").splitlines()
    found = json.loads(printed(capsys, "list", "--json"))
    assert found["schema"] == "tiledsl.gallery/1"
    assert [each["name"] for each in found["examples"]] == [line.split()[0] for line in lines if line[0] != " "]
    assert max(map(len, lines)) < 80
    text = " ".join(" ".join(lines).split())
    assert all(f"{each['name']} {each['idea']}" in text for each in found["examples"])
    kernels = {path.name for path in EXAMPLES.glob("*.py") if "@tile_kernel" in path.read_text()}
    assert kernels <= {Path(each["file"]).name for each in found["examples"]}


def test_an_example_runs_without_an_assembler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And `show` has its PTX."""
    monkeypatch.setattr("tiledsl.runtime.driver._open", lambda: DeviceError("there is no GPU"))
    monkeypatch.setenv("TILEDSL_PTXAS", str(tmp_path / "ptxas"))
    text = printed(capsys, "run", "shared_tiled", "--size", "20x30x40")
    assert "on emulator: right" in text and "no assembler" in text and "registers" not in text
    run = json.loads(printed(capsys, "run", "shared_tiled", "--size", "20x30x40", "--json"))["run"]
    assert run["right"] and run["registers"] is run["shared"] is run["spills"] is None
    assert main(["show", str(EXAMPLES / "naive.py"), "--stage", "ptx"]) == 0
    assert ".entry naive(" in capsys.readouterr().out
    assert main(["show", str(EXAMPLES / "naive.py"), "--stage", "sass"]) == 1
    assert "TILEDSL_PTXAS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "kernel"),
    [
        (["shared_tiled", "--size", "20x30x40", "--const", "T=8"], "shared_tiled T=8"),
        (["mma_blocking", "--size", "20x30x40", "--format", "f16"], "mma_blocking f16"),
        (["hopper_scaled", "--size", "20x130x140"], "hopper_scaled e4m3"),
        (["hopper_split", "--size", "20x30x40"], "hopper_split"),
        (["hopper_int4", "--size", "20x30x40"], "hopper_int4 bf16"),
    ],
)
def test_an_example_runs_and_is_checked(capsys: pytest.CaptureFixture[str], arguments: list[str], kernel: str) -> None:
    found = json.loads(printed(capsys, "run", *arguments, "--json"))["run"]
    assert found["kernel"] == kernel and found["right"] and 0 < found["error"] <= found["bound"]
    text = printed(capsys, "run", *arguments)
    assert text.startswith(f"{kernel}: {' x '.join(map(str, found['size']))} on ") and ": right\n" in text
    assert f"error {found['error']:.1e}, bound {found['bound']:.1e}" in text


def test_a_wrong_result_is_seen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of the gallery, whose kernels add one element of the scales twice, or leave one product out."""
    copy = tmp_path / command.FOLDER
    shutil.copytree(EXAMPLES, copy)
    for file, right, wrong in (
        ("naive.py", "range(K)", "range(1, K)"),
        ("hopper_scaled.py", "scale_a.get(rows, block)", "scale_a.get(rows, 0)"),
    ):
        text = (copy / file).read_text()
        assert right in text
        (copy / file).write_text(text.replace(right, wrong))
    monkeypatch.setattr(command, "__file__", str(tmp_path / "tiledsl" / "commands" / "gallery.py"))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", [str(copy), *sys.path])
    for name, size in (("naive", "5x6x7"), ("hopper_scaled", "64x128x512")):
        assert main(["gallery", "run", name, "--size", size]) == 1
        assert ": WRONG\n" in capsys.readouterr().out


def test_the_source_of_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    source = (EXAMPLES / "naive.py").read_text()
    assert printed(capsys, "show", "naive") == source
    found = json.loads(printed(capsys, "show", "naive", "--json"))
    assert (found["source"], found["file"]) == (source, str(EXAMPLES / "naive.py"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["show", "nave"],
            "no example is called 'nave'\n  fix: did you mean naive? tiledsl gallery list names them all",
        ),
        (["run", "xyz"], "no example is called 'xyz'\n  fix: tiledsl gallery list names them all"),
        (["run", "naive", "--format", "bf16"], "naive does not multiply bf16\n  fix: give one of f32"),
        (["run", "naive", "--const", "Q=1"], "naive has no open const 'Q'"),
        (["run", "naive", "--size", "2x3x4x5"], "--size has 4 numbers\n  fix: write it as --size MxNxK"),
        (["new", "first"], "first is not the name of a Python file\n  fix: let it end in .py"),
        (["new", str(ROOT / "tests" / "conftest.py")], "is there already\n  fix: give another name"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in printed(capsys, *arguments, code=2)


def test_without_a_checkout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As from a wheel: it says what is missing, and looks in the current folder. `new` works."""
    monkeypatch.setattr(command, "__file__", str(tmp_path / "site" / "tiledsl" / "commands" / "gallery.py"))
    monkeypatch.chdir(tmp_path)
    for arguments in (["list"], ["run", "naive"], ["show", "naive"]):
        text = printed(capsys, *arguments, code=1)
        assert (
            text.startswith("the gallery is not here: ") and "\n  fix: run this in the top folder of a checkout" in text
        )
    monkeypatch.chdir(ROOT)
    assert "naive" in printed(capsys, "list")
    file = tmp_path / "first.py"
    assert printed(capsys, "new", str(file)).splitlines()[1] == f"  python {file}"
    assert printed(capsys, "new", str(tmp_path / "no" / "first.py"), code=1).startswith("cannot write ")


def test_the_kernel_to_begin_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each of the commands that are named next runs."""
    file = tmp_path / "first.py"
    assert main(["gallery", "new", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(file) and len(found["next"]) == 4
    for step in found["next"]:
        program, *arguments = step.split()
        command = [sys.executable, *(["-m", "tiledsl"] if program == "tiledsl" else []), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout, done.stderr
        if program == "python":
            assert done.stdout.endswith(" of what rounding may cause: right\n")


def test_it_says_so_when_it_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "first.py"
    text = Path(starter.__file__).read_text().replace("maximum(acc +", "maximum(acc -")
    file.write_text(text)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith(": WRONG\n")

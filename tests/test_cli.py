"""``tiledsl``: every stage of a kernel with its Python lines, clear errors, the cache, JSON."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tiledsl.__main__ import COMMANDS, main
from tiledsl.errors import Loc
from tiledsl.inspect.show import highlight
from tiledsl.inspect.source_lines import Line, read_ir, read_llvm, read_ptx, read_sass
from tiledsl.ir.parser import parse_kernels

ROOT = Path(__file__).parent.parent
TILED = f"{ROOT}/examples/gemm/shared_tiled.py"
FMA_LINE = "acc += As[ty, k] * Bs[k, tx]"


@pytest.fixture(autouse=True)
def _temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the PTX of what fails is kept."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("ir", "arith.fma"), ("llvm", 'call float @"llvm.fma.f32"'), ("ptx", "fma.rn.f32"), ("sass", "FFMA")],
)
def test_the_fma_stands_beside_its_python_line(capsys: pytest.CaptureFixture[str], stage: str, expected: str) -> None:
    lines = shown(capsys, f"{TILED}:shared_tiled", "--stage", stage, "--const", "T=8").splitlines()
    beside = ""
    seen: set[str] = set()
    for line in lines:
        margin, _, text = line.partition("│")
        beside = margin.strip() or beside
        if expected in text:
            seen.add(beside)
    assert any(FMA_LINE in line for line in seen), "\n".join(lines)


def test_a_stage_may_be_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    once = shown(capsys, f"{TILED}:shared_tiled", "--stage", "sass")
    assert once == shown(capsys, f"{TILED}:shared_tiled", "--stage", "sass")


TWO = """kernel first(%A: global<i32, [N], unit=0, align=4>) grid(1) threads(32) level(tile) index_bits(32) {
  %i = gpu.thread_id {axis = 0} : index
  %x = arith.constant 3 : i32
  %y = arith.add %x, %x : i32
  tile.store %A, %i, %y
  control.return
}
kernel second() grid(1) threads(1) level(tile) index_bits(32) {
  gpu.barrier
  control.return
}
"""


def test_passes_run_on_kernels_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every kernel of it; what is printed can be read again."""
    file = tmp_path / "two.tir"
    file.write_text(TWO)
    assert main(["opt", str(file), "--pass", "canonicalize,dce"]) == 0
    text = capsys.readouterr().out
    assert "arith.constant 6 : i32" in text and "arith.add" not in text
    assert [kernel.name for kernel in parse_kernels(text)] == ["first", "second"]


def test_all_passes_run_on_the_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(TWO))
    assert main(["opt", "-", "--locs"]) == 0
    text = capsys.readouterr().out
    assert text.count("level(thread)") == 2 and '@ "<stdin>":5:' in text


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (TWO, ["--pass", "dce,inline"], "no pass is called 'inline'\n  fix: they are lower-rings, lower-roles, "),
        (TWO, ["--arch", "sm_1"], "no target 'sm_1'"),
        (TWO.replace("arith.add", "arith.plus"), [], "two.tir:4:8: error: no such op: arith.plus"),
        (TWO.replace("%x : i32", "%i : i32"), [], "two.tir:4:8"),
        ("", [], "expected 'kernel'"),
        (None, [], "cannot read"),
    ],
)
def test_what_opt_cannot_do_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, arguments: list[str], message: str
) -> None:
    file = tmp_path / "two.tir"
    if text is not None:
        file.write_text(text)
    assert main(["opt", str(file), *arguments]) == (2 if arguments or text is None else 1)
    found = capsys.readouterr()
    assert message in found.err and not found.out


def test_after_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    tile = shown(capsys, f"{TILED}:shared_tiled", "--no-source")
    thread = shown(capsys, f"{TILED}:shared_tiled", "--no-source", "--after", "expand")
    assert "level(tile)" in tile
    assert "level(thread)" in thread
    assert "│" not in tile


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:naive"], "there is no Python file nowhere.py"),
        ([f"{TILED}:nothing"], "It defines: shared_tiled"),
        ([__file__], "defines no kernel"),
        ([f"{TILED}:shared_tiled", "--const", "Q=3"], "no open const 'Q'. It has: T"),
        ([f"{TILED}:shared_tiled", "--const", "T"], "expected NAME=VALUE\n  fix: write it as --const T=32"),
        ([f"{TILED}:shared_tiled", "--const", "T=wide"], "expected an int, got 'wide'"),
        ([f"{TILED}:shared_tiled", "--stage", "ptx", "--after", "expand"], "goes with --stage ir"),
        ([f"{TILED}:shared_tiled", "--after", "nothing"], "nothing"),
        ([f"{TILED}:shared_tiled", "--arch", "sm_1"], "sm_1"),
        ([f"{TILED}:shared_tiled", "--dtype", "A=f16"], "shared_tiled has no open dtype 'A'. It has: none"),
        ([f"{TILED}:shared_tiled", "--dtype", "A"], "expected NAME=VALUE"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["show", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n  fix: ") == 1
    assert "Traceback" not in printed.err


GENERIC = """\
from typing import TypeVar
from tiledsl import Global, const, grid, threads, tile_kernel
from tiledsl.dims import N
D = TypeVar("D")

@tile_kernel
def copied(X: Global[D, N], Y: Global[D, N], *, T: const):
    i = grid(N) * T + threads(T)
    Y.put(i, X.get(i))
"""


def test_what_is_open_is_asked_for_in_the_terms_of_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "generic.py"
    file.write_text(GENERIC)
    for arguments, message in (
        ([], "const T of copied is not given\n  fix: give --const T=..."),
        (["--const", "T=32"], "dtype D of copied is not given\n  fix: give --dtype D=..."),
        (["--const", "T=32", "--dtype", "Z=f16"], "copied has no open dtype 'Z'. It has: D, X, Y"),
    ):
        assert main(["show", str(file), *arguments]) == 2
        assert message in capsys.readouterr().err
    for name in ("D", "Y"):
        assert "global<bf16" in shown(capsys, str(file), "--const", "T=32", "--dtype", f"{name}=bf16")


REFUSED = """\
from tiledsl import Global, f32, grid, ptx, tile_kernel, threads
from tiledsl.dims import N

@tile_kernel
def refused(X: Global[f32, N]):
    i = grid(1) + threads(32)
    X[i] = ptx.inline("frobnicate.f32 $0, $1;", f32, X[i])

@tile_kernel
def misaligned(X: Global[f32, N]):
    i = grid(1) + threads(32)
    X.store(i + 1, X.load(i, vec=8))

@tile_kernel
def unknown(X: Global[f32, N]):
    X[0] = nothing
"""


@pytest.mark.parametrize(
    ("kernel", "stage", "expected"),
    [
        ("refused", "sass", "frobnicate.f32 %r"),
        ("refused", "ptx", "frobnicate"),
        ("refused", "llvm", 'asm "frobnicate'),
        ("refused", "ir", "level(tile)"),
        ("misaligned", "ptx", "tile.load"),
        ("misaligned", "ir", "tile.load"),
    ],
)
def test_what_there_is_of_a_kernel_that_does_not_compile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kernel: str, stage: str, expected: str
) -> None:
    """The stage asked for, or the last one before it; the error comes behind it."""
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    assert main(["show", f"{file}:{kernel}", "--stage", stage, "--no-source"]) == 1
    printed = capsys.readouterr()
    assert expected in printed.out
    assert f"{file}:{7 if kernel == 'refused' else 12}:" in printed.err


def test_no_stage_of_what_has_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    assert main(["show", f"{file}:unknown"]) == 1
    printed = capsys.readouterr()
    assert not printed.out and "nothing" in printed.err


def test_the_ptx_that_ptxas_refused_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    assert main(["show", f"{file}:refused"]) == 1
    found = re.search(r"line (\d+) of the PTX: .*; the PTX is in (\S+) \[C706\]\n", capsys.readouterr().err)
    assert found
    kept = Path(found[2])
    assert "frobnicate" in kept.read_text().splitlines()[int(found[1]) - 1]


def test_colors_change_no_line() -> None:
    """Escape codes apart, the same text: also for what the lexers take for an error."""
    for stage in ("ir", "llvm", "ptx", "sass"):
        lines = ["", "%x = arith.add %a, %b : f32 ¤", "\tfma.rn.f32 %f1, %f2;", "  /*0010*/ FFMA R1, R2 ;", ""]
        plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in highlight(lines, stage)]
        assert plain == lines


# -- JSON --------------------------------------------------------------------------------------------------


def printed_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    text = capsys.readouterr().out
    assert text.isascii()
    return json.loads(text)


@pytest.mark.parametrize("stage", ["ir", "llvm", "ptx", "sass"])
def test_a_stage_as_json_has_the_lines_of_the_text(capsys: pytest.CaptureFixture[str], stage: str) -> None:
    found = printed_json(capsys, "show", TILED, "--stage", stage)
    text = shown(capsys, TILED, "--stage", stage, "--no-source")
    assert (found["schema"], found["stage"], found["error"]) == ("tiledsl.show/1", stage, "")
    assert [line["text"].rstrip() for line in found["lines"]] == text.splitlines()
    assert any(line["location"] and line["location"]["file"] == TILED for line in found["lines"])


def test_the_last_stage_of_what_does_not_compile_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text(REFUSED)
    found = printed_json(capsys, "show", f"{file}:refused", "--stage", "sass", code=1)
    assert found["stage"] == "ptx" and found["error"].startswith(f"{file}:7:")


def test_resources_and_boxes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "explain", TILED, "resources")["found"]
    assert found["room"]["next_blocks"] == found["resources"]["blocks_per_sm"] + 1
    ring = f"{ROOT}/examples/gemm/hopper_ring.py"
    maps = printed_json(capsys, "explain", ring, "tensor-maps", "--dtype", "D=bf16")["found"]["maps"]
    assert maps[0] == {
        "tensor": "A", "dtype": "bf16", "axes": [1, 0], "box": [64, 128], "swizzle": 128, "bytes": 16384, "every": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "what", "fields"),
    [
        ("shared_tiled", "banks", {"used", "limit", "tiles", "accesses", "places"}),
        ("mma_pipelined", "pipeline", {"loops", "groups"}),
        ("hopper_roles", "roles", {"launch_registers", "roles", "rings"}),
    ],
)
def test_an_explanation_as_json_says_what_the_text_says(
    capsys: pytest.CaptureFixture[str], kernel: str, what: str, fields: set[str]
) -> None:
    file = f"{ROOT}/examples/gemm/{kernel}.py"
    arguments = ["explain", f"{file}:{kernel}", what, *([] if what == "banks" else ["--dtype", "D=bf16"])]
    found = printed_json(capsys, *arguments)
    assert (found["schema"], found["what"]) == ("tiledsl.explain/1", what)
    assert found["kernel"].startswith(f"{kernel}(") and found["found"].keys() == fields
    assert main(arguments) == 0
    text = capsys.readouterr().out
    if what == "banks":
        assert [place["file"] for place in found["found"]["places"]] == [file] * 4
        for place, access in zip(found["found"]["places"], found["found"]["accesses"], strict=True):
            assert re.search(rf"^{place['line']} .* {access['tile']} +{access['kind']} ", text, re.MULTILINE)
    elif what == "pipeline":
        (loop,) = found["found"]["loops"]
        assert loop["text"] in text and f"line {loop['place']['line']}: " in loop["text"]
    else:
        assert all(role["title"] in text and role["place"]["file"] == file for role in found["found"]["roles"])


def test_machine_code_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "explain", TILED, "sass")["found"]
    assert main(["explain", TILED, "sass"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert f"{len(found['instructions'])} instructions, at most {found['most_live']} registers alive" in head
    ffma = next(each for each in found["instructions"] if each["text"].startswith("FFMA"))
    assert FMA_LINE in Path(TILED).read_text().splitlines()[ffma["place"]["line"] - 1]
    loads = {each["address"] for each in found["instructions"] if each["text"].startswith(("LDS", "LDG"))}
    assert any(loads & {*each["waits_for"]} for each in found["instructions"])


# -- as a program ------------------------------------------------------------------------------------------


def test_the_script_is_the_module() -> None:
    """`tiledsl`, which pip makes, and `python -m tiledsl`."""
    (script,) = (each for each in metadata.entry_points(group="console_scripts") if each.name == "tiledsl")
    assert script.load() is main
    beside = subprocess.run([Path(sys.executable).with_name("tiledsl"), "--help"], capture_output=True, text=True)
    module = subprocess.run([sys.executable, "-m", "tiledsl", "--help"], capture_output=True, text=True)
    assert beside.returncode == module.returncode == 0
    assert beside.stdout == module.stdout and beside.stdout.startswith("usage: tiledsl ")


def test_help_loads_no_library_and_no_other_command() -> None:
    heavy = [
        "importlib.metadata",
        "numpy",
        "llvmlite",
        "cuda",
        "rich",
        "pygments",
        "ml_dtypes",
        "tiledsl.kernel",
        "tiledsl.inspect",
    ]
    script = "import sys, tiledsl.__main__ as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\n"
    script += f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert all(re.search(rf"^    {name}\s", done.stdout, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, text.splitlines())) < 80, text
    assert f"\n    tiledsl {command} " in text or command in ("", "doctor", "error")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"tiledsl {metadata.version('tiledsl')}\n"


WRONG = [[], ["shwo"], ["show"], ["show", "k.py", "--what"], ["explain", "k.py", "x"], ["cache", "list", "x"]]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_are_one_message_with_a_fix(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out and re.fullmatch(r"tiledsl.*: .+\n  fix: tiledsl.* --help says what it takes\n", printed.err)


# -- the report --------------------------------------------------------------------------------------------


def test_a_report_is_one_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "k.html"
    arguments = ["--const", "T=4", "--check", "M=5", "--check", "N=6", "--check", "K=7"]
    assert main(["report", f"{TILED}:shared_tiled", "-o", str(file), *arguments]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: 0.")
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "<title>shared_tiled(T=4) for sm_90a</title>" in text


def test_a_report_with_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, sizes = tmp_path / "t.json", ["--check", "M=5", "--check", "N=6", "--check", "K=7"]
    asked = ["report", TILED, "-o", str(tmp_path / "k.html"), "--trace", str(trace)]
    assert main([*asked, *sizes]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X"}
    trace.unlink()
    assert main(asked) == 2 and not trace.exists()
    assert capsys.readouterr().err == (
        f"--trace {trace}: the kernel does not run\n  fix: give --check M=... --check K=... --check N=...\n"
    )


def test_the_data_of_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", TILED, "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["version"] == 1
    assert main(["report", TILED, "--json", "-o", str(tmp_path / "k.json")]) == 0
    assert (tmp_path / "k.json").read_text() == printed


def test_a_report_has_the_name_of_its_kernel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", TILED]) == 0
    assert (tmp_path / "shared_tiled.html").exists() and "0 findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("nowhere.py:naive", [], "there is no Python file nowhere.py"),
        (f"{TILED}:nothing", [], "It defines: shared_tiled"),
        (TILED, ["--check", "Q=3"], "shared_tiled has no size or scalar 'Q'. It has: K, M, N"),
        ("refused.py:refused", [], "refused.py:7:"),
        ("refused.py:unknown", [], "nothing"),
    ],
)
def test_no_report_of_what_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kernel: str, options: list[str], message: str
) -> None:
    (tmp_path / "refused.py").write_text(REFUSED)
    asked = kernel.replace("refused.py", str(tmp_path / "refused.py"))
    compiles = not kernel.startswith("refused.py")
    assert main(["report", asked, "-o", str(tmp_path / "k.html"), *options]) == (2 if compiles else 1)
    printed = capsys.readouterr()
    assert message in printed.err and "Traceback" not in printed.err and not printed.out
    assert not (tmp_path / "k.html").exists()


def test_a_report_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", TILED, "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"cannot write {tmp_path}: Is a directory\n  fix: give another file with -o\n"


# -- as a program: folders, files and terminals as they come ----------------------------------------------


def run_cli(folder: Path, command: str, stdout: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """``python -m tiledsl COMMAND`` in `folder`, whose output goes to the shell's redirection `stdout`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILEDSL_CACHE_DIR": str(folder / "cache"), **env}
    line = f"{shlex.quote(sys.executable)} -m tiledsl {command} {stdout}"
    return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


KERNEL = """\
import numpy
from tiledsl import Global, f32, grid, threads, tile_kernel
from tiledsl.dims import N
from beside import SIZE

@tile_kernel
def one(X: Global[f32, N]):
    X.put(grid(N) * SIZE + threads(SIZE), f32(1))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernel, a module beside it that it imports, and files with the names of libraries."""
    (tmp_path / "beside.py").write_text("SIZE = 32\n")
    for name in ("kernel", "json", "numpy", "struct", "with space-é"):
        (tmp_path / f"{name}.py").write_text(KERNEL)
    return tmp_path


@pytest.mark.parametrize("name", ["kernel", "json", "numpy", "struct", "with space-é"])
def test_a_file_may_be_called_as_a_library(folder: Path, name: str) -> None:
    done = run_cli(folder, f"show '{name}.py' --stage ptx")
    assert (done.returncode, done.stderr) == (0, "") and ".entry one" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", "user.py:1: invalid syntax"),
        ("\n  x = 1\n", "user.py:2: unexpected indent"),
        ("x = 1\nx = '\0'\n", "null bytes"),
        ("import sys\nsys.exit(3)\n", "user.py:2: the file ends the program (sys.exit) when it is imported"),
        ("\nraise ValueError('two\\nlines')\n", "user.py:2: ValueError: two lines"),
        ("import no_such_module\n", "user.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(): return f()\nf()\n", "RecursionError"),
        ("raise BaseException\n", "user.py:1: BaseException"),
        ("x = 1\n", "user.py defines no kernel"),
        (None, "there is no Python file user.py"),
        ("", "user.py defines no kernel"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_message(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "user.py").write_text(text)
    done = run_cli(tmp_path, "show user.py")
    first, *rest = done.stderr.splitlines()
    assert done.returncode == (2 if "no kernel" in message or "no Python file" in message else 1) and not done.stdout
    assert message in first and len(rest) == 1 and rest[0].startswith("  fix: "), done.stderr


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "show .")
    assert done.returncode == 2 and done.stderr.startswith("there is no Python file .\n  fix: ")


def test_ctrl_c_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("raise KeyboardInterrupt\n")
    done = run_cli(tmp_path, "show user.py")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("command", ["show kernel.py --stage ptx", "explain kernel.py banks", "cache info"])
def test_an_output_that_cannot_be_written(folder: Path, command: str) -> None:
    full = run_cli(folder, command, "> /dev/full")
    assert full.returncode == 1
    assert full.stderr == "cannot write the output: No space left on device\n  fix: send it where there is room\n"
    closed = run_cli(folder, command, ">&-")
    assert closed.returncode == 1 and closed.stderr.startswith("the output is closed\n  fix: ")
    assert run_cli(folder, command, "2>&- >&-").returncode == 1
    assert run_cli(folder, command, "| head -c 1").stderr == ""


def test_a_terminal_with_ascii_alone(folder: Path) -> None:
    for env in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}):
        done = run_cli(folder, "show kernel.py", **env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii() and "thread_id" in done.stdout


def on_a_terminal(columns: int, *command: str, **env: str) -> str:
    """What a terminal of so many columns gets."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")} | env
    with subprocess.Popen(command, stdout=terminal, env=environment) as process:
        os.close(terminal)
        text = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(reader, 1 << 16):
                text += part
    os.close(reader)
    assert process.returncode == 0
    return text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("columns", "margin"), [(80, 32), (20, 20)])
def test_the_python_lines_take_a_part_of_a_terminal(columns: int, margin: int) -> None:
    plain = on_a_terminal(columns, sys.executable, "-m", "tiledsl", "show", TILED, "--no-color")
    assert {line.index("│") for line in plain.splitlines()} == {margin + 1}
    assert "\x1b" not in plain


def test_colors_are_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    """And not where NO_COLOR says so. What a lexer does not know is shown as it is."""
    command = (sys.executable, "-m", "tiledsl", "show", TILED)
    colored = on_a_terminal(200, *command)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert "│ kernel\x1b" in colored and "│ kernel shared_tiled(" in plain
    assert on_a_terminal(200, *command, NO_COLOR="1") == plain == shown(capsys, TILED)
    assert on_a_terminal(200, *command, NO_COLOR="") == colored


def test_more_memory_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", TILED, *(f"--size={name}=9999999" for name in "MNK")]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("there is not enough memory: ") and printed.err.endswith(
        "\n  fix: give smaller sizes\n"
    )


@pytest.mark.parametrize("columns", ["0", "1", "5", "20", "x"])
def test_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command in ("", *COMMANDS):
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--help"])
        assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main(["show", "kernel.py", "--stage", "x"])
    assert ended.value.code == 2
    assert main(["explain", f"{ROOT}/examples/gemm/shared_tiled.py", "banks"]) == 0


def test_the_cache_is_shown_and_cleared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "new"))
    assert main(["cache", "info"]) == main(["cache", "clear"]) == 0
    assert not (tmp_path / "new").exists() and " 0 kernels, " in capsys.readouterr().out
    shown(capsys, f"{TILED}:shared_tiled", "--const", "T=4")
    assert main(["cache", "info"]) == 0
    assert " kernels, " in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert main(["cache", "info"]) == 0
    assert " 0 kernels, 0.0 of" in capsys.readouterr().out


def test_ir_locations() -> None:
    text = (
        '  %v = arith.add %a, %b : f32 @ "a \\"b\\".py":7:3-9 in "f" from "c.py":9:1\n'
        '  control.for %x @ "c.py":8:1 (%k: f32) {'
    )
    assert list(read_ir(text)) == [
        Line("  %v = arith.add %a, %b : f32", Loc('a "b".py', 7, 3, 9, "f", Loc("c.py", 9)), 1),
        Line("  control.for %x (%k: f32) {", Loc("c.py", 8), 2),
    ]


def test_ptx_locations() -> None:
    text = (
        '.entry f()\n{\n\t.file\t1 "/k.py"\n\t.loc\t1 12 5\n\tadd.f32 %f1, %f2, %f3;\n\tret;\n}\n'
        "\t.section .debug_str\n\tx\n"
    )
    assert list(read_ptx(text)) == [
        Line(".entry f()", None, 1),
        Line("{", None, 2),
        Line("\tadd.f32 %f1, %f2, %f3;", Loc("/k.py", 12, 5), 5),
        Line("\tret;", Loc("/k.py", 12, 5), 6),
        Line("}", None, 7),
    ]


def test_sass_locations_take_the_innermost_of_a_chain() -> None:
    text = (
        '\t//## File "/math.py", line 3 inlined at "/k.py", line 8\n'
        '\t//## File "/k.py", line 8\n'
        "        /*0010*/ FADD R1, R2, R3 ;\n"
        '\t//## File "/k.py", line 9\n'
        "        /*0020*/ EXIT ;"
    )
    assert [line.source for line in read_sass(text)] == [Loc("/math.py", 3), Loc("/k.py", 9)]


def test_llvm_locations_are_numbers_of_places() -> None:
    text = (
        "  %x = add i32 %a, %b, !dbg !4\n"
        '!2 = distinct !DISubprogram(name: "k", file: !1, line: 1)\n'
        "!4 = !DILocation(column: 2, line: 2, scope: !2)\n"
        '; line 1: "/d/k.py":3\n'
        '; line 2: "/d/k.py":5\n'
    )
    assert list(read_llvm(text)) == [Line("  %x = add i32 %a, %b", Loc("/d/k.py", 5), 1)]

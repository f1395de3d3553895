"""``tiledsl diff``: what differs between two kernels, and nothing that is merely numbered anew."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
from base64 import b64encode
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.__main__ import main
from tiledsl.inspect.compare import PARTS, _difference

EXAMPLES = Path(__file__).parents[2] / "examples" / "gemm"
TILED, NAIVE = f"{EXAMPLES}/shared_tiled.py", f"{EXAMPLES}/naive.py"


@cache
def asked(*arguments: str) -> dict[str, Any]:
    text = io.StringIO()
    with redirect_stdout(text):
        assert main(["diff", *arguments, "--json"]) == 0
    found = json.loads(text.getvalue())
    assert found["schema"] == "tiledsl.diff/1"
    return {**found, "parts": {part["part"]: part for part in found["parts"]}}


# -- lines -------------------------------------------------------------------------------------------


def patched(a: list[str], lines: list[str]) -> list[str]:
    """`a` after the unified diff `lines`, whose context and removed lines must be where it says."""
    result: list[str] = []
    done = 0
    for line in lines:
        if span := re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", line):
            start = int(span[1]) - (span[2] != "0")
            result += a[done:start]
            done = start
            assert len(result) == int(span[3]) - (span[4] != "0")
        elif line[0] == "+":
            result.append(line[1:])
        else:
            assert a[done] == line[1:]
            result += [line[1:]] if line[0] == " " else []
            done += 1
    return result + a[done:]


texts = st.lists(st.sampled_from("abcdefghijklmnop"), max_size=60)


@given(texts, texts, texts)
def test_a_diff_makes_one_text_of_the_other(a: list[str], b: list[str], common: list[str]) -> None:
    a, b = common + a + common, common + b + common
    found = _difference("x", a, b)
    assert patched(a, found.lines) == b
    assert found.same is (a == b)
    assert len(b) - len(a) == found.added - found.removed


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("  %7 = arith.add %acc_3, %k0 : index", "  %19 = arith.add %acc_12, %k0 : index"),
        ("\tadd.rn.f32 %f12, %f1, %f2;", "\tadd.rn.f32 %f3, %f4, %f5;"),
        ("@%p3 bra $L__BB0_14;", "@%p1 bra $L__BB0_2;"),
        ("        /*0a30*/                   FFMA R2, R7.reuse, R9, R2 ;", "  /*0b40*/  FFMA R4, R5.reuse, R9, R4 ;"),
        ("        /*0050*/              @!P0 BRA `(.L_x_3) ;", "        /*0050*/              @!P1 BRA `(.L_x_11) ;"),
    ],
)
def test_numbers_are_no_difference(a: str, b: str) -> None:
    assert _difference("x", [a], [b]).same


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("  %7 = arith.constant 3 : index", "  %7 = arith.constant 4 : index"),
        ("  %left = arith.add %a, %b : f32", "  %right = arith.add %a, %b : f32"),
        ("  %7 = tile.load %As, %1 : f32", "  %7 = tile.load %Bs, %1 : f32"),
        ("\tadd.rn.f32 %f12, %f1, %f2;", "\tadd.rn.f64 %fd12, %fd1, %fd2;"),
        ("\tld.shared.v4.f32 {%f1}, [%r1+16];", "\tld.shared.v4.f32 {%f1}, [%r1+32];"),
        ("  /*0010*/  FFMA R2, R7.reuse, R9, R2 ;", "  /*0010*/  FFMA R2, R7, R9, R2 ;"),
        ("  /*0010*/  LDS R2, [R7+0x10] ;", "  /*0010*/  LDS R2, [R7+0x20] ;"),
    ],
)
def test_everything_else_is(a: str, b: str) -> None:
    assert _difference("x", [a], [b]).lines == ["@@ -1,1 +1,1 @@", f"-{a}", f"+{b}"]


# -- the command -------------------------------------------------------------------------------------


def test_two_settings_of_a_kernel() -> None:
    found = asked(TILED, "--const-b", "T=32")
    assert (found["a"]["kernel"], found["b"]["kernel"]) == ("shared_tiled(T=16)", "shared_tiled(T=32)")
    assert [*found["parts"]] == [*PARTS] and not any(part["same"] for part in found["parts"].values())
    assert found["resources"]["shared"] == {"a": 2048, "b": 8192}
    assert {"-const T = 16", "+const T = 32"} <= {*found["parts"]["signature"]["diff"]}
    decided = [line for line in found["parts"]["decisions"]["diff"] if line.startswith(("-As", "+As"))]
    assert [line.split()[1:4] for line in decided] == [["16", "x", "16"], ["32", "x", "32"]]
    assert not any("T=16" in line for line in found["parts"]["decisions"]["diff"])


def test_the_text_has_a_summary_first(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [TILED, "--const-b", "T=32"]
    found = asked(*arguments)
    assert main(["diff", *arguments]) == 0
    text = capsys.readouterr().out
    summary, *parts = re.split(r"\n\n--- A: (?=.*\n\+\+\+ B: )", text)
    assert summary.startswith("A: shared_tiled(T=16) for sm_90a\nB: shared_tiled(T=32) for sm_90a\n\npart ")
    assert "shared 2048 -> 8192" in summary and max(map(len, summary.splitlines())) < 80
    for part, shown in zip(found["parts"].values(), parts, strict=True):
        assert f"-{part['removed']} +{part['added']} lines" in summary
        assert shown.rstrip("\n").splitlines()[2:] == [line.rstrip("\n") for line in part["diff"]]
    assert "\x1b" not in text


def test_two_kernels() -> None:
    found = asked(NAIVE, TILED, "--const", "T=8", "--only", "signature", "--only", "ptx")
    assert [*found["parts"]] == ["signature", "ptx"]
    assert {"-kernel naive", "+kernel shared_tiled"} <= {*found["parts"]["signature"]["diff"]}
    assert found["a"]["kernel"] == "naive(T=8)" and found["b"]["kernel"] == "shared_tiled(T=8)"


def test_a_change_of_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A kernel that moved in its file is the same; one with another operation differs in it."""
    moved, changed = tmp_path / "moved.py", tmp_path / "changed.py"
    text = Path(NAIVE).read_text()
    moved.write_text("# a line\n" * 5 + text)
    changed.write_text(text.replace("acc += A[row, k] * B[k, col]", "acc += A[row, k] + B[k, col]"))
    assert main(["diff", NAIVE, str(moved), "--exit-code"]) == 0
    assert " +" not in capsys.readouterr().out
    assert main(["diff", NAIVE, str(changed), "--exit-code", "--only", "tile-ir"]) == 3
    text = capsys.readouterr().out
    assert re.findall(r"^[-+] +%\w+ = (\S+)", text, re.MULTILINE) == ["arith.fma", "arith.add", "arith.add"]


def test_each_side_has_its_own_modules(tmp_path: Path) -> None:
    """Two versions of a folder, of which only the module beside the kernel differs."""
    kernel = (
        "from shared_by_both import SCALE\nfrom tiledsl import Global, f32, grid, threads, tile_kernel\n"
        "from tiledsl.dims import N\n\n\n@tile_kernel\ndef scaled(X: Global[f32, N]):\n"
        "    i = grid(1) + threads(32)\n    X[i] = X[i] * SCALE\n"
    )
    for folder, scale in (("old", 2.0), ("new", 3.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.py").write_text(kernel)
        (tmp_path / folder / "shared_by_both.py").write_text(f"SCALE = {scale}\n")
    found = asked(f"{tmp_path}/old/k.py", f"{tmp_path}/new/k.py", "--only", "tile-ir")["parts"]["tile-ir"]
    constants = [line.split()[4] for line in found["diff"] if re.match(r"[-+] .* = arith.constant", line)]
    assert constants == ["2.0", "3.0"]


def test_two_passes_of_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(NAIVE, "--after-a", "unroll", "--after-b", "distribute")
    assert [*found["parts"]] == ["ir"] and found["resources"] == {}
    assert (found["a"]["stage"], found["b"]["stage"]) == ("after:unroll", "after:distribute")
    assert found["a"]["text"] == "naive(T=16) for sm_90a, after unroll"
    both = asked(NAIVE, "--after-b", "expand")
    assert both["a"]["stage"] == "tile" and both["a"]["text"].endswith(", the first stage")
    assert any("level(tile)" in line for line in both["parts"]["ir"]["diff"] if line[0] == "-")
    assert any("level(thread)" in line for line in both["parts"]["ir"]["diff"] if line[0] == "+")


SCALED = """\
from beside import SCALE
from tiledsl import Global, f32, grid, threads, tile_kernel
from tiledsl.dims import N


@tile_kernel
def scaled(X: Global[f32, N]):
    i = grid(1) + threads(32)
    X[i] = X[i] * SCALE
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits; the second one changes what the kernel imports."""

    def git(*command: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *command], check=True, capture_output=True)

    (tmp_path / "sub").mkdir()
    git("init", "-q")
    (tmp_path / "sub" / "k.py").write_text(SCALED)
    for scale in (2.0, 3.0):
        (tmp_path / "sub" / "beside.py").write_text(f"SCALE = {scale}\n")
        git("add", ".")
        git("commit", "-q", "-m", f"scale {scale}")
    return tmp_path


def constants(found: dict[str, Any]) -> list[str]:
    diff = found["parts"]["tile-ir"]["diff"]
    return [line.split()[4] for line in diff if re.match(r"[-+] .* = arith.constant", line)]


def test_two_commits_of_a_kernel(repository: Path) -> None:
    file = f"{repository}/sub/k.py"
    assert constants(asked(file, "--rev-a", "HEAD~1", "--only", "tile-ir")) == ["2.0", "3.0"]
    assert constants(asked(file, "--rev-a", "HEAD", "--rev-b", "HEAD~1", "--only", "tile-ir")) == ["3.0", "2.0"]
    assert asked(file, "--rev-a", "HEAD", "--only", "tile-ir")["parts"]["tile-ir"]["same"]
    # Of another size: Python takes bytecode for fresh whose source was as long, and written in the same second.
    (repository / "sub" / "beside.py").write_text("SCALE = 4.00\n")
    found = asked.__wrapped__(file, "--rev-a", "HEAD", "--only", "tile-ir")
    assert constants(found) == ["3.0", "4.0"] and found["a"]["text"] == "scaled() for sm_90a, of HEAD"


def test_commits_that_there_are_not(
    repository: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    apart = tmp_path_factory.mktemp("apart") / "k.py"
    apart.write_text(SCALED)
    for file, revision, message in (
        (repository / "sub" / "k.py", "HEAD~7", "revision HEAD~7: "),
        (repository / "none.py", "HEAD", "HEAD has no file "),
        (apart, "HEAD", "revision HEAD: fatal: not a git repository"),
    ):
        assert main(["diff", str(file), "--rev-a", revision]) == 2
        text = capsys.readouterr().err
        assert message in text and "fix: name a commit" in text


def test_both_reports_in_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.html"
    assert main(["diff", TILED, "--const-b", "T=32", "-o", str(file)]) == 0
    assert capsys.readouterr().out.endswith(f"{file}: both reports\n")
    text = file.read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert [page.count("<!DOCTYPE html>") for page in data["pages"]] == [1, 1] and text.count("<!DOCTYPE html>") == 1
    assert [part[0] for part in data["parts"]] == [*PARTS] and ["shared", "2048", "8192"] in data["resources"]
    for page in (text, *data["pages"]):
        for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL):
            digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in text  # what is in a frame obeys the policy of both
    assert main(["diff", NAIVE, "--after-b", "expand", "-o", str(file)]) == 0
    data = json.loads(file.read_text().partition('id="data">')[2].partition("</script>")[0])
    assert data["at"] == ["", "#ir-expand-1"]


def test_targets() -> None:
    found = asked(NAIVE, "--arch-b", "sm_80", "--only", "signature", "--only", "tile-ir")
    assert found["parts"]["signature"]["diff"][2:4] == ["-target sm_90a", "+target sm_80"]
    assert found["parts"]["tile-ir"]["same"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAIVE], "is compared with itself\n  fix: name another kernel, or give a side its own settings, as --const-b"),
        ([NAIVE, "nowhere.py"], "there is no Python file nowhere.py"),
        ([NAIVE, "--const-b", "Q=1"], "naive has no open const 'Q'"),
        ([NAIVE, "--arch-a", "sm_1"], "no target 'sm_1'"),
        ([NAIVE, "--after-a", "sm_1"], "no pass is called 'sm_1'\n  fix: they are "),
        ([NAIVE, "--after-a", "expand", "--only", "ptx"], "compare the IR alone\n  fix: leave --only out"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["diff", *arguments]) == 2
    assert message in capsys.readouterr().err

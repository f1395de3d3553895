"""``tiledsl repro``: a script that repeats a compilation or a run, with nothing else of the user's there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.__main__ import main

ROOT = Path(__file__).parents[2]
NAIVE = f"{ROOT}/examples/gemm/naive.py"

KERNEL = '''\
"""What the docstring says,
"""
from __future__ import annotations
from tiledsl import *
from tiledsl.dims import N
from helper import scale

T0, result = 64, 3.0

@tile_kernel
def racy(X: Global[bf16, N], Y: Global[i8, N], y: f32, *, T: const = T0):
    b, t = grid(1), threads(T)
    S = shared((T,), f32)
    S[t] = scale(X.get(t).to(f32)) + y + Y.get(t).to(f32) * result
    X.put(t, S[T - 1 - t].to(bf16))

@tile_kernel
def wrong(X: Global[f32, N]):
    X[0] = nothing

@tile_kernel
def right(X: Global[f32, N], *, T: const = 32):
    b = grid(cdiv(N, T))
    X.put(b * T + threads(T), f32(2))

if __name__ == "__main__":
    raise SystemExit("what the file does as a program")
'''
HELPERS = {
    "helper.py": "from sub.more import FACTOR\nfrom tiledsl import tile_function\n\n\n"
    "@tile_function\ndef scale(x):\n    return x * FACTOR\n",
    "sub/__init__.py": "",
    "sub/more.py": "from .deep import FACTOR\n",
    "sub/deep.py": "FACTOR = 2.5  # ' \" \\ é '''\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    for name, text in {"k.py": KERNEL, **HELPERS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def tiledsl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiledsl", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def repeated(folder: Path, *arguments: str) -> tuple[str, str, int]:
    """The script; what it prints and how it ends where the kernel's files are gone."""
    done = tiledsl(folder, "repro", *arguments)
    assert done.returncode == 0, done.stderr
    (script,) = folder.glob("repro_*.py")
    text = script.read_text(encoding="utf-8")
    came = done.stdout.partition(" gives\n")[2]
    assert came and all(f"# {line}" in text for line in came.splitlines())
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(script, elsewhere)
    shutil.rmtree(folder)
    again = subprocess.run([sys.executable, script.name], cwd=elsewhere, capture_output=True, text=True)
    return text, again.stdout + again.stderr, again.returncode


def without_places(text: str) -> str:
    return re.sub(r"(\S*/)?[\w.]+\.py:\d+", "FILE:LINE", text)


def test_a_run_is_repeated(folder: Path) -> None:
    """Also with a seed, another dtype, a scalar, modules beside it, and globals that have names of the script's."""
    asked = ["k.py:racy", "--size", "N=64", "--size", "y=1.5", "--const", "T=64"]
    expected = tiledsl(folder, "check", *asked, "--seed", "3")
    assert expected.returncode == 3
    text, printed, code = repeated(folder, *asked, "--seed", "3")
    assert code == 1 and without_places(printed) == without_places(expected.stdout)
    assert "X = make((64,), np.dtype(ml_dtypes.bfloat16))" in text and "Y = make((64,), np.dtype(np.int8))" in text
    head = " ".join(text.replace("\n#", "").split())
    assert re.match(r"# Made by tiledsl repro of \S*k\.py, with tiledsl .*, Python 3.*, NumPy ", head)
    assert "what the file does as a program" not in text


def test_a_failing_compilation_is_repeated(folder: Path) -> None:
    expected = tiledsl(folder, "show", "k.py:wrong")
    assert expected.returncode == 1
    text, printed, code = repeated(folder, "k.py:wrong", "--arch", "sm_80")
    assert code == 1 and "the name nothing is not defined" in expected.stderr
    assert "the name nothing is not defined" in printed and "X[0] = nothing" in printed
    assert "wrong.compile('sm_80')" in text


def test_a_compilation_that_works_is_repeated(folder: Path) -> None:
    text, printed, code = repeated(folder, "k.py:right", "--const", "T=64")
    assert code == 0 and printed.startswith("<Compiled right(T=64) for sm_90a")
    assert "right.compile('sm_90a', T=64)" in text


def test_a_kernel_that_its_file_imports(capsys: pytest.CaptureFixture[str]) -> None:
    """To the standard output."""
    file = f"{ROOT}/examples/gemm/mma_fastest.py"
    assert main(["repro", file, "--dtype", "D=bf16", "--dtype", "E=bf16", "--dtype", "F=bf16", "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert "from tiledsl.gemm.mma import " in text and "'tiledsl/" not in text
    assert text.endswith(
        "compile('sm_90a', D='bf16', E='bf16', F='bf16'))\n\n\nif __name__ == \"__main__\":\n    _repro()\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.py"], 2, "there is no Python file"),
        ([NAIVE, "--size", "N=64"], 2, "needs M, K\n  fix: add --size M=... --size K=..."),
        ([NAIVE, "--size", "Q=64"], 2, "no size or scalar 'Q'"),
        ([NAIVE, *(f"--size={name}=4" for name in "MNK"), "--seed", "-1"], 2, "seed is -1"),
        ([NAIVE, "-o", "/nowhere/x.py"], 1, "cannot write /nowhere/x.py"),
    ],
)
def test_what_cannot_be_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    arguments: list[str], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["repro", *arguments]) == code
    printed = capsys.readouterr()
    assert not printed.out and message in printed.err
    assert not [*tmp_path.iterdir()]

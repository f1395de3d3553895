"""The command line on a machine with a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


def tiledsl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiledsl", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)


def printed(*arguments: str) -> dict[str, Any]:
    done = tiledsl(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_doctor_finds_the_gpu() -> None:
    found = printed("doctor")
    assert found["works"]["gpu"] is True
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["driver"]["found"].startswith("for CUDA ") and ", compiled for as sm_" in parts["GPU"]["found"]


@pytest.mark.parametrize("name", ["shared_tiled", "mma_fastest"])
def test_an_example_runs_on_the_gpu(name: str) -> None:
    found = printed("gallery", "run", name)["run"]
    assert found["where"] != "emulator" and found["right"] and found["seconds"] < 0.1


def test_examples_for_hopper_run_on_one_alone() -> None:
    (gpu,) = (part["found"] for part in printed("doctor")["parts"] if part["name"] == "GPU")
    for name in ("hopper_scaled", "hopper_fastest"):
        done = tiledsl("gallery", "run", name)
        if "0: " in gpu and ", compiled for as sm_90a" in gpu.split("; ")[0]:
            assert done.returncode == 0 and ": right\n" in done.stdout and " on emulator" not in done.stdout
        else:
            assert done.returncode == 1 and "fix: " in done.stderr


def test_the_kernel_to_begin_with(tmp_path: Path) -> None:
    file = tmp_path / "first.py"
    printed("gallery", "new", str(file))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and done.stdout.endswith(": right\n"), done.stderr

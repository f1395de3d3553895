"""The runtime on a real GPU. Each program has a process and a time limit: a hang or a lost context ends only itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).with_name("programs.py")
HELPERS = {"raises", "problem", "emulated", "same_bits", "parity"}
SECONDS = 180


def _names() -> list[str]:
    """The programs, read without importing them: collection needs no GPU and no torch."""
    tree = ast.parse(PROGRAMS.read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name not in HELPERS]


@pytest.mark.parametrize("name", _names())
def test_program(name: str) -> None:
    root = PROGRAMS.parents[2]
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), name],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout[-2000:] + done.stderr[-6000:]

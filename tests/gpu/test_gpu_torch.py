"""`tiledsl.torch` on a real GPU: one test for each program of torch_programs.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).with_name("torch_programs.py")


def _names() -> list[str]:
    """The programs, read without importing them: collection needs no GPU and no torch."""
    tree = ast.parse(PROGRAMS.read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]


@pytest.mark.parametrize("name", _names())
def test_program(name: str) -> None:
    run_program("torch_programs.py", name)

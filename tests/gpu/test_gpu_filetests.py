"""The filetests on a real GPU: their committed results are hardware truth, or they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu

FILETESTS = Path(__file__).parents[1] / "filetests"
FOLDERS = sorted(p.name for p in FILETESTS.iterdir() if any(p.glob("*.tir")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder(folder: str) -> None:
    run_program("filetest_program.py", folder)

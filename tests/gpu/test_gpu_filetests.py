"""The filetests on a real GPU: their expected results are hardware truth, or they are wrong."""

from __future__ import annotations

import pytest

from tests.filetests.made import filetests
from tests.gpu.process import run_program

pytestmark = pytest.mark.gpu

FOLDERS = sorted({path.parent.name for path in filetests()})


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder(folder: str) -> None:
    run_program("filetest_program.py", folder)

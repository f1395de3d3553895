"""Every kernel of the gallery, in every format that it multiplies, on the GPU and on the emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu.process import run_program

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gemm"))
from gallery import GALLERY, HOPPER  # type: ignore[import-not-found]

pytestmark = pytest.mark.gpu

CASES = [(entry.kernel, format) for entry in (*GALLERY, *HOPPER) for format in entry.formats]


@pytest.mark.parametrize(("kernel", "format"), CASES, ids=lambda x: x)
def test_same_bits(kernel: str, format: str) -> None:
    run_program("gallery_program.py", kernel, format)

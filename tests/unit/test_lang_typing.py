"""tests/typing/kernels.py: what type checkers accept, the compiler compiles.

That pyright accepts the file, and refuses exactly the lines it says, is checked by `make types`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tiledsl import bf16, f16, f32, gelu, padded

SOURCE = Path(__file__).parents[1] / "typing" / "kernels.py"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("naive", {}),
        ("tiled", {"T": 8}),
        ("epilogues", {"D": f32}),
        ("epilogues", {"D": f16, "BM": 2, "activation": gelu}),
        ("epilogues", {"D": bf16}),
        ("norms", {}),
        ("staged", {}),
        ("staged", {"BM": 128, "layout": padded(132)}),
    ],
)
def test_kernel_compiles(name: str, settings: dict[str, Any]) -> None:
    kernel: Any = runpy.run_path(str(SOURCE))[name]
    assert kernel.compile(arch="sm_90a", **settings).ptx

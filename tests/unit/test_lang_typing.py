"""tests/typing: what type checkers accept, the compiler compiles.

That pyright accepts the files, and refuses exactly the lines they say, is checked by `make types`.
"""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tiledsl import bf16, f16, f32, gelu, mma, padded

FOLDER = Path(__file__).parents[1] / "typing"


@cache
def _files() -> list[dict[str, Any]]:
    return [runpy.run_path(str(path)) for path in FOLDER.glob("*.py")]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("naive", {}),
        ("tiled", {"T": 8}),
        ("epilogues", {"D": f32}),
        ("epilogues", {"D": f16, "BM": 2, "activation": gelu}),
        ("epilogues", {"D": bf16}),
        ("formats", {}),
        ("norms", {}),
        ("staged", {}),
        ("staged", {"BM": 128, "layout": padded(132)}),
        ("multiply", {}),
        ("multiply", {"BM": 128, "STAGES": 2, "layout": mma.m16n8k16.acc(warps=(4, 2))}),
        ("with_tokens", {}),
        ("with_roles", {}),
        ("with_roles", {"BN": 256, "CLUSTER": 1}),
        ("by_hand", {}),
    ],
)
def test_kernel_compiles(name: str, settings: dict[str, Any]) -> None:
    kernel: Any = next(names[name] for names in _files() if name in names)
    assert kernel.compile(arch="sm_90a", **settings).ptx

"""What `make demo` prints: a summary first, then a line for each run, in 80 columns."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

GEMM = Path(__file__).parents[2] / "examples" / "gemm"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(GEMM), *sys.path])
    import demo  # pyright: ignore[reportMissingImports] - of the gallery

    return demo


def outcomes(demo: Any) -> list[Any]:
    """A long name, one with brackets, another size."""
    first = demo.Outcome("naive", (3, 2, 1), "sm_90a", "NVIDIA H200 NVL", 1e-5, 2e-5, 255, 227 << 10, 1024, 1e-3)
    long = replace(first, kernel="fastest BM=32 BN=32 BK=32 WARP_TILE=(32, 32) SLICES=4 SCHEDULE=staged", error=1e-6)
    return [first, long, replace(first, size=(300, 200, 100), seconds=123.4)]


@pytest.mark.parametrize("width", [80, 120])
def test_a_line_for_each_run(demo: Any, width: int) -> None:
    console = Console(width=width, record=True, file=StringIO())
    made = outcomes(demo)
    console.print(demo._table(made, width))
    lines = console.export_text().splitlines()
    assert len(lines) == 2 + len(made) + 2, "a title, names of columns, and two sizes"
    assert all(len(line) <= width for line in lines) and lines[-1].rstrip().endswith("123 s")
    assert [line.split()[0] for line in lines[2:]] == ["3", "naive", "fastest", "300", "naive"]
    assert "1.0e-06" in lines[4] and ("…" in lines[4]) == (width == 80)


def test_the_summary_names_the_worst(demo: Any) -> None:
    made = outcomes(demo)
    assert demo._summary(made, 2.0) == "all 3 right, in 2 s; the worst error is 0.5 of its bound: naive, 3 x 2 x 1"
    wrong = [*made, replace(made[1], error=math.nan)]
    assert "1 of 4 WRONG" in demo._summary(wrong, 2.0) and "nan of its bound: fastest" in demo._summary(wrong, 2.0)

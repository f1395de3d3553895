"""What a notebook shows: HTML that is well formed, escaped, and says what the text says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiledsl import Const, Global, barrier, f32, grid, shared, threads, tile_kernel
from tiledsl.dims import N
from tiledsl.inspect.loading import load_kernel
from tiledsl.layout.fragments import FragmentLayout, parse_fragment_layout
from tiledsl.layout.shared import ROW, parse_layout

EXAMPLES = Path(__file__).parents[2] / "examples" / "gemm"


class Reader(HTMLParser):
    """The texts of the cells of each table, and all text; tags must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.styles: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "b", "pre", "table", "tr", "th", "td") and [name for name, _ in attrs] in ([], ["style"])
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self.styles.append(str(attrs[0][1]))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data


def read(value: Any) -> Reader:
    return Reader(value._repr_html_())


def pretty(value: Any) -> str:
    """What a terminal of IPython shows."""
    shown: list[str] = []
    value._repr_pretty_(SimpleNamespace(text=shown.append), False)
    return "".join(shown)


@tile_kernel
def exchanged(X: Global[f32, N], *, SAFE: Const[bool] = True, NAME: Const[str] = ""):
    b, t = grid(1), threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    if SAFE:
        barrier()
    X[t] = S[63 - t] if b < 1 else f32(0)


def test_a_compiled_kernel() -> None:
    compiled = exchanged.compile("sm_90a", NAME="<script>alert('&')</script>")
    (rows,) = read(compiled).tables
    found = {name: text for name, text in rows if name}
    assert [*found] == ["tensors", "launch", "resources"]
    assert all(f"{name:<9}  {text}" in repr(compiled) for name, text in found.items())
    assert "exchanged(SAFE=True, NAME=\"<script>alert('&')</script>\") for sm_90a" in read(compiled).text


def test_a_check() -> None:
    result = exchanged.check(np.zeros(64, np.float32), SAFE=False, raises=False)
    shown = read(result)
    assert pretty(result) == str(result)
    assert all(line in shown.text for line in str(result).splitlines())
    assert "X[t] = S[63 - t] if b < 1 else f32(0)" in shown.text and "S[t] = X[t]" in shown.text
    clean = read(exchanged.check(np.zeros(64, np.float32)))
    assert clean.text == "exchanged: clean (1 schedule)"


@pytest.mark.parametrize("kernel", ["coarsen_2d", "maxas_256", "naive"])
def test_the_bank_table(kernel: str) -> None:
    """The tables of the text; accesses with conflicts stand out."""
    report: Any = load_kernel(EXAMPLES / f"{kernel}.py", kernel).explain("banks", "sm_90a")
    shown, text = read(report), " ".join(str(report).split())
    assert pretty(report) == str(report)
    assert len(shown.tables) == (0 if kernel == "naive" else 2)
    for rows in shown.tables:
        assert all(" ".join(" ".join(row).split()) in text for row in rows)
    marked = report._repr_html_().count("220,50,40") // 11
    assert marked == sum(access.chosen != access.ideal for access in report.accesses)
    assert (marked > 0) is (kernel == "coarsen_2d")


@pytest.mark.parametrize(
    "text", ["row", "padded(36)", "padded(9)", "swizzled(unit=4, span=8)", "swizzle_128b", "swizzle_32b"]
)
def test_a_layout(text: str) -> None:
    layout = parse_layout(text, 4)
    shown = read(layout)
    (rows,) = shown.tables
    dims = len(rows), len(rows[0])
    assert f"{text}: the bank of each element of a tile of {dims[0]} x {dims[1]} elements" in shown.text
    places = [[int(layout.offset((row, column), dims)) for column in range(dims[1])] for row in range(dims[0])]
    assert [[int(cell) for cell in row] for row in rows] == [[place % 32 for place in row] for row in places]


def test_rows_of_a_swizzle_begin_in_other_banks() -> None:
    columns = [[row[0] for row in read(parse_layout(text, 4)).tables[0]] for text in ("row", "swizzle_128b")]
    assert [len({*column}) for column in columns] == [1, 8]
    assert pretty(ROW) == "row"


LAYOUTS = [
    "mma.m16n8k16.acc(2, 2)",
    "mma.m16n8k16.a(1, 1)",
    "mma.m16n8k32.b(2, 1)",
    "mma.m8n8k4.a(1, 1)",
    "wgmma.acc(2, 4)",
]


@pytest.mark.parametrize("text", [*LAYOUTS, "mma.m16n8k8.a(1, 2, 4)", "wgmma.a(1)"])
def test_a_fragment(text: str) -> None:
    """Each element has one holder, and each holder as many elements."""
    layout = parse_fragment_layout(text)
    shown = read(layout)
    cells = [cell for row in shown.tables[0] for cell in row]
    warps = 4 if text.startswith("wgmma") else 1
    assert len({*cells}) == len(cells) == 32 * warps * layout.tile_size
    assert text in shown.text
    lanes = [int(re.split(r"[:.]", cell)[-2]) for cell in cells]
    assert {lanes.count(lane) for lane in range(32)} == {warps * layout.tile_size}
    assert (f"{layout.first}:0.0" if warps > 1 else "0.0") in cells


def test_a_fragment_of_the_isa() -> None:
    """(PTX ISA: matrix fragments for mma.m16n8k16, accumulators.)"""
    (rows,) = read(parse_fragment_layout("mma.m16n8k16.acc(1, 1)")).tables
    assert rows[0] == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1"]
    assert rows[1][0] == "4.0" and rows[8][:2] == ["0.2", "0.3"] and rows[15][7] == "31.3"
    assert isinstance(parse_fragment_layout("wgmma.acc(1)"), FragmentLayout)

"""The pictures of README.md and examples/gemm/README.md, from the results that are committed: ``python -m
benchmarks.pictures`` writes docs/pictures/*.svg. No GPU is needed.

An SVG has its own background and both schemes of colours, light and dark, so that it can be read wherever it is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.random_shapes import FAMILIES
from benchmarks.report import RESULTS
from tiledsl.arch import MULTIPLY_ADDS

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PROCESSORS, CLOCK, MEMORY = 132, 1980e6, 4.25
"""Of an H200: SMs, the highest clock in Hz, and the TB/s of a copy, as `python -m tiledsl bench` finds them."""

WIDTH = 800
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .end { text-anchor: end } .middle { text-anchor: middle }
  .note { fill: #59636e; font-size: 12px } .on { fill: #ffffff }
  .back { fill: #ffffff } .line { stroke: #d1d9e0 } .mark { stroke: #59636e; stroke-dasharray: 4 3 }
  .first { fill: #0969da } .second { fill: #bc4c00 } .third { fill: #6e7781 }
  .roof { stroke: #1f2328; stroke-width: 2; fill: none }
  circle { fill-opacity: 0.75 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .note { fill: #9198a1 } .on { fill: #ffffff }
    .back { fill: #0d1117 } .line { stroke: #30363d } .mark { stroke: #9198a1 }
    .first { fill: #2f81f7 } .second { fill: #db6d28 } .third { fill: #8b949e } .roof { stroke: #f0f6fc }
  }
"""


def cases(name: str) -> list[dict[str, Any]]:
    """Of results by their name."""
    return json.loads((RESULTS / f"{name}.json").read_text())["cases"]


def peak(format: str) -> float:
    """TFLOP/s of an H200 at its highest clock."""
    return 2e-12 * MULTIPLY_ADDS[9, 0][format] * PROCESSORS * CLOCK


# -- elements ----------------------------------------------------------------------------------------


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _dot(x: float, y: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{kind}"/>'


def _picture(title: str, note: str, height: int, parts: Iterable[str]) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" class="back"/>',
        _text(16, 26, title, "title"),
        *parts,
        _text(16, height - 14, note, "note"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


# -- the pictures ------------------------------------------------------------------------------------


def ladder() -> str:
    """The fp32 kernels of the gallery at 4096 cubed, each in its fastest variant."""
    fastest: dict[str, tuple[float, float]] = {}
    for case in cases("gemm_cold"):
        if case["size"] == [4096, 4096, 4096]:
            name = case["kernel"].split()[0]
            fastest[name] = max(fastest.get(name, (0.0, 0.0)), (case["tflops"], case["ratio"]))
    (base, _), top, row, left, right = fastest.pop("cuBLAS"), 66, 26, 132, WIDTH - 24
    most = peak("f32")
    bottom = top + row * len(fastest)

    def x(rate: float) -> float:
        return left + (right - left) * rate / (most * 1.05)

    parts = list[str]()
    for rate, text in ((base, f"cuBLAS {base:.1f}"), (most, f"peak {most:.1f}")):
        parts += [_line(x(rate), top - 4, x(rate), bottom, "mark"), _text(x(rate), top - 10, text, "middle note")]
    for i, (name, (rate, ratio)) in enumerate(fastest.items()):
        y, end = top + row * i, x(rate)
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{end - left:.1f}" height="{row - 8}" rx="2" class="first"/>')
        parts.append(_text(left - 8, y + 18, name, "end"))
        inside = end - left > 120
        text = f"{rate:.1f}, {ratio:.2f} of cuBLAS"
        parts.append(_text(end - 8 if inside else end + 8, y + 18, text, "end on" if inside else ""))
    note = "C = A B in fp32, 4096 x 4096 x 4096, TFLOP/s on an H200, operands not in L2; the peak is that of 1980 MHz."
    return _picture("The gallery, from the naive kernel to the fastest", note, bottom + 40, parts)


def roofline() -> str:
    """`gemm` in bf16 on random shapes, below what the memory and the tensor cores allow."""
    top, bottom, left, right = 50, 400, 64, WIDTH - 24
    (x0, x1), (y0, y1), most = (0.7, 6000.0), (0.3, 2000.0), peak("bf16")

    def x(intensity: float) -> float:
        return left + (right - left) * math.log(intensity / x0) / math.log(x1 / x0)

    def y(rate: float) -> float:
        return bottom - (bottom - top) * math.log(rate / y0) / math.log(y1 / y0)

    parts = list[str]()
    for at in (1, 10, 100, 1000):  # of both axes
        parts += [_line(x(at), top, x(at), bottom), _text(x(at), bottom + 18, f"{at}", "middle note")]
        if at >= y0:
            parts += [_line(left, y(at), right, y(at)), _text(left - 8, y(at) + 4, f"{at}", "end note")]
    knee = most / MEMORY
    corners = ((x0, MEMORY * x0), (knee, most), (x1, most))
    path = " ".join(f"{x(a):.1f},{y(max(b, y0)):.1f}" for a, b in corners)
    parts.append(f'<polyline points="{path}" class="roof"/>')
    parts.append(_text(right, y(most) - 8, f"tensor cores: {most:.0f} TFLOP/s at {CLOCK * 1e-6:.0f} MHz", "end"))
    parts.append(_text(x(12) - 12, y(MEMORY * 12), f"memory: {MEMORY} TB/s", "end"))
    kinds = {"decode": "second", "large": "first"}
    for case in cases("random_shapes_bf16_cold_rested"):
        if case["kernel"] == "NT":
            batches, (m, n, k) = math.prod(case["size"][:-3]), case["size"][-3:]
            moved = 2 * batches * (m * k + k * n + m * n)
            operations = 2 * batches * m * n * k
            parts.append(_dot(x(operations / moved), y(case["tflops"]), kinds.get(case["family"], "third")))
    for i, (kind, name) in enumerate((("first", "large"), ("second", "decode: few rows"), ("third", "other families"))):
        parts += [_dot(x(1.25), top + 34 + 20 * i, kind), _text(x(1.25) + 12, top + 38 + 20 * i, name)]
    parts.append(_text((left + right) / 2, bottom + 38, "operations for each byte of A, B and C", "middle note"))
    parts.append(_text(16, top - 2, "TFLOP/s", "note"))
    note = "tiledsl.gemm.gemm in bf16 on random shapes, operands not in L2. The roof is that of the highest clock."
    return _picture("gemm and the roof of an H200", note, bottom + 78, parts)


def families() -> str:
    """`gemm` against cuBLAS on random shapes, family by family, in bf16 and f32."""
    left, right, row, y = 84, WIDTH - 84, 24, 60
    x0, x1 = 0.7, 2.6

    def x(ratio: float) -> float:
        return left + (right - left) * math.log(min(ratio, x1) / x0) / math.log(x1 / x0)

    parts = [_dot(right - 168, 22, "first"), _text(right - 158, 26, "B along k (NT)"), _dot(right - 36, 22, "second")]
    parts.append(_text(right - 26, 26, "in rows (NN)"))
    for format in ("bf16", "f32"):
        found = cases(f"random_shapes_{format}_cold_rested")
        parts.append(_text(16, y + 2, format, "title"))
        parts.append(_text(WIDTH - 16, y + 2, "mean", "end note"))
        for ratio in (0.75, 1, 1.5, 2, 2.5):
            kind = "mark" if ratio == 1 else "line"
            parts.append(_line(x(ratio), y + 12, x(ratio), y + 16 + row * len(FAMILIES), kind))
            label = "cuBLAS" if ratio == 1 else f"{ratio:g}"
            parts.append(_text(x(ratio), y + 32 + row * len(FAMILIES), label, "middle note"))
        for i, family in enumerate(FAMILIES):
            at = y + 28 + row * i
            ratios = {
                kernel: [c["ratio"] for c in found if (c["family"], c["kernel"]) == (family, kernel)]
                for kernel in ("NT", "NN")
            }
            parts.append(_text(left - 8, at + 4, family, "end"))
            for dy, kernel, kind in ((-4, "NT", "first"), (4, "NN", "second")):
                parts += [_dot(x(ratio), at + dy, kind) for ratio in ratios[kernel]]
            every = [ratio for kernel in ratios.values() for ratio in kernel]
            parts.append(_text(WIDTH - 16, at + 4, f"{geometric_mean(every):.2f}", "end"))
        y += 62 + row * len(FAMILIES)
    note = "Speed relative to cuBLAS in its fastest layout, on an H200; a dot is a shape, faster right of the line."
    return _picture("gemm on random shapes", note, y + 10, parts)


PICTURES: dict[str, Callable[[], str]] = {"ladder": ladder, "roofline": roofline, "families": families}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(make())
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()

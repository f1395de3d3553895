"""Tables and plots as text: a table of results, the ladder of kernels, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from string import ascii_letters, digits

EIGHTHS = " ▏▎▍▌▋▊▉█"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with aligned columns; the first one is text, the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join(line(row) for row in (cells[0], rule, *cells[1:]))


def ladder(title: str, rates: dict[str, float], base: str, width: int = 50) -> str:
    """One bar for each kernel, in the order given, with its TFLOP/s and its share of `base`'s."""
    most, names = max(rates.values()), max(map(len, rates))
    lines = [title]
    for name, rate in rates.items():
        eighths = round(8 * width * rate / most)
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        share = f"{rate / rates[base]:6.3f}" if name != base else "  base"
        lines.append(f"  {name:<{names}}  {bar:<{width}} {rate:8.2f} {share}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Roof:
    """What a GPU can do: `peak` TFLOP/s (0 if it is not known), and `memory` TB/s."""

    peak: float
    memory: float

    def at(self, intensity: float) -> float:
        """The most TFLOP/s at so many operations a byte."""
        limit = self.memory * intensity
        return min(limit, self.peak) if self.peak else limit


Point = tuple[str, float, float]
"""What ran, the operations of its product for each byte that must move, and its TFLOP/s."""


def roofline(title: str, roof: Roof, points: Sequence[Point], width: int = 72, height: int = 18) -> str:
    """The roof and the points on logarithmic axes; a letter stands for a kernel, a ``*`` for several at one place."""
    labels, intensities, rates = zip(*points, strict=True)
    letters = dict(zip(dict.fromkeys(labels), cycle(ascii_letters + digits), strict=False))
    left, right = min(intensities) / 4, max(*intensities, roof.peak / roof.memory) * 4
    top, bottom = max(*rates, roof.at(right)) * 1.3, min(*rates, roof.at(left)) / 1.3

    def column(x: float) -> int:
        return round((width - 1) * math.log(x / left) / math.log(right / left))

    def row(y: float) -> int:
        return round((height - 1) * math.log(top / y) / math.log(top / bottom))

    grid = [[" "] * width for _ in range(height)]
    for i in range(width):
        x = left * (right / left) ** (i / (width - 1))
        grid[row(roof.at(x))][i] = "_" if roof.peak and roof.at(x) >= roof.peak else "/"
    for label, intensity, rate in points:
        cells, i = grid[row(rate)], column(intensity)
        cells[i] = letters[label] if cells[i] in f" _/{letters[label]}" else "*"
    marks = {row(y): f"{y:.4g}" for y in (top, math.sqrt(top * bottom), bottom)}
    lines = [title, *(f"{marks.get(i, ''):>8} |{''.join(cells).rstrip()}" for i, cells in enumerate(grid))]
    ends = f"{left:.3g}", f"{math.sqrt(left * right):.3g}", f"{right:.3g}"
    axis = ends[0] + ends[1].center(width - len(ends[0]) - len(ends[2])) + ends[2]
    peak = f"{roof.peak:.0f} TFLOP/s and " if roof.peak else ""
    legend = [f"{letter} {label}" for label, letter in letters.items()]
    return "\n".join([
        *lines, f"{'TFLOP/s':>8} +{'-' * width}", f"{'':10}{axis}", f"{'':10}operations a byte; the roof is "
        f"{peak}{roof.memory:.2f} TB/s", f"{'':10}{', '.join(legend)}",
    ])  # fmt: skip

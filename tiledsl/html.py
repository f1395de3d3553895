"""HTML for notebooks: `_repr_html_` of what kernels are asked. Texts become HTML here alone, where they are escaped.

Colours are translucent, so that they suit light and dark notebooks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

_CELL = "border:1px solid rgba(128,128,128,.4);padding:1px 5px;white-space:pre"
MARK = "background:rgba(220,50,40,.3)"
"""The style of what is to be seen first."""


def section(title: str, *parts: str) -> str:
    """parts: HTML."""
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def paragraph(text: str, style: str = "") -> str:
    return f'<pre style="white-space:pre-wrap;margin:4px 0;{style}">{escape(text)}</pre>'


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (), marked: Collection[int] = ()
) -> str:
    """As `tables.table`. marked: numbers of rows that stand out."""

    def row(tag: str, cells: Sequence[str], style: str) -> str:
        align = ("left" if i in left else "right" for i in range(len(cells)))
        made = (
            f'<{tag} style="{_CELL};text-align:{a};{style}">{escape(c)}</{tag}>'
            for c, a in zip(cells, align, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = (row("td", cells, MARK if number in marked else "") for number, cells in enumerate(rows))
    return f'<table style="border-collapse:collapse">{row("th", header, "")}{"".join(body)}</table>'


def grid(cells: Sequence[Sequence[tuple[str, int]]], colors: int) -> str:
    """A matrix of short texts, each with the number of its colour, of so many around the circle."""

    def cell(text: str, color: int) -> str:
        hue = color * 360 // colors
        style = f"{_CELL};font-size:75%;text-align:right;background:hsla({hue},70%,50%,.35)"
        return f'<td style="{style}">{escape(text)}</td>'

    rows = "".join(f"<tr>{''.join(cell(*each) for each in row)}</tr>" for row in cells)
    return f'<div style="overflow-x:auto"><table style="border-collapse:collapse">{rows}</table></div>'

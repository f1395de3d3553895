"""Print one stage of a kernel with the Python line beside each line."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tiledsl.compiled import Compiled
from tiledsl.inspect.source_lines import READERS, Source

__all__ = ["highlight", "render", "stage_text"]

_WIDTH = 50
"""Columns for the Python source: two thirds of a kernel's lines fit whole."""

# IR reads like LLVM; SASS has no lexer of its own, assembly in general comes close.
_LEXERS = {"ir": "llvm", "llvm": "llvm", "ptx": "ptx", "sass": "gas"}


def stage_text(compiled: Compiled, stage: str, after: str | None = None) -> str:
    """The text of a stage, with its source locations. `after`: of the IR, the name of a pass."""
    if stage == "ir":
        return compiled.ir(f"after:{after}" if after else "tile", locs=True)
    texts = {"llvm": lambda: compiled.llvm, "ptx": lambda: compiled.ptx, "sass": lambda: compiled.sass}
    return texts[stage]()


def render(text: str, stage: str, *, color: bool, source: bool = True) -> Iterator[str]:
    """The lines of `text`, which is the stage `stage`, each behind the Python line it came from.

    A Python line is printed once for a run of lines that share it. Without `source`, the stage alone.
    """
    lines = list(READERS[stage](text))
    shown = highlight([line.text for line in lines], stage) if color else [line.text for line in lines]
    if not source:
        yield from shown
        return
    main = next((line.source.file for line in lines if line.source), "")
    last: Source | None = None
    for line, body in zip(lines, shown, strict=True):
        new = line.source if line.source != last else None
        margin = f"{_margin(new, main) if new else '':<{_WIDTH}}"
        last = line.source or last
        yield f"{_dim(margin) if color else margin} │ {body}".rstrip()


def _margin(source: Source, main: str) -> str:
    """Number and text of a Python line; the file's name where it is not `main`."""
    place = f"{source.line:4d}" if source.file == main else f"{Path(source.file).name}:{source.line}"
    text = f"{place} {linecache.getline(source.file, source.line).strip()}"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _dim(text: str) -> str:
    return f"\x1b[36m{text}\x1b[0m"


def highlight(lines: list[str], stage: str) -> list[str]:
    """`lines` with terminal colours, still one string a line."""
    # pygments has no type information.
    lexers: Any = import_module("pygments.lexers")
    formatters: Any = import_module("pygments.formatters")
    lexer = lexers.get_lexer_by_name(_LEXERS[stage], stripnl=False, ensurenl=False)
    code: str = import_module("pygments").highlight("\n".join(lines), lexer, formatters.TerminalFormatter())
    colored = code.split("\n")
    return [*colored, *[""] * (len(lines) - len(colored))][: len(lines)]

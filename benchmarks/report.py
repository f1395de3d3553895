"""How results are written: a table to read, and JSON with all that is needed to judge and repeat it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

__all__ = ["RESULTS", "table", "write"]

RESULTS = Path(__file__).parent / "results"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with aligned columns; the first one is text, the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join(line(row) for row in (cells[0], rule, *cells[1:]))


def write(name: str, title: str, text: str, data: dict[str, Any], folder: Path = RESULTS) -> None:
    """Write `name`.json and `name`.md into `folder`, and print the table."""
    machine = describe()
    program = Path(sys.argv[0])
    module = "tiledsl" if program.name == "__main__.py" else f"benchmarks.{program.stem}"
    command = " ".join(["python -m", module, *sys.argv[1:]])
    folder.mkdir(parents=True, exist_ok=True)
    document = {"title": title, "command": command, "machine": machine, **data}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    gpu = f"{machine['gpu']}, driver {machine['driver']}; " if machine["gpu"] else ""
    where = f"{gpu}{machine['cpu']}"
    head = f"# {title}\n\n`{command}`\n\n{machine['date']}, commit {machine['commit']}; {where}"
    (folder / f"{name}.md").write_text(f"{head}\n\n{text}\n")
    print(f"{title} ({where})\n{text}", flush=True)

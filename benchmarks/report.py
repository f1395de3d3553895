"""Writes results: a table to read, and JSON with everything needed to judge and repeat the measurement."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from tiledsl.inspect.plots import table

__all__ = ["RESULTS", "table", "write"]

RESULTS = Path(__file__).parent / "results"


def write(name: str, title: str, text: str, data: dict[str, Any], folder: Path = RESULTS, by: str = "python") -> None:
    """Write `name`.json and `name`.md into `folder`, and print the table. by: what runs the module."""
    machine = describe()
    spec = sys.modules["__main__"].__spec__
    module = f"benchmarks.{Path(sys.argv[0]).stem}" if spec is None else spec.name.removesuffix(".__main__")
    command = " ".join([by, "-m", module, *sys.argv[1:]])
    folder.mkdir(parents=True, exist_ok=True)
    document = {"title": title, "command": command, "machine": machine, **data}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    gpu = f"{machine['gpu']}, driver {machine['driver']}; " if machine["gpu"] else ""
    where = f"{gpu}{machine['cpu']}"
    head = f"# {title}\n\n`{command}`\n\n{machine['date']}, commit {machine['commit']}; {where}"
    (folder / f"{name}.md").write_text(f"{head}\n\n{text}\n")
    print(f"{title} ({where})\n{text}", flush=True)

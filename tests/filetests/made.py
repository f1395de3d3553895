"""Filetests that are made from exact references, and are not committed: ``python -m tests.filetests.made`` says where.

They are made once for each state of the sources that they depend on, into build/filetests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

__all__ = ["filetests", "made"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MAKERS = ("async", "atomics", "fragments", "hopper", "matrices", "mma", "scalar")
"""Modules make_... of this folder; `texts` of each gives its files by their place."""


def filetests() -> list[Path]:
    """All files, written by hand or made, in the order of their places."""
    return sorted([*HERE.rglob("*.tir"), *made().rglob("*.tir")], key=lambda path: (path.parent.name, path.name))


@cache
def made() -> Path:
    """The folder of those that are made."""
    folder = ROOT / "build" / "filetests"
    now = folder / _digest()
    if not now.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        before = [path for path in folder.iterdir() if not path.name.startswith("new-")]
        new = Path(tempfile.mkdtemp(prefix="new-", dir=folder))
        for maker in MAKERS:
            for name, text in import_module(f"tests.filetests.make_{maker}").texts().items():
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_text(text)
        try:
            os.rename(new, now)
        except OSError:  # another process was first
            shutil.rmtree(new)
        for path in before:
            shutil.rmtree(path, ignore_errors=True)
    return now


def _digest() -> str:
    """Of what the texts may depend on: this folder's modules, and tables of the compiler."""
    digest = hashlib.sha256()
    for folder in (HERE, ROOT / "tiledsl" / "ir", ROOT / "tiledsl" / "layout"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(made())

"""The kernels of examples/gemm, for benchmarks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["gallery_kernels", "gallery_module"]

GEMM = Path(__file__).parent.parent / "examples" / "gemm"


def gallery_module() -> Any:
    """examples/gemm/gallery.py, with its folder importable as its files expect."""
    if str(GEMM) not in sys.path:
        sys.path.insert(0, str(GEMM))
    return importlib.import_module("gallery")


def gallery_kernels() -> dict[str, tuple[Any, dict[str, int]]]:
    """Every kernel with the consts of each variant, by a label such as ``shared_tiled T=32``."""
    gallery = gallery_module()
    found: dict[str, tuple[Any, dict[str, int]]] = {}
    for entry in gallery.GALLERY:
        kernel = gallery.load(entry)
        for consts in entry.variants:
            label = " ".join([entry.kernel, *(f"{name}={value}" for name, value in consts.items())])
            found[label] = (kernel, consts)
    return found

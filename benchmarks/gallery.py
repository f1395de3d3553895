"""The kernels of examples/gemm, for benchmarks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["chosen_consts", "dtype_settings", "gallery_kernels", "gallery_module", "kernel_label", "reference"]

GEMM = Path(__file__).parent.parent / "examples" / "gemm"


def gallery_module() -> Any:
    """examples/gemm/gallery.py, with its folder importable as its files expect."""
    if str(GEMM) not in sys.path:
        sys.path.insert(0, str(GEMM))
    return importlib.import_module("gallery")


def kernel_label(name: str, consts: dict[str, Any]) -> str:
    """``shared_tiled T=32``."""
    return " ".join([name, *(f"{const}={value}" for const, value in consts.items())])


def reference() -> Any:
    """examples/gemm/reference.py."""
    gallery_module()
    return importlib.import_module("reference")


def dtype_settings(kernel: Any, format: str) -> dict[str, str]:
    """The dtypes that `compile` needs for a dtype-generic kernel."""
    return gallery_module().dtypes(kernel, format)


def gallery_kernels(format: str = "f32") -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every kernel that multiplies `format`, with the consts of each variant; labels are like ``shared_tiled T=32``."""
    gallery = gallery_module()
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for entry in gallery.GALLERY:
        if format not in entry.formats:
            continue
        kernel = gallery.load(entry)
        for consts in entry.variants:
            found[kernel_label(entry.kernel, consts)] = (kernel, consts)
    return found


def chosen_consts(
    name: str, consts: dict[str, Any], size: tuple[int, int, int], format: str = "", **known: Any
) -> dict[str, Any]:
    """`consts` or, where there are none, those that the kernel `name` chooses for a size and format, if any.

    known: further inputs of the choice: `arch`, `along_k`.
    """
    gallery = gallery_module()
    entry = next(entry for entry in gallery.GALLERY if entry.kernel == name)
    return gallery.chosen(entry, consts, *size, format, **known)

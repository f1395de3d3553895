"""``python -m tiledsl export``: write cubins, manifest.json and a C header to a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledsl.arch import target_named
from tiledsl.errors import TileError
from tiledsl.export.header import header
from tiledsl.export.manifest import Exported, compiled_for, manifest
from tiledsl.export.products import products
from tiledsl.kernel import TileKernel

__all__ = ["HEADER", "MANIFEST", "export_kernel", "export_products", "write"]

MANIFEST, HEADER = "manifest.json", "tiledsl_export.h"


def export_kernel(kernel: TileKernel, arch: str, settings: dict[str, Any], folder: Path) -> str:
    """Export one specialisation of a kernel: that of ``kernel.compile(arch, **settings)``. Returns what was written."""
    target_named(arch)
    spec, arch = kernel.specialized(arch, settings)
    return write([compiled_for(kernel, spec, arch)], (), folder)


def export_products(sizes: Sequence[Sequence[int]], settings: argparse.Namespace, folder: Path) -> str:
    """Export the kernels that `gemm` launches for products of these sizes. Returns what was written."""
    target_named(settings.arch)
    out = settings.out or settings.format
    kernels, asked = products(sizes, settings.format, out, settings.stored, settings.arch)
    return write(kernels, asked, folder)


def write(kernels: Sequence[Exported], asked: Sequence[dict[str, Any]], folder: Path) -> str:
    """Write all files. Returns a line for each kernel. Raises TileError if they cannot be written."""
    described = manifest(kernels, asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in kernels:
            (folder / each.file).write_bytes(each.compiled.cubin)
        (folder / HEADER).write_text(header(described))
        (folder / MANIFEST).write_text(json.dumps(described, indent=1) + "\n")
    except OSError as error:
        message = f"cannot write the export to {folder}: {error.strerror or error}"
        raise TileError(f"{message}\n  fix: give another folder with -o") from error
    lines = [f"{folder / each.file}: {each.compiled.label} for {each.compiled.arch}" for each in kernels]
    return "\n".join([*lines, f"{folder / MANIFEST}, {folder / HEADER}: {len(kernels)} kernels"])

"""Write cubins, manifest.json and a C header to a folder, for programs without Python.

    tiledsl export kernels.py:k --const T=32 -o exported
    tiledsl export --gemm 4096x4096x4096 --stored NT -o exported

docs/export.md says what is in them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError, UsageError
from tiledsl.export.header import header
from tiledsl.export.manifest import Exported, compiled_for, manifest
from tiledsl.export.products import products
from tiledsl.inspect.arguments import add_json, add_kernel, asked_kernel, checked_arch
from tiledsl.inspect.bench import parse_size
from tiledsl.inspect.contenders import LAYOUTS
from tiledsl.kernel import TileKernel

MANIFEST, HEADER = "manifest.json", "tiledsl_export.h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser, optional=True)
    parser.add_argument("--gemm", nargs="+", type=parse_size, metavar="[BATCHx]MxNxK", help="what gemm launches")
    parser.add_argument("--format", default="bf16", metavar="bf16", help="with --gemm: dtype of A and B")
    parser.add_argument("--out", metavar="f32", help="with --gemm: dtype of C (default: what gemm makes)")
    stored = "with --gemm: how A and B are stored, N in rows, T transposed"
    parser.add_argument("--stored", choices=LAYOUTS, default="NN", help=stored)
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.kernel is None) == (arguments.gemm is None):
        raise UsageError("export takes a FILE:KERNEL or --gemm with sizes\n  fix: give one of them")
    folder = Path(arguments.output)
    if arguments.gemm is not None:
        text = export_products(arguments.gemm, arguments, folder)
    else:
        kernel, settings = asked_kernel(arguments)
        text = export_kernel(kernel, arguments.arch, settings, folder)
    print((folder / MANIFEST).read_text() if arguments.json else text)
    return 0


def export_kernel(kernel: TileKernel, arch: str, settings: dict[str, Any], folder: Path) -> str:
    """Export one specialisation of a kernel: that of ``kernel.compile(arch, **settings)``. Returns what was written."""
    spec, arch = kernel.specialized(arch, settings)
    return write([compiled_for(kernel, spec, arch)], (), folder)


def export_products(sizes: Sequence[Sequence[int]], settings: argparse.Namespace, folder: Path) -> str:
    """Export the kernels that `gemm` launches for products of these sizes. Returns what was written."""
    checked_arch(settings.arch)
    kernels, asked = products(sizes, settings.format, settings.out, settings.stored, settings.arch)
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

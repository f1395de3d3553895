"""Kernels of one target in one module: ptxas and nvdisasm take longer to start than to work on a small kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from benchmarks.compare_ptx import without_locations
from tiledsl.backends.ptx import Target
from tiledsl.backends.ptx.assemble import assemble
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.backends.ptx.sass.program import SassProgram
from tiledsl.ir.core import Kernel

__all__ = ["entries", "listings"]

HEADER = (".version", ".target", ".address_size")
SHARED = ".extern .shared"
"""The array that a kernel's tiles are in; all entries of a module have the same one."""


def entries(kernels: Iterable[Kernel], target: Target) -> tuple[list[str], str]:
    """The headers of the kernels' PTX, and its lines behind those, without places of sources."""
    headers: list[str] = []
    lines: list[str] = []
    for kernel in kernels:
        for line in without_locations(emit_ptx(kernel, target)[1]).splitlines():
            if line.startswith(HEADER):
                headers.append(line)
            elif not line.startswith(".section") and not (line.startswith(SHARED) and line in lines):
                lines.append(line)
    return headers, "\n".join(lines) + "\n"


def listings(kernels: Mapping[str, Kernel], target: Target) -> dict[str, SassProgram]:
    """The machine code of each kernel, by its name here."""
    headers, text = entries((replace(kernel, name=name) for name, kernel in kernels.items()), target)
    version = max(line for line in headers if line.startswith(".version"))
    header = f"{version}\n.target {target.name}\n.address_size 64\n"
    cubin = assemble(header + text, target, name=next(iter(kernels))).cubin
    return {listing.name: listing for listing in sass_listing(cubin)}

"""Which versions are here of what compiles a kernel."""

from __future__ import annotations

import platform
from importlib import metadata

from tiledsl.backends.ptx.tools import NVDISASM, PTXAS
from tiledsl.errors import ToolNotFoundError


def version(distribution: str) -> str:
    """Of an installed distribution."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def versions() -> dict[str, str]:
    """Of tiledsl, Python, and the tools."""
    found = {"tiledsl": version("tiledsl"), "Python": platform.python_version(), "llvmlite": version("llvmlite")}
    for tool in (PTXAS, NVDISASM):
        try:
            found[tool.name] = tool.release()
        except ToolNotFoundError:
            found[tool.name] = "not found"
    return found

"""The machine of a measurement: GPU, driver, versions, commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tiledsl.backends.ptx.tools import PTXAS

__all__ = ["describe", "ptxas_version"]

ROOT = Path(__file__).parent.parent

PACKAGES = ("numpy", "llvmlite", "cuda-bindings", "nvidia-cuda-nvcc", "torch")


def describe() -> dict[str, Any]:
    """Everything that a figure depends on besides the measured code."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "gpu": _nvidia_smi("name"),
        "driver": _nvidia_smi("driver_version"),
        "power_limit": _nvidia_smi("power.limit"),
        "cpu": f"{_cpu_name()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def ptxas_version() -> str:
    """Such as "13.0.88"."""
    text = subprocess.run([PTXAS.path(), "--version"], capture_output=True, text=True, check=True).stdout
    return next((word[1:] for word in text.split() if word.startswith("V") and word[1:2].isdigit()), "unknown")


def _commit() -> str:
    """The commit of this checkout, with a mark if files differ from it. GIT_COMMIT is used for a copy without git."""
    if "GIT_COMMIT" in os.environ:
        return os.environ["GIT_COMMIT"]
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _nvidia_smi(field: str) -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("\n")[0].strip()

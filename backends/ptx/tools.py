"""Finding ptxas and nvdisasm, and naming their versions cheaply for the cache key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from tiledsl.errors import ToolNotFoundError

WITHOUT = "The emulator, k.check and k.lower(...).ir() do without it"


@dataclass(frozen=True, slots=True)
class Tool:
    """A program of the CUDA toolkit. `env` names the variable that overrides the search; `wheel` is
    the distribution that brings it."""

    name: str
    env: str
    wheel: str

    def path(self) -> Path:
        """Where it is: the environment variable, then the wheel, then PATH. ToolNotFoundError if nowhere."""
        return self.found()[0]

    def found(self) -> tuple[Path, str]:
        """`path`, and why it is that one."""
        override = os.environ.get(self.env)
        if override:
            if not _is_program(Path(override)):
                raise ToolNotFoundError(f"{self.env}={override!r} is not an executable file; unset it or correct it")
            return Path(override), f"named by {self.env}"
        if found := _in_wheel(self.wheel, self.name):
            return found, f"of the wheel {self.wheel}"
        if found := shutil.which(self.name):
            return Path(found), f"on PATH, since the wheel {self.wheel} is not installed"
        message = f"{self.name} was not found: neither the wheel {self.wheel} is installed nor is it on PATH."
        if sys.platform == "darwin":
            raise ToolNotFoundError(f"{message} NVIDIA has none for macOS. {WITHOUT}")
        raise ToolNotFoundError(f"{message} Run 'pip install {self.wheel}', or set {self.env} to its path")

    def version(self) -> str:
        """What distinguishes this build from another: path, size and time of change. Starts no process."""
        path = self.path()
        stat = path.stat()
        return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"

    def release(self) -> str:
        """What ``--version`` says, as "Cuda compilation tools, release 13.0, V13.0.88"."""
        done = subprocess.run([str(self.path()), "--version"], capture_output=True, text=True, check=False, timeout=60)
        lines = [line for line in done.stdout.splitlines() if "release" in line]
        return lines[0].strip() if lines else "no release named"


PTXAS = Tool("ptxas", "TILEDSL_PTXAS", "nvidia-cuda-nvcc")
NVDISASM = Tool("nvdisasm", "TILEDSL_NVDISASM", "nvidia-cuda-nvdisasm")


def tool_versions() -> tuple[tuple[str, str], ...]:
    """What the result of `build` depends on besides the compiler's own sources: the cache hashes this.

    Well under a millisecond after the first call; raises ToolNotFoundError without ptxas.
    """
    return (("ptxas", PTXAS.version()), ("llvmlite", _llvmlite_version()))


@cache
def _llvmlite_version() -> str:
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError as error:
        raise no_llvmlite(error) from None


def no_llvmlite(why: Exception) -> ToolNotFoundError:
    """The error where llvmlite cannot be imported."""
    message = f"llvmlite was not found, whose LLVM makes PTX of a kernel ({why})."
    return ToolNotFoundError(f"{message} Run 'pip install llvmlite'. {WITHOUT}")


@cache
def _in_wheel(wheel: str, program: str) -> Path | None:
    """The program among the files of an installed distribution."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(str(file.locate())) for file in files if file.name == program)
    return next(filter(_is_program, paths), None)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)

"""Find ptxas and nvdisasm, and identify what compiles for the cache key."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
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

    def content(self) -> str:
        """Return a digest of the program, or "" if its file does not say what it does: it is a script, say, which runs
        another program with options of its own. Starts no process."""
        return _content(str(self.path()))

    def release(self) -> str:
        """What ``--version`` says, as "Cuda compilation tools, release 13.0, V13.0.88"."""
        done = subprocess.run([str(self.path()), "--version"], capture_output=True, text=True, check=False, timeout=60)
        lines = [line for line in done.stdout.splitlines() if "release" in line]
        return lines[0].strip() if lines else "no release named"


PTXAS = Tool("ptxas", "TILEDSL_PTXAS", "nvidia-cuda-nvcc")
NVDISASM = Tool("nvdisasm", "TILEDSL_NVDISASM", "nvidia-cuda-nvdisasm")


def tool_versions() -> tuple[tuple[str, str], ...]:
    """Return what the result of `build` depends on besides the compiler's own sources: the cache hashes this.

    ptxas counts by its content, and by its path, since a program may depend on its name. The library of llvmlite, which
    has 170 MB, counts by version, path, size, and time of change.

    The first call hashes ptxas, in 35 ms; later ones look at its status. Raises ToolNotFoundError without ptxas.
    """
    return (("ptxas", f"{PTXAS.path()}, sha256 {PTXAS.content()}"), ("llvmlite", _llvmlite()))


_CONTENTS: dict[tuple[str | int, ...], str] = {}
ELF = b"\x7fELF"
"""The first bytes of an executable of Linux."""


def _content(path: str) -> str:
    """Return a digest of an ELF file, or "" for any other. It is remembered in this process while the file's status
    stays."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            times = status.st_mtime_ns, status.st_ctime_ns
            key = (path, status.st_dev, status.st_ino, status.st_size, *times)
            if key not in _CONTENTS:
                own = file.read(len(ELF)) == ELF
                file.seek(0)
                _CONTENTS[key] = hashlib.file_digest(file, "sha256").hexdigest() if own else ""
    except OSError:  # it can be executed and not read
        return ""
    return _CONTENTS[key]


@cache
def _llvmlite() -> str:
    """Return the version of llvmlite, and path, size, and time of change of its library."""
    found = find_spec("llvmlite")
    folder = Path(found.origin).parent / "binding" if found is not None and found.origin else Path()
    files = [file for file in sorted(folder.glob("*llvmlite.*")) if file.suffix in (".so", ".dylib", ".dll")]
    stats = [(file, file.stat()) for file in files]
    return ", ".join([llvmlite_version(), *(f"{file}:{stat.st_size}:{stat.st_mtime_ns}" for file, stat in stats)])


@cache
def llvmlite_version() -> str:
    """Return the version of llvmlite. Raises ToolNotFoundError if it is not installed."""
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

"""Say what of tiledsl works on this machine, which versions are used, and how to mend what does not.

Exit code 0 if kernels run on the emulator, else 1: machine code, a GPU and the cache are not needed for that.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tiledsl.backends.ptx.tools import NVDISASM, PTXAS, Tool
from tiledsl.errors import LocatedError, TileError, ToolNotFoundError
from tiledsl.inspect.arguments import add_json, print_json
from tiledsl.inspect.versions import version

SCHEMA = "tiledsl.doctor/1"
EMULATOR, CODE, GPU = "the emulator", "machine code", "a GPU"
INDENT = " " * 16
"""Where the text begins that says what is there."""


@dataclass(frozen=True)
class Part:
    """`found`: what is there, or why it does not work. needed_for: what does not work without it."""

    name: str
    ok: bool
    needed_for: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        first = f"{'ok' if self.ok else 'no':<4}{self.name:<12}"
        lines = _wrapped(self.found, first, INDENT)
        if not self.ok:
            lines += _wrapped(f"needed for {self.needed_for}", INDENT, INDENT)
            lines += _wrapped(f"fix: {self.fix}", INDENT, f"{INDENT}  ")
        return "\n".join(lines)


def _wrapped(text: str, first: str, others: str) -> list[str]:
    """For a terminal of 80 columns. Paths stay whole."""
    return textwrap.wrap(
        text, 79, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    parts: list[Part] = []
    for part in _parts():
        parts.append(part)
        if not arguments.json:
            print(part, flush=True)
    works = {use: all(p.ok for p in parts if p.needed_for in uses) for use, uses in USES.items()}
    if arguments.json:
        print_json(SCHEMA, works=works, parts=[{**asdict(part), "fix": "" if part.ok else part.fix} for part in parts])
    else:
        says = ", ".join(f"{use.replace('_', ' ')} {'yes' if yes else 'no'}" for use, yes in works.items())
        print(f"\nwhat works: {says}")
    return int(not works["emulator"])


USES = {"emulator": (EMULATOR,), "machine_code": (EMULATOR, CODE), "gpu": (EMULATOR, CODE, GPU)}
"""What works if all parts do that are needed for these."""


def _parts() -> Iterator[Part]:
    known = dict[str, bool]()

    def tried(name: str, use: str, fix: str, look: Callable[[], str], *after: str) -> Part:
        """after: parts without which it need not be tried."""
        missing = [part for part in after if not known[part]]
        if missing:
            part = Part(name, False, use, "not tried", f"first mend {' and '.join(missing)}, above")
        else:
            part = _tried(name, use, fix, look)
        known[name] = part.ok
        return part

    wheel = "pip install --force-reinstall {}".format
    bug = "report this as a bug of tiledsl, with all that is above"
    python = f"{platform.python_version()}, {sys.executable}"
    yield Part("Python", sys.version_info >= (3, 11), EMULATOR, python, "install Python 3.11 or newer")
    yield Part("tiledsl", True, EMULATOR, f"{version('tiledsl')}, {Path(__file__).parents[1]}")
    for name in LIBRARIES:
        yield tried(name, EMULATOR, wheel(name), partial(_libraries_version, name))
    yield tried("emulator", EMULATOR, bug, _emulated, *LIBRARIES)
    yield tried("llvmlite", CODE, wheel("llvmlite"), _llvm)
    for tool, use in ((PTXAS, CODE), (NVDISASM, "SASS: show, explain sass, diff, report")):
        fix = f"pip install --force-reinstall {tool.wheel}, or set {tool.env} to the path of one"
        if sys.platform == "darwin":
            fix = "use Linux: NVIDIA has none for macOS"
        yield tried(tool.name, use, fix, partial(_program, tool))
    yield tried("assembly", CODE, bug, _assembled, *LIBRARIES, "llvmlite", "ptxas")
    yield tried("cuda-python", GPU, wheel("cuda-python"), lambda: import_module("cuda.bindings").__version__)
    yield tried("driver", GPU, "where there is a GPU, install NVIDIA's driver", _driver, "cuda-python")
    fix = "see whether nvidia-smi works; without a GPU, kernels run on the emulator"
    yield tried("GPU", GPU, fix, _gpus, "driver", "assembly")
    yield tried("cache", "keeping what was compiled", "see docs/caching.md", _cache)


LIBRARIES = ("numpy", "ml_dtypes")


def _tried(name: str, needed_for: str, fix: str, look: Callable[[], str]) -> Part:
    """A part that is there if `look` says what it is, and raises nothing. The fix of a TileError is its own."""
    try:
        return Part(name, True, needed_for, look())
    except LocatedError as error:
        return Part(name, False, needed_for, error.message, fix)
    except TileError as error:
        message, _, own = str(error).partition("\n  fix: ")
        return Part(name, False, needed_for, message, own or fix)
    except Exception as error:  # whatever a broken installation does
        return Part(name, False, needed_for, f"{type(error).__name__}: {error}", fix)


def _libraries_version(name: str) -> str:
    return import_module(name).__version__


def _llvm() -> str:
    llvm: Any = import_module("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return f"{version('llvmlite')}, with LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


def _emulated() -> str:
    """The starter kernel on the emulator, with its checks."""
    from tiledsl.commands.starter import linear

    _require_right(linear.check)
    return "a kernel ran, and its result is right"


def _require_right(run: Callable[..., object]) -> None:
    """run: the starter kernel, somewhere."""
    import numpy as np

    A, B, bias = np.ones((40, 40), np.float32), np.eye(40, dtype=np.float32), np.zeros(40, np.float32)
    run(A, B, bias, C := np.zeros_like(A))
    if not (C == A).all():
        raise TileError("a kernel ran, and its result is wrong")


def _program(tool: Tool) -> str:
    path, why = tool.found()
    release = tool.release()
    if not release.startswith("Cuda"):
        raise TileError(f"{path}, {why}, does not say which release it is")
    return f"{release.rpartition(' ')[2]}, {why}: {path}"


def _assembled() -> str:
    """The starter kernel for a GPU, compiled and not taken from the cache."""
    from tiledsl.commands.starter import linear
    from tiledsl.compilation.compiler import build

    spec, arch = linear.specialized("sm_90a", {})
    return f"a kernel compiles for {arch}, to {len(build(linear.signature, spec, arch).cubin)} bytes"


def _driver() -> str:
    cu: Any = import_module("cuda.bindings.driver")
    try:
        code, version = cu.cuDriverGetVersion()
    except RuntimeError as error:
        raise TileError("libcuda, which is part of NVIDIA's driver, is not there") from error
    if int(code) or not version:
        raise TileError(f"libcuda says {code.name}")
    return f"for CUDA {version // 1000}.{version % 1000 // 10}"


def _gpus() -> str:
    """All of them; the starter kernel runs on the current one."""
    from tiledsl.commands.starter import linear
    from tiledsl.runtime.driver import driver

    gpu = driver()
    found = [
        f"{d.ordinal}: {d.name}, sm_{d.capability[0]}{d.capability[1]}, {d.processors} SMs, compiled for as "
        f"{gpu.target_of(d.ordinal)}"
        for d in gpu.devices
    ]
    _require_right(linear)
    return f"{'; '.join(found)}; a kernel ran, and its result is right"


def _cache() -> str:
    from tiledsl.compilation.cache import FIX, disk_cache

    cache = disk_cache()
    if cache is None:
        return "switched off by TILEDSL_CACHE=0, or no home folder is known, or this is Windows"
    entries, size = cache.info()
    existing = next(folder for folder in (cache.folder, *cache.folder.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise TileError(f"{existing} cannot be written\n  fix: {FIX}")
    found = f"{cache.folder}: {entries} kernels, {size / 2**20:.1f} of at most {cache.limit / 2**20:.0f} MiB"
    with suppress(ToolNotFoundError):
        if not PTXAS.content():
            return f"{found}; kernels of {PTXAS.path()} are not kept: it is not an ELF executable"
    return found

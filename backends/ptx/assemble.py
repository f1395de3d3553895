"""PTX to a cubin by ptxas, with what it says about the kernel: resources, errors, remarks.

ptxas runs as a subprocess: nvJitLink always compiles relocatable code, where setmaxnreg is ignored and
registers spill that ptxas keeps.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from tiledsl.arch import Target
from tiledsl.backends.ptx.ptx_lines import PtxLines
from tiledsl.backends.ptx.tools import PTXAS
from tiledsl.errors import AssemblerError, Loc

ERROR = re.compile(r"^ptxas [^\n]*?, line (\d+); (?:error|fatal)\s*: (.*)$", re.MULTILINE)
FATAL = re.compile(r"^ptxas (?:fatal|error)\s*: (.*)$", re.MULTILINE)
NEWER_PTX = re.compile(r"requires PTX ISA \.version (\d+)\.(\d+) or later")
REMARK = re.compile(r"^.*(?:Potential Performance Loss|injected by compiler).*$", re.MULTILINE | re.IGNORECASE)
ACCUMULATORS = "see the remark; wgmma accumulators must stay untouched between fence and wait"
REGISTERS = "give the role that multiplies more registers=, or its accumulator fewer elements a thread"
LINE = re.compile(r"(?:,| in) line (\d+)")
"""A remark names a function and a line of it, or a line alone."""
VERSION = re.compile(r"^\.version (\d+)\.(\d+)", re.MULTILINE)
LARGE_PAGES = "glibc.malloc.hugetlb=1"
TIMEOUT = 300
"""Seconds. A kernel takes a fraction of one; nothing is waited for longer."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """`ptx` is what was assembled: its version is raised where inline PTX asked for that. `usage`: what ``ptxas -v``
    says of the entry: "registers", and bytes of "stack", "spill_stores" and "spill_loads" of a thread."""

    cubin: bytes
    ptx: str
    usage: dict[str, int]


def assemble(
    ptx: str,
    target: Target,
    *,
    name: str,
    level: int = 3,
    meanwhile: Callable[[], None] = lambda: None,
) -> Assembled:
    """Assemble the one entry `name`, optimising as `level` says. `meanwhile` is called once, while ptxas runs.

    Raises AssemblerError at the Python line, with the file that keeps the PTX, or ToolNotFoundError.
    """
    code, output, cubin = _run(ptx, target, level, meanwhile)
    newer = [(int(major), int(minor)) for major, minor in NEWER_PTX.findall(output)]
    if code and newer:  # inline PTX beyond what the compiler emits by itself: the lowest version with all of it
        major, minor = max(newer)
        ptx = VERSION.sub(f".version {major}.{minor}", ptx, count=1)
        code, output, cubin = _run(ptx, target, level, lambda: None)
    lines = PtxLines(ptx)
    if code:
        raise _failed(*_refusal(output, lines, target, name), ptx, name, "C706")
    if remark := REMARK.search(output):
        text = remark[0].strip()
        found = LINE.search(text)
        loc = lines.location(int(found[1])) if found else lines.first()
        message = f"ptxas made a remark that means a slow or altered kernel: {text}"
        raise _failed(message, loc, REGISTERS if "setmaxnreg" in text else ACCUMULATORS, ptx, name, "C707")
    usage = parse_usage(output, name)
    if usage["stack"] and not usage["spill_stores"]:  # spills have their own place in Resources
        message = f"kernel {name} has a stack frame of {usage['stack']} bytes a thread"
        fix = "index fragments with compile-time values only, and keep inline PTX free of local memory"
        raise _failed(message, lines.first(), fix, ptx, name, "C707")
    return Assembled(cubin, ptx, usage)


def flags(arch: str, level: int) -> tuple[str, ...]:
    """The options of ptxas that the code depends on."""
    # --fmad=false: fma is written as such, so ptxas must not fuse anything else.
    return f"--gpu-name={arch}", "--generate-line-info", "--fmad=false", f"--opt-level={level}"


def parse_usage(output: str, name: str) -> dict[str, int]:
    """Read the resources of entry `name` from the output of ``ptxas -v``."""
    memory = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    found = re.search(rf"Function properties for {name}\n\s*{memory}\n.*Used (\d+) registers", output)
    assert found, f"ptxas -v said nothing of registers:\n{output}"
    return dict(zip(("stack", "spill_stores", "spill_loads", "registers"), map(int, found.groups()), strict=True))


def _run(ptx: str, target: Target, level: int, meanwhile: Callable[[], None]) -> tuple[int, str, bytes]:
    """(exit status, output, cubin)."""
    ptxas = PTXAS.path()
    with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
        source, result = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx.rstrip("\n") + "\n")  # ptxas 13.5 may crash on a last line without an end
        command = [str(ptxas), "--verbose", *flags(target.name, level), f"--output-file={result}", str(source)]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(command, stdout=pipe, stderr=both, text=True, env=_environment()) as process:
            meanwhile()
            try:
                output, _ = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                return 1, f"ptxas fatal   : gave no result within {TIMEOUT} s", b""
        cubin = result.read_bytes() if result.exists() else b""
    # Python takes the exit code of any process for 0 where SIGCHLD is ignored, as some programs start others.
    failed = not cubin and (ERROR.search(output) or FATAL.search(output))
    return process.returncode or int(bool(failed)), output, cubin


def _environment() -> dict[str, str]:
    """This process's, with large pages for the heap of ptxas: thousands of page faults less, a fifteenth of its time.

    (glibc manual: Memory Allocation Tunables. Other C libraries read no such variable.)
    """
    given = os.environ.get("GLIBC_TUNABLES")
    return {**os.environ, "GLIBC_TUNABLES": LARGE_PAGES + (f":{given}" if given else "")}


def _failed(message: str, loc: Loc, fix: str, ptx: str, name: str, code: str) -> AssemblerError:
    """The error, which names the file where the PTX can be read."""
    try:
        handle, path = tempfile.mkstemp(prefix=f"tiledsl-{name}-", suffix=".ptx")
    except OSError:  # no space, or no folder for it: the error itself is what matters
        return AssemblerError(message, loc, fix, code=code)
    with open(handle, "w") as file:
        file.write(ptx)
    return AssemblerError(f"{message}; the PTX is in {path}", loc, fix, code=code)


def _refusal(output: str, lines: PtxLines, target: Target, name: str) -> tuple[str, Loc, str]:
    """The first error of ptxas, with the PTX line it is about; the Python line of that; a fix."""
    found = ERROR.search(output)
    if found is None:
        fatal = FATAL.search(output)
        message = f"ptxas refused the kernel for {target.name}: {fatal[1] if fatal else output.strip()}"
        return message, lines.first(), "give the kernel less to do, or compile for another target"
    number = int(found[1])
    place = f"ptxas refused {lines.text(number)!r} for {target.name}, line {number} of the PTX"
    fix = "correct the inline PTX on this line, or compile for a target that has the instruction"
    return f"{place}: {found[2].strip()}", lines.location(number), fix

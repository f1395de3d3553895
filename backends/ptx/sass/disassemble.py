"""SASS by nvdisasm: as text, and as programs whose instructions know their Python and PTX lines."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from tiledsl.backends.ptx.ptx_lines import decode_path
from tiledsl.backends.ptx.sass.control import check_target
from tiledsl.backends.ptx.sass.program import Sass, SassProgram
from tiledsl.backends.ptx.tools import NVDISASM
from tiledsl.errors import AssemblerError, Loc

TARGET = re.compile(r"^\s*\.target\s+(\S+)")
FUNCTION = re.compile(r"^\.text\.(\S+):$")
LABEL = re.compile(r"^(\.L\S+|\$\S+):")
SOURCE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at ".*", line \d+)?\s*$')
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?;)\s*/\* 0x([0-9a-f]{16}) \*/")
SECOND_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
PTX_FILE = ".nv_debug_ptx_txt"
"""How nvdisasm names the PTX, when a line is of that."""

TIMEOUT = 120
"""Seconds."""


def sass_text(cubin: bytes) -> str:
    """The SASS of `cubin` with a comment at each change of source line."""
    return _nvdisasm(cubin, "--print-code", "--print-line-info-inline")


@lru_cache(maxsize=8)  # nvdisasm takes as long to start as a kernel to compile
def sass_listing(cubin: bytes) -> tuple[SassProgram, ...]:
    """The functions of `cubin`, in order. Raises TileError for a target whose encoding is not known."""
    text = _nvdisasm(
        cubin,
        "--print-code",
        "--print-line-info-inline",
        "--print-line-info-ptx",
        "--print-instruction-encoding",
    )
    return _read(text)


def _nvdisasm(cubin: bytes, *options: str) -> str:
    program = NVDISASM.path()
    with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [str(program), *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise AssemblerError(f"nvdisasm could not read the cubin: {(done.stderr or done.stdout).strip()}", code="C706")
    return done.stdout


def _read(text: str) -> tuple[SassProgram, ...]:
    """The functions in nvdisasm's text."""
    target = ""
    functions: dict[str, tuple[list[Sass], dict[str, int]]] = {}
    instructions: list[Sass] = []
    labels: dict[str, int] = {}
    callers: list[tuple[str, int]] = []  # consecutive comments with lines of sources, innermost first
    loc: Loc | None = None
    ptx_line = 0
    for line, following in pairwise([*text.splitlines(), ""]):
        if match := TARGET.match(line):
            target = match[1]
            check_target(target)
        elif match := FUNCTION.match(line):
            instructions, labels = functions[match[1]] = [], {}
            callers, loc, ptx_line = [], None, 0
        elif match := LABEL.match(line):
            labels[match[1]] = len(instructions)
            if match[1].startswith("$"):  # what ptxas adds, such as the slow path of a division
                loc, ptx_line = None, 0
        elif match := SOURCE.match(line):
            if match[1] == PTX_FILE:
                ptx_line = int(match[2])
            else:
                callers.append((decode_path(match[1]), int(match[2])))
        elif match := INSTRUCTION.match(line):
            if callers:
                loc = None
                for file, number in reversed(callers):
                    loc = Loc(file, number, caller=loc)
                callers = []
            upper = SECOND_WORD.match(following)
            encoding = int(match[3], 16) | (int(upper[1], 16) << 64 if upper else 0)
            instructions.append(Sass(int(match[1], 16), match[2], encoding, loc, ptx_line))
    return tuple(
        SassProgram(name, target, tuple(code), {label: place for label, place in places.items() if place < len(code)})
        for name, (code, places) in functions.items()
    )

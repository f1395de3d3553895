"""SASS by nvdisasm: as text, and as programs whose instructions know their Python and PTX lines."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import lru_cache
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
    return _Reader().read(text)


def _nvdisasm(cubin: bytes, *options: str) -> str:
    program = NVDISASM.path()
    with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [str(program), *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise AssemblerError(f"nvdisasm could not read the cubin: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class _Reader:
    """A pass over nvdisasm's lines."""

    def __init__(self) -> None:
        self.programs: list[SassProgram] = []
        self.target = ""
        self.capability = 0
        self._begin("")

    def _begin(self, function: str) -> None:
        self.function = function
        self.instructions: list[Sass] = []
        self.labels: dict[str, int] = {}
        self.callers: list[tuple[str, int]] = []
        """Consecutive comments with lines of sources, innermost first."""
        self._no_place()

    def _no_place(self) -> None:
        self.loc: Loc | None = None
        self.ptx_line = 0

    def read(self, text: str) -> tuple[SassProgram, ...]:
        lines = text.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if match := TARGET.match(line):
                self.target, self.capability = match[1], check_target(match[1])
            elif match := FUNCTION.match(line):
                self._finish()
                self._begin(match[1])
            elif match := LABEL.match(line):
                self.labels[match[1]] = len(self.instructions)
                if match[1].startswith("$"):  # what ptxas adds, such as the slow path of a division
                    self._no_place()
            elif match := SOURCE.match(line):
                if match[1] == PTX_FILE:
                    self.ptx_line = int(match[2])
                else:
                    self.callers.append((decode_path(match[1]), int(match[2])))
            elif match := INSTRUCTION.match(line):
                self._instruction(match, SECOND_WORD.match(following))
        self._finish()
        return tuple(self.programs)

    def _instruction(self, low: re.Match[str], high: re.Match[str] | None) -> None:
        if self.callers:
            self.loc = None
            for file, line in reversed(self.callers):
                self.loc = Loc(file, line, caller=self.loc)
            self.callers = []
        encoding = int(low[3], 16) | (int(high[1], 16) << 64 if high else 0)
        self.instructions.append(Sass(int(low[1], 16), low[2], encoding, self.loc, self.ptx_line, self.capability))

    def _finish(self) -> None:
        if self.function:
            labels = {name: place for name, place in self.labels.items() if place < len(self.instructions)}
            self.programs.append(SassProgram(self.function, self.target, tuple(self.instructions), labels))

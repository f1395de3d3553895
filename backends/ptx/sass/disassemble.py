"""SASS by nvdisasm: as text, and as a list of instructions that know their Python and PTX lines."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tiledsl.backends.ptx.ptx_lines import decode_path
from tiledsl.backends.ptx.tools import NVDISASM
from tiledsl.errors import AssemblerError, Loc

__all__ = ["Instruction", "Listing", "sass_listing", "sass_text"]

TARGET = re.compile(r"^\s*\.target\s+(\S+)")
FUNCTION = re.compile(r"^\.text\.(\S+):$")
SUBROUTINE = re.compile(r"^(\$\S+):")
LABEL = re.compile(r"^(\.L\S+):")
SOURCE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at ".*", line \d+)?\s*$')
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?;)\s*/\* 0x([0-9a-f]{16}) \*/")
SECOND_WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/\s*$")
PTX_FILE = ".nv_debug_ptx_txt"
"""How nvdisasm names the PTX, when a line is of that."""

TIMEOUT = 120
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction.

    address: bytes from the start of its function. text: as nvdisasm writes it, with predicate and
    operands. encoding: its 128 bits; control codes are in the high half. loc: the Python line, with
    the chain of callers of an inlined function, or None. ptx_line: line of the PTX text, or 0.
    """

    address: int
    text: str
    encoding: int
    loc: Loc | None
    ptx_line: int

    @property
    def opcode(self) -> str:
        """With its modifiers, without the predicate: "LDG.E.CONSTANT"."""
        words = self.text.split()
        return words[1 if words[0].startswith("@") else 0].rstrip(";")


@dataclass(frozen=True, slots=True)
class Listing:
    """One function: its instructions in order, and the address that each label stands for. target: such as
    "sm_90a"."""

    function: str
    target: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def sass_text(cubin: bytes) -> str:
    """The SASS of `cubin` with a comment at each change of source line."""
    return _nvdisasm(cubin, "--print-code", "--print-line-info-inline")


@lru_cache(maxsize=8)
def sass_listing(cubin: bytes) -> tuple[Listing, ...]:
    """The functions of `cubin`, in order. Kept, since starting nvdisasm takes as long as compiling a kernel."""
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
    """A pass over nvdisasm's lines. Consecutive source comments are one group: innermost first."""

    def __init__(self) -> None:
        self.listings: list[Listing] = []
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.pending: list[str] = []
        self.group: list[tuple[str, int]] = []
        self.loc: Loc | None = None
        self.ptx_line = 0
        self.function = self.target = ""

    def read(self, text: str) -> tuple[Listing, ...]:
        lines = text.splitlines()
        for number, line in enumerate(lines):
            following = lines[number + 1] if number + 1 < len(lines) else ""
            self._line(line, following)
        self._finish()
        return tuple(self.listings)

    def _line(self, line: str, following: str) -> None:
        if match := TARGET.match(line):
            self.target = match.group(1)
        elif match := FUNCTION.match(line):
            self._finish()
            self.function = match.group(1)
        elif match := SUBROUTINE.match(line):  # what ptxas adds, such as the slow path of a division
            self.pending.append(match.group(1))
            self.loc, self.ptx_line = None, 0
        elif match := LABEL.match(line):
            self.pending.append(match.group(1))
        elif match := SOURCE.match(line):
            self._source(match.group(1), int(match.group(2)))
        elif match := INSTRUCTION.match(line):
            self._instruction(match, following)

    def _source(self, file: str, line: int) -> None:
        if file == PTX_FILE:
            self.ptx_line = line
        else:
            self.group.append((decode_path(file), line))

    def _instruction(self, match: re.Match[str], following: str) -> None:
        if self.group:
            self.loc = None
            for file, line in reversed(self.group):
                self.loc = Loc(file, line, caller=self.loc)
            self.group = []
        address = int(match.group(1), 16)
        self.labels.update(dict.fromkeys(self.pending, address))
        self.pending = []
        high = SECOND_WORD.match(following)
        encoding = int(match.group(3), 16) | (int(high.group(1), 16) << 64 if high else 0)
        self.instructions.append(Instruction(address, match.group(2), encoding, self.loc, self.ptx_line))

    def _finish(self) -> None:
        if self.function:
            self.listings.append(Listing(self.function, self.target, tuple(self.instructions), self.labels))
        self.instructions, self.labels, self.pending, self.group = [], {}, [], []
        self.loc, self.ptx_line = None, 0

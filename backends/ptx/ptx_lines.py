"""From a line of PTX text to the Python line it came from, through ``.loc`` and ``.file``. (PTX ISA: .loc)"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from urllib.parse import quote, unquote

from tiledsl.errors import UNKNOWN_LOC, Loc

FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
LOC = re.compile(
    r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+(\S+?)\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
NAME = re.compile(r"^(\S+):\n\t\.b8\t([\d,]+),0$", re.MULTILINE)
"""A label of the section .debug_str and the name of a function there, as `debuginfo.restore_locations` writes them."""

SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in '%"\\&?')
"""nvdisasm moves what follows a blank and & or ? to a later column."""


def encode_path(path: str) -> str:
    """A path as ptxas takes it between quotes, and nvdisasm prints it: ASCII without escapes, anything else as %XX."""
    return quote(path, safe=SAFE)


def decode_path(path: str) -> str:
    return unquote(path)


class PtxLines:
    """Line numbers count from 1, as in ptxas's messages."""

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        self.lines = ptx.splitlines()

    @cached_property
    def marks(self) -> list[tuple[int, Loc]]:
        """(PTX line, Python location) of every ``.loc``."""
        files = {number: decode_path(path) for number, path in FILE.findall(self.ptx)}
        names = {label: bytes(map(int, text.split(","))).decode() for label, text in NAME.findall(self.ptx)}

        def loc(match: re.Match[str], before: Loc | None) -> Loc:
            file, line, column, label, *call = match.groups()
            caller = Loc(files.get(call[0], ""), int(call[1]), int(call[2])) if label else None
            if caller is not None and before is not None and str(before) == str(caller):
                caller = before  # which knows its own caller
            return Loc(files.get(file, ""), int(line), int(column), function=names.get(label, ""), caller=caller)

        marks: list[tuple[int, Loc]] = []
        for number, line in enumerate(self.lines, 1):
            if ".loc" in line and (match := LOC.match(line)):
                # The directive of a caller stands on the line before.
                before = marks[-1][1] if marks and marks[-1][0] == number - 1 else None
                marks.append((number, loc(match, before)))
        return marks

    def location(self, number: int) -> Loc:
        """The Python location of PTX line `number`: that of the last ``.loc`` at or above it."""
        at = bisect_right(self.marks, number, key=lambda mark: mark[0])
        return self.marks[at - 1][1] if at else self.first()

    def first(self) -> Loc:
        """The first location of all, where a message is about the kernel as a whole."""
        return self.marks[0][1] if self.marks else UNKNOWN_LOC

    def text(self, number: int) -> str:
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

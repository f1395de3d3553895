"""From a line of PTX text to the Python line it came from, through ``.loc`` and ``.file``. (PTX ISA: .loc)"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from urllib.parse import quote, unquote

from tiledsl.errors import UNKNOWN_LOC, Loc

__all__ = ["PtxLines", "decode_path", "encode_path"]

FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
LOC = re.compile(
    r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+(\S+?)(?:\s*\+\s*(\d+))?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)


SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in '%"\\\\')


def encode_path(path: str) -> str:
    """A path as ptxas takes it between quotes: ASCII without escapes, anything else as %XX."""
    return quote(path, safe=SAFE)


def decode_path(path: str) -> str:
    return unquote(path)


class PtxLines:
    """Line numbers count from 1, as in ptxas's messages."""

    def __init__(self, ptx: str) -> None:
        self.lines = ptx.splitlines()
        self.files = {int(number): decode_path(path) for number, path in FILE.findall(ptx)}

    @cached_property
    def marks(self) -> list[tuple[int, Loc]]:
        """(PTX line, Python location) of every ``.loc``."""
        found = ((number, LOC.match(line)) for number, line in enumerate(self.lines, 1) if ".loc" in line)
        return [(number, self._loc(match)) for number, match in found if match]

    def _loc(self, match: re.Match[str]) -> Loc:
        file, line, column = (int(match.group(i)) for i in (1, 2, 3))
        caller = None
        if match.group(4):
            caller = Loc(self.files.get(int(match.group(6)), ""), int(match.group(7)), int(match.group(8)))
        function = match.group(4) or ""
        return Loc(self.files.get(file, ""), line, column, function=self._name(function), caller=caller)

    def _name(self, label: str) -> str:
        """The function name behind a label of the ``.debug_str`` section (decimal bytes, zero-terminated)."""
        if not label:
            return ""
        try:
            at = next(i for i, line in enumerate(self.lines) if line.startswith(f"{label}:"))
        except StopIteration:
            return ""
        text = "".join(self.lines[at : at + 256]).partition(":")[2]
        data = bytearray()
        for byte in re.finditer(r"\b(\d+)\b", text):
            if byte.group(1) == "0":
                break
            data.append(int(byte.group(1)) & 0xFF)
        return data.decode(errors="replace")

    def location(self, number: int) -> Loc:
        """The Python location of PTX line `number`: that of the last ``.loc`` at or above it."""
        at = bisect_right(self.marks, number, key=lambda mark: mark[0])
        return self.marks[at - 1][1] if at else self.first()

    def first(self) -> Loc:
        """The first location of all, where a message is about the kernel as a whole."""
        return self.marks[0][1] if self.marks else UNKNOWN_LOC

    def text(self, number: int) -> str:
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

"""Which line of the user's Python each line of a stage came from.

Each reader takes the text of one stage and gives its lines, without the debug information that was only
there to say where they came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tiledsl.backends.ptx.ptx_lines import PtxLines, decode_path
from tiledsl.backends.ptx.sass.disassemble import SOURCE
from tiledsl.errors import Loc


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a stage.

    loc: where in the user's Python it came from, if that is known, with the callers of inlined functions. IR and PTX
    have columns. number: that of the line in the text that was read.
    """

    text: str
    loc: Loc | None = None
    number: int = 0

    @property
    def source(self) -> Loc | None:
        """The Python line alone, without columns and callers."""
        return None if self.loc is None else Loc(self.loc.file, self.loc.line)


_IR_PLACE = r'"(?:[^"\\]|\\.)*":\d+:\d+(?:-\d+)?(?: in "[^"]*")?'
_IR_LOC = re.compile(rf" @ {_IR_PLACE}(?: from {_IR_PLACE})*")
_IR_PART = re.compile(r'("(?:[^"\\]|\\.)*"):(\d+):(\d+)(?:-(\d+))?(?: in "([^"]*)")?')


def read_ir(text: str) -> Iterator[Line]:
    """The IR printed with locations: ``@ "file":line:col`` follows an op, callers follow ``from``."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _IR_LOC.search(line)
        if found is None:
            yield Line(line, number=number)
        else:
            yield Line(line[: found.start()] + line[found.end() :], _ir_loc(found[0]), number)


@lru_cache(maxsize=1 << 14)  # most ops share their place with others
def _ir_loc(text: str) -> Loc:
    loc: Loc | None = None
    for file, line, col, end, function in reversed(_IR_PART.findall(text)):
        loc = Loc(json.loads(file), int(line), int(col), int(end or 0), function, loc)
    assert loc is not None
    return loc


def _place(text: str) -> Loc:
    """The line that ``"file":line`` names, whatever follows."""
    file, end = json.JSONDecoder().raw_decode(text)
    return Loc(file, int(text[end + 1 :].partition(":")[0]))


def read_ptx(text: str) -> Iterator[Line]:
    """PTX: ``.loc`` holds for the instructions after it, ``.file`` gives numbers their names.

    The debug sections that follow the code are left out.
    """
    ptx = PtxLines(text)
    for number, line in enumerate(ptx.lines, 1):
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        if word == ".section":
            return
        if word not in (".file", ".loc"):
            code = line.startswith("\t") and not word.startswith(("//", "."))
            loc = ptx.location(number)
            yield Line(line, loc if code and loc.line else None, number)


def read_sass(text: str) -> Iterator[Line]:
    """SASS of nvdisasm with line information: a ``//## File`` comment holds for the instructions after it.

    Of consecutive comments the first one counts: the innermost, where the code was written.
    """
    here: Loc | None = None
    follows = False
    for number, line in enumerate(text.splitlines(), 1):
        found = SOURCE.match(line)
        if found is None:
            yield Line(line, here if "/*" in line else None, number)
        elif not follows:
            here = Loc(decode_path(found[1]), int(found[2]))
        follows = found is not None


_LLVM_USE = re.compile(r",? !dbg !(\d+)")
_LLVM_LOCATION = re.compile(r"^!(\d+) = !DILocation\(.*\bline: (\d+)", re.MULTILINE)
_LLVM_PLACE = re.compile(r"^; line (\d+): (.*)", re.MULTILINE)


def read_llvm(text: str) -> Iterator[Line]:
    """LLVM IR: ``!dbg`` names a DILocation, and a comment says what its line stands for. Metadata is left out."""
    lines = dict(_LLVM_LOCATION.findall(text))
    places = {number: _place(place) for number, place in _LLVM_PLACE.findall(text)}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("!") or _LLVM_PLACE.match(line):
            continue
        found = _LLVM_USE.search(line)
        if found is None or line.startswith("define"):
            yield Line(_LLVM_USE.sub("", line), number=number)
        else:
            shown = line[: found.start()] + line[found.end() :]
            yield Line(shown, places.get(lines.get(found[1], "")), number)


READERS: dict[str, Callable[[str], Iterator[Line]]] = {
    "ir": read_ir,
    "llvm": read_llvm,
    "ptx": read_ptx,
    "sass": read_sass,
}

"""The positions in the user's Python that a report refers to, each with a number, and the functions they are in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tiledsl.errors import Loc
from tiledsl.inspect.report.data import Chunk, Place
from tiledsl.outside import source_lines

PACKAGE = Path(__file__).parents[3]
"""The folder that tiledsl is in."""


class Places:
    """Numbers positions as they come up."""

    def __init__(self) -> None:
        self.rows: list[Place] = []
        self.locs: list[Loc] = []
        self._files: dict[str, int] = {}
        self._known: dict[Loc | None, int] = {None: -1}
        self._rows: dict[Place, int] = {}

    def of(self, loc: Loc | None) -> int:
        """The number of `loc`; -1 if no line is known."""
        known = self._known.get(loc)
        if known is None:
            known = self._known[loc] = self._new(loc) if loc is not None and loc.line else -1
        return known

    def _new(self, loc: Loc) -> int:
        file = self._files.setdefault(loc.file, len(self._files))
        row = file, loc.line, loc.col, self.of(loc.caller)
        if row not in self._rows:
            self._rows[row] = len(self.rows)
            self.rows.append(row)
            self.locs.append(loc)
        return self._rows[row]

    @property
    def files(self) -> list[str]:
        """Their names as they are shown."""
        return [shown_path(file) for file in self._files]

    def shown(self, text: str) -> str:
        """A message, with names of files as they are shown."""
        for file in sorted(self._files, key=len, reverse=True):
            text = text.replace(file, shown_path(file))
        return text

    def chunks(self) -> list[Chunk]:
        """The functions that places are in, files in the order in which they came up: the kernel's first."""
        return [chunk for file, number in self._files.items() for chunk in self._of_file(file, number)]

    def _of_file(self, file: str, number: int) -> Iterator[Chunk]:
        lines = [line.rstrip("\n") for line in source_lines(file)]
        spans = _spans(lines)
        needed: set[tuple[int, int]] = set()
        for line in {row[1] for row in self.rows if row[0] == number}:
            around = [span for span in spans if span[0] <= line <= span[1]]
            needed.add(max(around, default=(line, line)))  # the innermost function begins last
        for first, last in sorted(needed):
            if not any(a <= first and last <= b for a, b in needed - {(first, last)}):
                yield Chunk(number, first, lines[first - 1 : last] or [""])


def _spans(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of every function, decorators included."""
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):  # it has been edited since
        return []
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [(min(n.lineno, *(d.lineno for d in n.decorator_list), n.lineno), n.end_lineno or 0) for n in functions]


def shown_path(file: str) -> str:
    """Relative to the package or to the current folder where it is inside: a report is sent to others."""
    path = Path(file)
    for folder in (PACKAGE, Path.cwd()):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file

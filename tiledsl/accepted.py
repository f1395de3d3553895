"""Findings that are accepted: by a comment at their line, or by an entry of a baseline file.

    S[t ^ 1] = x  # tiledsl: accept T101 because both lanes write the same value

A comment is for the statement that it stands at or, on a line of its own, for the one below. An entry of a baseline
names code, kernel, functions and the text of the lines, so that it survives when lines move.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.errors import CompileError, Finding, Loc, TileError, UsageError
from tiledsl.findings import INCOMPLETE, KINDS, OWN_FAULT
from tiledsl.outside import read_text, source_line, source_lines

BASELINE_SCHEMA = "tiledsl.baseline/1"
_COMMENT = re.compile(r"#\s*tiledsl:\s*accept\b(.*)")
_FORM = re.compile(r"\s*(T\w*(?:\s*,\s*T\w*)*)\s+because\s+(\S.*)")
_FIX = "write: # tiledsl: accept T101 because REASON"

Line = tuple[str, str]
"""A function, and the text of a line of it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of findings of one code, `by` a "comment" at `loc`, or by an entry of the "baseline" in the file of `loc`.

    `lines`: of the comment's statement. `kernel`, `texts`: what the entry is for; see `entry_of`.
    """

    code: str
    reason: str
    loc: Loc
    lines: range = range(0)
    kernel: str = ""
    texts: frozenset[Line] = frozenset()

    @property
    def by(self) -> str:
        return "baseline" if self.kernel else "comment"

    def accepts(self, finding: Finding) -> bool:
        if self.code != finding.code:
            return False
        if self.kernel:
            return (self.kernel, self.texts) == (finding.kernel, _texts(finding))
        return any(side.loc.file == self.loc.file and side.loc.line in self.lines for side in finding.sides)

    def __str__(self) -> str:
        """That it was not needed."""
        if self.kernel:
            texts = " and ".join(text for _, text in sorted(self.texts))
            return f"{self.loc.file}: {self.code} of {self.kernel} at {texts} is accepted, and was not found: remove it"
        return f"{self.loc}: {self.code} is accepted here, and was not found: remove the comment"


# -- comments --------------------------------------------------------------------------------------


def comments(places: Iterable[tuple[str, int]]) -> list[Acceptance]:
    """Those in the functions that these lines, (file, line), belong to. Raises CompileError at one that is wrong."""
    lines: dict[str, set[int]] = {}
    for file, line in places:
        lines.setdefault(file, set()).add(line)
    return [each for file in sorted(lines) for each in _in_file(file, lines[file])]


def _in_file(file: str, lines: set[int]) -> Iterator[Acceptance]:
    source = source_lines(file)
    if not any(_COMMENT.search(text) for text in source):
        return
    try:
        tree = ast.parse("".join(source))
        tokens = [*tokenize.generate_tokens(io.StringIO("".join(source)).readline)]
    except (SyntaxError, tokenize.TokenError, ValueError):
        return  # not what Python has run
    nodes = [*ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {_innermost(functions, line) for line in lines} - {None}
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    for token in tokens:
        found = _COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        line, column = token.start
        node = _innermost(functions, line)
        if found is None or node not in inside:
            continue
        alone = not token.line[:column].strip()
        at = min((s.lineno for s in statements if s.lineno > line), default=line) if alone else line
        assert node is not None
        loc = Loc(file, line, column + 1, token.end[1] + 1, node.name)
        covered = _lines_of(_innermost(statements, at), at)
        for code, reason in _read(found[1], loc):
            if not lines.isdisjoint(covered):  # else a const has removed the statement
                yield Acceptance(code, reason, loc, covered)


def _innermost(nodes: Iterable[Any], line: int) -> Any:
    """The shortest of those that contain the line."""
    around = [node for node in nodes if node.lineno <= line <= node.end_lineno]
    return min(around, key=lambda node: node.end_lineno - node.lineno, default=None)


def _lines_of(statement: Any, line: int) -> range:
    """All of a simple statement; of one with others inside the line alone."""
    if statement is None or hasattr(statement, "body"):
        return range(line, line + 1)
    return range(statement.lineno, statement.end_lineno + 1)


def _read(text: str, loc: Loc) -> Iterator[tuple[str, str]]:
    """Codes, each with the reason."""
    form = _FORM.fullmatch(text.rstrip())
    if form is None:
        raise CompileError("this comment accepts a finding, and names no code or no reason", loc, _FIX, code="C116")
    for code in re.split(r"\s*,\s*", form[1]):
        if problem := _problem(code):
            raise CompileError(problem, loc, _FIX, code="C116")
        yield code, form[2]


def _problem(code: Any) -> str:
    """Why there is nothing to accept of this code; "" if there is."""
    if not isinstance(code, str) or code not in KINDS:
        return f"there is no code {code}; python -m tiledsl error lists all"
    return f"{code} ({KINDS[code].name}) is no finding" if code in (*INCOMPLETE, *OWN_FAULT) else ""


# -- baselines -------------------------------------------------------------------------------------


def entry_of(finding: Finding, file: Path, reason: str) -> Acceptance:
    return Acceptance(finding.code, reason, Loc(str(file), 0), kernel=finding.kernel, texts=_texts(finding))


def _texts(finding: Finding) -> frozenset[Line]:
    locs = [side.loc for side in finding.sides]
    return frozenset((loc.function, source_line(loc.file, loc.line).strip()) for loc in locs)


def read_baseline(file: Path) -> list[Acceptance]:
    """Raises UsageError for a file that is not there or is no baseline."""
    try:
        data: Any = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise _unusable(file, why) from error
    try:
        if data["schema"] != BASELINE_SCHEMA:
            raise _unusable(file, f'its "schema" is not "{BASELINE_SCHEMA}"')
        return [_entry(each, file) for each in data["findings"]]
    except (KeyError, TypeError) as error:
        raise _unusable(file, f"it lacks a field, or has one of another kind: {error}") from error


def _entry(entry: Any, file: Path) -> Acceptance:
    texts = frozenset((str(side["function"]), str(side["line"])) for side in entry["sides"])
    if problem := _problem(entry["code"]):
        raise _unusable(file, problem)
    return Acceptance(entry["code"], str(entry["reason"]), Loc(str(file), 0), kernel=str(entry["kernel"]), texts=texts)


def _unusable(file: Path, why: str) -> UsageError:
    return UsageError(f"the baseline {file} cannot be used: {why}\n  fix: write it anew with --write-baseline {file}")


def write_baseline(file: Path, entries: Iterable[Acceptance]) -> None:
    """Adds to those that the file has, which keep their reasons. Raises TileError."""
    known = {(each.code, each.kernel, each.texts): each for each in read_baseline(file)} if file.exists() else {}
    for entry in entries:
        known.setdefault((entry.code, entry.kernel, entry.texts), entry)
    written = [
        {
            "code": each.code,
            "kernel": each.kernel,
            "sides": [{"function": function, "line": text} for function, text in sorted(each.texts)],
            "reason": each.reason,
        }
        for each in known.values()
    ]
    written.sort(key=lambda entry: (entry["kernel"], entry["code"], json.dumps(entry["sides"])))
    text = json.dumps({"schema": BASELINE_SCHEMA, "findings": written}, indent=1) + "\n"
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise TileError(f"cannot write {file}: {why}\n  fix: give another file for the baseline") from error

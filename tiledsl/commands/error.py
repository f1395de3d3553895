"""Explain the code of an error, or of a finding of the check; without one, list them."""

from __future__ import annotations

import argparse

from tiledsl import findings, refusals
from tiledsl.findings import explain
from tiledsl.inspect.arguments import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="C201", nargs="?", default="", help="all are listed without one")
    parser.add_argument("--page", action="store_true", help="all of them as Markdown: docs/errors.md")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    text = page() if arguments.page else explain(arguments.code)
    if not arguments.json:
        print(text)
        return 0
    kinds = {**refusals.KINDS, **findings.KINDS}
    asked = [kinds[arguments.code.upper()]] if arguments.code else kinds.values()
    fields = "code", "name", "text", "fix", "example"
    print_json("tiledsl.codes/1", codes=[{name: getattr(kind, name) for name in fields} for kind in asked])
    return 0


def page() -> str:
    """All codes as Markdown."""
    lines = ["# Codes of errors", "", _ABOUT, ""]
    for title, kinds in (("Refused before a kernel runs", refusals.KINDS), ("Found by the emulator", findings.KINDS)):
        lines += [f"## {title}", "", "| code | | meaning | fix |", "|---|---|---|---|"]
        cells = [(k.code, k.name, k.text, k.fix) for k in kinds.values()]
        lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in cells]
        lines.append("")
    return "\n".join(lines[:-1])


_ABOUT = """\
`python -m tiledsl error --page` writes this page; `python -m tiledsl error C201` shows an example as well. A test runs
each example of a kernel that is refused: it has that error, and no other. A code never changes its meaning, and none is
used again. In Python it is `error.code`; with `--json`, `code`.

An error is raised without the frames of tiledsl; `TILEDSL_TRACEBACK=1` keeps them. Up to 20 errors of a kernel are
shown at once. What follows from an error is no error of its own, and of a kind there is one at a place."""

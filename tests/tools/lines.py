"""Counts lines of code, without blank lines, comments and docstrings, by folder.

python -m tests.tools.lines                  # of this checkout
python -m tests.tools.lines --commit 904d3e1 # of a commit
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = "tiledsl", "backends"
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of(text: str) -> int:
    """Lines that hold code."""
    tree = ast.parse(text)
    found = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():  # docstrings of names, too
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                found -= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return len(found)


def sources(commit: str) -> dict[str, str]:
    """Python files by path, of a commit, or "" for those that are here."""
    git = ["git", "-C", str(ROOT)]
    listed = [*git, "ls-tree", "-r", "--name-only", commit, *PARTS] if commit else [*git, "ls-files", *PARTS]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in names if name.endswith(".py")]
    if not commit:
        return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    show = [
        subprocess.run([*git, "show", f"{commit}:{name}"], capture_output=True, text=True, check=True) for name in names
    ]
    return dict(zip(names, (each.stdout for each in show), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.lines", description="Count lines of code.")
    parser.add_argument("--commit", default="", help="default: the files of this checkout")
    counts = Counter[str]()
    for name, text in sources(parser.parse_args().commit).items():
        folder = "/".join(name.split("/")[:2]) if name.count("/") > 1 else f"{name.split('/')[0]}/*.py"
        counts[folder] += lines_of(text)
    for folder, count in sorted(counts.items()):
        print(f"{count:7,} {folder}")
    print(f"{sum(counts.values()):7,} all")
    return 0


if __name__ == "__main__":
    sys.exit(main())

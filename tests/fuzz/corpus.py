"""What is mutated: kernels of the gallery, the tests and the docs, and texts of IR.

Each program is one kernel with what it needs of its module, so that a case is about that kernel.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from tests.filetest import read_filetests
from tests.filetests.made import filetests
from tests.fuzz.outcome import ROOT

__all__ = ["Program", "Text", "draw", "programs", "texts", "words"]

KEPT_DECORATORS = {"tile_kernel", "tile_function", "dataclass", "staticmethod"}
PRELUDE = "from tiledsl import *\nfrom tiledsl.dims import *\n"
REFUSED = re.compile("errors|refused|bad_input")
"""Files of kernels that are wrong: there are many, and a mutant of one does not get far."""
MOST_TEXT = 20_000
"""Characters of a text of IR: the time goes into long ones, the findings are in short ones as well."""


@dataclass(frozen=True)
class Program:
    """`weight`: how often it is drawn; what takes long to compile, less often."""

    name: str
    text: str
    weight: float


@dataclass(frozen=True)
class Text:
    """One kernel in the textual IR."""

    name: str
    text: str
    weight: float


T = TypeVar("T", bound=Program | Text)


def draw(items: Iterable[T], key: str) -> T:
    """One of `items`, by their weights. It changes with `key`, and hardly with the other items: a kernel that is added
    to the tests leaves most cases as they are. (Rendezvous hashing.)"""

    def score(item: T) -> float:
        return item.weight / -log((crc32(f"{key} {item.name}".encode()) + 1) / (2**32 + 1))

    return max(items, key=score)


@cache
def programs() -> tuple[Program, ...]:
    found = [p for path in _files("examples/gemm/*.py") for p in _of_module(path, 2.0)]
    for pattern in ("tests/unit/*.py", "tests/gpu/*.py", "tests/typing/*.py"):
        found += [p for path in _files(pattern) for p in _of_module(path, 0.2 if REFUSED.search(path.name) else 1.0)]
    for path in _files("docs/*.md") + _files("README.md"):
        found += _of_page(path)
    return tuple(found)


@cache
def texts() -> tuple[Text, ...]:
    """Every kernel of the filetests; a folder of many that are alike weighs no more than another."""
    tests = [test for path in filetests() for test in read_filetests(path) if len(test.text) < MOST_TEXT]
    counts = Counter(test.path.parent.name for test in tests)
    return tuple(Text(t.name, t.text + "\n", 1 / counts[t.path.parent.name]) for t in tests)


def words(name: str) -> list[str]:
    """The lines of a file in `words`: what mutants are given."""
    return Path(__file__).parent.joinpath("words", f"{name}.txt").read_text().splitlines()


def _files(pattern: str) -> list[Path]:
    return sorted(ROOT.glob(pattern))


def _of_module(path: Path, weight: float) -> Iterator[Program]:
    body = ast.parse(path.read_text()).body
    for node in body:
        if _is_kernel(node):
            text = _slice(body, node)
            yield Program(f"{path.name}:{node.name}", text, weight * min(1.0, 3000 / len(text)))


def _of_page(path: Path) -> Iterator[Program]:
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
        if "@tile_kernel" not in block:
            continue
        try:
            ast.parse(block)
        except SyntaxError:
            continue  # a part of a program
        yield Program(f"{path.name}:{number}", PRELUDE + block, 1.0)


def _is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(_name(d) == "tile_kernel" for d in node.decorator_list)


def _name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


def _slice(body: list[ast.stmt], kernel: ast.stmt) -> str:
    """The kernel and the statements of its module that bind the names it uses, in their order."""
    binders: dict[str, list[ast.stmt]] = {}
    for node in body:
        for name in _binds(node):
            binders.setdefault(name, []).append(node)
    kept: dict[int, ast.stmt] = {}
    used: dict[str, None] = {}
    todo = [kernel]
    while todo:
        node = todo.pop()
        if id(node) in kept:
            continue
        kept[id(node)] = node
        for name in _uses(node):
            used[name] = None
            todo += [b for b in binders.get(name, []) if not _is_kernel(b)]
    future = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    nodes = [_only(node, used) for node in body if id(node) in kept]
    return ast.unparse(ast.Module([*future, *nodes], [])) + "\n"


def _only(node: ast.stmt, used: dict[str, None]) -> ast.stmt:
    """An import of nothing but the names that are used; a function without decorators of tests."""
    if isinstance(node, ast.ImportFrom):
        return ast.ImportFrom(node.module, [a for a in node.names if (a.asname or a.name) in used], node.level)
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = [d for d in node.decorator_list if _name(d) in KEPT_DECORATORS]
    return node


def _binds(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import() | ast.ImportFrom():
            return [(a.asname or a.name).split(".")[0] for a in node.names]
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        case _:
            return []


def _uses(node: ast.stmt) -> list[str]:
    """Names in a statement, without those in decorators that are left out."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    left_out = [d for d in getattr(node, "decorator_list", []) if _name(d) not in KEPT_DECORATORS]
    skipped = {id(n) for d in left_out for n in ast.walk(d)}
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and id(n) not in skipped]
    return [name for name in names if not hasattr(builtins, name)]

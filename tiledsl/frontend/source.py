"""The AST of a function together with what name resolution needs to know of it."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable

from tiledsl.errors import Loc
from tiledsl.source import FunctionSource, function_source

__all__ = ["Source", "lookup_free", "source_of"]


@dataclass(frozen=True)
class Source:
    """The definition of a function. `node`'s positions are those of the file it stands in.

    `locals`: the names bound anywhere in it, which are never looked up outside, as in Python.
    """

    fn: Callable[..., Any]
    text: FunctionSource
    node: ast.FunctionDef
    locals: frozenset[str]

    def loc(self, node: ast.AST, caller: Loc | None = None) -> Loc:
        line = getattr(node, "lineno", self.node.lineno)
        col = getattr(node, "col_offset", 0) + 1
        on_one_line = getattr(node, "end_lineno", line) == line
        end = getattr(node, "end_col_offset", col) + 1 if on_one_line else 0
        return Loc(self.text.file, line, col, end, self.fn.__name__, caller)


@cache
def source_of(fn: Callable[..., Any]) -> Source:
    """Parse the source of `fn`. Raises CompileError where Python keeps none (a bare prompt)."""
    text = function_source(fn)
    node = text.tree()
    return Source(fn, text, node, frozenset(_bound_names(node)))


def _bound_names(node: ast.FunctionDef) -> set[str]:
    names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    nodes = list(ast.walk(node))
    stores = [c for c in nodes if isinstance(c, ast.Name) and isinstance(c.ctx, ast.Store)]
    # A comprehension's targets live in it alone.
    inside = {id(n) for c in nodes if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    return names | {c.id for c in stores if id(c) not in inside}


def lookup_free(fn: Callable[..., Any], name: str) -> tuple[bool, Any]:
    """The object that a free variable of `fn` stands for now: closure, module globals, builtins."""
    code = fn.__code__
    if name in code.co_freevars and fn.__closure__ is not None:
        cell = fn.__closure__[code.co_freevars.index(name)]
        try:
            return True, cell.cell_contents
        except ValueError:
            return False, None
    if name in fn.__globals__:
        return True, fn.__globals__[name]
    return hasattr(builtins, name), getattr(builtins, name, None)

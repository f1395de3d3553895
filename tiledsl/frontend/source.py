"""The AST of a function together with what name resolution needs to know of it."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import Any, Callable

from tiledsl.errors import Loc
from tiledsl.signatures.source import FunctionSource, checked_source

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


def source_of(fn: Callable[..., Any]) -> Source:
    """The source of `fn`, parsed once. Raises CompileError where there is none, or not that of what Python runs."""
    text = checked_source(fn)
    return Source(fn, text, text.tree(), text.bound)


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

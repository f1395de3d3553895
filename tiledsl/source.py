"""The source text of a Python function, from a file or a notebook cell, and where its parameters stand."""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable

from tiledsl.errors import CompileError, Loc

__all__ = ["FunctionSource", "function_source"]


@dataclass(frozen=True)
class FunctionSource:
    """`text`: the lines of the function, decorators included; `line`: the first one's number in `file`."""

    file: str
    line: int
    text: str
    name: str

    def tree(self) -> ast.FunctionDef:
        """The function's AST, with the line numbers of the file and columns as in the file."""
        indent = len(self.text) - len(self.text.lstrip(" \t"))
        # Empty lines before it make its line numbers those of the file; a wrapper keeps the columns of an indented
        # function, where dedenting would shift them.
        above = self.line - 1
        source = "\n" * (above - 1) + f"if 1:\n{self.text}" if indent else "\n" * above + self.text
        try:
            module = ast.parse(source)
        except SyntaxError as error:
            loc = Loc(self.file, self.line, function=self.name)
            fix = "save the file as Python runs it, and import it again"
            raise CompileError(f"the source of {self.name} cannot be read: {error.msg}", loc, fix) from None
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name == self.name:
                return node
            if isinstance(node, ast.AsyncFunctionDef) and node.name == self.name:
                loc = Loc(self.file, node.lineno, node.col_offset + 1, node.col_offset + 10, self.name)
                raise CompileError("async is not part of the kernel language", loc, "write it with def alone")
        loc = Loc(self.file, self.line, function=self.name)
        raise CompileError(f"no function {self.name} in its source", loc, "define it with def, not lambda")

    def loc(self, node: ast.expr | ast.stmt | ast.arg) -> Loc:
        """The span of `node`, a part of `tree()`, on its first line."""
        one_line = node.end_lineno == node.lineno and node.end_col_offset is not None
        end = node.end_col_offset + 1 if one_line and node.end_col_offset is not None else 0
        return Loc(self.file, node.lineno, node.col_offset + 1, end, self.name)


@cache
def function_source(fn: Callable[..., Any]) -> FunctionSource:
    """The source of `fn`. Raises CompileError where there is none: at a bare prompt, in `python -c`, in `exec`."""
    code = fn.__code__
    file, first = code.co_filename, code.co_firstlineno
    lines = linecache.getlines(file, fn.__globals__)
    if not 0 < first <= len(lines):
        loc = Loc(file, first, function=fn.__name__)
        message = f"the source of {fn.__name__} is not available (it was defined at a prompt, by -c or by exec)"
        raise CompileError(message, loc, "write it in a file or a notebook cell")
    text = "".join(inspect.getblock(lines[first - 1 :]))
    return FunctionSource(file, first, text, fn.__name__)

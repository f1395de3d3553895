"""The source text of a Python function, from a file or a notebook cell, and where its parameters stand.

A kernel is compiled from what Python runs: the lines are those at the time when the function was decorated, and its
code object is the proof. Where they do not belong together, since the file was edited before that, it is an error.
"""

from __future__ import annotations
import __future__

import ast
import linecache
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Callable, Sequence
from weakref import WeakKeyDictionary

from tiledsl.errors import CompileError, Loc
from tiledsl.signatures.bytecode import instructions, nested
from tiledsl.signatures.private import class_around, mangle


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """A function as it was written.

    `tree`: its AST, where private names are those that Python makes of them. `text`: its lines, decorators included.
    `line`: the number in `file` of the first one.
    """

    file: str
    line: int
    text: str
    tree: ast.FunctionDef

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names bound anywhere in it, which are never looked up outside, as in Python."""
        args = self.tree.args
        names = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        return frozenset(names | stored_names(list(ast.walk(self.tree))))

    def loc(self, node: ast.AST, caller: Loc | None = None) -> Loc:
        """The span of `node`, a part of `tree`, on its first line. caller: where the function is called, if inlined."""
        line = getattr(node, "lineno", self.tree.lineno)
        col = getattr(node, "col_offset", 0) + 1
        on_one_line = getattr(node, "end_lineno", line) == line
        end = getattr(node, "end_col_offset", col) + 1 if on_one_line else 0
        return Loc(self.file, line, col, end, self.tree.name, caller)


def stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that `nodes`, all nodes of some syntax trees, bind."""
    # A comprehension's targets live in it alone.
    inside = {id(n) for c in nodes if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and id(n) not in inside]
    return {node.id for node in stores}


def closure_values(fn: Callable[..., Any]) -> dict[str, Any]:
    """What the closure of `fn` holds, by name; cells that are still empty are left out."""
    values: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue
    return values


# -- files -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _File:
    """The lines of a file at one time, which all functions share that were decorated then."""

    lines: list[str]

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse("".join(self.lines))
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def functions(self) -> dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef]:
        """By name and first line, decorators included."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return {(n.name, min(part.lineno for part in (n, *n.decorator_list))): n for n in found}

    def source_of(self, code: CodeType) -> FunctionSource | None:
        """The source that Python compiles to `code`; None if this file has none."""
        node = self.functions.get((code.co_name, code.co_firstlineno))
        if node is None:
            return None
        text = "".join(self.lines[code.co_firstlineno - 1 : node.end_lineno])
        if not self._belongs(code, "assert" in text):
            return None
        if isinstance(node, ast.AsyncFunctionDef):
            loc = Loc(code.co_filename, node.lineno, node.col_offset + 1, node.col_offset + 10, node.name)
            raise CompileError("async is not part of the kernel language", loc, "write it with def alone", code="C101")
        mangle(node, class_around(code))
        return FunctionSource(code.co_filename, code.co_firstlineno, text, node)

    def _belongs(self, code: CodeType, asserts: bool) -> bool:
        place, flags = (code.co_name, code.co_firstlineno), code.co_flags & FUTURES
        made = _compiled(self, flags, -1).get(place)
        if made is not None and _same(made, code):
            return True
        # pytest rewrites the assertions of test modules: all but those must be there.
        bare = _compiled(self, flags, 1).get(place) if asserts else None
        return bare is not None and all(
            set(map(_shown, getattr(bare, part))) <= set(map(_shown, getattr(code, part)))
            for part in ("co_names", "co_varnames", "co_freevars", "co_consts")
        )


@lru_cache(maxsize=64)
def _compiled(file: _File, flags: int, optimize: int) -> dict[tuple[str, int], CodeType]:
    """What Python makes of all functions in a file, by name and first line."""
    # Not of `file.tree`: Python walks a tree recursively, and a long sum is deep.
    made = compile("".join(file.lines), "", "exec", flags, dont_inherit=True, optimize=optimize)
    return {(code.co_name, code.co_firstlineno): code for code in nested(made)}


_FILES: dict[str, _File] = {}


def _file_of(fn: Callable[..., Any]) -> _File:
    """The file of `fn` as it is now."""
    name = fn.__code__.co_filename
    linecache.checkcache(name)
    lines = linecache.getlines(name, fn.__globals__)
    if name not in _FILES or _FILES[name].lines != lines:
        _FILES[name] = _File(lines)
    return _FILES[name]


# -- functions -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Kept:
    """The file of a function when it was decorated with `code`, and its source there once that has been found."""

    code: CodeType
    file: _File
    source: FunctionSource | None = None


_KEPT: WeakKeyDictionary[Callable[..., Any], _Kept] = WeakKeyDictionary()


def keep_lines(fn: Callable[..., Any]) -> _Kept:
    """Keep the lines of the file of `fn` as they are now."""
    kept = _KEPT.get(fn)
    if kept is None or kept.code is not fn.__code__:
        kept = _KEPT[fn] = _Kept(fn.__code__, _file_of(fn))
    return kept


def checked_source(fn: Callable[..., Any]) -> FunctionSource:
    """The source of `fn`, which Python compiles to the code of `fn`. Raises CompileError where there is none: at a bare
    prompt, in `python -c`, in `exec`, or if the file has changed."""
    kept = keep_lines(fn)
    if kept.source is not None:
        return kept.source
    code = fn.__code__
    loc = Loc(code.co_filename, code.co_firstlineno, function=fn.__name__)
    if not kept.file.lines:
        message = f"the source of {fn.__name__} is not available (it was defined at a prompt, by -c or by exec)"
        raise CompileError(message, loc, "write it in a file or a notebook cell", code="C102")
    if code.co_name == "<lambda>":
        raise CompileError("a lambda is not compiled", loc, "define it with def", code="C101")
    kept.source = kept.file.source_of(code)
    if kept.source is None:
        # Read once more: an edit may leave a file's size and date as they were.
        linecache.cache.pop(code.co_filename, None)
        kept.file = _file_of(fn)
        kept.source = kept.file.source_of(code)
    if kept.source is None:
        message = f"{code.co_filename} has changed since {fn.__name__} was defined: this is not what Python runs"
        raise CompileError(message, loc, "import it again (importlib.reload), or start Python again", code="C102")
    return kept.source


FUTURES: int = sum(
    getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name != "nested_scopes"
)
PARTS = ("co_names", "co_varnames", "co_freevars", "co_cellvars")


def _same(a: CodeType, b: CodeType) -> bool:
    return (
        all(getattr(a, part) == getattr(b, part) for part in PARTS)
        and [*instructions(a)] == [*instructions(b)]
        and len(a.co_consts) == len(b.co_consts)
        and all(
            _same(x, y) if isinstance(x, CodeType) and isinstance(y, CodeType) else _shown(x) == _shown(y)
            for x, y in zip(a.co_consts, b.co_consts, strict=True)
        )
    )


def _shown(const: Any) -> Any:
    if isinstance(const, CodeType):
        return const.co_name
    return (type(const), const if isinstance(const, frozenset) else repr(const))

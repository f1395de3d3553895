"""The source text of a Python function, from a file or a notebook cell, and where its parameters stand.

A kernel is compiled from what Python runs: the lines are those at the time when the function was decorated, and its
code object is the proof. Where they do not belong together, since the file was edited before that, it is an error.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any, Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

from tiledsl.errors import CompileError, Loc
from tiledsl.signatures.bytecode import instructions, nested


@dataclass(frozen=True)
class FunctionSource:
    """`text`: the lines of the function, decorators included; `line`: the first one's number in `file`."""

    file: str
    line: int
    text: str
    name: str

    @cached_property
    def tree(self) -> ast.FunctionDef:
        """The function's AST, with the line numbers of the file and columns as in the file."""
        try:
            module = ast.parse(self.placed())
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

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names bound anywhere in it, which are never looked up outside, as in Python."""
        args = self.tree.args
        names = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        return frozenset(names | stored_names(list(ast.walk(self.tree))))

    def placed(self, outer: str = "if 1:") -> str:
        """The text on its lines and columns in the file. `outer` stands above an indented function, as its block."""
        above = self.line - 1
        indented = self.text[:1] in (" ", "\t")
        return "\n" * (above - 1) + f"{outer}\n{self.text}" if indented else "\n" * above + self.text

    def loc(self, node: ast.AST, caller: Loc | None = None) -> Loc:
        """The span of `node`, a part of `tree`, on its first line. caller: where the function is called, if inlined."""
        line = getattr(node, "lineno", self.tree.lineno)
        col = getattr(node, "col_offset", 0) + 1
        on_one_line = getattr(node, "end_lineno", line) == line
        end = getattr(node, "end_col_offset", col) + 1 if on_one_line else 0
        return Loc(self.file, line, col, end, self.name, caller)


def stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that `nodes`, all nodes of some syntax trees, bind."""
    # A comprehension's targets live in it alone.
    inside = {id(n) for c in nodes if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    stores = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and id(n) not in inside]
    return {node.id for node in stores}


@dataclass(slots=True)
class _Kept:
    """The lines of a file as they were when the function that has `code` was decorated, and what was found there."""

    code: CodeType
    lines: list[str]
    source: FunctionSource | None = None
    checked: bool = False


_KEPT: WeakKeyDictionary[Callable[..., Any], _Kept] = WeakKeyDictionary()


def keep_lines(fn: Callable[..., Any]) -> None:
    """Keep the lines of the file of `fn` as they are now. All functions of a file share one list."""
    _kept(fn)


def _kept(fn: Callable[..., Any]) -> _Kept:
    kept = _KEPT.get(fn)
    if kept is None or kept.code is not fn.__code__:
        linecache.checkcache(fn.__code__.co_filename)
        lines = linecache.getlines(fn.__code__.co_filename, fn.__globals__)
        kept = _KEPT[fn] = _Kept(fn.__code__, lines)
    return kept


def function_source(fn: Callable[..., Any]) -> FunctionSource:
    """The source of `fn`. Raises CompileError where there is none: at a bare prompt, in `python -c`, in `exec`."""
    kept = _kept(fn)
    if kept.source is None:
        kept.source = _cut(fn, kept.lines, _lines_of)
    return kept.source


Block = Callable[[list[str], CodeType], list[str]]


def _cut(fn: Callable[..., Any], lines: list[str], block: Block) -> FunctionSource:
    file, first = fn.__code__.co_filename, fn.__code__.co_firstlineno
    if not 0 < first <= len(lines):
        loc = Loc(file, first, function=fn.__name__)
        message = f"the source of {fn.__name__} is not available (it was defined at a prompt, by -c or by exec)"
        raise CompileError(message, loc, "write it in a file or a notebook cell")
    return FunctionSource(file, first, "".join(block(lines, fn.__code__)), fn.__code__.co_name)


def _lines_of(lines: list[str], code: CodeType) -> list[str]:
    """The lines that the code object names, and the more indented ones below. Reading tokens would take far longer."""
    first = code.co_firstlineno - 1
    last = max(line for inner in nested(code) for _, _, line in inner.co_lines() if line is not None)
    margin = _indent(lines[first])
    end = last
    for at in range(last, len(lines)):
        text = lines[at].strip()
        if text and not text.startswith("#"):
            if _indent(lines[at]) <= margin:
                break
            end = at + 1
    return lines[first:end]


def _indent(line: str) -> int:
    line = line.expandtabs()
    return len(line) - len(line.lstrip())


def _block_of(lines: list[str], code: CodeType) -> list[str]:
    """The same by tokens, for a function with a multi-line string that is less indented than it."""
    return inspect.getblock(lines[code.co_firstlineno - 1 :])


def closure_values(fn: Callable[..., Any]) -> dict[str, Any]:
    """What the closure of `fn` holds, by name; cells that are still empty are left out."""
    values: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue
    return values


# -- is it what Python runs? -----------------------------------------------------------------------------


def checked_source(fn: Callable[..., Any]) -> FunctionSource:
    """The source of `fn`, which Python compiles to the code of `fn`. Raises CompileError if the file has changed."""
    kept = _kept(fn)
    if kept.checked and kept.source is not None:
        return kept.source
    found = function_source(fn)
    for source in _candidates(fn, kept):
        if fn.__code__.co_name == "<lambda>" or _belongs(fn.__code__, source):
            kept.source, kept.checked = source, True
            return source
    message = f"{found.file} has changed since {fn.__name__} was defined: this is not what Python runs"
    loc = Loc(found.file, found.line, function=fn.__name__)
    raise CompileError(message, loc, "import it again (importlib.reload), or start Python again")


def _candidates(fn: Callable[..., Any], kept: _Kept) -> Iterator[FunctionSource]:
    yield function_source(fn)
    yield _cut(fn, kept.lines, _block_of)
    # Read once more: an edit may leave a file's size and date as they were.
    linecache.cache.pop(fn.__code__.co_filename, None)
    kept.lines = linecache.getlines(fn.__code__.co_filename, fn.__globals__) or kept.lines
    if fn.__code__.co_firstlineno <= len(kept.lines):
        yield _cut(fn, kept.lines, _block_of)


FUTURES: int = sum(
    getattr(__future__, name).compiler_flag for name in __future__.all_feature_names if name != "nested_scopes"
)


def _belongs(code: CodeType, source: FunctionSource) -> bool:
    made = _compiled(code, source, -1)
    if made is not None and _same(made, code):
        return True
    if "assert" not in source.text:
        return False
    # pytest rewrites the assertions of test modules: all but those must be there.
    bare = _compiled(code, source, 1)
    return bare is not None and all(
        set(map(_shown, getattr(bare, part))) <= set(map(_shown, getattr(code, part)))
        for part in ("co_names", "co_varnames", "co_freevars", "co_consts")
    )


def _compiled(code: CodeType, source: FunctionSource, optimize: int) -> CodeType | None:
    """What Python makes of the function in `source`, if that is where `code` is from."""
    outer = f"def _({', '.join(code.co_freevars)}):" if code.co_freevars else "if 1:"
    flags = code.co_flags & FUTURES
    try:
        made = compile(source.placed(outer), source.file, "exec", flags, dont_inherit=True, optimize=optimize)
    except (SyntaxError, ValueError):
        return None
    place = code.co_name, code.co_firstlineno
    return next((inner for inner in nested(made) if (inner.co_name, inner.co_firstlineno) == place), None)


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

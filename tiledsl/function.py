"""`@tile_function`: a function that kernels call, compiled into each caller."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import re
import sys
from typing import Any, Callable, Generic, Mapping, ParamSpec, TypeVar, cast

from tiledsl.errors import UNKNOWN_LOC, CompileError, Loc, TileError
from tiledsl.signatures.private import class_around, mangled
from tiledsl.signatures.source import keep_lines

P = ParamSpec("P")
R = TypeVar("R")


def location(fn: Callable[..., Any]) -> Loc:
    """The line on which the source of `fn` begins (its first decorator, if it has any)."""
    code = fn.__code__
    return Loc(code.co_filename, code.co_firstlineno, function=fn.__name__)


def caller_line() -> Loc:
    """The line that called the caller of this function; unknown if the frontend called it, for a kernel."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if frame.f_globals.get("__name__", "").startswith("tiledsl.frontend."):
        return UNKNOWN_LOC
    return Loc(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


def require_function(fn: Any, decorator: str, loc: Loc) -> None:
    """Raise CompileError at the line of a decorator that is not above a def."""
    if not inspect.isfunction(fn):
        message = f"@{decorator} takes a function, got a {type(fn).__name__}"
        raise CompileError(message, loc, "put it, once, above a def", code="C101")


class ByReference:
    """A wrapper of a Python function (`functools.update_wrapper`) that is copied and pickled like a function: a copy is
    the object itself, and it is pickled by its name."""

    __qualname__: str

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        found = named(self)
        if found is not self:
            name = f"{self.__module__}.{self.__qualname__}"
            message = f"{name} is {_described(found)}, not this {type(self).__name__}, which is pickled by that name"
            raise TileError(f"{message}\n  fix: define it at the top level of a module, and leave it its name")
        return _by_name, (type(self), self.__module__, self.__qualname__)


def named(function: Any) -> Any:
    """The object that has the name of `function`, or of its wrapper; None if there is none."""
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (KeyError, AttributeError):
        return None


def _by_name(kind: type[ByReference], module: str, name: str) -> ByReference:
    """The other end of `ByReference.__reduce__`, in the process that unpickles."""
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
        problem = f"is {_described(found)}"
    except (ImportError, AttributeError) as error:
        found, problem = None, f"is not there: {error}"
    if not isinstance(found, kind):
        message = f"a pickled {kind.__name__} is looked up as {module}.{name}, which {problem}"
        raise TileError(f"{message}\n  fix: define it in a module (not a script) that both processes import")
    return found


def _described(found: Any) -> str:
    return "not there" if found is None else f"a {type(found).__name__}"


class TileFunction(ByReference, Generic[P, R]):
    """A tile function: `fn` is the Python function, `loc` its place, `names` what annotations kept as text may name.

    The frontend inlines it at each call, specialised to the arguments. Outside a kernel a call is a TileError.
    """

    def __init__(self, fn: Callable[P, R], loc: Loc, names: Mapping[str, Any] | None = None) -> None:
        keep_lines(fn)
        self.fn, self.loc, self.names = fn, loc, names or {}
        functools.update_wrapper(cast(Any, self), fn)
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        # Kernels that were compiled with it would not see the change.
        if "_complete" in self.__dict__:
            raise TileError(f"{self.name}.{name} is set: a tile function does not change\n  fix: make another one")
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        return self.fn.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        message = f"{self.name}() was called from Python; a @tile_function runs only inside a kernel."
        raise TileError(f"{message}\n  fix: call it from a @tile_kernel function or from another @tile_function")

    def __repr__(self) -> str:
        return f"<tile_function {self.name} at {self.loc.file}:{self.loc.line}>"


def tile_function(fn: Callable[P, R]) -> TileFunction[P, R]:
    """Make a tile function of `fn`, which kernels may call with values, tiles, consts and functions."""
    require_function(fn, "tile_function", caller_line())
    return TileFunction(fn, location(fn), _named_in_annotations(fn))


def _named_in_annotations(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the locals of the caller of the caller, which defines `fn`, that annotations kept as text name."""
    caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    texts = [text for text in fn.__annotations__.values() if isinstance(text, str)]
    if caller.f_locals is caller.f_globals or not texts:
        return {}
    owner, found = class_around(fn.__code__), caller.f_locals
    words = [mangled(word, owner) for word in re.findall(r"[^\W\d]\w*", " ".join(texts))]
    return {word: found[word] for word in words if word in found}

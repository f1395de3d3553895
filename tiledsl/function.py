"""`@tile_function`: a function that kernels call, compiled into each caller."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Generic, NoReturn, ParamSpec, TypeVar, cast

from tiledsl.errors import CompileError, Loc, TileError

__all__ = ["TileFunction", "caller_line", "location", "require_function", "tile_function"]

P = ParamSpec("P")
R = TypeVar("R")


def location(fn: Callable[..., Any]) -> Loc:
    """The line on which the source of `fn` begins (its first decorator, if it has any)."""
    code = fn.__code__
    return Loc(code.co_filename, code.co_firstlineno, function=fn.__name__)


def caller_line() -> Loc:
    """The line that called the caller of this function."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    return Loc(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


def require_function(fn: Any, decorator: str, loc: Loc) -> None:
    """An error at the line of a decorator that stands above anything but a def."""
    if inspect.isfunction(fn):
        return
    kind = type(fn).__name__
    if kind in ("TileKernel", "TileFunction"):
        raise CompileError(f"{fn.name} is already a {kind}", loc, "decorate a function once")
    raise CompileError(f"@{decorator} takes a function, got a {kind}", loc, "put it right above a def")


class TileFunction(Generic[P, R]):
    """A tile function: `fn` is the Python function, `loc` where it stands.

    The frontend inlines it at each call, specialised to the arguments. Outside a kernel a call is a TileError.
    """

    def __init__(self, fn: Callable[P, R], loc: Loc) -> None:
        self.fn, self.loc = fn, loc
        functools.update_wrapper(cast(Any, self), fn)

    @property
    def name(self) -> str:
        return self.fn.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TileError(
            f"{self.name}() was called from Python; a @tile_function runs only inside a kernel.\n"
            f"  fix: call it from a @tile_kernel function or from another @tile_function"
        )

    def __repr__(self) -> str:
        return f"<tile_function {self.name} at {self.loc.file}:{self.loc.line}>"


def tile_function(fn: Callable[P, R]) -> TileFunction[P, R]:
    """Mark `fn` as written in the language: kernels may call it with values, tiles, consts and functions."""
    require_function(fn, "tile_function", caller_line())
    return TileFunction(fn, location(fn))

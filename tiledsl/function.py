"""`@tile_function`: a function that kernels call, compiled into each caller."""

from __future__ import annotations

import functools
from typing import Any, Callable, Generic, NoReturn, ParamSpec, TypeVar, cast

from tiledsl.errors import Loc, TileError
from tiledsl.source import keep_lines

__all__ = ["TileFunction", "location", "tile_function"]

P = ParamSpec("P")
R = TypeVar("R")


def location(fn: Callable[..., Any]) -> Loc:
    """The line on which the source of `fn` begins (its first decorator, if it has any)."""
    code = fn.__code__
    return Loc(code.co_filename, code.co_firstlineno, function=fn.__name__)


class TileFunction(Generic[P, R]):
    """A tile function: `fn` is the Python function, `loc` where it stands.

    The frontend inlines it at each call, specialised to the arguments. Outside a kernel a call is a TileError.
    """

    def __init__(self, fn: Callable[P, R], loc: Loc) -> None:
        keep_lines(fn)
        self.fn, self.loc = fn, loc
        functools.update_wrapper(cast(Any, self), fn)
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        # Kernels that were compiled with it could not follow a change.
        if "_complete" in self.__dict__:
            raise TileError(f"{self.name}.{name} is set: a tile function does not change\n  fix: make another one")
        super().__setattr__(name, value)

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
    return TileFunction(fn, location(fn))

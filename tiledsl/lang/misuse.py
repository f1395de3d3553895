"""The errors of kernel constructs that plain Python executes."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, NoReturn, TypeVar

from tiledsl.errors import TileError

__all__ = ["only_in_kernel", "operators_only_in_kernel", "typed_like"]

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_NAMES = "add sub mul truediv floordiv mod and or xor lshift rshift neg pos invert abs eq ne lt le gt ge"
_SYMBOLS = "+ - * / // % & | ^ << >> - + ~ abs() == != < <= > >="
_OPERATORS: dict[str, str] = dict(zip(_NAMES.split(), _SYMBOLS.split(), strict=True))
"""The symbols of Python's operator methods, by name without underscores."""


def only_in_kernel(what: str) -> TileError:
    """The error to raise where `what` (such as ``"barrier()"``) runs outside a kernel."""
    message = f"{what} works only inside a @tile_kernel or @tile_function, whose body is compiled"
    fix = "move it into a function decorated with @tile_kernel or @tile_function, and call the kernel"
    return TileError(f"{message}; it was executed as plain Python.\n  fix: {fix}")


def operators_only_in_kernel(cls: C) -> C:
    """A class decorator: the operators that `cls` declares, without a body, raise in plain Python."""
    for name, declared in [*vars(cls).items()]:
        plain = name.strip("_")
        symbol = _OPERATORS.get(plain) or _OPERATORS.get(plain[1:])  # __radd__ is + as well
        if symbol and name.startswith("__"):
            setattr(cls, name, wraps(declared)(_refusal(symbol)))
    return cls


def _refusal(symbol: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *other: Any) -> NoReturn:
        cls: type = self if isinstance(self, type) else type(self)
        raise only_in_kernel(f"the operator {symbol} on {cls.__name__}")

    return refuse


def typed_like(other: F) -> Callable[[Callable[..., Any]], F]:
    """A decorator that gives a function the overloads of `other`, for type checkers."""
    return lambda function: function  # pyright: ignore[reportReturnType]

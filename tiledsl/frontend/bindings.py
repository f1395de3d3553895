"""What a name in a kernel can be bound to, and the trees that such bindings form.

A binding is an `ir.Value` (run time), a plain Python object (compile time), or a list or tuple of
bindings. Lists are values: an item assignment makes a new list, so that branches cannot see each
other's changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Value
from tiledsl.ir.types import DType, FragmentType, is_memory

__all__ = [
    "POISON",
    "UNBOUND",
    "Poisoned",
    "Unusable",
    "contains_value",
    "describe",
    "is_register",
    "leaves",
    "rebuild",
    "same_constant",
]


class Poisoned(Exception):  # noqa: N818 - control flow, not an error that a user sees
    """Raised when a statement uses the result of one that failed: the follow-up is not reported."""


class _Marker:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


POISON = _Marker("<result of a failed statement>")
UNBOUND = _Marker("<unbound>")


@dataclass(frozen=True)
class Unusable:
    """A name that exists but has no usable value here; using it is an error with this text."""

    message: str
    fix: str = ""

    def error(self, loc: Loc) -> CompileError:
        return CompileError(self.message, loc, self.fix)


def is_register(binding: Any) -> bool:
    """True for run-time scalars and fragments: what control flow can carry."""
    return isinstance(binding, Value) and isinstance(binding.type, (DType, FragmentType))


def leaves(binding: Any) -> list[Any]:
    """The leaves of a tree of lists and tuples, left to right."""
    if isinstance(binding, (list, tuple)):
        return [leaf for item in binding for leaf in leaves(item)]  # pyright: ignore[reportUnknownVariableType]
    return [binding]


def rebuild(binding: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same tree with every leaf replaced by `leaf(old)`, in the order of `leaves`."""
    if isinstance(binding, list):
        return [rebuild(item, leaf) for item in binding]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(binding, tuple):
        return tuple(rebuild(item, leaf) for item in binding)  # pyright: ignore[reportUnknownVariableType]
    return leaf(binding)


def contains_value(binding: Any) -> bool:
    """True if anything in the tree is only known at run time."""
    if isinstance(binding, dict):
        return any(contains_value(item) for item in binding.values())  # pyright: ignore[reportUnknownVariableType]
    return any(isinstance(leaf, Value) for leaf in leaves(binding))


def same_constant(a: Any, b: Any) -> bool:
    """True if two compile-time values are interchangeable (1 and 1.0 and True are not)."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        return False


def describe(binding: Any) -> str:
    """How a message names the type of a binding."""
    if isinstance(binding, Value):
        if is_memory(binding.type):
            return f"the tile {binding.name or ''} ({binding.type})".replace("  ", " ")
        return f"{binding.type}"
    if isinstance(binding, type):
        return f"the type {binding.__name__}"
    if binding is None or isinstance(binding, (bool, int, float, str)):
        return f"the compile-time value {binding!r}"
    if isinstance(binding, (tuple, list)):
        return f"a {type(binding).__name__} of length {len(binding)}"  # pyright: ignore[reportUnknownArgumentType]
    return f"a compile-time {type(binding).__name__}"

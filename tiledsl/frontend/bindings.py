"""What a name in a kernel can be bound to, and the trees that such bindings form.

A binding is an `ir.Value` (run time), a plain Python object (compile time), a list or tuple of bindings,
or one of the classes below, which are compile-time objects that hold values: a `View` of memory, a
`Range`, the `Ranges` of a loop. Lists are values: an item assignment makes a new list, so that branches
cannot see each other's changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Value
from tiledsl.ir.types import DType, FragmentType, TokenType, is_memory

__all__ = [
    "POISON",
    "UNBOUND",
    "Poisoned",
    "Range",
    "Ranges",
    "Unusable",
    "View",
    "contains_value",
    "describe",
    "has_operators",
    "is_carried",
    "is_place",
    "is_register",
    "is_token",
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


@dataclass(frozen=True)
class Range:
    """`size` elements from `start` on, an index."""

    start: Value | int
    size: int


@dataclass(frozen=True)
class Ranges:
    """``tiles(extent, size)``: what a loop goes through, from 0 up to `extent`."""

    extent: Value | int
    size: int


@dataclass(frozen=True)
class View:
    """A part of `base`, a tensor or tile: axis i runs along axis `axes[i]` of it, over `dims[i]` elements.

    origin: where the view begins, one index an axis of `base`; axes of `base` that are not in `axes` stay
    there. A str in `dims` stands for the whole of a run-time extent. So every access goes to `base`.
    """

    base: Value
    origin: tuple[Value | int, ...]
    axes: tuple[int, ...]
    dims: tuple[int | str, ...]

    @property
    def rank(self) -> int:
        return len(self.axes)


def is_place(binding: Any) -> bool:
    """True for what has elements in memory: a tensor, a shared tile, a view."""
    return isinstance(binding, View) or (isinstance(binding, Value) and is_memory(binding.type))


def has_operators(binding: Any) -> bool:
    """True if operators on it are the language's own; on anything else they are Python's."""
    return isinstance(binding, (Value, View, Range, Ranges))


def is_register(binding: Any) -> bool:
    """True for run-time scalars and fragments: what has operators."""
    return isinstance(binding, Value) and isinstance(binding.type, (DType, FragmentType))


def is_token(binding: Any) -> bool:
    """True for what `copy_async` gives."""
    return isinstance(binding, Value) and isinstance(binding.type, TokenType)


def is_carried(binding: Any) -> bool:
    """True for what control flow can carry: registers and tokens."""
    return is_register(binding) or is_token(binding)


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
    return any(has_operators(leaf) for leaf in leaves(binding))


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
        if is_token(binding):
            return "the token of a copy_async()"
        return f"{binding.type}"
    if isinstance(binding, View):
        shape = " x ".join(map(str, binding.dims))
        return f"a view of {shape} elements of {binding.base.name or 'a tile'} ({binding.base.type})"
    if isinstance(binding, Range):
        at = f"from {binding.start} on" if isinstance(binding.start, int) else "at a run-time position"
        return f"a range of {binding.size} elements {at}"
    if isinstance(binding, Ranges):
        return f"the ranges of tiles(..., {binding.size})"
    if isinstance(binding, type):
        return f"the type {binding.__name__}"
    if binding is None or isinstance(binding, (bool, int, float, str)):
        return f"the compile-time value {binding!r}"
    if isinstance(binding, (tuple, list)):
        return f"a {type(binding).__name__} of length {len(binding)}"  # pyright: ignore[reportUnknownArgumentType]
    return f"a compile-time {type(binding).__name__}"

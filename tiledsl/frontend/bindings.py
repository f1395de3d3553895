"""What a name in a kernel can be bound to, and the trees that such bindings form.

A binding is an `ir.Value` (run time), a plain Python object (compile time), a list or tuple of bindings,
or one of the classes below, which are compile-time objects that hold values: a `View` of memory, a
`Range`, the `Ranges` of a loop, any `LanguageObject`. Lists are values: an item assignment
makes a new list, so that branches cannot see each other's changes.
"""

from __future__ import annotations

import ast
import struct
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from enum import Enum
from types import MethodType
from typing import Any, Callable, ClassVar, TypeGuard

from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Value
from tiledsl.ir.types import CURSOR, DType, FragmentType, MemoryType, PendingType, TokenType


class Poisoned(Exception):  # noqa: N818 - control flow, not an error that a user sees
    """Raised when a statement uses the result of one that failed: the follow-up is not reported."""


class _Marker(Enum):
    POISON = "the result of a failed statement"
    UNBOUND = "a name without a value"


POISON, UNBOUND = _Marker


@dataclass(frozen=True)
class Unusable:
    """A name that exists but has no usable value here; using it is an error with this text, at `at` if it is given."""

    message: str
    fix: str
    at: Loc | None = None
    code: str = field(kw_only=True)

    def error(self, loc: Loc) -> CompileError:
        return CompileError(self.message, self.at or loc, self.fix, code=self.code)


@dataclass(frozen=True)
class Range:
    """`size` elements from `start` on, an index."""

    start: Value | int
    size: int


@dataclass(frozen=True)
class Ranges:
    """``tiles(extent, size)``: what a loop goes through, from `start` up to `extent`."""

    extent: Value | int
    size: int
    start: Value | int = 0


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


class LanguageObject:
    """A compile-time object that stands for one of a class of `tiledsl.lang`, and has that class's methods.

    described_by: that class. shown: how a message names the object. use: how it is used, its attributes if "".
    """

    described_by: ClassVar[Any] = None
    shown: str
    use: ClassVar[str] = ""

    @property
    def data(self) -> dict[str, Any]:
        """Its attributes, by name."""
        return {}

    @property
    def fix(self) -> str:
        """What a message tells the author of an unsuitable use."""
        return self.use or f"it has {', '.join('.' + name for name in self.data)}"


@dataclass(frozen=True, eq=False)
class Region(LanguageObject):
    """What a ``with`` names. around: of the frame and the statement, adds the ops before and after the body, and
    gives what ``as`` binds."""

    shown: str
    around: Callable[[Any, ast.With], AbstractContextManager[Any]]
    use = "write it after `with`; what has attributes is bound by its `as`: with ring.fill() as s:"


@dataclass(frozen=True, eq=False)
class Pending(LanguageObject):
    """An accumulator of `wgmma`. value: of a `PendingType`. started: has anything been added to it? If not, its content
    is undefined, and it stands for 0. Control flow carries and merges both."""

    value: Any
    started: Any
    shown = "an accumulator that products are still being added to"
    use = "wait for it: x = acc.wait()"

    @property
    def type(self) -> FragmentType:
        """What it will be."""
        type_ = self.value.type
        assert isinstance(type_, PendingType)
        return type_.fragment

    @property
    def data(self) -> dict[str, Any]:
        layout = self.type.held_as
        return {"layout": layout, "a": layout.a, "shape": self.type.dims}


def is_int(value: Any) -> TypeGuard[int]:
    """True for a compile-time int; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def positive_ints(given: Any) -> tuple[int, ...] | None:
    """Positive compile-time ints, one or a tuple or list of them, as a tuple; None for anything else."""
    found: Any = tuple(given) if isinstance(given, (tuple, list)) else (given,)  # pyright: ignore
    return found if all(is_int(n) and n > 0 for n in found) else None


def is_method(binding: Any) -> TypeGuard[MethodType]:
    """True for a method of the language, bound to a run-time value or an object of the language."""
    return isinstance(binding, MethodType) and has_operators(binding.__self__)


def is_place(binding: Any) -> bool:
    """True for what has elements in memory: a tensor, a shared tile, a view."""
    return isinstance(binding, View) or (isinstance(binding, Value) and isinstance(binding.type, MemoryType))


def has_operators(binding: Any) -> bool:
    """True if operators on it are the language's own; on anything else they are Python's."""
    return isinstance(binding, (Value, View, Range, Ranges, LanguageObject))


def is_register(binding: Any) -> bool:
    """True for run-time scalars and fragments: what has operators."""
    return isinstance(binding, Value) and isinstance(binding.type, (DType, FragmentType))


def is_fragment(binding: Any) -> bool:
    """True for a run-time fragment, with a layout or without."""
    return isinstance(binding, Value) and isinstance(binding.type, FragmentType)


def dtype_of(register: Value) -> DType:
    """The dtype of a scalar, or of a fragment's elements."""
    type_ = register.type.dtype if isinstance(register.type, FragmentType) else register.type
    assert isinstance(type_, DType)
    return type_


def is_token(binding: Any) -> bool:
    """True for what `copy_async` gives."""
    return isinstance(binding, Value) and isinstance(binding.type, TokenType)


def is_carried(binding: Any) -> bool:
    """True for what control flow can carry: registers, tokens, accumulators in flight and cursors of rings."""
    carried = (DType, FragmentType, TokenType, PendingType)
    return isinstance(binding, Value) and (isinstance(binding.type, carried) or binding.type is CURSOR)


def is_pending(binding: Any) -> bool:
    """True for the value of a `Pending`."""
    return isinstance(binding, Value) and isinstance(binding.type, PendingType)


def parts_of(binding: Any) -> tuple[Any, ...] | None:
    """The parts of a list, a tuple or an accumulator; None for a leaf of the tree that such bindings form."""
    if isinstance(binding, Pending):
        return binding.value, binding.started
    return tuple(binding) if isinstance(binding, (list, tuple)) else None  # pyright: ignore


def made_of(binding: Any, parts: list[Any]) -> Any:
    """The same kind of binding with other parts."""
    if isinstance(binding, Pending):
        return Pending(*parts)
    return parts if isinstance(binding, list) else tuple(parts)


def leaves(binding: Any) -> list[Any]:
    """The leaves of a tree, left to right."""
    parts = parts_of(binding)
    return [binding] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def rebuild(binding: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same tree with every leaf replaced by `leaf(old)`, in the order of `leaves`."""
    parts = parts_of(binding)
    return leaf(binding) if parts is None else made_of(binding, [rebuild(part, leaf) for part in parts])


def unusable(binding: Any) -> bool:
    """True for what a name is bound to that has no value here."""
    return binding is UNBOUND or binding is POISON or isinstance(binding, Unusable)


def contains_value(binding: Any) -> bool:
    """True if anything in the tree is only known at run time."""
    if isinstance(binding, LanguageObject):
        return True
    if isinstance(binding, dict):
        return any(contains_value(item) for item in binding.values())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(binding, (list, tuple)):
        return any(contains_value(item) for item in binding)  # pyright: ignore[reportUnknownVariableType]
    return has_operators(binding)


def same_constant(a: Any, b: Any) -> bool:
    """True if two compile-time values are interchangeable: of one type, with numbers that are equal bit by bit.

    Not what ``==`` says: 1, 1.0 and True differ, 0.0 and -0.0 do, NaNs of the same bits do not. What has parts is
    compared part by part; objects of other classes are the same only if they are one object.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if type(a) in (bool, int, str, bytes):
        return a == b
    parts, others = _constant_parts(a, type(a)), _constant_parts(b, type(b))
    if parts is None or others is None or len(parts) != len(others):
        return False
    return all(same_constant(x, y) for x, y in zip(parts, others, strict=True))


def _constant_parts(value: Any, kind: Any) -> list[Any] | None:
    """What makes up a compile-time value of class `kind` that is nothing but its parts; None for any other."""
    if kind in (tuple, list) or (tuple in kind.__mro__ and hasattr(kind, "_fields")):  # the latter: a NamedTuple
        return list(value)
    if kind is dict:
        return [part for item in value.items() for part in item]
    if kind in (slice, range):
        return [value.start, value.stop, value.step]
    if kind is MethodType:
        return [value.__self__, value.__func__]
    params = getattr(kind, "__dataclass_params__", None)
    if params is None or not params.frozen or not params.eq:
        return None
    return [getattr(value, field.name) for field in fields(kind)]


def instead_of(binding: Any) -> str:
    """What a message advises where a number is needed and this was given."""
    if isinstance(binding, Range):
        return "use its start: r.start; `r + n` and `r - n` move it by n elements"
    if is_token(binding):
        return "wait for it: wait(token)"
    if isinstance(binding, LanguageObject):
        return binding.fix
    if is_fragment(binding):
        return "use its elements" if binding.type.layout is None else "store it to a tile, and read its elements"
    return "read an element of it: t[i, j]" if is_place(binding) else "use numbers, or values of a dtype: f32(...)"


def describe(binding: Any) -> str:
    """How a message names the type of a binding."""
    if isinstance(binding, Value):
        if isinstance(binding.type, MemoryType):
            return f"the tile {binding.name or ''} ({binding.type})".replace("  ", " ")
        if is_token(binding):
            return "the token of a copy_async()"
        if is_pending(binding):
            return Pending.shown
        return f"{binding.type}"
    if isinstance(binding, View):
        shape = " x ".join(map(str, binding.dims))
        return f"a view of {shape} elements of {binding.base.name or 'a tile'} ({binding.base.type})"
    if isinstance(binding, Range):
        at = f"from {binding.start} on" if isinstance(binding.start, int) else "at a run-time position"
        return f"a range of {binding.size} elements {at}"
    if isinstance(binding, LanguageObject):
        return binding.shown
    if isinstance(binding, Ranges):
        return f"the ranges of tiles(..., {binding.size})"
    if isinstance(binding, type):
        return f"the type {binding.__name__}"
    if binding is None or isinstance(binding, (bool, int, float, str)):
        return f"the compile-time value {binding!r}"
    if isinstance(binding, (tuple, list)):
        return f"a {type(binding).__name__} of length {len(binding)}"  # pyright: ignore[reportUnknownArgumentType]
    return f"a compile-time {type(binding).__name__}"

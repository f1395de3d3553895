"""Read what the annotations of a tile function declare: the part of them that each call checks.

The frontend compares the arguments and the result of a call with these (`tiledsl/frontend/declared.py`). Their text is
part of what a kernel depends on (`tiledsl/meaning/`): a kernel is compiled again when an annotation is a new one.
"""

from __future__ import annotations

import inspect
import re
import typing
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Callable, Mapping, TypeVar
from weakref import WeakKeyDictionary

from tiledsl.function import TileFunction
from tiledsl.ir.types import INDEX, DType
from tiledsl.lang.constants import ConstMarker
from tiledsl.lang.dim import DimMeta
from tiledsl.lang.dtypes import Scalar, ir_dtype
from tiledsl.lang.fragments import Fragment
from tiledsl.lang.memory import Global, Memory, SharedTile, View
from tiledsl.signatures.annotations import dim_of, evaluated, is_union, shown

PLACES = (Global, SharedTile, View, Memory)
PYTHON = (int, float, bool, str, NoneType)


@dataclass(frozen=True)
class Declared:
    """An annotation. `text`: how messages show it. One of this class itself is met by anything."""

    text: str = ""


@dataclass(frozen=True)
class OfDType(Declared):
    """A value of a dtype (``f32``), or a fragment of it. ``index`` also takes an int, which stays one."""

    dtype: DType = INDEX


@dataclass(frozen=True)
class OfVariable(Declared):
    """A type variable, ``T``: values and fragments of one dtype in the whole call.

    `among`: the dtypes that it may be, or None for all of the class `bound` of `tiledsl.lang.dtypes`.
    """

    name: str = ""
    among: tuple[DType, ...] | None = None
    bound: type[Scalar] = field(default=Scalar, repr=False)


@dataclass(frozen=True)
class InMemory(Declared):
    """A place in memory of a `kind`: ``Global[f32, M, K]``, ``SharedTile[T]``, ``View[f32]``.

    `dtype` is None for any; `dims` is None for any number of axes, and None in it stands for any extent.
    """

    kind: str = ""
    dtype: OfDType | OfVariable | None = None
    dims: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True)
class InRegisters(Declared):
    """A fragment, ``Fragment[f32]``. `dtype` is None for any."""

    dtype: OfDType | OfVariable | None = None


@dataclass(frozen=True)
class OfClass(Declared):
    """An object of a class of Python (`PYTHON`) or of the language, such as a ring."""

    cls: type[Any] = field(default=object, repr=False)


@dataclass(frozen=True)
class CompileTime(Declared):
    """A compile-time value of `inner`: ``Const[X]``, ``Literal[...]``. `among`: the only values, or None."""

    inner: Declared = Declared()
    among: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class InTuple(Declared):
    """A tuple: ``tuple[X, Y]``, or ``tuple[X, ...]``, which is `repeated`."""

    parts: tuple[Declared, ...] = ()
    repeated: bool = False


@dataclass(frozen=True)
class OneOf(Declared):
    """A union, ``X | Y``."""

    options: tuple[Declared, ...] = ()


@dataclass(frozen=True)
class Unreadable(Declared):
    """An annotation kept as text that cannot be evaluated. `why`: what Python says."""

    why: str = ""


@dataclass(frozen=True)
class DeclaredCall:
    """The annotations of a function: of its parameters by name, and `result`; what has none is left out."""

    parameters: Mapping[str, Declared]
    result: Declared | None
    signature: inspect.Signature = field(repr=False)


_READ: WeakKeyDictionary[TileFunction[..., Any], DeclaredCall] = WeakKeyDictionary()


def declared_of(function: TileFunction[..., Any]) -> DeclaredCall:
    """Return what the annotations of `function` declare. They are read once."""
    known = _READ.get(function)
    if known is None:
        signature = inspect.signature(function.fn, follow_wrapped=False)  # of the function that is compiled
        reader = _Reader(function.fn, function.names)
        given = {name: p.annotation for name, p in signature.parameters.items() if p.annotation is not p.empty}
        result = signature.return_annotation
        read = {name: reader.read(annotation) for name, annotation in given.items()}
        known = DeclaredCall(read, None if result is signature.empty else reader.read(result), signature)
        _READ[function] = known
    return known


_LEFT_OUT = re.compile(r"\b(?:typing|tiledsl(?:\.[a-z_]\w*)*)\.(?=\w)|~(?=\w)")
"""The parts of an annotation that messages leave out: names of modules, and the sign that Python puts before `T`."""


class _Reader:
    def __init__(self, fn: Callable[..., Any], names: Mapping[str, Any]) -> None:
        self.fn, self.names = fn, names

    def read(self, annotation: Any) -> Declared:
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if (isinstance(annotation, str) and annotation.startswith("*")) or getattr(annotation, "__unpacked__", False):
            return Declared()  # ``*xs: *tuple[f32, i32]``
        if isinstance(annotation, str):
            try:
                return self.read(evaluated(annotation, self.fn, self.names))
            except Exception as error:
                return Unreadable(annotation, f"{error}")
        text = _LEFT_OUT.sub("", shown(annotation))
        if annotation is None or any(annotation is cls for cls in PYTHON):
            return OfClass("None" if annotation in (None, NoneType) else text, annotation or NoneType)
        dtype = ir_dtype(annotation)
        if dtype is not None:
            return OfDType(text, dtype)
        if isinstance(annotation, TypeVar):
            return self.variable(annotation)
        return self.composed(annotation, text)

    def composed(self, annotation: Any, text: str) -> Declared:
        origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
        if is_union(annotation):
            return self.union(text, args)
        if origin is typing.Annotated:
            inner = self.read(args[0])
            marked = any(isinstance(marker, ConstMarker) for marker in args[1:])
            return CompileTime(f"Const[{inner.text}]", inner) if marked else inner
        if origin is typing.Literal:
            return CompileTime(text, Declared(), args)
        if origin is type and len(args) == 1 and isinstance(args[0], DimMeta):
            return OfDType(text, INDEX)  # the name of a dimension stands for an index
        if origin is tuple and args:
            repeated = len(args) == 2 and args[1] is ...
            return InTuple(text, tuple(self.read(arg) for arg in args if arg is not ...), repeated)
        if origin in PLACES:
            return self.memory(origin, text, args)
        if origin is Fragment:
            return InRegisters(text, self.element(args))
        if isinstance(origin, type) and origin.__module__.startswith("tiledsl.lang."):
            cls: Any = origin  # pyright: ignore[reportUnknownVariableType]
            return OfClass(text, cls)
        alias = getattr(
            annotation, "__value__", getattr(annotation, "__supertype__", None)
        )  # ``type X = ...``; NewType
        return self.read(alias) if alias is not None else Declared()

    def union(self, text: str, args: tuple[Any, ...]) -> Declared:
        options = [self.read(arg) for arg in args]
        if any(isinstance(each, OfDType) and each.dtype != INDEX for each in options):
            # `f32 | float` is what type checkers accept a literal for; it stands for f32, as in a kernel's parameters.
            options = [each for each in options if not (isinstance(each, OfClass) and each.cls in (int, float, bool))]
        return options[0] if len(options) == 1 else OneOf(text, tuple(options))

    def variable(self, variable: TypeVar) -> OfVariable:
        among = tuple(dtype for each in variable.__constraints__ if (dtype := ir_dtype(each)) is not None)
        bound: Any = variable.__bound__
        if isinstance(bound, (str, typing.ForwardRef)):
            bound = None  # as of type checkers alone
        of_scalars = bound if isinstance(bound, type) and issubclass(bound, Scalar) else Scalar
        name: Any = variable.__name__  # Python lets a type variable have any object as its name
        return OfVariable(f"{name}: {of_scalars.__name__}", name, among or None, of_scalars)

    def element(self, args: tuple[Any, ...]) -> OfDType | OfVariable | None:
        """Return the dtype of what is in memory or registers."""
        read = self.read(args[0]) if args else None
        return read if isinstance(read, (OfDType, OfVariable)) else None

    def memory(self, kind: Any, text: str, args: tuple[Any, ...]) -> InMemory:
        fixed = kind is Global and len(args) > 1 and not any(typing.get_origin(arg) is typing.Unpack for arg in args)
        dims = tuple(arg.__name__ if isinstance(arg, TypeVar) else dim_of(arg) for arg in args[1:]) if fixed else None
        return InMemory(text, kind.__name__, self.element(args), dims)

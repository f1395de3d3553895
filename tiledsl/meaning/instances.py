"""How a walk reads classes and their instances, and which objects have no content that can be read."""

from __future__ import annotations

import sys
import typing
from functools import WRAPPER_ASSIGNMENTS, partial
from importlib import import_module
from keyword import iskeyword
from types import (
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Callable, Iterable, TypeVar
from weakref import WeakKeyDictionary

from tiledsl.function import TileFunction
from tiledsl.meaning.origin import HEAP_TYPE, exact_type, home
from tiledsl.meaning.versions import body_of
from tiledsl.meaning.walk import KINDS, OTHERS, PLAIN, Walk

# -- classes ---------------------------------------------------------------------------------------------

NATIVE = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
IGNORED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__annotations_cache__"})
DESCRIBING = frozenset({"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__"})
"""What `typing` and `dataclasses` keep of a class: it counts, but is never changed in place."""


def walk_class(walk: Walk, cls: type) -> None:
    if walk.place(cls, "class") != "user":
        return
    if is_native(cls):
        if not _of_numpy(walk, cls):
            walk.unknown(cls, f"the class {cls.__module__}.{cls.__qualname__} is not written in Python")
        return
    walk.add("class", f"{cls.__module__}.{cls.__qualname__}")
    walk.visit(type(cls))
    for base in cls.__bases__:
        walk.visit(base)
    for name, member in [*cls.__dict__.items()]:
        if name not in IGNORED:
            walk.add("member", name)
            if _is_generated(name, member, cls):
                continue
            if name in DESCRIBING:
                with walk.guards.off():
                    walk.add("describing", walk.apart(member).hex())
            else:
                walk.visit(member, f"{cls.__name__}.{name}")
    walk.guards.term("{0}.__bases__ is {1}", cls, cls.__bases__)
    values = cls.__dict__.values()  # a view, which follows the class
    walk.guards.items([*values], "{0}", values, held_by=body_of(cls))
    _registrations(walk, cls)


def _is_generated(name: str, member: Any, cls: type) -> bool:
    """True for a method that @dataclass wrote, from the fields and parameters that it keeps."""
    if "__dataclass_fields__" not in cls.__dict__ or not isinstance(member, FunctionType):
        return False
    wrapped: Any = member.__dict__.get("__wrapped__", member)  # __repr__ is wrapped
    return wrapped.__code__.co_qualname == f"__create_fn__.<locals>.{name}"


def _registrations(walk: Walk, cls: type) -> None:
    """Classes that were registered with an abstract one decide `isinstance`, from wherever they are."""
    if "_abc_impl" in cls.__dict__:
        abstract: Any = import_module("_abc")
        if abstract._get_dump(cls)[0]:
            walk.unknown(cls, f"other classes are registered with {cls.__qualname__}")


def is_native(cls: type) -> bool:
    """True for a class that is not written in Python: its instances may have content that Python does not show."""
    if not type.__dict__["__flags__"].__get__(cls) & HEAP_TYPE:
        return True
    return any(
        isinstance(member, (*NATIVE, GetSetDescriptorType)) and member.__objclass__ is cls
        for name, member in cls.__dict__.items()
        if name not in IGNORED
    )


# -- instances -------------------------------------------------------------------------------------------


_dict: Any = dict
_PARTS: dict[Any, list[Any]] = {dict: [_dict.keys, _dict.values]}


def _plain(base: Any) -> Callable[[Any], Any]:
    """What makes a plain `base` of an instance of a class derived from it, whatever that class overrides."""
    return lambda value: base(base.__iter__(value))


def _items(base: Any) -> Callable[[Any], list[Any]]:
    return lambda value: [item for part in _PARTS.get(base, [base.__iter__]) for item in part(value)]


CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__,
    str: str.__str__, bytes: bytes.__bytes__,
    **{base: _plain(base) for base in (tuple, list, set, frozenset)}, dict: lambda value: _dict(_dict.items(value)),
}  # fmt: skip
"""What an instance of a class derived from a builtin one contains as that: a plain one of it."""

MUTABLE = {base: _items(base) for base in (list, set, dict)}
"""The items of one that can change in place."""

READABLE_BASES = frozenset({object, typing.Generic, *CONTENT})  # Generic is made in C from Python 3.12 on


def walk_instance(walk: Walk, value: Any) -> None:
    cls = exact_type(value)
    if _of_numpy(walk, value):
        return
    if cls.__module__ == "typing" and vars(typing).get(getattr(value, "_name", "")) is value:
        walk.add("typing", value._name)  # Literal, Optional ..., which keep caches
        return
    if _is_record(cls):
        walk.add("record")
        walk.visit(cls)
        walk.visit(tuple(value))
        return
    if not _readable_class(cls):
        walk.unknown(value, f"a {cls.__module__}.{cls.__qualname__} has no content that can be read")
        return
    walk.add("object", f"{cls.__module__}.{cls.__qualname__}")
    walk.visit(cls)
    if home(cls) == "tiledsl":
        _own(walk, value)
        return
    for base, content in CONTENT.items():
        if isinstance(value, base):
            walk.visit(content(value))
    _visit_all(walk, "state", _state(value))
    _guard_state(walk, value)


def _visit_all(walk: Walk, kind: str, members: Iterable[tuple[str, Any]]) -> None:
    for name, member in members:
        walk.add(kind, name)
        walk.visit(member, name)


def _own(walk: Walk, value: Any) -> None:
    """An object of tiledsl. None of them changes."""
    if isinstance(value, TileFunction):
        _tile_function(walk, value)  # pyright: ignore[reportUnknownArgumentType]
    elif type(value).__name__ == "TileKernel":
        walk.visit(value.signature.fn)  # its caches are no part of it
    else:
        _visit_all(walk, "state", _state(value))


TILE_FUNCTION = frozenset({*WRAPPER_ASSIGNMENTS, "fn", "loc", "__wrapped__", "_complete"})
"""The attributes that every tile function has."""


def _tile_function(walk: Walk, function: TileFunction[..., Any]) -> None:
    fn: Any = function.fn
    walk.kernel(fn)
    # The others were set on `fn` before it was decorated.
    _visit_all(walk, "attribute", [pair for pair in vars(function).items() if pair[0] not in TILE_FUNCTION])


def _state(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance, in its dict and its slots."""
    cls = exact_type(value)
    slots = [(name, _slot(slot, value)) for name, slot in _slots(cls)]
    return [*_dict_of(value).items(), *(pair for pair in slots if pair[1] is not _EMPTY_SLOT)]


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _slots(cls: type) -> list[tuple[str, Any]]:
    slots = [pair for base in cls.__mro__ for pair in base.__dict__.items()]
    return [(name, slot) for name, slot in slots if isinstance(slot, MemberDescriptorType)]


def _guard_state(walk: Walk, value: Any) -> None:
    """Guard all content of an instance that may change in place. A frozen dataclass and a NamedTuple do not."""
    cls = exact_type(value)
    if _is_frozen(cls) or not walk.guards.taken:
        return
    walk.guards.term("{0}({1}) is {2}", type, value, cls)
    for base, read in MUTABLE.items():
        if isinstance(value, base):
            walk.guards.items(read(value), "{0}({1})", read, value)
    own = _dict_of(value)
    slots = _slots(cls)
    plain = cls.__getattribute__ is object.__getattribute__ and not slots
    if not plain or not all(_is_only_here(name, cls) for name in own):
        read = partial(_state_items, slots)
        walk.guards.items(read(value), "{0}({1})", read, value)
        return
    # Python reads an attribute faster than an item of the dict.
    for name, member in own.items():
        walk.guards.term(f"{{0}}.{name} is {{1}}", value, member)
    if own or cls.__dictoffset__:
        walk.guards.term("{0}({1}.__dict__) == {2}", len, value, len(own))


def _is_only_here(name: str, cls: type) -> bool:
    """True if ``value.name`` gives what is in the dict of an instance: no class of it has such an attribute."""
    written = name.isidentifier() and not iskeyword(name)
    return written and not any(name in base.__dict__ for base in cls.__mro__)


def _is_frozen(cls: type) -> bool:
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    if parameters is not None:
        return parameters.frozen
    return tuple in cls.__mro__ and cls.__dict__.get("__slots__") == () and "_fields" in cls.__dict__


def _state_items(slots: list[tuple[str, Any]], value: Any) -> list[Any]:
    own = _dict_of(value)
    return [*(_slot(slot, value) for _, slot in slots), *own, *own.values()]


_EMPTY_SLOT = object()


def _slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _EMPTY_SLOT


_READABLE: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def _readable_class(cls: type) -> bool:
    """True if all content of its instances is in their dict, their slots, or that of a builtin type."""
    known = _READABLE.get(cls)
    if known is None:
        known = _READABLE[cls] = all(base in READABLE_BASES or not is_native(base) for base in cls.__mro__)
    return known


def _is_record(cls: type) -> bool:
    """True for a tuple with names that is made in C: sys.version_info, the shape of a tensor."""
    return cls.__mro__[1:] == (tuple, object) and is_native(cls)


def unreadable(value: Any) -> bool:
    """True for an object that can change, with content that cannot be read: a generator, a file, a tensor."""
    try:
        kind = exact_type(value)
        if kind in PLAIN or kind in KINDS or isinstance(value, (type, ModuleType, TypeVar)) or callable(value):
            return False
        return not _readable_class(kind) and not _is_record(kind) and _numpy_content(value) is None
    except Exception:  # of a metaclass, say
        return True


# -- NumPy -----------------------------------------------------------------------------------------------

LARGEST = 2**16
"""Bytes of an array that is compared at each call."""


def _of_numpy(walk: Walk, value: Any) -> bool:
    """Add a scalar, array, dtype or ufunc of NumPy, or a type of its scalars; False for all else."""
    content = _numpy_content(value)
    if content is None:
        return False
    numpy = sys.modules["numpy"]
    walk.add("numpy", repr((numpy.__version__, content)))
    if isinstance(value, numpy.ndarray):
        walk.guards.term("{0}({1}) == {2}", _numpy_content, value, content)
    return True


def _numpy_content(value: Any) -> tuple[Any, ...] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, type):
        return ("type", f"{value.__module__}.{value.__name__}") if issubclass(value, numpy.generic) else None
    kind = exact_type(value)
    if kind is numpy.ndarray:
        plain = not value.dtype.hasobject and value.nbytes <= LARGEST
        return (repr(value.dtype), value.shape, value.strides, value.tobytes()) if plain else None
    if isinstance(value, numpy.generic) and is_native(kind):
        return (repr(value.dtype), value.tobytes()) if not value.dtype.hasobject else None
    if isinstance(value, numpy.dtype):
        return ("dtype", repr(value)) if not value.hasobject else None
    # Those made by frompyfunc call what they like.
    return ("ufunc", value.__name__) if kind is numpy.ufunc and value is vars(numpy).get(value.__name__) else None


OTHERS.update({"class": walk_class, "instance": walk_instance})

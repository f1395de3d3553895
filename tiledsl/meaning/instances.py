"""How a walk reads classes and their instances, and which objects have no content that can be read."""

from __future__ import annotations

import sys
from functools import WRAPPER_ASSIGNMENTS, partial
from types import (
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Iterator, TypeVar
from weakref import WeakKeyDictionary

from tiledsl.function import TileFunction
from tiledsl.meaning.origin import HEAP_TYPE, home
from tiledsl.meaning.walk import KINDS, PLAIN, Walk

__all__ = ["unreadable", "walk_class", "walk_instance"]

# -- classes ---------------------------------------------------------------------------------------------

NATIVE = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
IGNORED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__annotations_cache__"})
DESCRIBING = frozenset({"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__"})
"""What `typing` and `dataclasses` keep of a class: it counts, but nobody changes it in place."""


def walk_class(walk: Walk, cls: type) -> None:
    place = home(cls)
    if place in ("tiledsl", "pure"):
        walk.add("class", f"{cls.__module__}.{cls.__qualname__}")
        return
    if place == "library":
        walk.unknown(cls, f"{cls.__module__}.{cls.__qualname__} of the standard library may read files or state")
        return
    if is_native(cls):
        if not _of_numpy(walk, cls):
            walk.unknown(cls, f"the class {cls.__module__}.{cls.__qualname__} is not written in Python")
        return
    walk.add("class", f"{cls.__module__}.{cls.__qualname__}")
    walk.guards.term("{0}.__bases__ is {1}", cls, cls.__bases__)
    walk.visit(type(cls))
    for base in cls.__bases__:
        walk.visit(base)
    for name, member in [*cls.__dict__.items()]:
        if name not in IGNORED:
            walk.add("member", name)
            if name in DESCRIBING:
                with walk.guards.off():
                    walk.add("describing", walk.apart(member).hex())
            else:
                walk.visit(member, f"{cls.__name__}.{name}")
    walk.guards.content(_class_items, cls)
    _registrations(walk, cls)


def _class_items(cls: type) -> list[Any]:
    own = cls.__dict__
    return [*own, *own.values()]


def _registrations(walk: Walk, cls: type) -> None:
    """Classes that were registered with an abstract one decide `isinstance`, from wherever they are."""
    if "_abc_impl" in cls.__dict__:
        from _abc import _get_dump  # type: ignore[import-not-found]

        registered: Any = _get_dump(cls)[0]
        if registered:
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

CONTENT: dict[type, Any] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__,
    str: str.__str__, bytes: bytes.__bytes__,
    tuple: lambda v: tuple(tuple.__iter__(v)),
    list: lambda v: list(list.__iter__(v)),
    dict: lambda v: dict(dict.items(v)),
    set: lambda v: set(set.__iter__(v)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}  # fmt: skip
"""What an instance of a class derived from a builtin one contains as that: a plain one of it."""

MUTABLE: dict[type, Any] = {
    list: lambda v: [*list.__iter__(v)],
    set: lambda v: [*set.__iter__(v)],
    dict: lambda v: [*dict.keys(v), *dict.values(v)],
}
READABLE_BASES = frozenset({object, *CONTENT})


def walk_instance(walk: Walk, value: Any) -> None:
    cls = type(value)
    if _of_numpy(walk, value):
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
    for name, member in _state(value):
        walk.add("state", name)
        walk.visit(member, name)
    walk.guards.content(_reader(cls), value)


def _own(walk: Walk, value: Any) -> None:
    """An object of tiledsl. None of them changes, but for what is set on a tile function."""
    if isinstance(value, TileFunction):
        _tile_function(walk, value)  # pyright: ignore[reportUnknownArgumentType]
    elif type(value).__name__ == "TileKernel":
        walk.visit(value.signature.fn)  # its caches are no part of it
    else:
        for name, member in _state(value):
            walk.add("state", name)
            walk.visit(member, name)


TILE_FUNCTION = frozenset({*WRAPPER_ASSIGNMENTS, "fn", "loc", "__wrapped__"})
"""The attributes that every tile function has."""


def _tile_function(walk: Walk, function: TileFunction[..., Any]) -> None:
    fn: Any = function.fn
    walk.path.append(function.name)
    walk.kernel(fn)
    walk.path.pop()
    if home(fn) == "tiledsl":
        return
    walk.guards.term("{0}.fn is {1}", function, fn)
    more = {name: value for name, value in vars(function).items() if name not in TILE_FUNCTION}
    if more:
        walk.visit(more)
        walk.guards.content(_dict_items, function)
    else:
        walk.guards.term("{0}({1}.__dict__) == {2}", len, function, len(vars(function)))


def _state(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an instance, in its dict and its slots."""
    found = [*_dict_of(value).items()]
    for name, slot in _slots(type(value)):
        try:
            found.append((name, slot.__get__(value)))
        except AttributeError:
            continue
    return found


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _slots(cls: type) -> list[tuple[str, Any]]:
    slots = [pair for base in cls.__mro__ for pair in base.__dict__.items()]
    return [(name, slot) for name, slot in slots if isinstance(slot, MemberDescriptorType)]


def _reader(cls: type) -> Any:
    """What reads all content of an instance that may change in place."""
    slots = [slot for _, slot in _slots(cls)]
    builtin = [read for base, read in MUTABLE.items() if issubclass(cls, base)]
    return partial(_all_items, slots, builtin) if slots or builtin else _dict_items


def _dict_items(value: Any) -> list[Any]:
    own = value.__dict__
    return [type(value), *own, *own.values()]


def _all_items(slots: list[Any], builtin: list[Any], value: Any) -> list[Any]:
    found = [type(value), *(slot.__get__(value, None) if slot_is_set(slot, value) else None for slot in slots)]
    for read in builtin:
        found += read(value)
    own = _dict_of(value)
    return [*found, *own, *own.values()]


def slot_is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


_READABLE: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def _readable_class(cls: type) -> bool:
    """True if all content of its instances is in their dict, their slots, or that of a builtin type."""
    known = _READABLE.get(cls)
    if known is None:
        known = _READABLE[cls] = all(base in READABLE_BASES or not is_native(base) for base in cls.__mro__)
    return known


def unreadable(value: Any) -> bool:
    """True for an object that can change, with content that nobody can read: a generator, a file, a tensor."""
    kind = type(value)
    if kind in PLAIN or kind in KINDS or isinstance(value, (type, ModuleType, TypeVar)) or callable(value):
        return False
    return not _readable_class(kind) and _numpy_content(value) is None


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
        walk.guards.content(_numpy_content, value)
    return True


def _numpy_content(value: Any) -> tuple[Any, ...] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, type):
        return ("type", f"{value.__module__}.{value.__name__}") if issubclass(value, numpy.generic) else None
    kind: type = type(value)
    if kind is numpy.ndarray:
        plain = not value.dtype.hasobject and value.nbytes <= LARGEST
        return (repr(value.dtype), value.shape, value.strides, value.tobytes()) if plain else None
    if isinstance(value, numpy.generic) and is_native(kind):
        return (repr(value.dtype), value.tobytes()) if not value.dtype.hasobject else None
    if isinstance(value, numpy.dtype):
        return ("dtype", repr(value)) if not value.hasobject else None
    return ("ufunc", value.__name__) if kind is numpy.ufunc else None

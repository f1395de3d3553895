"""How a walk reads classes and their instances, and which objects have no content that can be read."""

from __future__ import annotations

import builtins
import sys
import typing
from importlib import import_module
from types import (
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Callable, TypeVar

from tiledsl.function import TileFunction
from tiledsl.meaning.guards import Guards
from tiledsl.meaning.origin import HEAP_TYPE, home, origin
from tiledsl.meaning.versions import body_of
from tiledsl.meaning.walk import KINDS, PLAIN, Walk
from tiledsl.outside import exact_type
from tiledsl.signatures.declared import declared_of

# -- classes ---------------------------------------------------------------------------------------------

NATIVE = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
IGNORED = frozenset({"__dict__", "__weakref__", "_abc_impl", "__annotations_cache__"})
DESCRIBING = frozenset({"__annotations__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__"})
"""What `typing` and `dataclasses` keep of a class: it counts, but is never changed in place."""


def _walk_class(walk: Walk, cls: type) -> None:
    if walk.place(cls, "class") != "user":
        return
    if _is_native(cls):
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
                walk.add("describing", walk.apart(member, Guards()).hex())
            elif name.startswith("__") and type(member) is frozenset:  # of `abc` and `typing`, as __abstractmethods__
                walk.members(member)
            else:
                walk.visit(member, f"{cls.__name__}.{name}")
    walk.guards.term("{0}.__bases__ is {1}", cls, cls.__bases__)
    values = cls.__dict__.values()  # a view, which follows the class
    walk.guards.items([*values], "{0}", values, held_by=body_of(cls))
    registered: Any = import_module("_abc")._get_dump
    if "_abc_impl" in cls.__dict__ and registered(cls)[0]:  # they decide `isinstance`, from wherever they are
        walk.unknown(cls, f"other classes are registered with {cls.__qualname__}")


def _is_generated(name: str, member: Any, cls: type) -> bool:
    """True for a method that @dataclass wrote, from the fields and parameters that it keeps."""
    if "__dataclass_fields__" not in cls.__dict__ or not isinstance(member, FunctionType):
        return False
    wrapped: Any = member.__dict__.get("__wrapped__", member)  # __repr__ is wrapped
    return wrapped.__code__.co_qualname == f"__create_fn__.<locals>.{name}"


def _is_native(cls: type) -> bool:
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


def _content_of(base: Any) -> Callable[[Any], Any]:
    """What an instance of a class derived from `base` contains as that, whatever the class overrides."""
    if base is dict:
        return lambda value: _dict(_dict.items(value))
    return base.__getnewargs__ if hasattr(base, "__getnewargs__") else lambda value: base(base.__iter__(value))


CONTENT = {base: _content_of(base) for base in (int, float, complex, str, bytes, tuple, list, set, frozenset, dict)}
READABLE_BASES = frozenset({object, typing.Generic, *CONTENT})  # Generic is made in C from Python 3.12 on


def walk_other(walk: Walk, value: Any) -> None:
    """An object whose type is not a kind of its own."""
    if isinstance(value, ModuleType):  # its attributes may be read by any name
        if value is not builtins and origin(value) in ("pure", "tiledsl"):
            walk.add("module", value.__name__)
        else:
            walk.unknown(value, f"the module {value.__name__} as a value: which of its names are read is not known")
    elif isinstance(value, type):
        _walk_class(walk, value)
    elif isinstance(value, TypeVar):
        walk.add("type variable", value.__name__)
    elif not _of_numpy(walk, value):
        _walk_instance(walk, value)


def _walk_instance(walk: Walk, value: Any) -> None:
    cls = exact_type(value)
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
    ours = home(cls) == "tiledsl"
    if ours and isinstance(value, TileFunction):
        if home(value.fn) != "tiledsl":  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            walk.add("declared", repr(declared_of(value)))  # pyright: ignore[reportUnknownArgumentType]
        walk.kernel(value.fn)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        return
    if ours and cls.__name__ == "TileKernel":
        walk.visit(value.signature.fn)  # its caches are no part of it
        return
    for base, content in CONTENT.items():
        if isinstance(value, base):
            iterate: Any = base
            if base in (set, frozenset):
                walk.members(iterate.__iter__(value))  # its own order: a copy may have another
            walk.visit(content(value))
    own, slots = _dict_of(value), _slots(cls)
    members = [*own.items(), *((name, _slot(slot, value)) for name, slot in slots)]
    for name, member in members:
        if member is not _EMPTY_SLOT:
            walk.add("state", name)
            walk.visit(member, name)
    if not ours and not _is_frozen(cls):
        _guard_state(walk, value, own, slots)


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _slots(cls: type) -> list[tuple[str, Any]]:
    slots = [pair for base in cls.__mro__ for pair in base.__dict__.items()]
    return [(name, slot) for name, slot in slots if isinstance(slot, MemberDescriptorType)]


_EMPTY_SLOT = object()


def _slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _EMPTY_SLOT


def _guard_state(walk: Walk, value: Any, own: dict[str, Any], slots: list[tuple[str, Any]]) -> None:
    """Guard all content of an instance that may change in place."""
    cls = exact_type(value)
    walk.guards.term("{0}({1}) is {2}", type, value, cls)
    for base in (list, set, dict):
        if isinstance(value, base):
            read = _dict_items if base is dict else CONTENT[base]
            walk.guards.items([*read(value)], "{0}({1})", read, value)
    if cls.__dictoffset__:
        walk.guards.term("{0}({1}, '__dict__') is {2}", object.__getattribute__, value, own)
        guard_dict(walk, own)
    for _, slot in slots:
        walk.guards.term("{0}({1}, {2}) is {3}", _slot, slot, value, _slot(slot, value))


def guard_dict(walk: Walk, value: Any) -> None:
    """Guard the content of a dict, or of a view of one."""
    held_by: dict[Any, Any] | None = (
        value if exact_type(value) is dict else None
    )  # others may keep an order of their own
    walk.guards.items([*value, *value.values()], "[*{0}, *{0}.values()]", value, held_by=held_by)


def _dict_items(value: Any) -> list[Any]:
    return [*_dict.keys(value), *_dict.values(value)]


def _is_frozen(cls: type) -> bool:
    """True for a frozen dataclass and a NamedTuple, which do not change in place."""
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    if parameters is not None:
        return parameters.frozen
    return tuple in cls.__mro__ and cls.__dict__.get("__slots__") == () and "_fields" in cls.__dict__


def _readable_class(cls: type) -> bool:
    """True if all content of its instances is in their dict, their slots, or that of a builtin type."""
    return all(base in READABLE_BASES or not _is_native(base) for base in cls.__mro__)


def _is_record(cls: type) -> bool:
    """True for a tuple with names that is made in C: sys.version_info, the shape of a tensor."""
    return cls.__mro__[1:] == (tuple, object) and _is_native(cls)


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
    if kind is numpy.ndarray or (isinstance(value, numpy.generic) and _is_native(kind)):
        plain = not value.dtype.hasobject and value.nbytes <= LARGEST
        return (kind.__name__, repr(value.dtype), value.shape, value.strides, value.tobytes()) if plain else None
    if isinstance(value, numpy.dtype):
        return ("dtype", repr(value)) if not value.hasobject else None
    # Those made by frompyfunc call what they like.
    return ("ufunc", value.__name__) if kind is numpy.ufunc and value is vars(numpy).get(value.__name__) else None


KINDS[object] = walk_other

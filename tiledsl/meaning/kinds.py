"""The kinds of objects that a walk understands by their exact type."""

from __future__ import annotations

import array
import functools
import operator
import re
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

from tiledsl.meaning.instances import guard_dict
from tiledsl.meaning.origin import origin
from tiledsl.meaning.reads import Reads
from tiledsl.meaning.sets import has_order
from tiledsl.meaning.walk import AMBIENT, DIFFERS, KINDS, PLAIN, Kind, Walk


def _parts(*names: str, changing: tuple[str, ...] = ()) -> Kind:
    """An object made of these attributes, of which some may be set anew."""

    def visit(walk: Walk, value: Any) -> None:
        walk.add(type(value).__name__)
        for name in names:
            walk.visit(getattr(value, name), name.strip("_"))
        for name in changing:
            walk.guards.term(f"{{0}}.{name} is {{1}}", value, getattr(value, name))

    return visit


def _changing(visit: Kind) -> Kind:
    """A container that can change in place."""

    def guarded(walk: Walk, value: Any) -> None:
        visit(walk, value)
        walk.guards.items([*value], "{0}", value)

    return guarded


def _shown(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, repr(value))


def _sequence(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, f"{len(value)} {getattr(value, 'maxlen', '')}")  # the latter of a deque
    for i, item in enumerate(value):
        walk.visit(item, "" if type(item) in PLAIN else f"[{i}]")


def _set(walk: Walk, value: Any) -> None:
    walk.members(value)
    if not has_order(value):
        walk.unknown(value, f"a set of strings or objects has an order {DIFFERS}")


def _dict(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, str(len(value)))
    for key, item in value.items():
        walk.visit(key)
        walk.visit(item, "" if type(item) in PLAIN else f"[{key!r}]" if type(key) in PLAIN else "[...]")
    guard_dict(walk, value)


def _default_dict(walk: Walk, value: Any) -> None:
    _dict(walk, value)
    _parts("default_factory", changing=("default_factory",))(walk, value)


def _namespace(walk: Walk, value: Any) -> None:
    walk.add("namespace")
    _dict(walk, vars(value))


def _native_function(walk: Walk, value: Any) -> None:
    """A function written in C, or one of its methods bound to an object."""
    owner = value.__self__
    if owner is None:
        walk.unknown(value, f"{value.__name__}() is not written in Python")
    elif isinstance(owner, types.ModuleType):
        name = f"{owner.__name__}.{value.__name__}"
        if (origin(owner) == "pure" or name in INERT) and name not in AMBIENT:
            walk.add("native", name)
        else:
            walk.unknown(value, f"{name}() may depend on more than its arguments")
    else:
        walk.add("method", value.__name__)
        walk.visit(owner, "self")


def _cached_function(walk: Walk, value: Any) -> None:
    walk.add("cached function")
    walk.visit(value.__wrapped__, "the cached function")
    if value.cache_info().currsize:
        walk.unknown(value, f"{value.__name__}() remembers results of earlier calls (functools.cache)")


def _reduced(walk: Walk, value: Any) -> None:
    """An object that cannot change, and tells how it is made: one of `operator`'s getters."""
    walk.add(type(value).__name__)
    walk.visit(value.__reduce__()[1])


def _bytes(walk: Walk, value: Any) -> None:
    """An array or a bytearray: all that it is stands in its text."""
    walk.add(type(value).__name__, repr(value))
    walk.guards.term("{0}({1}) == {2}", repr, value, repr(value))


INERT = frozenset({"_thread.get_ident"})
"""Functions that the code of dataclasses calls, without any effect on what a kernel sees."""


_DESCRIPTOR = _parts("__name__", "__objclass__")
_UNDERSTOOD: dict[Any, Kind] = {
    types.FunctionType: Walk.function,
    types.CodeType: Walk.code,
    types.BuiltinFunctionType: _native_function,
    types.MethodType: _parts("__func__", "__self__"),
    types.MethodWrapperType: _parts("__name__", "__self__"),
    types.MethodDescriptorType: _DESCRIPTOR,
    types.WrapperDescriptorType: _DESCRIPTOR,
    types.ClassMethodDescriptorType: _DESCRIPTOR,
    types.GetSetDescriptorType: _DESCRIPTOR,
    types.MemberDescriptorType: _DESCRIPTOR,
    types.GenericAlias: _parts("__origin__", "__args__"),
    types.UnionType: _parts("__args__"),
    types.CellType: _parts("cell_contents", changing=("cell_contents",)),
    types.SimpleNamespace: _namespace,
    types.MappingProxyType: _dict,
    property: _parts("fget", "fset", "fdel"),
    staticmethod: _parts("__func__"),
    classmethod: _parts("__func__"),
    functools.partial: _parts("func", "args", "keywords", "__dict__", changing=("func", "args", "keywords")),
    functools.cached_property: _parts("attrname", "func", changing=("func",)),  # not its lock
    type(functools.cache(int)): _cached_function,
    type(vars(Reads)["names"]): _reduced,  # the fields of a NamedTuple
    operator.itemgetter: _reduced,
    operator.attrgetter: _reduced,
    operator.methodcaller: _reduced,
    re.Pattern: _shown,
    range: _shown,
    slice: _parts("start", "stop", "step"),
    tuple: _sequence,
    frozenset: _set,
    list: _changing(_sequence),
    set: _changing(_set),
    dict: _dict,
    OrderedDict: _dict,
    defaultdict: _default_dict,
    deque: _changing(_sequence),
    bytearray: _bytes,
    array.array: _bytes,
}
KINDS.update(_UNDERSTOOD)

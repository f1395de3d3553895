"""The kinds of objects that a walk understands by their exact type."""

from __future__ import annotations

import array
import functools
import operator
import re
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from tiledsl.meaning.origin import origin
from tiledsl.meaning.walk import AMBIENT, KINDS, PLAIN, Kind, Walk

__all__: list[str] = []


def _parts(*names: str) -> Kind:
    """An object that cannot change, made of these attributes."""

    def visit(walk: Walk, value: Any) -> None:
        walk.add(type(value).__name__)
        for name in names:
            walk.visit(getattr(value, name), name.strip("_"))

    return visit


def _shown(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, repr(value))


def _sequence(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, str(len(value)))
    for i, item in enumerate(value):
        walk.visit(item, "" if type(item) in PLAIN else f"[{i}]")


def _set(walk: Walk, value: Any) -> None:
    # The order of a set differs between processes; the digests of its elements do not.
    found = [f"{type(item).__name__} {item!r}" if type(item) in PLAIN else walk.apart(item).hex() for item in value]
    walk.add(type(value).__name__, "\n".join(sorted(found)))


def _dict(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, str(len(value)))
    for key, item in value.items():
        walk.visit(key)
        walk.visit(item, "" if type(item) in PLAIN else f"[{key!r}]" if type(key) in PLAIN else "[...]")


def _changing(kind: Kind, read: Any) -> Kind:
    """What `kind` walks, and which may change in place: `read` gives its content."""

    def visit(walk: Walk, value: Any) -> None:
        kind(walk, value)
        walk.guards.content(read, value)

    return visit


def _items(value: Any) -> list[Any]:
    return [*value, *value.values()]


def _native_function(walk: Walk, value: Any) -> None:
    """A function written in C, or one of its methods bound to an object."""
    owner = value.__self__
    if isinstance(owner, types.ModuleType):
        name = f"{owner.__name__}.{value.__name__}"
        if (origin(owner) == "pure" or name in INERT) and name not in AMBIENT:
            walk.add("native", name)
        else:
            walk.unknown(value, f"{name}() may depend on more than its arguments")
        return
    if owner is None:
        walk.unknown(value, f"{value.__name__}() is not written in Python")
        return
    walk.add("method", value.__name__)
    walk.visit(owner, "self")


def _descriptor(walk: Walk, value: Any) -> None:
    walk.add(type(value).__name__, value.__name__)
    walk.visit(value.__objclass__)


def _cached_function(walk: Walk, value: Any) -> None:
    walk.add("cached function")
    walk.visit(value.__wrapped__, "the cached function")
    if value.cache_info().currsize:
        walk.unknown(value, f"{value.__name__}() remembers results of earlier calls (functools.cache)")


def _cached_property(walk: Walk, value: Any) -> None:
    walk.add("cached property", str(value.attrname))
    walk.visit(value.func)  # not its lock
    walk.guards.term("{0}.func is {1}", value, value.func)


def _reduced(walk: Walk, value: Any) -> None:
    """An object that cannot change, and tells how it is made: one of `operator`'s getters."""
    walk.add(type(value).__name__)
    walk.visit(value.__reduce__()[1])


def _cell(walk: Walk, value: types.CellType) -> None:
    walk.add("cell")
    try:
        walk.visit(value.cell_contents)
    except ValueError:
        walk.add("empty")
    walk.guards.content(_cell_items, value)


def _cell_items(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _array(walk: Walk, value: Any) -> None:
    walk.add("array", repr((value.typecode, bytes(value))))


INERT = frozenset({"_thread.get_ident"})
"""Functions that the code of dataclasses calls, without any effect on what a kernel sees."""

_Pair = namedtuple("_Pair", "a b")

KINDS |= {
    types.FunctionType: Walk.function,
    types.CodeType: Walk.code,
    types.BuiltinFunctionType: _native_function,
    types.MethodType: _parts("__func__", "__self__"),
    types.MethodWrapperType: _parts("__name__", "__self__"),
    types.MethodDescriptorType: _descriptor,
    types.WrapperDescriptorType: _descriptor,
    types.ClassMethodDescriptorType: _descriptor,
    types.GetSetDescriptorType: _descriptor,
    types.MemberDescriptorType: _descriptor,
    types.GenericAlias: _parts("__origin__", "__args__"),
    types.UnionType: _parts("__args__"),
    types.CellType: _cell,
    types.SimpleNamespace: _changing(lambda w, v: _dict(w, vars(v)), lambda v: _items(vars(v))),
    types.MappingProxyType: _changing(_dict, _items),
    property: _parts("fget", "fset", "fdel"),
    staticmethod: _parts("__func__"),
    classmethod: _parts("__func__"),
    functools.partial: _changing(_parts("func", "args", "keywords", "__dict__"), lambda v: [v.func, v.args, v.keywords]),
    functools.cached_property: _cached_property,
    type(functools.cache(int)): _cached_function,
    type(_Pair.a): _reduced,  # the fields of a NamedTuple
    operator.itemgetter: _reduced,
    operator.attrgetter: _reduced,
    operator.methodcaller: _reduced,
    re.Pattern: _shown,
    range: _shown,
    slice: _parts("start", "stop", "step"),
    tuple: _sequence,
    frozenset: _set,
    list: _changing(_sequence, list),
    set: _changing(_set, list),
    dict: _changing(_dict, _items),
    OrderedDict: _changing(_dict, _items),
    defaultdict: _changing(_dict, lambda v: [v.default_factory, *_items(v)]),
    deque: _changing(_sequence, list),
    bytearray: _changing(lambda w, v: w.add("bytearray", repr(bytes(v))), lambda v: (bytes(v),)),
    array.array: _changing(_array, lambda v: (v.typecode, bytes(v))),
    type(type.__dict__["__dict__"]): _descriptor,
}

"""Where a module, a class or a function really comes from: by its file and its place there, never by its name alone."""

from __future__ import annotations

import os
import sys
from types import FunctionType, ModuleType
from typing import Any, Literal
from weakref import WeakKeyDictionary

Origin = Literal["tiledsl", "pure", "library", "user"]
"""tiledsl: this package, whose sources are part of every key. pure: a module of the standard library whose functions
depend on their arguments alone; Python's version stands for it. library: any other module of the standard library.
user: all else, installed packages too."""

PURE = frozenset(
    """
    __future__ _abc _bisect _collections _collections_abc _functools _heapq _operator _struct _typing _weakrefset abc
    base64 binascii bisect builtins cmath collections collections.abc colorsys contextlib copy dataclasses difflib enum
    fractions functools graphlib heapq itertools json json.decoder json.encoder keyword logging math numbers operator re
    re._casefix re._compiler re._constants re._parser reprlib statistics string struct textwrap types typing warnings
    """.split()  # noqa: SIM905
)
"""`logging` and `warnings` are here although they have effects: a kernel does not depend on those."""

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
INSTALLED = ("site-packages", "dist-packages")

_KNOWN: WeakKeyDictionary[ModuleType, Origin] = WeakKeyDictionary()


def origin(module: ModuleType) -> Origin:
    """The origin of a module."""
    known = _KNOWN.get(module)
    if known is None:
        known = _KNOWN[module] = _origin(module)
    return known


def _origin(module: ModuleType) -> Origin:
    name: Any = module.__dict__.get("__name__")
    if type(module) is not ModuleType or sys.modules.get(name) is not module:
        return "user"
    file = module.__dict__.get("__file__")
    if not isinstance(file, str):
        built_in = getattr(module.__dict__.get("__spec__"), "origin", None) in ("built-in", "frozen")
        return ("pure" if name in PURE else "library") if built_in else "user"
    path = os.path.abspath(file)
    if path.startswith(ROOT) and name.split(".")[0] == "tiledsl":
        return "tiledsl"
    if path.startswith(STDLIB) and not any(folder in path[len(STDLIB) :].split(os.sep) for folder in INSTALLED):
        return "pure" if name in PURE else "library"
    return "user"


def home(obj: Any) -> Origin:
    """The origin of a class or a Python function. One that is not found in its module under its name is the user's."""
    name: Any = getattr(obj, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None:
        return "user"
    if isinstance(obj, FunctionType):
        return origin(module) if obj.__globals__ is module.__dict__ else "user"
    found: Any = module
    for part in obj.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if found is obj:
        return origin(module)
    static = not type.__dict__["__flags__"].__get__(obj) & HEAP_TYPE
    return "pure" if static and name == "builtins" else "user"  # as type(None), which has no name in builtins


HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for every class that Python code made."""

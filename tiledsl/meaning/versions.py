"""Versions of dicts: CPython gives a dict a new number at each change (PEP 509), and they are read here in 30 ns.

PEP 509 made them for "fast guards on namespaces", without a function to read them: they stand behind the number of
items (``ma_version_tag``). Python 3.11 and 3.12 have them, later ones do not.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

_COUNTED = sys.implementation.name == "cpython" and sys.version_info[:2] in ((3, 11), (3, 12))


def version_of(namespace: dict[str, Any]) -> Any:
    """An object whose `value` is the version of a dict, which must live as long. None if there is no version, or what
    it shows may be other than the dict's items: for a class derived from dict."""
    if not _COUNTED or type(namespace) is not dict:
        return None
    return ctypes.c_uint64.from_address(id(namespace) + object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t))


def body_of(cls: type) -> dict[str, Any] | None:
    """The dict behind the ``__dict__`` of a class, which shows no more than a view of it."""
    found: Any = gc.get_referents(cls.__dict__)
    return found[0] if [*map(type, found)] == [dict] else None

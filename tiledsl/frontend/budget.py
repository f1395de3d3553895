"""Limits on the work of one compilation, so that no kernel hangs the compiler; docs/language.md lists them.

They are checked before the work is done: `bounded` ends a sequence where it becomes too long, `too_large` looks at the
operands of what would make a large number, text or list.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from tiledsl.errors import CompileError

MAX_UNROLL = 4096
"""Iterations of one loop that is unrolled at compile time."""

MAX_OPS = 50_000
"""Ops that the frontend makes for one kernel."""

MAX_GRID_OPS = 1000
"""The most operations by which the host computes an extent of the grid."""

MAX_STATEMENTS = 200_000
"""Statements of one kernel that are carried out at compile time, and items of its comprehensions."""

MAX_CONDITIONS = 1100
"""Run-time conditions and loops inside each other; an exit puts what follows it under one."""

MAX_CALLS = 200
"""Tile functions that call each other."""

MAX_ITEMS = 1 << 16
"""Items of a list, tuple, str or bytes that is made at compile time, those of lists inside it included."""

MAX_BITS = 1 << 16
"""Bits of an integer at compile time."""


class OutOfBudget(CompileError):  # noqa: N818 - of the kernel, and read as one of its errors
    """The kernel exceeds a limit for the whole of it: nothing more of it is read."""


def bounded(items: Iterable[Any], most: int) -> list[Any] | None:
    """All of `items`, or None if there are more than `most`; at most one more than that is requested."""
    found = list(islice(items, most + 1))
    return found if len(found) <= most else None


def count_of(items: Any, most: int) -> str:
    """How many items there are, as far as that is known without going through them: there are more than `most`."""
    if isinstance(items, range):  # its len() may be no machine word
        return str(-(-abs(items.stop - items.start) // abs(items.step)))
    return str(len(items)) if hasattr(items, "__len__") else f"more than {most}"


def too_large(sign: str, a: Any, b: Any) -> str:
    """What ``a <sign> b`` would be, if that is beyond the limits: "a list of 1000000000 items"; else ""."""
    if type(a) is int and type(b) is int:
        bits = _bits(sign, a, b)
        return f"an integer of {bits} bits" if bits > MAX_BITS else ""
    if sign == "*" and type(a) is int:
        a, b = b, a
    count = 0
    if sign == "*" and isinstance(a, _SEQUENCES) and type(b) is int:
        count = len(a) * b  # pyright: ignore[reportUnknownArgumentType]
    elif sign == "+" and isinstance(a, _SEQUENCES) and isinstance(b, _SEQUENCES):
        count = len(a) + len(b)  # pyright: ignore[reportUnknownArgumentType]
    return f"a {type(a).__name__} of {count} items" if count > MAX_ITEMS else ""  # pyright: ignore


_SEQUENCES = (list, tuple, str, bytes)


def many_items(items: list[Any]) -> bool:
    """True if lists and tuples inside each other have more than MAX_ITEMS items together; one that is in several counts
    in each."""
    count, rest = 0, [items]
    while rest:
        for item in rest.pop():
            count += 1
            if type(item) in (list, tuple) and item:
                rest.append(item)
        if count + len(rest) > MAX_ITEMS:
            return True
    return False


def _bits(sign: str, a: int, b: int) -> int:
    """About how many bits ``a <sign> b`` has, where that can be many."""
    match sign:
        case "**" if b > 0 and abs(a) > 1:
            return abs(a).bit_length() * b
        case "<<" if b > 0 and a:
            return a.bit_length() + b
        case "*":
            return a.bit_length() + b.bit_length()
        case _:
            return 0

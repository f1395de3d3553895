"""Raises Python's recursion limit while a kernel is compiled or emulated."""

from __future__ import annotations

import sys

from tiledsl.forks import WhileBusy

_FRAMES = 5500
"""Python frames that a compilation may use: 95 nested tile functions need 1400, 1024 nested conditions 3200. A frame
needs at most 1 KB of the C stack (Python 3.11, if a C function calls back), which has 8 MB in the main thread."""


def _deeper() -> int:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    return before


def _as_before(before: int) -> None:
    if sys.getrecursionlimit() == max(before, _FRAMES):  # else other code has set it meanwhile
        sys.setrecursionlimit(before)


deep_recursion = WhileBusy(_deeper, _as_before).inside
"""A context manager and decorator that raises the recursion limit of the process: kernels nest deeper than most Python
code, and the passes walk them recursively."""

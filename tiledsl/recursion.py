"""How deep Python may recurse while a kernel is read, changed or run."""

from __future__ import annotations

import sys

from tiledsl.forks import WhileBusy

__all__ = ["deep_recursion"]

_FRAMES = 5500
"""Python frames that a compilation may take: 95 nested tile functions need 1400, 1024 nested conditions 3200. Of C's
stack, of which the main thread has 8 MB, a frame needs at most 1 KB (Python 3.11, where a C function calls back)."""


def _deeper() -> int:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    return before


def _as_before(before: int) -> None:
    if sys.getrecursionlimit() == max(before, _FRAMES):  # else somebody has set it meanwhile
        sys.setrecursionlimit(before)


deep_recursion = WhileBusy(_deeper, _as_before).inside
"""Python's limit of recursion, which is one for the process, is higher inside this block, or the function that this
decorates: kernels nest deeper than most Python, and the passes walk them by recursion."""

"""Numbers that a user gives: as an argument, or as text in a file or a variable of the environment."""

from __future__ import annotations

from numbers import Integral
from typing import Any

MOST_DIGITS = 18
LONGEST = 1e15
"""Of times, in any unit."""


def count_of(text: str, least: int = 0) -> int | None:
    """Return the whole number that `text` says in decimal digits; None for anything else, and for less than `least`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        return None
    return int(text) if int(text) >= least else None


def seconds_of(text: str) -> float | None:
    """Return a time above 0 that ends; None for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if is_time(seconds) else None


def is_time(value: object) -> bool:
    """Return whether this is a number above 0, neither infinite nor absurd."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < LONGEST


def python_int(value: Any) -> Any:
    """Return an integer of Python or NumPy as an int, and anything else, bools among it, as it is."""
    return int(value) if type(value) is not bool and isinstance(value, Integral) else value

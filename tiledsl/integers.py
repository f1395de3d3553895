"""Integers that a caller passes on the host."""

from __future__ import annotations

from numbers import Integral
from typing import Any

__all__ = ["python_int"]


def python_int(value: Any) -> Any:
    """Return an integer of Python or NumPy as an int, and anything else, bools among it, as it is."""
    return int(value) if type(value) is not bool and isinstance(value, Integral) else value

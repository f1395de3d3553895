"""Epilogue functions: what a kernel applies to the scaled sums before it stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl import Fragment, Memory, index, tile_function

__all__ = ["Epilogue", "add_bias", "plain"]

Epilogue = Callable[[Fragment[Any], Any, Fragment[index]], Fragment[Any]]
"""From a piece of the result, the bias or None, and the column of each element."""


@tile_function
def plain(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """No epilogue."""
    return x


@tile_function
def add_bias(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """Adds `bias[n]` to column n."""
    return x + bias.get(column) if bias is not None else x

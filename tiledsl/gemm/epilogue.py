"""Epilogue functions: what a kernel applies to the scaled sums before it stores them.

Every kernel of this package has the same default, `add_bias`, so a bias is never left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl import Fragment, Memory, index, tile_function

__all__ = ["Epilogue", "add_bias", "applied"]

Epilogue = Callable[[Fragment[Any], Any, Fragment[index]], Fragment[Any]]
"""From a piece of the result, the bias or None, and the column of each element."""


@tile_function
def add_bias(x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """Add `bias[n]`, converted to the dtype of the sums, to column n; without a bias, change nothing."""
    return x + bias.get(column).to(x.dtype) if bias is not None else x


@tile_function
def applied(epilogue: Epilogue, x: Fragment[Any], bias: Memory[Any] | None, column: Fragment[index]) -> Fragment[Any]:
    """Apply an epilogue function, and refuse one that does not return as many elements as it gets."""
    y = epilogue(x, bias, column)
    assert y is not None and y.shape == x.shape, (
        "an epilogue function must return a fragment of the shape of its first argument"
    )
    return y

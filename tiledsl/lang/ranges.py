"""Ranges of elements: what a view takes along one axis, and what a loop over a long axis steps through."""

from __future__ import annotations

from typing import Iterator, TypeAlias

from tiledsl.lang.dim import Dim
from tiledsl.lang.dtypes import index
from tiledsl.lang.misuse import only_in_kernel, operators_only_in_kernel

__all__ = ["Extent", "Range", "tile", "tiles"]

Extent: TypeAlias = index | int | type[Dim]
"""What an index, a size or a grid extent may be: an index, a Python int, or a dimension's name."""


@operators_only_in_kernel
class Range:
    """`size` elements from `start` on. Made by `tile` and `tiles`; ``A[rows, columns]`` is a view of A.

    ``r + n`` and ``r - n`` are the range moved by n elements.
    """

    start: index
    """The first element: a compile-time int in an `unroll` loop, else an `index`."""

    size: int
    """How many elements, a compile-time int."""

    def __add__(self, distance: Extent) -> Range: ...
    def __sub__(self, distance: Extent) -> Range: ...


def tile(i: Extent, size: int) -> Range:
    """The `i`-th tile of `size` elements along an axis: ``i * size`` to ``(i + 1) * size``.

    size: compile-time. The last tile of an axis may reach past its edge: see `copy`.
    """
    raise only_in_kernel("tile()")


def tiles(extent: Extent, size: int, start: index | int = 0) -> Iterator[Range]:
    """``for k in tiles(K, BK)``: a loop over the tiles that cover the elements from `start` to `extent`, at run time.

    ``unroll(tiles(BK, 16))`` is one at compile time. Every range has `size` elements, the last one too,
    which may reach past the edge.
    """
    raise only_in_kernel("tiles()")

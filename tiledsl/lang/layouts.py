"""Layouts of shared tiles, for ``shared(..., layout=)``. Without one the bank-conflict pass chooses.

A layout says where elements are, never what a kernel computes: indices mean the same under each of them.
`tiledsl.layout.shared` is the mathematics; ``k.explain("banks")`` tells what each one costs.
"""

from __future__ import annotations

from tiledsl.errors import CompileError
from tiledsl.layout.shared import MAX_EXTENT, ROW, Layout, Padded, Paneled, Swizzled

__all__ = ["Layout", "padded", "row_major", "swizzle_32b", "swizzle_64b", "swizzle_128b", "swizzled"]

row_major: Layout = ROW
"""Rows one after the other."""


def padded(length: int) -> Layout:
    """A row every `length` elements, of which a row of the tile uses as many as it has."""
    _need_extents("padded", length=length)
    return Padded(length)


def swizzled(unit: int, span: int, every: int = 1) -> Layout:
    """Row order, cut into panels of `span` units of `unit` elements, each permuted: in panel number p of the tile,
    unit c is at place ``c ^ (p // every % span)``.

    All three are powers of two; a row is a whole number of panels. A vector access of up to `unit` elements
    stays one access.
    """
    _need_extents("swizzled", unit=unit, span=span, every=every)
    return Swizzled(unit, span, every)


def _need_extents(function: str, **given: int) -> None:
    for name, value in given.items():
        if type(value) is not int or abs(value) > MAX_EXTENT:
            message = f"{function}(): {name} is a compile-time int of at most {MAX_EXTENT}, got {value!r}"
            raise CompileError(message, fix="count the elements of a row of the tile", code="C302")


swizzle_128b: Layout = Paneled(128)
"""Panels of 128 bytes of a row, as TMA writes them and `wgmma` reads them: all rows of one panel, then of the next.
Rows are a multiple of 128 bytes long, and a multiple of 8. (PTX ISA: tensor swizzling modes.)"""
swizzle_64b: Layout = Paneled(64)
"""The same with panels of 64 bytes."""
swizzle_32b: Layout = Paneled(32)
"""The same with panels of 32 bytes."""

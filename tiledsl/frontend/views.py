"""Views of tensors and shared tiles: slicing, transposing, and access to the memory behind them.

A view is a binding of the frontend alone. Accesses add its origin to their indices and go to its base, so
that the IR knows tensors and tiles only.
"""

from __future__ import annotations

import ast
from math import prod
from typing import Any

from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import Range, View, describe, is_int
from tiledsl.frontend.frame import Frame
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX, GlobalType, MemoryType, SharedType
from tiledsl.passes.analysis.constants import integer


def as_view(memory: Value | View) -> View:
    """The whole of a tensor or tile as a view; a view as it is."""
    if isinstance(memory, View):
        return memory
    dims = memory_type(memory).dims
    return View(memory, (0,) * len(dims), tuple(range(len(dims))), dims)


def memory_type(memory: Value | View) -> MemoryType:
    """The type of a tensor or tile, or of what a view is of."""
    base = memory.base if isinstance(memory, View) else memory
    assert isinstance(base.type, (GlobalType, SharedType))
    return base.type


def memory_name(memory: Value | View) -> str:
    base = memory.base if isinstance(memory, View) else memory
    return base.name or "the tile"


def unit_axis(view: View) -> int | None:
    """The view's axis along which elements are contiguous; None if it has none."""
    axis = memory_type(view).unit
    return view.axes.index(axis) if axis in view.axes else None


def extent(frame: Frame, memory: Value | View, axis: int) -> Value | int:
    """The extent along `axis`: a compile-time int if it is static."""
    view = as_view(memory)
    size = view.dims[axis]
    return size if isinstance(size, int) else frame.builder.value(tile.Dim(view.base, axis=view.axes[axis]))


def stride(frame: Frame, memory: Value | View, axis: int) -> Value | int:
    """Elements between neighbours along `axis`: a compile-time int where it is known."""
    view = as_view(memory)
    type_, axis = memory_type(view), view.axes[axis]
    if isinstance(type_, GlobalType):
        return 1 if axis == type_.unit else frame.builder.value(tile.Stride(view.base, axis=axis))
    return prod(type_.dims[axis + 1 :])


# -- indices ---------------------------------------------------------------------------------------


def places(at: Any) -> list[Any]:
    """What is between the brackets, one item an axis."""
    return list(at) if isinstance(at, (tuple, list)) else [at]  # pyright: ignore[reportUnknownArgumentType]


def is_slice(item: Any) -> bool:
    return isinstance(item, (slice, Range))


def slice_range(frame: Frame, node: ast.AST, item: slice, limit: int | str) -> range:
    """The places that a slice names on an axis of extent `limit`, of which there is one at least."""
    parts: Any = zip((item.start, item.stop, item.step), (0, limit, 1), strict=True)
    start, stop, step = (default if part is None else part for part, default in parts)
    for bound in (start, stop, step):
        if not is_int(bound):
            message = f"a slice is made of compile-time ints, got {describe(bound)}"
            if bound is limit:
                message = f"a slice up to {limit}, which is only known at run time: it has a compile-time length"
            raise frame.error(
                node, message, "give it an end, take the whole axis with `:`, or a range tile(i, B)", code="C305"
            )
    if start < 0 or stop <= start or step < 1:
        shown = f"{start}:{stop}" + (f":{step}" if step != 1 else "")
        fix = "write a:b with a < b; there are no negative indices: count from the start"
        raise frame.error(node, f"the slice {shown} is empty, or goes backwards", fix, code="C305")
    return range(start, stop, step)


def located(frame: Frame, node: ast.AST, memory: Value | View, at: Any) -> tuple[Value, list[Value]]:
    """The tensor or tile of one element, and its indices there; static ones are checked against static extents."""
    for item in places(at):
        if is_slice(item):
            fix = "index each axis with a number; a view t[m, k] is made by itself"
            raise frame.error(node, f"{describe(item)} is not the index of an element", fix, code="C104")
    element = subview(frame, node, memory, at)
    return element.base, base_origin(frame, element)


def base_origin(frame: Frame, view: View) -> list[Value]:
    """Where a view begins, as indices into its base."""
    return [frame.builder.constant(i, INDEX) if isinstance(i, int) else i for i in view.origin]


def _number(frame: Frame, node: ast.AST, view: View, position: int, item: Any) -> Value:
    value = as_value(item, INDEX, frame, node, f"index of axis {position}")
    at, limit = integer(value), view.dims[position]
    if at is not None and (at < 0 or (isinstance(limit, int) and at >= limit)):
        message = f"index {at} is outside axis {position} of {memory_name(view)}, whose extent is {limit}"
        raise frame.error(node, message, "indices go from 0 to the extent - 1; there are no negative ones", code="C303")
    return value


def _sum(frame: Frame, a: Value | int, b: Value | int) -> Value | int:
    """a + b, constants folded, so that static indices stay checkable."""
    left, right = _known(a), _known(b)
    if left is not None and right is not None:
        return left + right
    if 0 in (left, right):
        return b if left == 0 else a
    return frame.builder.scalar("add", a, b)


def _known(index: Value | int) -> int | None:
    return index if isinstance(index, int) else integer(index)


# -- views -----------------------------------------------------------------------------------------


def transposed(memory: Value | View) -> View:
    """``t.T``: the axes in reverse order."""
    view = as_view(memory)
    return View(view.base, view.origin, view.axes[::-1], view.dims[::-1])


def subview(frame: Frame, node: ast.AST, memory: Value | View, at: Any) -> View:
    """``t[m, k]``: axes that are indexed with a slice or a range stay, those with a number are dropped."""
    view = as_view(memory)
    items = places(at)
    if len(items) != view.rank:
        what = memory_name(view) if view == as_view(view.base) else f"this view of {memory_name(view)}"
        raise frame.error(
            node, f"{what} has {view.rank} axes, got {len(items)} indices", "one for each axis", code="C304"
        )
    origin: list[Value | int] = list(view.origin)
    axes: list[int] = []
    dims: list[int | str] = []
    for position, (axis, item) in enumerate(zip(view.axes, items, strict=True)):
        if is_slice(item):
            start, size = _part(frame, node, view, position, item)
            axes.append(axis)
            dims.append(size)
        else:
            start = _number(frame, node, view, position, item)
        origin[axis] = _sum(frame, view.origin[axis], start)
    return View(view.base, tuple(origin), tuple(axes), tuple(dims))


def _part(frame: Frame, node: ast.AST, view: View, position: int, item: Any) -> tuple[Value | int, int | str]:
    """Where a slice or range begins along an axis, and its length."""
    limit = view.dims[position]
    if isinstance(item, Range):
        start, size = item.start, item.size
    elif item == slice(None):
        return 0, limit
    else:
        found = slice_range(frame, node, item, limit)
        start, size = found.start, found.stop - found.start
        if found.step != 1:
            fix = "a view takes neighbouring elements: leave the step out"
            raise frame.error(node, f"a slice with step {found.step}", fix, code="C305")
    first = _known(start)
    last = size if first is None else first + size
    if (first is not None and first < 0) or (isinstance(limit, int) and last > limit):
        shown = f"elements {first} to {last}" if first is not None else f"{size} elements"
        message = f"{shown} are outside axis {position} of {memory_name(view)}, whose extent is {limit}"
        fix = "a slice lies inside a static extent; it is not clipped, and there are no negative indices"
        raise frame.error(node, message, fix, code="C303")
    return start, size

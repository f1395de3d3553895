"""Element and vector access to tensors, shared tiles, views and fragments; slices of fragments."""

from __future__ import annotations

import ast
import operator
from itertools import product
from typing import Any

from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value, at_compile_time
from tiledsl.frontend.bindings import Range, View, contains_value, describe, has_operators, is_place, is_register
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.gather import gather, is_gather
from tiledsl.frontend.views import (
    as_view,
    is_slice,
    located,
    memory_name,
    memory_type,
    places,
    slice_parts,
    subview,
    unit_axis,
)
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import FragmentType, GlobalType

__all__ = ["absent", "is_vector", "read_element", "replaced_in_fragment", "vector_length", "write_element"]


def _selected(frame: Frame, node: ast.AST, type_: FragmentType, at: Any) -> tuple[list[range], tuple[int, ...]]:
    """The compile-time places along each axis of a fragment that an index names, and the shape of the result,
    which has an axis for each slice."""
    if type_.layout is not None:
        fix = "store it to a tile, or go element by element: rows, columns = coordinates(acc), then where() or t.get()"
        raise frame.error(node, f"{type_} is held by {type_.layout.threads} threads together and has no indices", fix)
    items = places(at)
    if len(items) != len(type_.dims):
        raise frame.error(
            node, f"a fragment of shape {type_.dims} takes {len(type_.dims)} indices, got {len(items)}", _INSIDE
        )
    chosen: list[range] = []
    shape: list[int] = []
    for item, limit in zip(items, type_.dims, strict=True):
        found = _along(frame, node, item, limit)
        if not found or not 0 <= found[0] < limit or not 0 <= found[-1] < limit:
            shown = f"index {item}" if not is_slice(item) else f"the slice {found.start}:{found.stop}"
            raise frame.error(node, f"{shown} is outside a fragment of shape {type_.dims}", _INSIDE)
        chosen.append(found)
        if is_slice(item):
            shape.append(len(found))
    return chosen, tuple(shape)


_INSIDE = "slices are not empty and not clipped; there are no negative indices"


def _along(frame: Frame, node: ast.AST, item: Any, limit: int) -> range:
    """One index of a fragment as the places that it names along its axis."""
    start: Any
    stop: Any
    if isinstance(item, Range):
        start, step = item.start, 1
        stop = start + item.size if isinstance(start, int) else start
    elif isinstance(item, slice):
        start, stop, step = slice_parts(item)
        start, stop, step = 0 if start is None else start, limit if stop is None else stop, 1 if step is None else step
    else:
        start, stop, step = item, item + 1 if isinstance(item, int) else item, 1
    for bound in (start, stop, step):
        if not isinstance(bound, int) or isinstance(bound, bool):
            raise frame.error(
                node,
                f"a fragment lives in registers and takes compile-time indices, got {describe(bound)}",
                "loop with unroll() instead of range()",
            )
    if step < 1:
        raise frame.error(node, f"a slice with step {step}", "a step is positive")
    return range(start, stop, step)


def _read_fragment(frame: Frame, node: ast.AST, fragment: Value, at: Any) -> Value:
    """``f[i, j]`` and ``f[0:4, j]``."""
    assert isinstance(fragment.type, FragmentType)
    chosen, shape = _selected(frame, node, fragment.type, at)
    elements = [frame.builder.value(tile.Extract(fragment, at=place)) for place in product(*chosen)]
    if not shape:
        return elements[0]
    return frame.builder.value(tile.Pack(*elements, type=FragmentType(fragment.type.dtype, shape)))


def replaced_in_fragment(frame: Frame, node: ast.AST, fragment: Value, at: Any, binding: Any) -> Value:
    """The fragment with one element, or those of a slice, replaced: by a number, or a fragment of that shape."""
    assert isinstance(fragment.type, FragmentType)
    dtype = fragment.type.dtype
    chosen, shape = _selected(frame, node, fragment.type, at)
    if not (is_register(binding) and isinstance(binding.type, FragmentType)):
        element = as_value(binding, dtype, frame, node, "element")
        sources = [element for _ in product(*chosen)]
    elif binding.type != FragmentType(dtype, shape):
        wanted = f"a slice of shape {shape}" if shape else "one element"
        fix = "both sides of an assignment have one shape and dtype"
        raise frame.error(node, f"{describe(binding)} assigned to {wanted} of {dtype}", fix)
    else:
        inner = product(*map(range, shape))
        sources = [frame.builder.value(tile.Extract(binding, at=place)) for place in inner]
    for place, element in zip(product(*chosen), sources, strict=True):
        fragment = frame.builder.value(tile.Insert(fragment, element, at=place))
    return fragment


def absent(frame: Frame, node: ast.AST, action: str) -> CompileError:
    """The error for the use of an optional tensor that this call does not give."""
    name = ast.unparse(node.value) if isinstance(node, (ast.Subscript, ast.Attribute)) else "it"
    fix = f"guard it: `if {name} is not None:`"
    return frame.error(node, f"{name} is None in this call and cannot be {action}", fix)


def read_element(frame: Frame, node: ast.AST, container: Any, at: Any) -> Any:
    """``container[at]``: an element, a view of memory, or a slice of a fragment."""
    if is_place(container):
        if any(is_slice(item) for item in places(at)):
            return subview(frame, node, container, at)
        if is_gather(at):
            found = gather(frame, node, container, at)
            loads = [tile.Load(found.base, *row, gathered=True) for row in found.rows]
            return found.fragment([frame.builder.value(load) for load in loads])
        memory, indices = located(frame, node, container, at)
        return frame.builder.value(tile.Load(memory, *indices))
    if isinstance(container, Value) and isinstance(container.type, FragmentType):
        return _read_fragment(frame, node, container, at)
    if container is None:
        raise absent(frame, node, "indexed")
    if has_operators(container) or contains_value(at):
        what = describe(container)
        fix = "use unroll() so that the index is known at compile time"
        fix = fix if contains_value(at) else "index tensors, tiles, fragments and compile-time sequences"
        raise frame.error(node, f"{what} cannot be indexed with {describe(at)}", fix)
    return at_compile_time(operator.getitem, [container, at], frame, node, structure=True)


def write_element(frame: Frame, node: ast.AST, container: Value | View, at: Any, binding: Any) -> None:
    """``memory[at] = binding``."""
    if any(is_slice(item) for item in places(at)):
        fix = "assign elements, store a vector with .store(), or copy(src, dst) a whole view"
        raise frame.error(node, f"a part of {memory_name(container)} is not an element", fix)
    dtype, what = memory_type(container).dtype, f"value stored to {memory_name(container)}"
    if is_gather(at):
        found = gather(frame, node, container, at)
        for row, element in zip(found.rows, found.values(binding, dtype, what), strict=True):
            frame.builder.add(tile.Store(found.base, *row, element, gathered=True))
        return
    memory, indices = located(frame, node, container, at)
    frame.builder.add(tile.Store(memory, *indices, as_value(binding, dtype, frame, node, what)))


def vector_length(frame: Frame, node: ast.AST, memory: Value | View, vec: Any) -> int:
    """How many elements `vec` bytes are."""
    type_ = memory_type(memory)
    size = type_.dtype.bytes
    if not isinstance(vec, int) or vec not in tile.VECTOR_BYTES or vec % size:
        raise frame.error(
            node,
            f"vec={vec if isinstance(vec, int) else describe(vec)} on elements of {size} bytes",
            "vec counts bytes: 2, 4, 8 or 16, and at least one element",
        )
    count = vec // size
    view = as_view(memory)
    if count > 1 and unit_axis(view) is None and not (isinstance(type_, GlobalType) and type_.unit < 0):
        raise frame.error(
            node,
            f"{vec} bytes at once along the axis of stride 1 of {memory_name(memory)}, which this view has dropped",
            "take a view that keeps that axis, or access single elements",
        )
    return count


def is_vector(binding: Any) -> bool:
    return is_register(binding) and isinstance(binding.type, FragmentType) and len(binding.type.dims) == 1

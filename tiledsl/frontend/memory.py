"""Element and vector access to tensors, shared tiles, views and fragments; slices of fragments."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from itertools import product, repeat
from typing import Any, Callable

from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value, at_compile_time, elements
from tiledsl.frontend.bindings import (
    Range,
    View,
    contains_value,
    describe,
    dtype_of,
    has_operators,
    is_fragment,
    is_int,
    is_place,
)
from tiledsl.frontend.fragments import joined, relaid
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.views import (
    as_view,
    is_slice,
    located,
    memory_name,
    memory_type,
    places,
    slice_range,
    subview,
    unit_axis,
)
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import INDEX, DType, FragmentType

# -- elements of memory ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """The elements of memory that indices name: a single one, or those that fragments of indices name, in the order in
    which a thread holds them.

    base: the tensor or tile. rows: the indices there of each element. type: of the fragments of indices, if any.
    """

    frame: Frame
    node: ast.AST
    base: Value
    rows: list[list[Value]]
    type: FragmentType | None

    @property
    def gathered(self) -> bool:
        return self.type is not None

    def values(self, binding: Any, dtype: DType, what: str) -> list[Value]:
        """One value an element: those of a fragment of this shape and layout, or one scalar for all."""
        if self.type is None or not is_fragment(binding):
            return [as_value(binding, dtype, self.frame, self.node, what)] * len(self.rows)
        joined(self.frame, self.node, [self.type, binding.type], f"{what} and indices")
        if binding.type.dtype != dtype:
            message = f"the {what} must be {dtype}, it is {describe(binding)}"
            raise self.frame.error(self.node, message, f"convert it: x.to({dtype})", code="C203")
        return elements(binding, self.frame)

    def each(self, make: Callable[..., Op], *operands: list[Value], **attributes: Any) -> Any:
        """The op of each element, which takes its value of each of `operands`; gives the results, as a fragment if
        these are the elements of one."""
        rows = zip(self.rows, *operands, strict=True)
        ops = [self.frame.builder.add(make(self.base, *row, *given, **attributes)) for row, *given in rows]
        if not ops[0].results:
            return None
        if self.type is None:
            return ops[0].result
        type_ = relaid(self.frame, self.node, self.type, dtype_of(ops[0].result), "an access")
        return self.frame.builder.value(tile.Pack(*(op.result for op in ops), type=type_))


def access(frame: Frame, node: ast.AST, memory: Value | View, at: Any) -> Access:
    """The elements of `memory` at `at`, where indices that are no fragments are the same for all."""
    items = places(at)
    fragments = [item for item in items if is_fragment(item)]
    for fragment in fragments:
        if fragment.type.dtype != INDEX:
            fix = "convert it: x.to(index); rows, columns = coordinates(acc) are indices"
            raise frame.error(node, f"an index must be index, it is {describe(fragment)}", fix, code="C203")
    if not fragments:
        base, indices = located(frame, node, memory, items)
        return Access(frame, node, base, [indices], None)
    type_ = joined(frame, node, [fragment.type for fragment in fragments], "indices")
    columns = [elements(item, frame) if is_fragment(item) else [item] * type_.size for item in items]
    found = [located(frame, node, memory, row) for row in zip(*columns, strict=True)]
    return Access(frame, node, found[0][0], [indices for _, indices in found], type_)


def read_element(frame: Frame, node: ast.AST, container: Any, at: Any) -> Any:
    """``container[at]``: an element, a view of memory, or a slice of a fragment."""
    if is_place(container):
        if any(is_slice(item) for item in places(at)):
            return subview(frame, node, container, at)
        found = access(frame, node, container, at)
        return found.each(tile.Load, gathered=found.gathered)
    if is_fragment(container):
        return _read_fragment(frame, node, container, at)
    if container is None:
        raise absent(frame, node, "indexed")
    if has_operators(container) or contains_value(at):
        what = describe(container)
        fix = "use unroll() so that the index is known at compile time"
        fix = fix if contains_value(at) else "index tensors, tiles, fragments and compile-time sequences"
        raise frame.error(node, f"{what} cannot be indexed with {describe(at)}", fix, code="C104")
    return at_compile_time(operator.getitem, [container, at], frame, node, structure=True)


def write_element(frame: Frame, node: ast.AST, memory: Value | View, at: Any, binding: Any) -> None:
    """``memory[at] = binding``."""
    if any(is_slice(item) for item in places(at)):
        fix = "assign elements, store a vector with .store(), or copy(src, dst) a whole view"
        raise frame.error(node, f"a part of {memory_name(memory)} is not an element", fix, code="C305")
    found = access(frame, node, memory, at)
    values = found.values(binding, memory_type(memory).dtype, f"value stored to {memory_name(memory)}")
    found.each(tile.Store, values, gathered=found.gathered)


def absent(frame: Frame, node: ast.AST, action: str) -> CompileError:
    """The error for the use of an optional tensor that this call does not give."""
    name = ast.unparse(node.value) if isinstance(node, (ast.Subscript, ast.Attribute)) else "it"
    fix = f"guard it: `if {name} is not None:`"
    return frame.error(node, f"{name} is None in this call and cannot be {action}", fix, code="C403")


def vector_length(frame: Frame, node: ast.AST, memory: Value | View, vec: Any) -> int:
    """How many elements `vec` bytes are."""
    type_ = memory_type(memory)
    size = type_.dtype.bytes
    if not isinstance(vec, int) or vec not in tile.VECTOR_BYTES or vec % size:
        message = f"vec={vec if isinstance(vec, int) else describe(vec)} on elements of {size} bytes"
        raise frame.error(node, message, "vec counts bytes: 2, 4, 8 or 16, and at least one element", code="C401")
    count = vec // size
    if count > 1 and unit_axis(as_view(memory)) is None and type_.unit >= 0:
        name = memory_name(memory)
        message = f"{vec} bytes at once along the axis of stride 1 of {name}, which this view has dropped"
        raise frame.error(node, message, "take a view that keeps that axis, or access single elements", code="C401")
    return count


def is_vector(binding: Any) -> bool:
    return is_fragment(binding) and len(binding.type.dims) == 1


# -- elements of fragments -------------------------------------------------------------------------


def _selected(frame: Frame, node: ast.AST, type_: FragmentType, at: Any) -> tuple[list[range], tuple[int, ...]]:
    """The compile-time places along each axis of a fragment that an index names, and the shape of the result,
    which has an axis for each slice."""
    if type_.layout is not None:
        fix = "store it to a tile, or go element by element: rows, columns = coordinates(acc), then where() or t.get()"
        raise frame.error(
            node, f"{type_} is held by {type_.layout.threads} threads together and has no indices", fix, code="C104"
        )
    items = places(at)
    if len(items) != len(type_.dims):
        message = f"a fragment of shape {type_.dims} takes {len(type_.dims)} indices, got {len(items)}"
        raise frame.error(node, message, _INSIDE, code="C304")
    chosen: list[range] = []
    for item, limit in zip(items, type_.dims, strict=True):
        at, count = (item.start, item.size) if isinstance(item, Range) else (item, 1)
        if is_int(at):
            found = range(at, at + count)
        elif is_slice(at):
            found = slice_range(frame, node, at, limit)
        else:
            message = f"a fragment lives in registers and takes compile-time indices, got {describe(at)}"
            raise frame.error(node, message, "loop with unroll() instead of range()", code="C106")
        if not 0 <= found[0] <= found[-1] < limit:
            shown = f"the slice {found.start}:{found.stop}" if is_slice(item) else f"index {item}"
            raise frame.error(node, f"{shown} is outside a fragment of shape {type_.dims}", _INSIDE, code="C303")
        chosen.append(found)
    return chosen, tuple(len(found) for found, item in zip(chosen, items, strict=True) if is_slice(item))


_INSIDE = "slices are not clipped; there are no negative indices"


def _read_fragment(frame: Frame, node: ast.AST, fragment: Value, at: Any) -> Value:
    """``f[i, j]`` and ``f[0:4, j]``."""
    chosen, shape = _selected(frame, node, fragment.fragment, at)
    found = [frame.builder.value(tile.Extract(fragment, at=place)) for place in product(*chosen)]
    if not shape:
        return found[0]
    return frame.builder.value(tile.Pack(*found, type=FragmentType(fragment.fragment.dtype, shape)))


def replaced_in_fragment(frame: Frame, node: ast.AST, fragment: Value, at: Any, binding: Any) -> Value:
    """The fragment with one element, or those of a slice, replaced: by a number, or a fragment of that shape."""
    dtype = fragment.fragment.dtype
    chosen, shape = _selected(frame, node, fragment.fragment, at)
    if not is_fragment(binding):
        sources = repeat(as_value(binding, dtype, frame, node, "element"))
    elif binding.type != FragmentType(dtype, shape):
        wanted = f"a slice of shape {shape}" if shape else "one element"
        fix = "both sides of an assignment have one shape and dtype"
        raise frame.error(node, f"{describe(binding)} assigned to {wanted} of {dtype}", fix, code="C203")
    else:
        sources = elements(binding, frame)
    for place, element in zip(product(*chosen), sources, strict=False):
        fragment = frame.builder.value(tile.Insert(fragment, element, at=place))
    return fragment

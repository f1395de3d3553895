"""Element and vector access to tensors, shared tiles and fragments; their attributes and methods."""

from __future__ import annotations

import ast
from typing import Any

from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value, at_compile_time
from tiledsl.frontend.bindings import describe, is_register
from tiledsl.frontend.frame import Frame
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.arith import Constant
from tiledsl.ir.types import INDEX, FragmentType, GlobalType, MemoryType, SharedType, is_memory

__all__ = [
    "absent",
    "element_index",
    "extent",
    "fragment_position",
    "memory_type",
    "read_element",
    "stride",
    "vector_length",
    "write_element",
]


def memory_type(memory: Value) -> MemoryType:
    assert isinstance(memory.type, (GlobalType, SharedType))
    return memory.type


def element_index(frame: Frame, node: ast.AST, memory: Value, at: Any) -> list[Value]:
    """The indices of one element as index values; static ones are checked against static extents."""
    type_ = memory_type(memory)
    places: list[Any] = list(at) if isinstance(at, (tuple, list)) else [at]  # pyright: ignore
    if len(places) != type_.rank:
        raise frame.error(node, f"{memory.name or 'the tile'} has {type_.rank} axes, got {len(places)} indices")
    return [_one_index(frame, node, memory, axis, place) for axis, place in enumerate(places)]


def _one_index(frame: Frame, node: ast.AST, memory: Value, axis: int, place: Any) -> Value:
    if isinstance(place, slice):
        raise frame.error(node, "a slice of a tile is not an element", "index each axis with a number")
    value = as_value(place, INDEX, frame, node, f"index of axis {axis}")
    limit = memory_type(memory).dims[axis]
    if isinstance(value.op, Constant):
        at = value.op.value
        if at < 0 or (isinstance(limit, int) and at >= limit):
            raise frame.error(
                node,
                f"index {at} is outside axis {axis} of {memory.name or 'the tile'}, whose extent is {limit}",
                "indices go from 0 to the extent - 1; there are no negative ones",
            )
    return value


def fragment_position(frame: Frame, node: ast.AST, type_: FragmentType, at: Any) -> tuple[int, ...]:
    """A compile-time position in a fragment."""
    place: tuple[Any, ...] = tuple(at) if isinstance(at, (tuple, list)) else (at,)  # pyright: ignore
    if len(place) != len(type_.dims):
        raise frame.error(node, f"a fragment of shape {type_.dims} takes {len(type_.dims)} indices, got {len(place)}")
    for index, limit in zip(place, type_.dims, strict=True):
        if not isinstance(index, int):
            raise frame.error(
                node,
                f"a fragment lives in registers and takes compile-time indices, got {describe(index)}",
                "loop with unroll() instead of range()",
            )
        if not 0 <= index < limit:
            raise frame.error(node, f"index {index} is outside a fragment of shape {type_.dims}")
    return place


def absent(frame: Frame, node: ast.AST, action: str) -> CompileError:
    """The error for the use of an optional tensor that this call does not give."""
    name = ast.unparse(node.value) if isinstance(node, (ast.Subscript, ast.Attribute)) else "it"
    fix = f"guard it: `if {name} is not None:`"
    return frame.error(node, f"{name} is None in this call and cannot be {action}", fix)


def read_element(frame: Frame, node: ast.AST, container: Any, at: Any) -> Any:
    """``container[at]``."""
    if isinstance(container, Value) and is_memory(container.type):
        return frame.builder.value(tile.Load(container, *element_index(frame, node, container, at)))
    if isinstance(container, Value) and isinstance(container.type, FragmentType):
        place = fragment_position(frame, node, container.type, at)
        return frame.builder.value(tile.Extract(container, at=place))
    if container is None:
        raise absent(frame, node, "indexed")
    if isinstance(container, Value) or isinstance(at, Value):
        what = describe(container)
        fix = "use unroll() so that the index is known at compile time" if isinstance(at, Value) else ""
        raise frame.error(node, f"{what} cannot be indexed with {describe(at)}", fix)
    return at_compile_time(lambda: container[at], frame, node)


def write_element(frame: Frame, node: ast.AST, memory: Value, at: Any, binding: Any) -> None:
    """``memory[at] = binding``."""
    value = as_value(binding, memory_type(memory).dtype, frame, node, f"value stored to {memory.name or 'the tile'}")
    frame.builder.add(tile.Store(memory, *element_index(frame, node, memory, at), value))


def vector_length(frame: Frame, node: ast.AST, memory: Value, vec: Any) -> int:
    """How many elements `vec` bytes are."""
    size = memory_type(memory).dtype.bytes
    if not isinstance(vec, int) or vec not in tile.VECTOR_BYTES or vec % size:
        raise frame.error(
            node,
            f"vec={vec if isinstance(vec, int) else describe(vec)} on elements of {size} bytes",
            "vec counts bytes: 2, 4, 8 or 16, and at least one element",
        )
    return vec // size


def extent(frame: Frame, memory: Value, axis: int) -> Value | int:
    """The extent along `axis`: a compile-time int if it is static."""
    size = memory_type(memory).dims[axis]
    return size if isinstance(size, int) else frame.builder.value(tile.Dim(memory, axis=axis))


def stride(frame: Frame, memory: Value, axis: int) -> Value | int:
    """Elements between neighbours along `axis`: a compile-time int where it is known."""
    type_ = memory_type(memory)
    if isinstance(type_, GlobalType):
        return 1 if axis == type_.unit else frame.builder.value(tile.Stride(memory, axis=axis))
    step = 1
    for size in type_.dims[axis + 1 :]:
        step *= size
    return step


def is_vector(binding: Any) -> bool:
    return is_register(binding) and isinstance(binding.type, FragmentType) and len(binding.type.dims) == 1

"""Attributes of tensors, tiles, fragments and scalars; methods come back bound, to be called."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import at_compile_time
from tiledsl.frontend.bindings import contains_value, describe
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.memory import absent, extent, memory_type, stride
from tiledsl.ir.core import Value
from tiledsl.ir.types import BOOL, DTYPES, DType, FragmentType, GlobalType, is_memory

__all__ = ["BoundMethod", "attribute_of", "lang_class", "lang_dtype"]

_CLASSES = {t.name: getattr(lang, t.name if t != BOOL else "boolean") for t in DTYPES.values()}


@dataclass(frozen=True)
class BoundMethod:
    """`receiver.name` of a language class: `method` is that class's function, which handlers know."""

    receiver: Any
    method: Any


def lang_dtype(dtype: DType) -> Any:
    """The language's class for an IR dtype."""
    return _CLASSES[dtype.name]


def lang_class(binding: Value) -> type[Any]:
    """The class of `tiledsl.lang` that describes a run-time value."""
    if isinstance(binding.type, GlobalType):
        return lang.Global
    if is_memory(binding.type):
        return lang.SharedTile
    if isinstance(binding.type, FragmentType):
        return lang.Fragment
    assert isinstance(binding.type, DType)
    return lang_dtype(binding.type)


def attribute_of(frame: Frame, node: ast.AST, owner: Any, name: str) -> Any:
    """``owner.name``."""
    if not isinstance(owner, Value):
        if owner is None:
            raise absent(frame, node, f"asked for .{name}")
        if contains_value(owner):
            raise frame.error(node, f".{name} on a list with run-time values", "index it, or use len()")
        return at_compile_time(lambda: getattr(owner, name), frame, node)
    found = _data(frame, owner, name)
    if found is not None:
        return found
    method: Any = getattr(lang_class(owner), name, None)
    if callable(method) and not name.startswith("_"):
        return BoundMethod(owner, method)
    fix = "convert with .to(dtype)" if name == "astype" else ""
    raise frame.error(node, f"{describe(owner)} has no attribute {name}", fix)


def _data(frame: Frame, owner: Value, name: str) -> Any:
    type_ = owner.type
    if name == "dtype":
        return lang_dtype(type_ if isinstance(type_, DType) else type_.dtype)
    if isinstance(type_, FragmentType):
        return {"shape": type_.dims, "rank": len(type_.dims)}.get(name)
    if not is_memory(type_):
        return None
    rank = memory_type(owner).rank
    if name == "shape":
        return tuple(extent(frame, owner, axis) for axis in range(rank))
    if name == "strides":
        return tuple(stride(frame, owner, axis) for axis in range(rank))
    if name == "rank":
        return rank
    if name == "unit":
        return type_.unit if isinstance(type_, GlobalType) else memory_type(owner).rank - 1
    if name == "align":
        # A shared tile starts at a multiple of 16 bytes; its rows are a multiple of their length.
        return type_.align if isinstance(type_, GlobalType) else _tile_alignment(owner)
    return None


def _tile_alignment(tile: Value) -> int:
    type_ = memory_type(tile)
    row = type_.dims[-1] * type_.dtype.bytes if type_.rank > 1 and isinstance(type_.dims[-1], int) else 16
    return min(16, row & -row)

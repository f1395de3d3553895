"""Attributes of tensors, tiles, fragments and scalars; methods are bound to them."""

from __future__ import annotations

import ast
import inspect
from types import MethodType
from typing import Any

from tiledsl import lang
from tiledsl.frontend.arithmetic import at_compile_time
from tiledsl.frontend.bindings import LanguageObject, Range, View, contains_value, describe, is_place
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.memory import absent
from tiledsl.frontend.views import as_view, extent, memory_type, stride, transposed, unit_axis
from tiledsl.ir.core import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.types import BOOL, DTYPES, DType, FragmentType, GlobalType, SharedType, TokenType

_CLASSES = {t.name: getattr(lang, t.name if t != BOOL else "boolean") for t in DTYPES.values()}


def lang_dtype(dtype: DType) -> Any:
    """The language's class for an IR dtype."""
    return _CLASSES[dtype.name]


_BY_TYPE: dict[Any, type[Any]] = {
    GlobalType: lang.Global,
    SharedType: lang.SharedTile,
    FragmentType: lang.Fragment,
    TokenType: lang.Token,
}


def lang_class(binding: Value | View) -> type[Any]:
    """The class of `tiledsl.lang` that describes a run-time value or a view."""
    if isinstance(binding, View):
        return lang.View
    type_ = binding.type
    return lang_dtype(type_) if isinstance(type_, DType) else _BY_TYPE[type(type_)]


def attribute_of(frame: Frame, node: ast.AST, owner: Any, name: str) -> Any:
    """``owner.name``."""
    if isinstance(owner, Range) and name in ("start", "size"):
        return getattr(owner, name)
    if not isinstance(owner, (Value, View, LanguageObject)):
        if owner is None:
            raise absent(frame, node, f"asked for .{name}")
        if isinstance(owner, Range):
            raise frame.error(
                node, f"{describe(owner)} has no attribute {name}", "it has .start and .size", code="C104"
            )
        if contains_value(owner):
            raise frame.error(node, f".{name} on a list with run-time values", "index it, or use len()", code="C106")
        if type(owner) in (bool, int, float) and not hasattr(owner, name):
            fix = f"leave out .{name}: a number of Python, or of NumPy, has no attributes of an array here"
            raise frame.error(node, f"{describe(owner)} has no attribute {name}", fix, code="C104")
        value = at_compile_time(getattr, [owner, name], frame, node)
        frame.check_readable(node, f".{name}", value)
        return value
    if isinstance(owner, LanguageObject):
        found, described = owner.data.get(name), owner.described_by
    else:
        found, described = _data(frame, node, owner, name), lang_class(owner)
    if found is not None:
        return found
    method: Any = getattr(described, name, None)
    if callable(method) and not name.startswith("_"):
        return MethodType(method, owner)
    if isinstance(owner, LanguageObject):
        fix = owner.fix
    else:
        annotated = (n for base in described.__mro__ for n in inspect.get_annotations(base))
        known = sorted(n for n in {*dir(described), *annotated} if not n.startswith("_"))
        fix = "convert with .to(dtype)" if name == "astype" else f"it has {', '.join(known)}"
    raise frame.error(node, f"{describe(owner)} has no attribute {name}", fix, code="C104")


def _data(frame: Frame, node: ast.AST, owner: Value | View, name: str) -> Any:
    if is_place(owner):
        return _memory_data(frame, node, owner, name)
    assert isinstance(owner, Value)
    type_ = owner.type
    if isinstance(type_, FragmentType):
        return _fragment_data(frame, node, type_, name)
    return lang_dtype(type_) if isinstance(type_, DType) and name == "dtype" else None


def _fragment_data(frame: Frame, node: ast.AST, type_: FragmentType, name: str) -> Any:
    layout = type_.layout
    if name in ("layout", "a", "b"):
        if layout is None:
            fix = "make it with one: fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))"
            raise frame.error(
                node, f".{name} of {type_}, which is each thread's own and has no layout", fix, code="C104"
            )
        return layout if name == "layout" else getattr(layout, name)
    return {"dtype": lang_dtype(type_.dtype), "shape": type_.dims, "rank": len(type_.dims)}.get(name)


def _memory_data(frame: Frame, node: ast.AST, memory: Value | View, name: str) -> Any:
    type_, view = memory_type(memory), as_view(memory)
    if name in ("shape", "strides"):
        of = extent if name == "shape" else stride
        return tuple(of(frame, view, axis) for axis in range(view.rank))
    if name in ("align", "whole"):
        if isinstance(memory, View):
            fix = "ask the tensor or tile itself; whether an access is aligned depends on where the view begins"
            raise frame.error(node, f".{name} of {describe(memory)}", fix, code="C104")
        if isinstance(type_, GlobalType):
            return type_.align if name == "align" else type_.whole
        if name == "whole":
            return None
        # A shared tile starts at a multiple of 16 bytes; the rest is its layout's.
        assert isinstance(memory.op, tile.SharedAlloc)
        return memory.op.placement.vector_bytes(type_.dims, type_.dtype.bytes)
    axis = unit_axis(view)
    known = {"dtype": lang_dtype(type_.dtype), "rank": view.rank, "unit": -1 if axis is None else axis}
    return transposed(view) if name == "T" else known.get(name)

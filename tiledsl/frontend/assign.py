"""Assignment: to names, to several at once, to elements of tiles, fragments and lists."""

from __future__ import annotations

import ast
from typing import Any

from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import describe, is_place
from tiledsl.frontend.frame import Frame, evaluate, execute
from tiledsl.frontend.memory import absent, read_element, replaced_in_fragment, write_element
from tiledsl.frontend.products import add_product
from tiledsl.ir.core import Value
from tiledsl.ir.types import FragmentType
from tiledsl.lang import ir_dtype

__all__ = ["assign"]


def assign(frame: Frame, target: ast.expr, binding: Any) -> None:
    """Bind `target` to `binding`, as Python's ``=`` would."""
    match target:
        case ast.Name(id=name):
            if isinstance(binding, Value) and not binding.name:
                binding.name = name
            frame.env[name] = binding
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            _unpack(frame, target, elts, binding)
        case ast.Subscript():
            _assign_element(frame, target, binding)
        case _:
            raise _not_a_target(frame, target)


def _not_a_target(frame: Frame, target: ast.expr) -> CompileError:
    return frame.error(target, "this cannot be assigned to in a kernel", "assign to a name or an element t[i, j]")


def _unpack(frame: Frame, target: ast.expr, elts: list[ast.expr], binding: Any) -> None:
    if isinstance(binding, Value) or not isinstance(binding, (tuple, list, range)):
        raise frame.error(
            target,
            f"cannot unpack {describe(binding)} into {len(elts)} names",
            "assign it to one name, or take its elements by index",
        )
    for element in elts:
        if isinstance(element, ast.Starred):
            fix = "use slices: b = values[1:]"
            raise frame.error(element, "a starred name is not part of the kernel language", fix)
    items: list[Any] = list(binding)  # pyright: ignore[reportUnknownArgumentType]
    if len(items) != len(elts):
        fix = f"write {len(items)} names"
        raise frame.error(target, f"cannot unpack {len(items)} values into {len(elts)} names", fix)
    for element, item in zip(elts, items, strict=True):
        assign(frame, element, item)


def _assign_element(frame: Frame, target: ast.Subscript, binding: Any) -> None:
    container = evaluate(target.value, frame)
    at = evaluate(target.slice, frame)
    if is_place(container):
        write_element(frame, target, container, at, binding)
    else:
        assign(frame, target.value, _replaced(frame, target, container, at, binding))


def _replaced(frame: Frame, node: ast.Subscript, container: Any, at: Any, binding: Any) -> Any:
    """A fragment or list with one element replaced: both are values, so the name is bound anew."""
    if container is None:
        raise absent(frame, node, "assigned to")
    if isinstance(container, Value) and isinstance(container.type, FragmentType):
        return replaced_in_fragment(frame, node, container, at, binding)
    if isinstance(container, list) and isinstance(at, int):
        items: list[Any] = list(container)  # pyright: ignore[reportUnknownArgumentType]
        if not -len(items) <= at < len(items):
            raise frame.error(node, f"index {at} outside a list of {len(items)}", "xs.append(x) makes it longer")
        items[at] = binding
        return items
    fix = "tiles, fragments and lists have elements that can be assigned"
    raise frame.error(node, f"cannot assign an element of {describe(container)}", fix)


@execute.register
def _(node: ast.Assign, frame: Frame) -> None:
    binding = evaluate(node.value, frame)
    for target in node.targets:
        assign(frame, target, binding)


@execute.register
def _(node: ast.AnnAssign, frame: Frame) -> None:
    """``x: f32 = 0``: the annotation is the dtype, so a literal takes it and a value must have it."""
    if node.value is None:
        raise frame.error(node, "a declaration without a value", "assign a value")
    binding = evaluate(node.value, frame)
    dtype = ir_dtype(evaluate(node.annotation, frame))
    if dtype is not None and not (isinstance(binding, Value) and binding.type == dtype):
        binding = as_value(binding, dtype, frame, node.value, f"value of {ast.unparse(node.target)}")
    assign(frame, node.target, binding)


@execute.register
def _(node: ast.AugAssign, frame: Frame) -> None:
    """``t += a * b`` is one fma. The element of ``t[i, j] += x`` is addressed once."""
    target = node.target
    if not isinstance(target, ast.Subscript):
        if not isinstance(target, ast.Name):
            raise _not_a_target(frame, target)
        assign(frame, target, add_product(node.op, frame.lookup(target), node.value, frame, node))
        return
    container = evaluate(target.value, frame)
    at = evaluate(target.slice, frame)
    new = add_product(node.op, read_element(frame, target, container, at), node.value, frame, node)
    if is_place(container):
        write_element(frame, target, container, at, new)
    else:
        assign(frame, target.value, _replaced(frame, target, container, at, new))

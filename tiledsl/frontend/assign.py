"""Assignment: to names, to several at once, to elements of tiles, fragments and lists."""

from __future__ import annotations

import ast
from typing import Any, Callable

from tiledsl.errors import CompileError
from tiledsl.frontend.analysis import root_name
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import describe, is_fragment, is_place
from tiledsl.frontend.budget import MAX_ITEMS
from tiledsl.frontend.frame import Frame, evaluate, execute
from tiledsl.frontend.memory import absent, read_element, replaced_in_fragment, write_element
from tiledsl.frontend.products import add_product
from tiledsl.ir.core import Value
from tiledsl.lang import ir_dtype


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
            _Target(frame, target).write(binding)
        case _:
            raise _not_a_target(frame, target)


def _not_a_target(frame: Frame, target: ast.expr) -> CompileError:
    return frame.error(
        target, "this cannot be assigned to in a kernel", "assign to a name or an element t[i, j]", code="C101"
    )


def _unpack(frame: Frame, target: ast.expr, elts: list[ast.expr], binding: Any) -> None:
    if isinstance(binding, Value) or not isinstance(binding, (tuple, list, range)):
        message = f"cannot unpack {describe(binding)} into {len(elts)} names"
        raise frame.error(target, message, "assign it to one name, or take its elements by index", code="C104")
    items: list[Any] = list(binding)  # pyright: ignore[reportUnknownArgumentType]
    if len(items) != len(elts):
        fix = f"write {len(items)} names"
        raise frame.error(target, f"cannot unpack {len(items)} values into {len(elts)} names", fix, code="C104")
    for element, item in zip(elts, items, strict=True):
        assign(frame, element, item)


def _refuse_shared(frame: Frame, target: ast.expr, changed: list[Any]) -> None:
    """Refuse to change a list that has another name: in Python, both names would show the change."""
    own = root_name(target)
    if own is not None and own not in frame.env:
        message = f"{own} is a list from outside, which this would change"
        raise frame.error(target, message, f"copy it: {own} = list(...)", code="C113")
    for here in frame.callers:
        for name, binding in here.env.items():
            if _occurs(binding, changed) > (here is frame and name == own):
                fix = f"copy it where it gets its second name: {name} = list(...)"
                raise frame.error(
                    target, f"{own} is a list that {name} holds, too, and this would change both", fix, code="C113"
                )


def _occurs(binding: Any, wanted: list[Any]) -> int:
    """How often a list is in a tree of lists, tuples and dicts."""
    if binding is wanted:
        return 1
    if isinstance(binding, dict):
        binding = list(binding.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if not isinstance(binding, (list, tuple)):
        return 0
    return sum(_occurs(item, wanted) for item in binding)  # pyright: ignore[reportUnknownVariableType]


class _Target:
    """A name or ``t[i, j]`` that is read and then assigned: where it is, evaluated once, through lists of lists."""

    def __init__(self, frame: Frame, node: ast.expr) -> None:
        self.frame, self.node = frame, node
        if isinstance(node, ast.Subscript):
            inner = node.value
            self.outer = _Target(frame, inner) if isinstance(inner, (ast.Name, ast.Subscript)) else None
            self.container = evaluate(inner, frame) if self.outer is None else self.outer.read()
            self.at = evaluate(node.slice, frame)
        elif not isinstance(node, ast.Name):
            raise _not_a_target(frame, node)

    def read(self) -> Any:
        if isinstance(self.node, ast.Subscript):
            return read_element(self.frame, self.node, self.container, self.at)
        return evaluate(self.node, self.frame)

    def write(self, binding: Any) -> None:
        """Write to memory, or bind the name at the root of the target to a new value."""
        if not isinstance(self.node, ast.Subscript):
            assign(self.frame, self.node, binding)
        elif is_place(self.container):
            write_element(self.frame, self.node, self.container, self.at, binding)
        elif self.outer is None:
            raise _not_a_target(self.frame, self.node)
        else:
            self.outer.write(_replaced(self.frame, self.node, self.container, self.at, binding))


def append(frame: Frame, node: ast.expr, item: Callable[[], Any]) -> None:
    """``xs.append(x)``: lists are values, so the name is bound to a longer one."""
    target = _Target(frame, node)
    owner: Any = target.read()
    if not isinstance(owner, list):
        raise frame.error(node, f"append() on {describe(owner)}", "append one element to a list", code="C104")
    _refuse_shared(frame, node, owner)  # pyright: ignore[reportUnknownArgumentType]
    if len(owner) >= MAX_ITEMS:  # pyright: ignore[reportUnknownArgumentType]
        raise frame.error(node, f"a list of more than {MAX_ITEMS} items", "compute less at compile time", code="C110")
    target.write([*owner, item()])


def _replaced(frame: Frame, node: ast.Subscript, container: Any, at: Any, binding: Any) -> Any:
    """A fragment or list with one element replaced: both are values, so the name is bound anew."""
    if container is None:
        raise absent(frame, node, "assigned to")
    if is_fragment(container):
        return replaced_in_fragment(frame, node, container, at, binding)
    if isinstance(container, list) and isinstance(at, int):
        _refuse_shared(frame, node.value, container)  # pyright: ignore[reportUnknownArgumentType]
        items: list[Any] = list(container)  # pyright: ignore[reportUnknownArgumentType]
        if not -len(items) <= at < len(items):
            raise frame.error(
                node, f"index {at} outside a list of {len(items)}", "xs.append(x) makes it longer", code="C104"
            )
        items[at] = binding
        return items
    fix = "tiles, fragments and lists have elements that can be assigned"
    raise frame.error(node, f"cannot assign an element of {describe(container)}", fix, code="C104")


@execute.register
def _(node: ast.Assign, frame: Frame) -> None:
    binding = evaluate(node.value, frame)
    for target in node.targets:
        assign(frame, target, binding)


@execute.register
def _(node: ast.AnnAssign, frame: Frame) -> None:
    """``x: f32 = 0``: the annotation is the dtype, so a literal takes it and a value must have it."""
    if node.value is None:
        raise frame.error(node, "a declaration without a value", "assign a value", code="C101")
    binding = evaluate(node.value, frame)
    dtype = ir_dtype(evaluate(node.annotation, frame))
    if dtype is not None and not (isinstance(binding, Value) and binding.type == dtype):
        binding = as_value(binding, dtype, frame, node.value, f"value of {ast.unparse(node.target)}")
    assign(frame, node.target, binding)


@execute.register
def _(node: ast.AugAssign, frame: Frame) -> None:
    """``t += a * b`` is one fma. The element of ``t[i, j] += x`` is addressed once."""
    target = _Target(frame, node.target)
    old = target.read()
    if isinstance(old, list):
        _refuse_shared(frame, node.target, old)  # pyright: ignore[reportUnknownArgumentType]
    target.write(add_product(node.op, old, node.value, frame, node))

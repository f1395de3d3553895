"""Expressions, but for sums (`products`) and calls (`calls`)."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any, Callable, TypeVar

from tiledsl import lang
from tiledsl.frontend.arithmetic import apply, as_condition, at_compile_time, items_of, select
from tiledsl.frontend.assign import assign
from tiledsl.frontend.attributes import attribute_of, lang_dtype
from tiledsl.frontend.bindings import UNBOUND, contains_value, describe, has_operators, is_register
from tiledsl.frontend.budget import MAX_ITEMS, many_items
from tiledsl.frontend.comparisons import both, compare
from tiledsl.frontend.control import Side, chosen, value_side
from tiledsl.frontend.frame import Frame, during, evaluate
from tiledsl.frontend.memory import read_element
from tiledsl.frontend.views import extent
from tiledsl.ir.core import Value
from tiledsl.ir.types import BOOL
from tiledsl.lang import Dim


@evaluate.register
def _(node: ast.Constant, frame: Frame) -> Any:
    return node.value


@evaluate.register
def _(node: ast.Name, frame: Frame) -> Any:
    binding: Any = frame.lookup(node)
    if isinstance(binding, TypeVar) and binding.__name__ in frame.dims:
        return _extent(frame, frame.dims[binding.__name__])
    if isinstance(binding, TypeVar):
        own = frame.dtypes.get(binding.__name__)
        found = frame.unit.typevars.get(binding.__name__) if own is None else lang_dtype(own)
        if found is None:
            message = f"no parameter has the dtype variable {binding.__name__}"
            raise frame.error(node, message, "annotate a tensor with it", code="C103")
        return found
    if isinstance(binding, type) and issubclass(binding, Dim):
        name, extents = str(binding), frame.unit.extents
        if name in frame.dims:
            return _extent(frame, frame.dims[name])
        if name not in extents:
            known = ", ".join(extents) or "none"
            message = f"{name} is not a dimension of this kernel's tensors (they have: {known})"
            raise frame.error(node, message, "use one of them", code="C103")
        return extent(frame, *extents[name])
    if binding is lang.processors:
        host = frame.unit.host
        if frame.builder.block is not host:
            fix = "in the kernel, grid_size() is how many blocks there are"
            raise frame.error(node, "processors is known to the host alone, in the extents of grid()", fix, code="C103")
        return host.args[0]
    return binding  # pyright: ignore[reportUnknownVariableType]


def _extent(frame: Frame, known: int | str) -> Any:
    """Return an extent that is known as it is or by the kernel's name for it."""
    return known if isinstance(known, int) else extent(frame, *frame.unit.extents[known])


@evaluate.register
def _(node: ast.Attribute, frame: Frame) -> Any:
    return attribute_of(frame, node, evaluate(node.value, frame), node.attr)


@evaluate.register
def _(node: ast.Subscript, frame: Frame) -> Any:
    return read_element(frame, node, evaluate(node.value, frame), evaluate(node.slice, frame))


@evaluate.register
def _(node: ast.Slice, frame: Frame) -> Any:
    parts = [None if part is None else evaluate(part, frame) for part in (node.lower, node.upper, node.step)]
    if any(isinstance(part, Value) for part in parts):
        fix = "a slice has compile-time bounds; tile(i, B) is a range of B elements that may begin anywhere"
        raise frame.error(node, "a slice with run-time bounds: its length is not known", fix, code="C106")
    return slice(*parts)


@evaluate.register
def _(node: ast.Tuple | ast.List, frame: Frame) -> Any:
    items = [evaluate(item, frame) for item in node.elts]
    if many_items(items):
        raise frame.error(
            node, f"more than {MAX_ITEMS} items, with those of the lists in it", "make it smaller", code="C110"
        )
    return tuple(items) if isinstance(node, ast.Tuple) else items


@evaluate.register
def _(node: ast.Dict, frame: Frame) -> Any:
    if any(key is None for key in node.keys):
        raise frame.error(node, "** in a dict is not part of the kernel language", "write the entries out", code="C101")
    entries = zip(node.keys, node.values, strict=True)
    return {_key(frame, key): evaluate(value, frame) for key, value in entries if key is not None}


def _key(frame: Frame, node: ast.expr) -> Any:
    """The key of a dict, which Python hashes."""
    key = evaluate(node, frame)
    if contains_value(key):
        raise frame.error(node, f"a key of a dict that is {describe(key)}", "keys are compile-time values", code="C104")
    at_compile_time(hash, [key], frame, node)
    return key


@evaluate.register
def _(node: ast.JoinedStr, frame: Frame) -> Any:
    return "".join(str(evaluate(part, frame)) for part in node.values)


@evaluate.register
def _(node: ast.FormattedValue, frame: Frame) -> Any:
    value = evaluate(node.value, frame)
    if contains_value(value):
        raise frame.error(
            node, "a run-time value in an f-string", "pass it to print() as an argument of its own", code="C106"
        )
    spec = evaluate(node.format_spec, frame) if node.format_spec is not None else ""
    if any(len(digits) > 4 for digits in re.findall(r"\d+", str(spec))):
        raise frame.error(node, f"a width of more than 9999 characters: {spec}", "use a smaller width", code="C110")
    shown: dict[int, Callable[[Any], str]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}
    if node.conversion in shown:
        value = at_compile_time(shown[node.conversion], [value], frame, node)
    return at_compile_time(format, [value, spec], frame, node)


@evaluate.register
def _(node: ast.UnaryOp, frame: Frame) -> Any:
    operand = evaluate(node.operand, frame)
    if isinstance(node.op, ast.Not):
        condition = as_condition(operand, frame, node.operand)
        return not condition if isinstance(condition, bool) else frame.builder.scalar("not", condition)
    functions: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
        ast.USub: ("neg", lambda x: -x),
        ast.Invert: ("not", lambda x: ~x),
        ast.UAdd: ("", lambda x: +x),
    }
    fn, compute = functions[type(node.op)]
    if not has_operators(operand):
        return at_compile_time(compute, [operand], frame, node)
    if fn:
        return apply(fn, [operand], frame, node, "-" if fn == "neg" else "~")
    if is_register(operand):
        return operand
    raise frame.error(node, f"+ is not defined for {describe(operand)}", "leave it out", code="C204")


@evaluate.register
def _(node: ast.Compare, frame: Frame) -> Any:
    """``a < b < c`` is ``a < b and b < c`` with b evaluated once, and c only where ``a < b``."""
    return _chained(frame, node, evaluate(node.left, frame), 0)


def _chained(frame: Frame, node: ast.Compare, left: Any, position: int) -> Any:
    right = evaluate(node.comparators[position], frame)
    found = compare(node.ops[position], left, right, frame, node)
    if position + 1 == len(node.ops):
        return found
    if not isinstance(found, Value):
        return _chained(frame, node, right, position + 1) if found else found

    def rest() -> Any:
        return _chained(frame, node, right, position + 1)

    if found.type != BOOL:  # fragments, element by element
        return both(frame, node, found, rest())
    return _choose(frame, node, found, rest, lambda: False, lambda a, _: both(frame, node, found, a))


@evaluate.register
def _(node: ast.BoolOp, frame: Frame) -> Any:
    return _short_circuit(frame, node, isinstance(node.op, ast.And), node.values)


def _short_circuit(frame: Frame, node: ast.BoolOp, conjunction: bool, parts: list[ast.expr]) -> Any:
    """``a and b`` evaluates b only where a is true: under a branch unless b is free of effects."""
    first = evaluate(parts[0], frame)
    if len(parts) == 1:
        return first
    if not has_operators(first):
        goes_on = at_compile_time(bool, [first], frame, parts[0], structure=True) == conjunction
        return _short_circuit(frame, node, conjunction, parts[1:]) if goes_on else first
    condition = as_condition(first, frame, parts[0])
    fn = "and" if conjunction else "or"

    def rest() -> Any:
        value = _short_circuit(frame, node, conjunction, parts[1:])
        if not has_operators(value) and not isinstance(value, bool):
            fix = "write a comparison, or bool(...) for its truth"
            raise frame.error(parts[1], f"`{fn}` of a run-time bool and {describe(value)}", fix, code="C106")
        value = as_condition(value, frame, parts[1])
        return frame.builder.constant(value, BOOL) if isinstance(value, bool) else value

    assert isinstance(condition, Value)
    goes_on = condition if conjunction else frame.builder.scalar("not", condition)
    decided = partial(frame.builder.constant, not conjunction, BOOL)
    return _choose(frame, node, goes_on, rest, decided, lambda a, _: frame.builder.scalar(fn, condition, a))


@evaluate.register
def _(node: ast.IfExp, frame: Frame) -> Any:
    condition = as_condition(evaluate(node.test, frame), frame, node.test)
    if isinstance(condition, bool):
        return evaluate(node.body if condition else node.orelse, frame)
    sides = partial(evaluate, node.body, frame), partial(evaluate, node.orelse, frame)
    return _choose(frame, node, condition, *sides, lambda a, b: select(condition, a, b, frame, node))


def _choose(
    frame: Frame,
    node: ast.AST,
    condition: Value,
    then: Callable[[], Any],
    orelse: Callable[[], Any],
    pure: Callable[[Any, Any], Any],
) -> Any:
    """The value of one of two expressions, each evaluated once, into a block of its own. If neither has effects, their
    ops go where the expression stands, and `pure` joins them; else the blocks are those of a branch."""
    first, second = value_side(frame, then), value_side(frame, orelse)
    if _is_free(frame, first) and _is_free(frame, second):
        for block, _ in (first, second):
            for op in block.ops:
                frame.builder.block.append(op)
        return pure(*(env["$choice"] for _, env in (first, second)))
    return chosen(frame, condition, first, second, node)


def _is_free(frame: Frame, side: Side) -> bool:
    """Has a side no effect but its value: no op that has one, and no name bound anew?"""
    block, env = side
    return all(op.is_pure for op in block.ops) and all(
        name == "$choice" or frame.env.get(name, UNBOUND) is binding for name, binding in env.items()
    )


@evaluate.register
def _(node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> Any:
    return _comprehension(frame, node, node.generators, lambda: [evaluate(node.elt, frame)])


@evaluate.register
def _(node: ast.DictComp, frame: Frame) -> Any:
    pairs = _comprehension(frame, node, node.generators, lambda: [(_key(frame, node.key), evaluate(node.value, frame))])
    return dict(pairs)


def _comprehension(
    frame: Frame, node: ast.AST, generators: list[ast.comprehension], item: Callable[[], list[Any]]
) -> list[Any]:
    """A comprehension over compile-time sequences; its elements may be run-time values."""
    if not generators:
        return item()
    first, rest = generators[0], generators[1:]
    source = evaluate(first.iter, frame)
    if has_operators(source) or not hasattr(source, "__iter__"):
        raise frame.error(
            first.iter, f"a comprehension over {describe(source)}", "iterate over compile-time values", code="C106"
        )
    result: list[Any] = []
    with during(frame, env=dict(frame.env)):
        for element in items_of(source, frame, first.iter, MAX_ITEMS, "make {} items"):
            frame.unit.spend(frame.loc(node))
            assign(frame, first.target, element)
            conditions = [as_condition(evaluate(test, frame), frame, test) for test in first.ifs]
            if any(isinstance(c, Value) for c in conditions):
                raise frame.error(
                    first.ifs[0], "a run-time condition in a comprehension", "use where(condition, a, b)", code="C106"
                )
            if all(conditions):
                result += _comprehension(frame, node, rest, item)
    return result

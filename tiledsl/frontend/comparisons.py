"""Comparisons: of numbers, and of tuples and lists element by element."""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable

from tiledsl.frontend.arithmetic import apply, at_compile_time
from tiledsl.frontend.bindings import contains_value, describe, has_operators, is_fragment
from tiledsl.frontend.frame import Frame
from tiledsl.ir.core import Value

_python: Any = operator  # its stubs are only partly typed

COMPARE: dict[type[ast.cmpop], tuple[str, str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", "==", _python.eq),
    ast.NotEq: ("ne", "!=", _python.ne),
    ast.Lt: ("lt", "<", _python.lt),
    ast.LtE: ("le", "<=", _python.le),
    ast.Gt: ("gt", ">", _python.gt),
    ast.GtE: ("ge", ">=", _python.ge),
}


def compare(op: ast.cmpop, a: Any, b: Any, frame: Frame, node: ast.AST) -> Any:
    """``a <op> b``: a compile-time bool, or a run-time one."""
    run_time = contains_value(a) or contains_value(b)
    if isinstance(op, (ast.Is, ast.IsNot)):
        if run_time and a is not b and a is not None and b is not None:  # two values may still be equal
            fix = "compare what they are with ==; `is None` asks whether an optional argument is there"
            raise frame.error(node, f"`is` between {describe(a)} and {describe(b)}", fix, code="C104")
        return (a is b) == isinstance(op, ast.Is)
    if isinstance(op, (ast.In, ast.NotIn)):
        if run_time:
            raise frame.error(node, "`in` needs compile-time values", "compare with == and or", code="C106")
        return at_compile_time(_python.contains, [b, a], frame, node) == isinstance(op, ast.In)
    fn, sign, compute = COMPARE[type(op)]
    if has_operators(a) or has_operators(b):
        return apply(fn, [a, b], frame, node, sign)
    if not run_time or not (_is_sequence(a) and _is_sequence(b)):
        return at_compile_time(compute, [a, b], frame, node)
    if not isinstance(op, (ast.Eq, ast.NotEq)):
        fix = "compare the elements: i < m and j < n, or i < m or (i == m and j < n)"
        raise frame.error(
            node, f"{sign} between {describe(a)} and {describe(b)} with run-time values", fix, code="C106"
        )
    equal = _equal(a, b, frame, node)
    if isinstance(op, ast.Eq):
        return equal
    return frame.builder.scalar("not", equal) if isinstance(equal, Value) else not equal


def _equal(a: Any, b: Any, frame: Frame, node: ast.AST) -> bool | Value:
    """``a == b``, of lists and tuples as in Python: of one class and length, and each element equal."""
    for x in (a, b):
        if is_fragment(x):
            fix = "compare fragments by themselves: x == y has one boolean an element"
            raise frame.error(node, f"== of sequences that hold {describe(x)}", fix, code="C104")
    if not (_is_sequence(a) and _is_sequence(b)):
        return compare(ast.Eq(), a, b, frame, node)
    if isinstance(a, list) != isinstance(b, list) or len(a) != len(b):
        return False
    result: bool | Value = True
    for x, y in zip(a, b, strict=True):
        result = both(frame, node, result, _equal(x, y, frame, node))
    return result


def _is_sequence(binding: Any) -> bool:
    return isinstance(binding, (list, tuple))


def both(frame: Frame, node: ast.AST, a: Any, b: Any) -> Any:
    """``a and b`` of what is evaluated already."""
    if not isinstance(a, Value):
        return b if a else a
    if not isinstance(b, Value):
        return a if b else b
    return apply("and", [a, b], frame, node, "and")

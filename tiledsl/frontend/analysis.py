"""Questions about statements that are answered from the syntax alone."""

from __future__ import annotations

import ast
from typing import Sequence

from tiledsl.signatures.source import stored_names

_LOOPS = (ast.For, ast.While)
_EXITS = (ast.Return, ast.Break, ast.Continue)


def _root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def assigned_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that the statements may bind or, through a subscript or `append`, change."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    names: set[str | None] = {*stored_names(nodes)}
    for node in nodes:
        match node:
            case ast.Subscript(ctx=ast.Store()):
                names.add(_root_name(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr="append"))):
                names.add(_root_name(value))
            case _:
                pass
    return {name for name in names if name is not None}


def loop_exits(statements: Sequence[ast.stmt]) -> set[type[ast.stmt]]:
    """Which of Break, Continue (of the loop whose body this is) and Return occur in it."""
    found: set[type[ast.stmt]] = set()
    for statement in statements:
        if isinstance(statement, _EXITS):
            found.add(type(statement))
        for _, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                inner = loop_exits(value)  # pyright: ignore[reportUnknownArgumentType]
                found |= inner & {ast.Return} if isinstance(statement, _LOOPS) else inner
    return found


def definitely_exits(statements: Sequence[ast.stmt]) -> bool:
    """True if control never runs past the end of the statements."""
    for statement in statements:
        if isinstance(statement, _EXITS):
            return True
        if isinstance(statement, ast.If) and definitely_exits(statement.body) and definitely_exits(statement.orelse):
            return True
    return False


def read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that may be read before the statements have surely bound them."""
    exposed: set[str] = set()
    _scan(statements, set(), exposed)
    return exposed


def _scan(statements: Sequence[ast.stmt], bound: set[str], exposed: set[str]) -> None:
    for statement in statements:
        match statement:
            case ast.Assign(targets=targets, value=value):
                _reads(value, bound, exposed)
                for target in targets:
                    _bind(target, bound, exposed)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    _reads(value, bound, exposed)
                    _bind(target, bound, exposed)
            case ast.If(test=test, body=body, orelse=orelse):
                _reads(test, bound, exposed)
                then, other = set(bound), set(bound)
                _scan(body, then, exposed)
                _scan(orelse, other, exposed)
                if definitely_exits(body):
                    then = other
                elif definitely_exits(orelse):
                    other = then
                bound |= then & other
            case ast.For(target=target, iter=iterator, body=body):
                _reads(iterator, bound, exposed)
                inner = set(bound)
                _bind(target, inner, exposed)
                _scan(body, inner, exposed)
            case ast.While(test=test, body=body):
                _reads(test, bound, exposed)
                _scan(body, set(bound), exposed)
            case ast.With(items=items, body=body):
                for item in items:
                    _reads(item.context_expr, bound, exposed)
                    if item.optional_vars is not None:
                        _bind(item.optional_vars, bound, exposed)
                _scan(body, bound, exposed)
            case _:
                _reads(statement, bound, exposed)


def _bind(target: ast.expr, bound: set[str], exposed: set[str]) -> None:
    match target:
        case ast.Name(id=name):
            bound.add(name)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            for item in elts:
                _bind(item, bound, exposed)
        case _:
            _reads(target, bound, exposed)


def _reads(node: ast.AST, bound: set[str], exposed: set[str]) -> None:
    """Every name below `node` counts as read: also the target of `x += 1` and of `x[i] = v`."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and child.id not in bound:
            exposed.add(child.id)

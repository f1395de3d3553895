"""Questions about statements that are answered from the syntax alone."""

from __future__ import annotations

import ast
from typing import Sequence

from tiledsl.signatures.source import stored_names

_LOOPS = (ast.For, ast.While)
_EXITS = (ast.Return, ast.Break, ast.Continue)


def root_name(node: ast.expr) -> str | None:
    """``x`` of ``x[i][j]``; None if that is no name."""
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
                names.add(root_name(node))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr="append"))):
                names.add(root_name(value))
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
    return any(
        isinstance(each, _EXITS)
        or (isinstance(each, ast.If) and definitely_exits(each.body) and definitely_exits(each.orelse))
        for each in statements
    )

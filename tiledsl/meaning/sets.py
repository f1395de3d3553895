"""Find which sets have the same order in each process, and whether code can see the order of one.

Python hashes strings, and objects by their addresses, differently in each process. A kernel that sees the order of such
a set may come out differently, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Any

from tiledsl.outside import exact_type

NUMBERS = frozenset({int, float, bool, complex})
ORDERLESS = frozenset({"len", "sorted", "min", "max", "any", "all", "bool", "set", "frozenset", "isinstance"})
"""Builtins whose result does not depend on the order of a set that they are given as it is."""
METHODS = frozenset({"isdisjoint", "issubset", "issuperset", "__contains__", "__len__"})
"""Methods of a set with the same property."""
MAKERS = frozenset({"set", "frozenset"})


def has_order(values: Collection[Any]) -> bool:
    """Return whether a set of these is in the same order in each process that makes it in the same way."""
    return len(values) < 2 or all(_hashes_alike(value) for value in values)


def _hashes_alike(value: Any) -> bool:
    kind = exact_type(value)
    if kind is tuple:
        return all(_hashes_alike(item) for item in value)
    return kind in NUMBERS and value == value  # a NaN is hashed by its address


def makes_visible_order(tree: ast.AST, builtin: Collection[str]) -> bool:
    """Return whether a function makes a set whose order it may see.

    Args:
        tree: the function.
        builtin: names of `ORDERLESS` that are builtins there.
    """
    return _visible(tree, _makes_set, builtin)


def sees_order(tree: ast.AST, name: str, builtin: Collection[str]) -> bool:
    """Return whether a function may see the order of the set that it calls `name`, which may have dots."""
    return _visible(tree, lambda node, _: _dotted(node) == name, builtin)


Parents = dict[ast.AST, ast.AST]


def _visible(tree: ast.AST, is_set: Callable[[ast.AST, Parents], bool], builtin: Collection[str]) -> bool:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return any(is_set(node, parents) and not _is_hidden(node, parents, builtin) for node in parents)


def _makes_set(node: ast.AST, parents: Parents) -> bool:
    match node:
        case ast.Set(elts=elements):
            return not all(isinstance(each, ast.Constant) and type(each.value) in NUMBERS for each in elements)
        case ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Name(id="set" | "frozenset"):  # the class itself, unless this is a call of it
            parent = parents[node]
            return not (isinstance(parent, ast.Call) and parent.func is node)
        case _:
            return False


def _is_hidden(node: ast.AST, parents: Parents, builtin: Collection[str]) -> bool:
    """Return whether the order of the set `node` has no effect where it stands."""
    parent = parents[node]
    match parent:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Expr():
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):  # a set again
            return _is_hidden(parent, parents, builtin)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in builtin
        case ast.Attribute(attr=name):
            return name in METHODS
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return test is node
        case _:
            return False


def _dotted(node: ast.AST) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""

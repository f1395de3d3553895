"""Rename private names as Python does: ``__x`` in the body of a class ``A`` is ``_A__x``."""

from __future__ import annotations

import ast
from itertools import pairwise
from types import CodeType


def class_around(code: CodeType) -> str:
    """Return the name of the innermost class whose body contains the function of `code`, or "" if there is none."""
    names = code.co_qualname.split(".")
    # A name before ".<locals>" is a function's; any other name before the last one is a class's.
    classes = [name for name, inner in pairwise(names) if "<locals>" not in (name, inner)]
    return classes[-1].lstrip("_") if classes else ""


def mangled(name: str, owner: str) -> str:
    """Return what Python calls `name` in the body of the class `owner`, a name without leading underscores.

    (The Python language reference: Private name mangling.)
    """
    private = owner and name.startswith("__") and not name.endswith("__")
    return f"_{owner}{name}" if private else name


def mangle(tree: ast.AST, owner: str) -> None:
    """Rename every private name in `tree`, code in the body of the class `owner`, as Python's compiler does."""
    if not owner:
        return
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for field in _FIELDS.get(type(node), ()):
            name = getattr(node, field)
            if isinstance(name, str):
                setattr(node, field, mangled(name, owner))
        if not isinstance(node, ast.ClassDef):  # the body of a class has names of its own
            todo += ast.iter_child_nodes(node)


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Name: ("id",),
    ast.Attribute: ("attr",),
    ast.arg: ("arg",),
}
"""The syntax of the kernel language that holds names. Python leaves the keywords of calls as they are."""

"""Which names the code of a function reads, with the attributes read of them: ``pkg.cfg.T`` is one read."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Iterable, Iterator

from tiledsl.signatures.bytecode import ATTRIBUTE, CELL, GLOBAL, IMPORT, instructions, nested

Chain = tuple[str, ...]

_HIDDEN = """
    __globals__ __builtins__ __annotations__ __code__ __subclasses__ __traceback__ f_back f_builtins f_globals f_locals
    gi_frame cr_frame tb_frame tb_lineno
"""
HIDDEN = frozenset(_HIDDEN.split())
"""Attributes that lead to more than what belongs to their object."""


@dataclass(frozen=True)
class Reads:
    """names: each with the chains of attributes read of it, () for the object itself. imports: modules that the code
    imports when it runs. hidden: attributes that cannot be followed."""

    names: tuple[tuple[str, tuple[Chain, ...]], ...]
    imports: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def _reads(found: Iterable[tuple[str, Chain]], imports: Iterable[str] = (), hidden: Iterable[str] = ()) -> Reads:
    names: dict[str, set[Chain]] = {}
    for name, chain in found:
        names.setdefault(name, set()).add(chain)
    ordered = tuple((name, tuple(sorted(chains))) for name, chains in sorted(names.items()))
    return Reads(ordered, tuple(sorted(set(imports))), tuple(sorted(set(hidden))))


@lru_cache(maxsize=4096)
def reads_of_code(code: CodeType) -> Reads:
    """What `code` and the functions and classes inside it read of globals, builtins and the closure."""
    found: list[tuple[str, Chain]] = []
    imports: list[str] = []
    hidden: list[str] = []
    for inner in nested(code):
        hidden += HIDDEN.intersection(inner.co_names)
        for name, chain, in_cell in _scan(inner, imports):
            if not in_cell or name in code.co_freevars:
                found.append((name, chain))
    return _reads(found, imports, hidden)


def _scan(code: CodeType, imports: list[str]) -> Iterator[tuple[str, Chain, bool]]:
    """(name, attributes, whether it is a cell) of each read. What is between a name and a dot ends the chain: sound."""
    root = ""
    chain: list[str] = []
    in_cell = False
    for op, arg in instructions(code):
        if op == ATTRIBUTE and root:
            chain.append(code.co_names[arg])
            continue
        if root:
            yield root, tuple(chain), in_cell
            root = ""
        if op in GLOBAL or op in CELL:
            in_cell = op in CELL
            root = code._varname_from_oparg(arg) if in_cell else code.co_names[arg]  # type: ignore[attr-defined]
            chain = []
        elif op == IMPORT:
            imports.append(code.co_names[arg])


def reads_of_tree(tree: ast.FunctionDef, local: frozenset[str]) -> Reads:
    """The same of a function's AST, annotations of its variables included; `local` names are its own."""
    found: list[tuple[str, Chain]] = []
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            if node.id not in local:
                found.append((node.id, tuple(chain)))
        else:
            todo += ast.iter_child_nodes(node)
    return _reads(found)

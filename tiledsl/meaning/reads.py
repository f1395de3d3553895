"""Which names the code of a function reads, with the attributes read of them: ``pkg.cfg.T`` is one read."""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from tiledsl.meaning.sets import MAKERS, has_order
from tiledsl.signatures.bytecode import ATTRIBUTE, CELL, GLOBAL, IMPORT, SET, instructions, nested
from tiledsl.signatures.source import FunctionSource

_HIDDEN = """
    __globals__ __builtins__ __annotations__ __code__ __subclasses__ __traceback__ f_back f_builtins f_globals f_locals
    gi_frame cr_frame tb_frame tb_lineno
"""
HIDDEN = frozenset(_HIDDEN.split())
"""Attributes that lead to more than what belongs to their object."""


class Reads(NamedTuple):
    """names: each read of a name, with the attributes read of it. imports: modules that the code imports when it runs.
    hidden: attributes that cannot be followed. All are sorted. sets: whether it makes sets."""

    names: list[tuple[str, ...]]
    imports: list[str]
    hidden: list[str]
    sets: bool


@lru_cache(maxsize=4096)
def reads_of_code(code: CodeType) -> Reads:
    """What `code` and the functions and classes inside it read of globals, builtins and the closure."""
    found: set[tuple[str, ...]] = set()
    imports: set[str] = set()
    hidden: set[str] = set()
    sets = False
    for inner in nested(code):
        hidden |= HIDDEN.intersection(inner.co_names)
        sets |= any(type(const) is frozenset and not has_order(const) for const in inner.co_consts)
        read: list[str] = []
        for op, arg in instructions(inner):
            sets |= op in SET
            if op == ATTRIBUTE and read:
                read.append(inner.co_names[arg])
                continue
            if read:  # what is between a name and a dot ends the chain: sound
                found.add(tuple(read))
                read = []
            if op in GLOBAL:
                read = [inner.co_names[arg]]
            elif op in CELL:
                name: str = inner._varname_from_oparg(arg)  # type: ignore[attr-defined]
                read = [name] if name in code.co_freevars else []
            elif op == IMPORT:
                imports.add(inner.co_names[arg])
    sets |= any(MAKERS.intersection(read) for read in found)
    return Reads(sorted(found), sorted(imports), sorted(hidden), sets)


@lru_cache(maxsize=4096)
def reads_of_source(source: FunctionSource) -> list[tuple[str, ...]]:
    """What the frontend reads where Python makes no code: annotations of variables, and assertions under ``-O``."""
    found: set[tuple[str, ...]] = set()
    nodes = list(ast.walk(source.tree))
    todo: list[ast.AST] = [node.annotation for node in nodes if isinstance(node, ast.AnnAssign)]
    todo += [node for node in nodes if isinstance(node, ast.Assert) and not __debug__]
    while todo:
        node = todo.pop()
        attributes: tuple[str, ...] = ()
        while isinstance(node, ast.Attribute):
            attributes = (node.attr, *attributes)
            node = node.value
        if not isinstance(node, ast.Name):
            todo += ast.iter_child_nodes(node)
        elif node.id not in source.bound:
            found.add((node.id, *attributes))
    return sorted(found)

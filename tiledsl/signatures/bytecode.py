"""Python's bytecode, as far as its meaning depends on a function alone: for 3.11 and later."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Iterator

_CODES = {name: code for name, code in dis.opmap.items() if code < 256}  # beyond are names that no code object has

ATTRIBUTE = _CODES["LOAD_ATTR"]
IMPORT = _CODES["IMPORT_NAME"]
GLOBAL = frozenset(_CODES[n] for n in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if n in _CODES)
CELL = frozenset(_CODES[n] for n in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") if n in _CODES)
SET = frozenset(_CODES[n] for n in ("BUILD_SET", "SET_ADD"))

_METHOD = _CODES.get("LOAD_METHOD", ATTRIBUTE)  # Python 3.11 alone
# The lowest bit of these is a flag, not part of the name's number.
_FLAGGED = frozenset({_CODES["LOAD_GLOBAL"]} | ({ATTRIBUTE} if "LOAD_METHOD" not in _CODES else set[int]()))
_DROPPED = frozenset(_CODES[n] for n in ("CACHE", "PUSH_NULL") if n in _CODES)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """(opcode, argument) of each instruction, alike for ``x.f()`` where the file imports x and where it does not.

    Python compiles those in two ways. Where jumps go is left out, which depends on it.
    """
    words = code.co_code
    extended = 0
    for at in range(0, len(words), 2):
        op, arg = words[at], words[at + 1] | extended
        if op in _DROPPED:
            continue
        extended = arg << 8 if op == dis.EXTENDED_ARG else 0
        if op == dis.EXTENDED_ARG:
            continue
        if op == _METHOD:
            op = ATTRIBUTE
        yield op, 0 if op in _JUMPS else arg >> 1 if op in _FLAGGED else arg


def nested(code: CodeType) -> Iterator[CodeType]:
    """`code` and that of all functions and classes inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)

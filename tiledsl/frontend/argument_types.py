"""Do the arguments of a function of the language fit its annotations? One check for all of them.

It runs after the function's own handler, whose errors are more specific, and finds what the handler let through or
failed on with an exception. An annotation that this file does not know fits anything.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import Any, Callable

from tiledsl.frontend.bindings import describe, is_fragment, is_int, is_place
from tiledsl.frontend.call import Call
from tiledsl.ir.core import Value
from tiledsl.lang import ir_dtype
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.shared import Layout

_Kind = tuple[Callable[[Any], bool], str]
"""A test, and what it is a test for."""

_KINDS: dict[str, _Kind] = {
    "int": (is_int, "a compile-time int"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "float": (lambda value: isinstance(value, (int, float)), "a number"),
    "None": (lambda value: value is None, "None"),
    "boolean": (lambda value: isinstance(value, Value), "a run-time bool"),
    "tuple": (lambda value: isinstance(value, tuple), "a tuple"),
    "Layout": (lambda value: isinstance(value, Layout), "a layout"),
    "FragmentLayout": (lambda value: isinstance(value, FragmentLayout), "a layout of fragments"),
    "Memory": (is_place, "a tensor, a shared tile or a view of one"),
    "Global": (is_place, "a tensor"),
    "SharedTile": (is_place, "a shared tile"),
    "Fragment": (is_fragment, "a fragment"),
    "Emulation": (callable, "a function of NumPy arrays"),
    "type": (lambda value: ir_dtype(value) is not None, "a dtype"),
}
"""By the name that an annotation begins with."""


def check_types(call: Call, signature: inspect.Signature) -> None:
    """An error for an argument that is not what its annotation says."""
    for name, parameter in signature.parameters.items():
        annotation, given = parameter.annotation, call[name]
        fits = not isinstance(annotation, str) or annotation.startswith("*")  # of several: the function's own rule
        if fits or given is parameter.default:
            continue
        values: Any = (given,)
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = given
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = given.values()
        for value in values:
            kinds = _kinds(annotation)
            if not any(fits(value) for fits, _ in kinds):
                wanted = " or ".join(what for _, what in kinds)
                raise call.error(
                    f"{call.what}: {name}= is {wanted}, got {describe(value)}", f"pass {wanted}", code="C105"
                )


@cache
def _kinds(annotation: str) -> tuple[_Kind, ...]:
    return tuple(map(_kind, annotation.split(" | ")))


def _kind(text: str) -> _Kind:
    head, _, inside = text.partition("[")
    if head == "Literal":
        choices: tuple[Any, ...] = ast.literal_eval(f"({inside.removesuffix(']')},)")
        return (lambda value: isinstance(value, str) and value in choices), f"one of {', '.join(map(repr, choices))}"
    return _KINDS.get(head, (lambda value: True, ""))

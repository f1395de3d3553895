"""The small statements; assignments are in `assign`, branches and loops in `control` and `loops`."""

from __future__ import annotations

import ast

from tiledsl.frontend.arithmetic import as_condition
from tiledsl.frontend.bindings import describe, has_operators
from tiledsl.frontend.frame import Frame, evaluate, execute

__all__: list[str] = []


@execute.register
def _(node: ast.Pass, frame: Frame) -> None:
    """Nothing."""


@execute.register
def _(node: ast.Return, frame: Frame) -> None:
    if node.value is not None:
        value = evaluate(node.value, frame)
        if frame.caller is None and value is not None:
            raise frame.error(node, "a kernel returns nothing", "store the result to a Global, and `return` alone")
        frame.env["$value"] = value
    elif frame.caller is not None:
        frame.env["$value"] = None
    frame.env["$return"] = True


@execute.register
def _(node: ast.Break, frame: Frame) -> None:
    frame.env["$break"] = True


@execute.register
def _(node: ast.Continue, frame: Frame) -> None:
    frame.env["$continue"] = True


@execute.register
def _(node: ast.Assert, frame: Frame) -> None:
    """``assert`` is for compile time; `assert_` checks at run time."""
    condition = evaluate(node.test, frame)
    if has_operators(condition):
        raise frame.error(
            node, f"assert of a run-time value ({describe(condition)})", "write assert_(condition, message)"
        )
    if not as_condition(condition, frame, node.test):
        message = evaluate(node.msg, frame) if node.msg is not None else ast.unparse(node.test)
        fix = f"give the consts or dtypes such values that {ast.unparse(node.test)} holds"
        raise frame.error(node, f"assertion failed at compile time: {message}", fix)

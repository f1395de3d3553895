"""The small statements, and `with`; assignments are in `assign`, branches and loops in `control` and `loops`."""

from __future__ import annotations

import ast
from contextlib import ExitStack

from tiledsl.frontend.analysis import loop_exits
from tiledsl.frontend.arithmetic import as_condition
from tiledsl.frontend.assign import assign
from tiledsl.frontend.bindings import Region, describe, has_operators, is_method
from tiledsl.frontend.call import intrinsic_of
from tiledsl.frontend.control import run_statements
from tiledsl.frontend.frame import Frame, evaluate, execute


@execute.register
def _(node: ast.Pass, frame: Frame) -> None:
    """Nothing."""


@execute.register
def _(node: ast.Return, frame: Frame) -> None:
    value = evaluate(node.value, frame) if node.value is not None else None
    if frame.caller is None and value is not None:
        raise frame.error(
            node, "a kernel returns nothing", "store the result to a Global, and `return` alone", code="C108"
        )
    frame.env["$value"] = value if frame.returned is None else frame.returned(frame, node, value)
    frame.env["$return"] = True


@execute.register
def _(node: ast.Break | ast.Continue, frame: Frame) -> None:
    frame.env["$break" if isinstance(node, ast.Break) else "$continue"] = True


@execute.register
def _(node: ast.Assert, frame: Frame) -> None:
    """``assert`` is for compile time; `assert_` checks at run time."""
    condition = evaluate(node.test, frame)
    if has_operators(condition):
        message = f"assert of a run-time value ({describe(condition)})"
        raise frame.error(node, message, "write assert_(condition, message)", code="C106")
    if not as_condition(condition, frame, node.test):
        message = evaluate(node.msg, frame) if node.msg is not None else ast.unparse(node.test)
        fix = f"give the consts or dtypes such values that {ast.unparse(node.test)} holds"
        raise frame.error(node, f"assertion failed at compile time: {message}", fix, code="C112")


# -- with: regions of the language, such as roles and the slots of rings ----------------------------


@execute.register
def _(node: ast.With, frame: Frame) -> None:
    exits = sorted(kind.__name__.lower() for kind in loop_exits(node.body))
    if exits:
        fix = "put the statements to skip under an `if`"
        raise frame.error(
            node, f"`{exits[0]}` leaves the body of a `with`, whose end would be skipped", fix, code="C108"
        )
    with ExitStack() as regions:
        for item in node.items:
            region = _region(frame, item.context_expr)
            frame.builder.loc = frame.loc(node)
            bound = regions.enter_context(region.around(frame, node))
            if item.optional_vars is not None:
                assign(frame, item.optional_vars, bound)
        run_statements(frame, node.body)


def _region(frame: Frame, node: ast.expr) -> Region:
    """The region that a ``with`` names. No other call is evaluated: it might have effects."""
    call = evaluate(node.func, frame) if isinstance(node, ast.Call) else None
    of_the_language = call is None or is_method(call) or intrinsic_of(call)
    region = evaluate(node, frame) if of_the_language else call
    if isinstance(region, Region):
        return region
    message = f"with is not part of the kernel language on {describe(region)}"
    raise frame.error(node, message, "role(...), ring.fill(), ring.use() and r.turn(...) stand there", code="C101")

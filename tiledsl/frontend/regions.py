"""`with`: the regions of the language, such as roles and the slots of rings."""

from __future__ import annotations

import ast

from tiledsl.frontend.analysis import loop_exits
from tiledsl.frontend.assign import assign
from tiledsl.frontend.attributes import BoundMethod
from tiledsl.frontend.bindings import Region, describe
from tiledsl.frontend.call import intrinsic_of
from tiledsl.frontend.control import run_statements
from tiledsl.frontend.frame import Frame, evaluate, execute

__all__: list[str] = []


@execute.register
def _(node: ast.With, frame: Frame) -> None:
    exits = sorted(kind.__name__.lower() for kind in loop_exits(node.body))
    if exits:
        fix = "put the statements that it shall skip under an `if`"
        raise frame.error(node, f"`{exits[0]}` leaves the body of a `with`, whose end would be skipped", fix)
    _enter(frame, node, node.items)


def _enter(frame: Frame, node: ast.With, items: list[ast.withitem]) -> None:
    if not items:
        run_statements(frame, node.body)
        return
    item = items[0]
    region = _region(frame, item.context_expr)
    frame.builder.loc = frame.loc(node)
    with region.around(frame, node) as bound:
        if item.optional_vars is not None:
            assign(frame, item.optional_vars, bound)
        _enter(frame, node, items[1:])


def _region(frame: Frame, node: ast.expr) -> Region:
    """What stands behind ``with``. Nothing else is called: it might do something."""
    call = evaluate(node.func, frame) if isinstance(node, ast.Call) else None
    of_the_language = call is None or isinstance(call, BoundMethod) or intrinsic_of(call)
    region = evaluate(node, frame) if of_the_language else call
    if isinstance(region, Region):
        return region
    message = f"with is not part of the kernel language on {describe(region)}"
    raise frame.error(node, message, "role(...), ring.fill(), ring.use() and r.turn(...) stand there")

"""`for` and `while`: compile-time loops are unrolled here, run-time ones become ops."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Iterable

from tiledsl.frontend.analysis import assigned_names, loop_exits
from tiledsl.frontend.arithmetic import as_condition, items_of
from tiledsl.frontend.assign import assign
from tiledsl.frontend.bindings import Ranges, Unusable, describe, has_operators
from tiledsl.frontend.budget import MAX_UNROLL
from tiledsl.frontend.control import Carried, Steps, chosen, drive, exit_flag, run_statements, unless, value_side
from tiledsl.frontend.frame import Frame, during, evaluate, execute
from tiledsl.frontend.intrinsics.schedules import ScheduleObject, WorkLoop, along_k, one_item
from tiledsl.frontend.steps import Bounds, Counter
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control
from tiledsl.ir.types import BOOL, TokenType


@execute.register
def _(node: ast.For, frame: Frame) -> None:
    _refuse_else(frame, node)
    items = evaluate(node.iter, frame)
    match items:
        case Bounds():
            _run_time_for(frame, node, items)
        case range() if _calls_range(frame, node.iter):
            _run_time_for(frame, node, Bounds(frame, node.iter, items.start, items.stop, items.step))
        case Ranges():
            bounds = Bounds(frame, node.iter, items.start, items.extent, items.size, size=items.size)
            bounds.of_item = along_k(frame, items)
            _run_time_for(frame, node, bounds)
        case ScheduleObject(items=None):
            _unrolled(frame, node, [one_item(frame, node, items)])
        case ScheduleObject():
            _run_time_for(frame, node, WorkLoop(frame, node, items))
        case _ if has_operators(items) or not isinstance(items, Iterable):
            fix = "loop over range(...), unroll(...) or a compile-time sequence"
            raise frame.error(node.iter, f"cannot loop over {describe(items)}", fix, code="C104")
        case _:
            _unrolled(frame, node, items_of(items, frame, node.iter, MAX_UNROLL, "unroll {} iterations"))


def _calls_range(frame: Frame, node: ast.expr) -> bool:
    """Is it ``range(...)``, a loop at run time? Over a range that has a name, a loop is unrolled."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and frame.lookup(node.func) is range


@execute.register
def _(node: ast.While, frame: Frame) -> None:
    _refuse_else(frame, node)

    def test() -> Value | bool:
        return as_condition(evaluate(node.test, frame), frame, node.test)

    _while(frame, node, assigned_names(node.body), test, partial(run_statements, frame, node.body))


def _refuse_else(frame: Frame, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise frame.error(
            node, "`else` on a loop is not part of the kernel language", "set a bool before `break`", code="C101"
        )


# -- compile time ----------------------------------------------------------------------------------


def _unrolled(frame: Frame, node: ast.For, items: list[Any]) -> None:
    outer = frame.env.get("$break", False), frame.env.get("$continue", False)
    frame.env["$break"] = False
    drive(_iterations(frame, node, items))
    frame.env["$break"], frame.env["$continue"] = outer


def _iterations(frame: Frame, node: ast.For, items: list[Any]) -> Steps:
    for position, item in enumerate(items):
        errors = len(frame.unit.errors)
        frame.env["$continue"] = False
        assign(frame, node.target, item)
        run_statements(frame, node.body)
        frame.env["$continue"] = False
        if len(frame.unit.errors) > errors:
            return  # the next iterations would only repeat them
        exited = exit_flag(frame)
        if isinstance(exited, Value):
            rest = items[position + 1 :]
            yield unless(frame, exited, node, partial(_iterations, frame, node, rest) if rest else None)
        if exited is not False:
            return


# -- run time --------------------------------------------------------------------------------------


def _run_time_for(frame: Frame, node: ast.For, bounds: Bounds) -> None:
    if not isinstance(node.target, ast.Name):
        raise frame.error(
            node.target, "the variable of a run-time loop is a name", "write `for i in range(...)`", code="C101"
        )
    name = node.target.id
    names = assigned_names(node.body) - {name}
    exits = loop_exits(node.body)
    if exits & {ast.Break, ast.Return}:
        changed = "pipelined()" if "stages" in bounds.how else "unroll()" if bounds.how.get("unroll", 1) > 1 else ""
        if changed:
            message = f"{changed} on a loop that `break` or `return` may leave"
            raise frame.error(node.iter, message, f"leave {changed} out", code="C108")
        _for_as_while(frame, node, name, bounds)
        return
    builder, loc = frame.builder, frame.loc(node)
    carried = Carried(frame, names | set(frame.unit.cooperation.carried), node)
    pipelined = nullcontext()
    if "stages" in bounds.how:
        _check_pipelined(frame, node, carried)
        pipelined = during(frame.unit, pipelined=loc)
    body = Block([bounds.lo.type, *carried.types], [name, *carried.names])
    k_loop = body if bounds.of_item else None
    with pipelined, during(frame.unit.cooperation, k_loop=k_loop), frame.into(body):
        carried.bind(body.args[1:])
        frame.env.update({name: bounds.variable(body.args[0]), "$break": False, "$continue": False})
        run_statements(frame, node.body)
        builder.loc = loc
        bounds.finish()
        builder.add(control.Yield(*carried.collect(body.args[1:])))
    builder.loc = loc
    loop = builder.add(bounds.loop(bounds.lo, bounds.hi, bounds.step, *carried.inits, blocks=[body], **bounds.how))
    carried.finish(loop.results)
    _unbind_target(frame, name)


def _check_pipelined(frame: Frame, node: ast.For, carried: Carried) -> None:
    around = frame.unit.pipelined
    if around is not None:
        message = f"a pipelined loop inside the one of line {around.line}"
        raise frame.error(node.iter, message, "pipeline one of them: the inner one, as a rule", code="C607")
    tokens = [name for name, type_ in zip(carried.names, carried.types, strict=True) if isinstance(type_, TokenType)]
    if tokens:
        message = f"a pipelined loop cannot carry {tokens[0]}, the token of a copy_async()"
        raise frame.error(
            node.iter, message, "wait for it before the loop, and take no tokens in its body", code="C607"
        )


def _unbind_target(frame: Frame, name: str) -> None:
    message = f"{name} may be unbound: it is the variable of a loop that may run zero times"
    frame.env[name] = Unusable(message, f"copy {name} to a variable that is assigned before the loop", code="C103")


def _for_as_while(frame: Frame, node: ast.For, name: str, bounds: Bounds) -> None:
    """A `for` that `break` or `return` may leave: a `while` with its own counter."""
    counter = Counter(frame, node, bounds)

    def body() -> None:
        frame.env[name] = bounds.variable(counter.value)
        run_statements(frame, node.body)
        frame.builder.loc = frame.loc(node)
        bounds.finish()
        counter.advance()

    _while(frame, node, (assigned_names(node.body) - {name}) | set(counter.names), counter.goes_on, body)
    counter.forget()
    _unbind_target(frame, name)


def _while(
    frame: Frame,
    node: ast.For | ast.While,
    names: set[str],
    test: Callable[[], Value | bool],
    body: Callable[[], None],
) -> None:
    builder, loc = frame.builder, frame.loc(node)
    exits = loop_exits(node.body)
    if ast.Return in exits and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node)):
        fix = "assign the value to a variable, `break`, return it"
        raise frame.error(node, "`return` with a value inside a run-time loop", fix, code="C108")
    flags = {f for f, kind in (("$break", ast.Break), ("$return", ast.Return)) if kind in exits}
    outer = frame.env.get("$break", False), frame.env.get("$continue", False)
    frame.env["$break"] = frame.env["$continue"] = False
    flags |= set(frame.unit.cooperation.carried)
    carried = Carried(frame, names | flags, node)
    before, after = (Block(carried.types, carried.names) for _ in range(2))
    with frame.into(before):
        carried.bind(before.args)
        go_on = _tested(frame, node, test)
        carried.note_reads(before.args)
        builder.add(control.Condition(go_on, *before.args))
    with frame.into(after):
        carried.bind(after.args)
        # The loop was entered, so nothing has exited yet.
        frame.env.update({"$break": False, "$continue": False, "$return": False})
        body()
        frame.env["$continue"] = False
        builder.loc = loc
        builder.add(control.Yield(*carried.collect(after.args)))
    builder.loc = loc
    loop = builder.add(control.While(*carried.inits, blocks=[before, after]))
    carried.finish(loop.results)
    frame.env["$break"], frame.env["$continue"] = outer


def _tested(frame: Frame, node: ast.AST, test: Callable[[], Value | bool]) -> Value:
    """The loop's condition, which is not evaluated once control has left the loop."""
    exited = exit_flag(frame)
    if isinstance(exited, Value):
        goes_on = frame.builder.scalar("not", exited)
        result = chosen(frame, goes_on, value_side(frame, test), value_side(frame, lambda: False), node)
    else:
        result = test()
    return result if isinstance(result, Value) else frame.builder.constant(result, BOOL)

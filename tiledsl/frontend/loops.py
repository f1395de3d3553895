"""`for` and `while`: compile-time loops are unrolled here, run-time ones become ops."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Iterable

from tiledsl import lang
from tiledsl.frontend.analysis import assigned_names, loop_exits, read_first
from tiledsl.frontend.arithmetic import as_condition, common_dtype, items_of, unify
from tiledsl.frontend.assign import assign
from tiledsl.frontend.bindings import UNBOUND, Range, Ranges, Unusable, describe, has_operators
from tiledsl.frontend.budget import MAX_STAGES, MAX_UNROLL
from tiledsl.frontend.control import Carried, Steps, drive, exit_flag, run_statements, runtime_if, unless_exited
from tiledsl.frontend.cooperation import WorkBody
from tiledsl.frontend.frame import Frame, during, evaluate, execute
from tiledsl.frontend.intrinsics.schedules import ScheduleObject, WorkLoop, along_k, one_item
from tiledsl.frontend.steps import Counter
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, roles
from tiledsl.ir.ops.arith import Constant
from tiledsl.ir.types import BOOL, INDEX, TokenType

__all__ = ["Bounds"]


@execute.register
def _(node: ast.For, frame: Frame) -> None:
    if node.orelse:
        raise frame.error(node, "`else` on a loop is not part of the kernel language", "set a bool before `break`")
    call = node.iter
    if isinstance(call, ast.Call):
        bounds = _run_time_bounds(frame, call)
        if bounds is not None:
            _run_time_for(frame, node, bounds)
            return
    items = evaluate(call, frame)
    if isinstance(items, Ranges):
        ends = items.start, items.extent, items.size
        _run_time_for(frame, node, Bounds(frame, call, *ends, size=items.size, of_item=along_k(frame, items)))
        return
    if isinstance(items, ScheduleObject):
        _go_through(frame, node, items)
        return
    if has_operators(items) or not isinstance(items, Iterable):
        raise frame.error(
            call, f"cannot loop over {describe(items)}", "loop over range(...), unroll(...) or a compile-time sequence"
        )
    _unrolled(frame, node, items_of(items, frame, call, MAX_UNROLL, "unroll {} iterations"))


@execute.register
def _(node: ast.While, frame: Frame) -> None:
    if node.orelse:
        raise frame.error(node, "`else` on a loop is not part of the kernel language", "set a bool before `break`")
    tested = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    _while(
        frame,
        node,
        assigned_names(node.body),
        read_first(node.body) | tested,
        lambda: as_condition(evaluate(node.test, frame), frame, node.test),
        lambda: run_statements(frame, node.body),
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
        rest = items[position + 1 :]
        if (yield unless_exited(frame, node, partial(_iterations, frame, node, rest) if rest else None)):
            return


# -- run time --------------------------------------------------------------------------------------


class Bounds:
    """A run-time loop's bounds as three values of one dtype: index, or what was given.

    size: 0, or the variable is a `Range` of so many elements. unroll: copies of the body an iteration.
    stages, fragments: of a pipelined loop, else 0. of_item: as of `along_k`.
    known: the step, where it is a constant, else 0. loop: the op that it becomes.
    """

    loop: type[control.For] = control.For

    def __init__(
        self, frame: Frame, node: ast.AST, lo: Any, hi: Any, step: Any, *, size: int = 0, of_item: bool = False
    ) -> None:
        dtype = common_dtype([lo, hi, step], frame, node, "range()") or INDEX
        if dtype.kind not in ("int", "index"):
            raise frame.error(node, f"range() over {dtype}", "convert the bounds: i32(...) or index(...)")
        if step == 0 and not isinstance(step, Value):
            raise frame.error(node, "range() with step 0 never ends", "use a step of 1 or more, or a negative one")
        self.lo, self.hi, self.step = unify([lo, hi, step], dtype, frame, node)
        op = self.step.op
        self.known = int(op.value) if isinstance(op, Constant) else 0
        self.size, self.unroll = size, 1
        self.stages = self.fragments = 0
        self.of_item = of_item

    def variable(self, frame: Frame, value: Value) -> Any:
        """What the loop's name is bound to."""
        return Range(value, self.size) if self.size else value

    def end(self, frame: Frame) -> None:
        """What comes behind the statements of an iteration."""


class _WorkBounds(Bounds):
    """A loop over the work items of a block."""

    loop = roles.Work

    def __init__(self, frame: Frame, node: ast.For, work: WorkLoop) -> None:
        super().__init__(frame, node.iter, work.first, work.end, work.step)
        self.known = self.known or 1  # upwards, in steps that are all one here
        self.work = work
        self.item: Value | None = None

    def variable(self, frame: Frame, value: Value) -> Any:
        self.item, item = value, self.work.at(frame, value)
        frame.unit.cooperation.work = WorkBody(frame.builder.block, item.data.get("k"))
        return item

    def end(self, frame: Frame) -> None:
        frame.unit.cooperation.work = None
        self.work.skip(frame, self.item)


def _run_time_bounds(frame: Frame, call: ast.Call) -> Bounds | None:
    """The bounds of ``range(...)``, and of ``unroll(loop, by=n)`` and ``pipelined(loop, stages=n)`` with a `range` or
    `tiles` as the loop; None for other calls."""
    callee = _named(frame, call)
    if callee is range:
        return _range(frame, call)
    if callee is lang.pipelined:
        return _pipelined(frame, call)
    return _partly_unrolled(frame, call) if callee is lang.unroll else None


def _named(frame: Frame, call: ast.Call) -> Any:
    """What is called, where a name says so: looking that up does nothing else, so that one may ask before the call."""
    node = call.func
    while isinstance(node, ast.Attribute):
        node = node.value
    return evaluate(call.func, frame) if isinstance(node, ast.Name) else None


def _partly_unrolled(frame: Frame, call: ast.Call) -> Bounds | None:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    inner = call.args[0] if len(call.args) == 1 else None
    over_range = isinstance(inner, ast.Call) and _named(frame, inner) is range
    if "by" not in given and not over_range:
        return None
    example = "write `for k in unroll(range(n), by=4)`; unroll(n) alone repeats the body for each value"
    if inner is None or given.keys() != {"by"}:
        raise frame.error(call, "a partly unrolled loop takes one range(...) or tiles(...), and by=", example)
    by = evaluate(given["by"], frame)
    if not isinstance(by, int) or isinstance(by, bool) or not 1 <= by <= MAX_UNROLL:
        message = f"by= is a compile-time int of 1 or more, got {describe(by)}; at most {MAX_UNROLL}"
        raise frame.error(call, message, example)
    bounds = _inner_bounds(frame, call, inner, "by=", example)
    if by > 1 and not isinstance(bounds.step.op, Constant):
        raise frame.error(call, "by= needs a step that is known at compile time", "give the range a constant step")
    bounds.unroll = by
    return bounds


def _pipelined(frame: Frame, call: ast.Call) -> Bounds:
    given = {keyword.arg or "**": keyword.value for keyword in call.keywords}
    example = "write `for k in pipelined(tiles(K, BK), stages=3)`"
    if len(call.args) != 1 or "stages" not in given or given.keys() - {"stages", "fragments"}:
        message = "a pipelined loop takes one range(...) or tiles(...), stages= and, if wanted, fragments="
        raise frame.error(call, message, example)
    numbers = {name: evaluate(value, frame) for name, value in given.items()}
    stages, fragments = numbers["stages"], numbers.get("fragments", 0)
    if not isinstance(stages, int) or isinstance(stages, bool) or not 1 <= stages <= MAX_STAGES:
        message = f"stages= is a compile-time int of 1 or more, got {describe(stages)}; at most {MAX_STAGES}"
        raise frame.error(call, message, example)
    if not isinstance(fragments, int) or isinstance(fragments, bool) or fragments not in (0, 1, 2):
        fix = "1 or 2 steps of fragments in registers; 0, or nothing, leaves it to the compiler"
        raise frame.error(call, f"fragments= is {describe(fragments)}", fix)
    bounds = _inner_bounds(frame, call, call.args[0], "pipelined()", example)
    bounds.stages, bounds.fragments = stages, fragments
    return bounds


def _inner_bounds(frame: Frame, call: ast.Call, inner: ast.expr, what: str, example: str) -> Bounds:
    """The bounds of the loop that unroll() or pipelined() is given."""
    if isinstance(inner, ast.Call) and _named(frame, inner) is range:
        return _range(frame, inner)
    ranges = evaluate(inner, frame)
    if not isinstance(ranges, Ranges):
        raise frame.error(call, f"{what} on {describe(ranges)}", example)
    return Bounds(frame, inner, ranges.start, ranges.extent, ranges.size, size=ranges.size)


def _range(frame: Frame, call: ast.Call) -> Bounds:
    if call.keywords or not 1 <= len(call.args) <= 3:
        raise frame.error(call, f"range() takes 1 to 3 positional arguments, got {len(call.args)}", "range(n)")
    given = [evaluate(arg, frame) for arg in call.args]
    ends = [0, *given] if len(given) == 1 else given
    lo, hi, step = ends if len(ends) == 3 else (*ends, 1)
    return Bounds(frame, call, lo, hi, step)


def _go_through(frame: Frame, node: ast.For, schedule: ScheduleObject) -> None:
    """``for t in work``: over this block's items, or for the only one."""
    if schedule.items is None:
        _unrolled(frame, node, [one_item(frame, node, schedule)])
        return
    work = WorkLoop(frame, node, schedule)
    work.skip(frame, None)
    _run_time_for(frame, node, _WorkBounds(frame, node, work))


def _run_time_for(frame: Frame, node: ast.For, bounds: Bounds) -> None:
    if not isinstance(node.target, ast.Name):
        raise frame.error(node.target, "the variable of a run-time loop is a name", "write `for i in range(...)`")
    name = node.target.id
    names = assigned_names(node.body) - {name}
    exits = loop_exits(node.body)
    if exits & {ast.Break, ast.Return}:
        if bounds.unroll > 1:
            raise frame.error(node.iter, "by= on a loop that `break` or `return` may leave", "leave unroll() out")
        if bounds.stages:
            fix = "leave pipelined() out, or shorten the range"
            raise frame.error(node.iter, "pipelined() on a loop that `break` or `return` may leave", fix)
        _for_as_while(frame, node, name, bounds)
        return
    builder, loc = frame.builder, frame.loc(node)
    state = set(frame.unit.cooperation.carried)
    carried = Carried(frame, names | state, read_first(node.body) | state, node)
    if bounds.stages:
        _check_pipelined(frame, node, carried)
    body = Block([bounds.lo.type, *carried.types], [name, *carried.names])
    pipelined = during(frame.unit, pipelined=loc if bounds.stages else frame.unit.pipelined)
    work = frame.unit.cooperation.work
    k_loop = during(work, k_loop=body) if work is not None and bounds.of_item else nullcontext()
    with pipelined, k_loop, frame.into(body):
        carried.bind(body.args[1:])
        frame.env.update({name: bounds.variable(frame, body.args[0]), "$break": False, "$continue": False})
        run_statements(frame, node.body)
        builder.loc = loc
        bounds.end(frame)
        builder.add(control.Yield(*carried.collect(body.args[1:])))
    builder.loc = loc
    ends = bounds.lo, bounds.hi, bounds.step
    how: dict[str, Any] = {"unroll": bounds.unroll, "stages": bounds.stages, "fragments": bounds.fragments}
    loop = builder.add(bounds.loop(*ends, *carried.inits, blocks=[body], **how))
    carried.finish(loop.results)
    _unbind_target(frame, name)


def _check_pipelined(frame: Frame, node: ast.For, carried: Carried) -> None:
    around = frame.unit.pipelined
    if around is not None:
        message = f"a pipelined loop inside the one of line {around.line}"
        raise frame.error(node.iter, message, "pipeline one of them: the inner one, as a rule")
    tokens = [name for name, type_ in zip(carried.names, carried.types, strict=True) if isinstance(type_, TokenType)]
    if tokens:
        message = f"a pipelined loop cannot carry {tokens[0]}, the token of a copy_async()"
        raise frame.error(node.iter, message, "wait for it before the loop, and take no tokens in its body")


def _unbind_target(frame: Frame, name: str) -> None:
    frame.env[name] = Unusable(
        f"{name} may be unbound: it is the variable of a loop that may run zero times",
        f"copy {name} to a variable that is assigned before the loop",
    )


def _for_as_while(frame: Frame, node: ast.For, name: str, bounds: Bounds) -> None:
    """A `for` that `break` or `return` may leave: a `while` with its own counter."""
    counter = Counter(frame, node, bounds.lo, bounds.hi, bounds.step, bounds.known)

    def body() -> None:
        frame.env[name] = bounds.variable(frame, counter.value)
        run_statements(frame, node.body)
        frame.builder.loc = frame.loc(node)
        counter.advance()

    own = set(counter.names)
    _while(frame, node, (assigned_names(node.body) - {name}) | own, read_first(node.body) | own, counter.goes_on, body)
    counter.forget()
    _unbind_target(frame, name)


def _while(
    frame: Frame,
    node: ast.For | ast.While,
    names: set[str],
    exposed: set[str],
    test: Callable[[], Value | bool],
    body: Callable[[], None],
) -> None:
    builder, loc = frame.builder, frame.loc(node)
    exits = loop_exits(node.body)
    if ast.Return in exits and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node)):
        raise frame.error(
            node, "`return` with a value inside a run-time loop", "assign the value to a variable, `break`, return it"
        )
    flags = {f for f, kind in (("$break", ast.Break), ("$return", ast.Return)) if kind in exits}
    outer = frame.env.get("$break", False), frame.env.get("$continue", False)
    frame.env["$break"] = frame.env["$continue"] = False
    flags |= set(frame.unit.cooperation.carried)
    carried = Carried(frame, names | flags, exposed | flags, node)
    before, after = (Block(carried.types, carried.names) for _ in range(2))
    with frame.into(before):
        carried.bind(before.args)
        go_on = _tested(frame, node, test)
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
    frame.env["$go"] = UNBOUND

    def run() -> None:
        frame.env["$go"] = test()

    exited = exit_flag(frame)
    if isinstance(exited, Value):
        frame.env["$go"] = False

        def stop() -> None:
            frame.env["$go"] = False

        runtime_if(frame, frame.builder.scalar("not", exited), run, stop, node)
    else:
        run()
    result = frame.env.pop("$go")
    if isinstance(result, bool):
        return frame.builder.constant(result, BOOL)
    return result

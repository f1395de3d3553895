"""Run-time control flow: branches that merge what they bind, loops that carry it, early exits.

`return`, `break` and `continue` have no ops. A branch that surely exits takes the rest of its block
into the other branch; an exit that may or may not have happened is a bool in the environment
(``$return``, ...), and what follows runs under its negation.
"""

from __future__ import annotations

import ast
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, Callable, Generator, Sequence

from tiledsl.boundary import as_compile_error
from tiledsl.errors import CompileError
from tiledsl.frontend.analysis import assigned_names, definitely_exits
from tiledsl.frontend.arithmetic import as_condition, as_value
from tiledsl.frontend.bindings import (
    POISON,
    UNBOUND,
    Pending,
    Poisoned,
    Unusable,
    describe,
    has_operators,
    is_carried,
    is_int,
    is_pending,
    is_place,
    is_register,
    is_token,
    leaves,
    made_of,
    parts_of,
    rebuild,
    same_constant,
    unusable,
)
from tiledsl.frontend.budget import MAX_CONDITIONS, OutOfBudget
from tiledsl.frontend.frame import Frame, during, evaluate, execute
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, tile
from tiledsl.ir.types import BOOL, INDEX, DType, FragmentType, Type

EXITS = ("$return", "$break", "$continue")


# -- sequences -------------------------------------------------------------------------------------

Steps = Generator["Steps", Any, Any]
"""A generator that builds something in steps: it yields what must be built first, and is sent the result. Nested exits
and chains of `elif` are then as deep as a list in `drive`, not as Python's stack."""


def drive(steps: Steps) -> Any:
    """Carry out `steps`, with all that they yield; gives what they return."""
    stack, result = [steps], None
    error: BaseException | None = None
    while stack:
        try:
            inner = stack[-1].send(result) if error is None else stack[-1].throw(error)
        except StopIteration as end:
            stack.pop()
            result, error = end.value, None
        except BaseException as raised:
            stack.pop()
            result, error = None, raised
        else:
            stack.append(inner)
            result = error = None
    if error is not None:
        raise error
    return result


def run_statements(frame: Frame, statements: Sequence[ast.stmt]) -> None:
    """Carry out statements in order; a failed one is reported and its targets are poisoned."""
    drive(_statements(frame, statements))


def _statements(frame: Frame, statements: Sequence[ast.stmt]) -> Steps:
    for position, statement in enumerate(statements):
        rest = statements[position + 1 :]
        if isinstance(statement, ast.If):
            if (yield _if(frame, statement, rest)):
                return
        else:
            with guarded(frame, statement):
                execute(statement, frame)
        exited = exit_flag(frame)
        if isinstance(exited, Value):
            yield unless(frame, exited, statement, partial(_statements, frame, rest) if rest else None)
        if exited is not False:
            return


@contextmanager
def guarded(frame: Frame, statement: ast.stmt) -> Generator[None]:
    """The boundary around one statement: what is raised in it is reported at its line, and the names that it would have
    bound are poisoned, so that uses of them are not reported. Names of tiles are kept.

    An exception that is no error of the kernel's is a compiler bug, or was raised by Python code of the user's.
    """
    unit, loc = frame.unit, frame.loc(statement)
    unit.builder.loc = loc
    unit.spend(loc)
    try:
        yield
    except OutOfBudget:
        raise
    except Exception as error:
        for name in assigned_names([statement]):
            if not is_place(frame.env.get(name)):
                frame.env[name] = POISON
        if not isinstance(error, Poisoned):
            unit.report(as_compile_error(error, loc))


def exit_flag(frame: Frame) -> bool | Value:
    """Has control left the current sequence? True, False, or a run-time bool."""
    env = frame.env
    flags = [flag for name in EXITS if (flag := env.get(name, False)) is not False]
    if not flags:  # after most statements
        return False
    if any(flag is True for flag in flags):
        return True
    values = [flag for flag in flags if isinstance(flag, Value)]
    return reduce(partial(frame.builder.scalar, "or"), values) if values else False


def unless(frame: Frame, exited: Value, node: ast.stmt, rest: Callable[[], Steps] | None) -> Steps:
    """Put `rest`, what follows, under the condition that control has not left."""
    if rest is None:
        return
    go_on = frame.builder.scalar("not", exited)
    only_return = all(frame.env.get(name, False) is False for name in EXITS[1:])

    def left() -> None:
        if only_return:
            frame.env["$return"] = True

    def stay() -> Steps:
        frame.env.update(dict.fromkeys(EXITS, False))
        return rest()

    yield _branches(frame, go_on, stay, left, node)


def _if(frame: Frame, node: ast.If, rest: Sequence[ast.stmt]) -> Steps:
    """Carry out an `if`. True if it took `rest`, what follows it in its block, into a branch."""
    condition: Any = None
    with guarded(frame, node):
        condition = as_condition(evaluate(node.test, frame), frame, node.test)
    if condition is None:
        return False
    if isinstance(condition, bool):
        yield _statements(frame, node.body if condition else node.orelse)
        return False
    then, orelse = list(node.body), list(node.orelse)
    takes_rest = definitely_exits(then) or definitely_exits(orelse)
    if takes_rest:
        if not definitely_exits(then):
            then += rest
        elif not definitely_exits(orelse):
            orelse += rest
    with guarded(frame, node):
        sides = (lambda: _statements(frame, then)), (lambda: _statements(frame, orelse))
        yield _branches(frame, condition, *sides, node)
    return takes_rest


# -- branches --------------------------------------------------------------------------------------


class _Slot:
    """A place in a merged tree that result `position` of the branch fills."""

    def __init__(self, position: int) -> None:
        self.position = position


class _Merge:
    """Pairs what two branches bind. `pairs` collects leaves that need a result of the `If`."""

    def __init__(self, condition: Value, negated: Callable[[], Value]) -> None:
        self.condition, self.negated = condition, negated
        self.pairs: list[tuple[Any, Any, Type, str]] = []

    def join(self, name: str, a: Any, b: Any) -> Any:
        if a is b or same_constant(a, b):
            return a
        if a is POISON or b is POISON:
            return POISON
        if name == "$value" and (a is UNBOUND or b is UNBOUND):
            # The path without a value goes on to bind one; until then any value will do.
            return self._dummy(b if a is UNBOUND else a, a is UNBOUND)
        if a is UNBOUND or b is UNBOUND:
            return Unusable(
                f"{name} may be unbound: only one branch assigns it", f"assign {name} before the `if`", code="C103"
            )
        if isinstance(a, Unusable) or isinstance(b, Unusable):
            return a if isinstance(a, Unusable) else b
        xs, ys = parts_of(a), parts_of(b)
        if xs is None or ys is None or type(a) is not type(b) or len(xs) != len(ys):
            return self._leaf(name, a, b)
        parts = [self.join(name, x, y) for x, y in zip(xs, ys, strict=True)]
        bad = next(filter(unusable, parts), None) if isinstance(a, Pending) else None
        return bad or made_of(a, parts)

    def _leaf(self, name: str, a: Any, b: Any) -> Any:
        type_ = _joined_type(a, b)
        if type_ is None:
            shown = {"$value": "what is returned", "$choice": "what is chosen"}.get(name, name)
            message = f"{shown} is {describe(a)} on one path and {describe(b)} on the other"
            return Unusable(message, _instead(a, b, "give both the same dtype, as in f32(...)"), code="C109")
        if a is True and b is False:
            return self.condition
        if a is False and b is True:
            return self.negated()
        self.pairs.append((a, b, type_, name))
        return _Slot(len(self.pairs) - 1)

    def _dummy(self, tree: Any, first: bool) -> Any:
        def leaf(value: Any) -> Any:
            if is_token(value) or is_pending(value):
                message = f"{describe(value)} is returned on some paths only"
                return Unusable(message, "return it on every path, or wait for it first", code="C109")
            if not is_register(value):
                return value
            self.pairs.append((UNBOUND, value, value.type, "") if first else (value, UNBOUND, value.type, ""))
            return _Slot(len(self.pairs) - 1)

        return rebuild(tree, leaf)


def _joined_type(a: Any, b: Any) -> Type | None:
    """The type under which two leaves merge, or None if they cannot."""
    if is_carried(b):
        a, b = b, a
    if is_carried(a):
        fits = b.type == a.type if is_carried(b) else isinstance(b, (bool, int, float)) and isinstance(a.type, DType)
        return a.type if fits else None
    if isinstance(a, bool) and isinstance(b, bool):
        return BOOL
    return INDEX if is_int(a) and is_int(b) else None


def _instead(a: Any, b: Any, otherwise: str) -> str:
    """What to do where control flow cannot carry what a name stands for, `a` or `b`."""
    if is_place(a) or is_place(b):
        return "control flow cannot carry memory: carry an index of one tile, as in S[stage, i]"
    if is_token(a) or is_token(b):
        return "have a token on every path: begin a copy on each, or wait for it before the paths part or meet"
    if any(has_operators(x) and not is_register(x) for x in (a, b)):
        return "control flow carries numbers and fragments: carry those that it is made of, or use it in each branch"
    return otherwise


def materialize(frame: Frame, leaf: Any, type_: Type, node: ast.AST) -> Value:
    """The run-time value of a leaf: itself, a constant, or zero where nothing is bound."""
    if isinstance(leaf, Value):
        return leaf
    dtype = type_.dtype if isinstance(type_, FragmentType) else type_
    assert isinstance(dtype, DType)
    if leaf is UNBOUND:
        zero = frame.builder.constant(dtype.python(0), dtype)
        return frame.builder.value(tile.Pack(zero, type=type_)) if isinstance(type_, FragmentType) else zero
    return as_value(leaf, dtype, frame, node)


Side = tuple[Block, dict[str, Any]]
"""What one branch was built into, and what its names are bound to at its end."""


def build_side(frame: Frame, run: Callable[[], None]) -> Side:
    """Run one branch, once, into a block that is not part of the kernel yet."""
    return drive(_side(frame, run))


def value_side(frame: Frame, compute: Callable[[], Any]) -> Side:
    """A branch that computes a value, for `chosen`."""

    def run() -> None:
        frame.env["$choice"] = compute()

    return build_side(frame, run)


def chosen(frame: Frame, condition: Value, then: Side, orelse: Side, node: ast.AST) -> Any:
    """The value of one of two branches."""
    merge_sides(frame, condition, then, orelse, node)
    result = frame.lookup(ast.copy_location(ast.Name("$choice", ast.Load()), node))
    del frame.env["$choice"]
    return result


def _branches(
    frame: Frame, condition: Value, then: Callable[[], Steps | None], orelse: Callable[[], Steps | None], node: ast.AST
) -> Steps:
    """Build both branches, and bind what they merge to."""
    first = yield _side(frame, then)
    second = yield _side(frame, orelse)
    merge_sides(frame, condition, first, second, node)


def _side(frame: Frame, run: Callable[[], Steps | None]) -> Steps:
    if frame.unit.conditions >= MAX_CONDITIONS:
        message = f"more than {MAX_CONDITIONS} run-time conditions inside each other"
        fix = "a `break` or `return` puts all that follows it under one: loop with range(), or leave in fewer places"
        raise CompileError(message, frame.builder.loc, fix, code="C110")
    with during(frame.unit, conditions=frame.unit.conditions + 1), frame.into(Block()) as block:
        steps = run()
        if steps is not None:
            yield steps
        return block, frame.env


def merge_sides(frame: Frame, condition: Value, then: Side, orelse: Side, node: ast.AST) -> None:
    """Make the blocks of two branches a `control.if`, and bind what they merge to."""
    builder = frame.builder
    builder.loc = frame.loc(node)
    sides = (then, orelse)
    merge = _Merge(condition, lambda: builder.scalar("not", condition))
    names = {**then[1], **orelse[1]}
    joined = {name: merge.join(name, *(env.get(name, UNBOUND) for _, env in sides)) for name in names}
    for side, (block, _) in enumerate(sides):
        with frame.into(block):
            values = [materialize(frame, pair[side], pair[2], node) for pair in merge.pairs]
            builder.add(control.Yield(*values))
    branch = builder.add(control.If(condition, blocks=[block for block, _ in sides]))
    for result, pair in zip(branch.results, merge.pairs, strict=True):
        result.name = pair[3]
    frame.env.update({name: _filled(tree, branch.results) for name, tree in joined.items()})


# -- what loops carry ------------------------------------------------------------------------------


class Carried:
    """The names that a loop's body binds, as loop-carried values; compile-time ints and bools among
    them become run-time ones.

    read: names whose value at the start of an iteration is read. For these a change of type is an error at the loop;
    others only become unusable after it. before, entered, after: what names are bound to before the loop, with slots
    for carried values, at the start of an iteration, and after the loop.
    """

    def __init__(self, frame: Frame, names: set[str], node: ast.AST) -> None:
        self.frame, self.node = frame, node
        self.read: set[str] = set()
        self.before: dict[str, Any] = {}
        self.entered: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.inits: list[Value] = []
        self.names: list[str] = []
        for name in sorted(names):
            binding = frame.env.get(name, UNBOUND)
            literal = next((leaf for leaf in leaves(binding) if isinstance(leaf, float)), None)
            if literal is not None:
                message = f"{name} changes in a run-time loop but starts as the literal {literal!r}, which has no dtype"
                binding = Unusable(message, f"start with {name} = f32({literal!r})", frame.loc(node), code="C109")
            self.before[name] = binding if unusable(binding) else rebuild(binding, partial(self._enter, name))

    def _enter(self, name: str, leaf: Any) -> Any:
        """The leaf as it enters the loop: a slot if it is carried."""
        if isinstance(leaf, (bool, int)):
            leaf = as_value(leaf, BOOL if isinstance(leaf, bool) else INDEX, self.frame, self.node)
        elif not is_carried(leaf):
            return leaf
        self.inits.append(leaf)
        self.names.append(name.lstrip("$"))
        return _Slot(len(self.inits) - 1)

    @property
    def types(self) -> list[Type]:
        return [v.type for v in self.inits]

    def bind(self, args: Sequence[Value]) -> None:
        """Set the environment at the start of an iteration."""
        self.entered = {name: _filled(tree, args) for name, tree in self.before.items()}
        self.frame.env |= self.entered
        self.frame.looked_up -= {(name, id(binding)) for name, binding in self.entered.items()}

    def note_reads(self, args: Sequence[Value]) -> None:
        """Add to `read` the names that have been read since `bind`: values that have a use, all else by its name."""
        self.read |= {name for name, arg in zip(self.names, args, strict=True) if arg.uses}
        self.read |= {name for name, binding in self.entered.items() if (name, id(binding)) in self.frame.looked_up}

    def collect(self, args: Sequence[Value]) -> list[Value]:
        """What the iteration passes on, and the verdict on each name for `finish`."""
        self.note_reads(args)
        values = list(args)
        for name, before in self.before.items():
            end = self.frame.env.get(name, UNBOUND)
            self.after[name] = self._leave(name, before, end, values)
        return values

    def _leave(self, name: str, before: Any, end: Any, values: list[Value]) -> Any:
        """Compare a tree with what the body made of it; gives the binding after the loop."""
        if before is POISON or end is POISON:
            return POISON
        if isinstance(before, Unusable):
            return before
        if before is UNBOUND:
            message = f"{name} may be unbound: only the body of a loop assigns it, and that may run zero times"
            return Unusable(message, f"assign {name} before the loop", code="C103")
        if end is UNBOUND or isinstance(end, Unusable):
            return end if isinstance(end, Unusable) else before
        parts, ends = parts_of(before), parts_of(end)
        if parts is not None:
            if ends is None or type(before) is not type(end) or len(parts) != len(ends):
                return self._changed(name, before, end)
            left = [self._leave(name, x, y, values) for x, y in zip(parts, ends, strict=True)]
            return next(filter(unusable, left), None) or made_of(before, left)
        if not isinstance(before, _Slot):
            return before if same_constant(before, end) else self._changed(name, before, end)
        carried = self.inits[before.position]
        if isinstance(end, Value) and end.type == carried.type:
            values[before.position] = end
        elif isinstance(end, (bool, int, float)) and isinstance(carried.type, DType):
            values[before.position] = as_value(end, carried.type, self.frame, self.node, f"value of {name}")
        else:
            return self._changed(name, carried, end)
        return before

    def _changed(self, name: str, before: Any, end: Any) -> Unusable:
        message = f"{name} is {describe(before)} before the loop and {describe(end)} at the end of its body"
        fix = "use another name in the body, or convert to one dtype"
        if isinstance(before, list) and isinstance(end, list):
            fix = "give the list its length before the loop, or loop with unroll"
        fix = _instead(before, end, fix)
        if name in self.read:
            raise self.frame.error(self.node, message, fix, code="C109")
        return Unusable(message, fix, code="C109")

    def finish(self, results: Sequence[Value]) -> None:
        """Bind the names after the loop."""
        for result, name in zip(results, self.names, strict=True):
            result.name = name
        for name, tree in self.after.items():
            self.frame.env[name] = _filled(tree, results)


def _filled(tree: Any, values: Sequence[Value]) -> Any:
    return rebuild(tree, lambda x: values[x.position] if isinstance(x, _Slot) else x)

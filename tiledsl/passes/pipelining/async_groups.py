"""Tokens to groups: what `async.wait` waits for becomes a number of groups.

Copies that are waited for together are one group: neighbours in a block, with no wait, commit, barrier or control
flow between, whose tokens have the same users; one commit stands behind the last of them. A wait for tokens becomes
``wait_group n``, where n groups were committed after the latest of theirs. That number is followed along the
structured control flow; commits of raw groups and of pipelined loops count.

A token's number must not depend on the way that was taken:

- One that a loop carries is as many groups back after an iteration as it was when the loop began. One from outside is
  not waited for inside a loop that commits.
- The sides of an `if` commit equally many groups, or no token from before it is waited for after it.
- Behind a loop of unknown length that commits, a token from before it counts as if the loop had not run: waiting for
  that many is enough after any number of iterations, since it then covers what the loop has begun as well.

Before: tokens in `async.wait`, loops, ifs and whiles. After: `async.commit_group` and `async.wait_group`; every copy
is `grouped`, and no token is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import async_copy, control
from tiledsl.ir.types import TokenType
from tiledsl.passes.analysis.structure import Flow, flows, trip_count


def group_copies(kernel: Kernel) -> None:
    """Needs loops with tokens to be as they will run: unrolling comes first."""
    copies = [op for op in kernel.walk() if isinstance(op, async_copy.Copy) and not op.grouped]
    if not copies:  # and so no tokens
        return
    errors = [_forgotten(op) for op in copies if not _is_settled(op.result, set())]
    if errors:
        raise CompileErrors(errors)
    _commit(kernel.body)
    ages = _Ages(kernel)
    ages.block(kernel.body, {})
    if ages.errors:
        raise CompileErrors(ages.errors.values())
    _drop_tokens(kernel.body)
    for op in copies:
        op.attrs["grouped"] = True


def _forgotten(op: async_copy.Copy) -> CompileError:
    what = "is never waited for" if not op.result.uses else "is not waited for on every path"
    return CompileError(
        f"this copy_async() {what}, so its tile cannot be read",
        op.loc,
        fix="token = copy_async(src, dst), then wait(token) where the tile is needed, whichever way the kernel takes",
        code="C407",
    )


def _tokens(flow: Flow) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """The slots of tokens."""
    return (slot for slot in flow.slots if isinstance(slot[0][0].type, TokenType))


# -- every token is waited for ----------------------------------------------------------------------


def _is_settled(value: Value, assumed: set[Value]) -> bool:
    """True if every path from the definition of the token `value` leads to a wait for it."""
    if value in assumed:  # around a loop once more
        return True
    return _is_settled_in(value, value.block, assumed | {value})


def _is_settled_in(value: Value, block: Block, assumed: set[Value]) -> bool:
    for op in block.ops:
        if isinstance(op, async_copy.Wait) and value in op.operands:
            return True
        if isinstance(op, control.If) and all(_is_settled_in(value, side, assumed) for side in op.blocks):
            return True
        if isinstance(op, control.While) and _is_settled_in(value, op.before, assumed):
            return True
        if value in op.operands and (op.blocks or op.terminator):
            return _is_passed_on(value, op, assumed)
    return False


def _is_passed_on(value: Value, op: Op, assumed: set[Value]) -> bool:
    """True if control flow takes the operand `value` of `op` to where it is waited for, in each place of one slot."""
    around = op.block.parent if op.terminator else op
    assert isinstance(around, Op)
    for flow in flows(around):
        for targets, sources in flow.slots:
            passed = any(user is op and v is value for (user, _), v in zip(flow.sources, sources, strict=True))
            if passed and all(_is_settled(target, assumed) for target in targets):
                return True
    return False


# -- groups -----------------------------------------------------------------------------------------


def _commit(block: Block) -> None:
    """A commit behind each group of copies."""
    last: async_copy.Copy | None = None  # of a group that has no commit yet
    for op in list(block.ops):
        copy = op if isinstance(op, async_copy.Copy) and not op.grouped else None
        other = last is not None and copy is not None and _users(last) != _users(copy)
        if last is not None and (op.blocks or op.terminator or _ends(op) or other):
            commit = async_copy.CommitGroup(loc=last.loc)
            commit.parent = block
            block.ops.insert(block.ops.index(last) + 1, commit)
            last = None
        last = copy or last
        for inner in op.blocks:
            _commit(inner)


def _ends(op: Op) -> bool:
    """Does a group end in front of it?"""
    waits = op.sync.completes in ("token", "cp_async") or op.sync.meets in ("cta", "cluster")
    return waits or op.sync.commits == "cp_async"


def _users(copy: async_copy.Copy) -> set[tuple[Op, int]]:
    """Who takes the token; its place among those of a wait does not matter."""
    return {(op, -1 if isinstance(op, async_copy.Wait) else position) for op, position in copy.result.uses}


# -- how many groups back ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Count:
    """A number of groups: at least so many, and exactly so many where `exact`."""

    least: int
    exact: bool = True

    def __add__(self, other: _Count) -> _Count:
        return _Count(self.least + other.least, self.exact and other.exact)


_NONE = _Count(0)


def _count_commits(block: Block, known: dict[Op | Block, _Count]) -> _Count:
    """How many groups a block commits with all that it contains; `known` gets this for every op and block in it."""
    known[block] = _NONE
    for op in block.ops:
        known[op] = _commits_of(op, [_count_commits(inner, known) for inner in op.blocks])
        known[block] += known[op]
    return known[block]


def _commits_of(op: Op, blocks: list[_Count]) -> _Count:
    if isinstance(op, async_copy.CommitGroup):
        return _Count(1)
    if all(count == _NONE for count in blocks):
        return _NONE
    first, *others = blocks
    if isinstance(op, control.If):
        return _Count(min(count.least for count in blocks), blocks == [first] * 2 and first.exact)
    trips = trip_count(op) if isinstance(op, control.For) else None
    if trips is not None:
        return _Count(first.least * trips, first.exact)
    again = _Count(0, exact=False)
    return first + again if others else again


@dataclass(frozen=True, slots=True)
class _Age:
    """Groups committed since a token's own, -1 before that. problem: why it cannot be waited for here, and a fix."""

    count: _Count
    copy: Op
    problem: tuple[str, str] | None = None

    @property
    def line(self) -> str:
        return f"the copy_async() of line {self.copy.loc.line}"

    def unknown(self, why: str, fix: str) -> _Age:
        """The same where the number of groups in flight is not one number. The first reason counts."""
        return replace(self, problem=self.problem or (f"how many groups are in flight here {why}", fix))

    def unless_as(self, other: _Age, where: str, fix: str) -> _Age:
        """Not known if it is another number of groups than `other`, the two being one token from here on."""
        if self.count == other.count:
            return self
        either = f"{other.line}, {other.count.least} groups back, or {self.line}, {self.count.least} back"
        return self.unknown(f"differs {where}: it is {either}", fix)


class _Ages:
    """Walks in program order with the age of every visible token, and replaces waits."""

    def __init__(self, kernel: Kernel) -> None:
        self.errors: dict[tuple[Loc, str], CompileError] = {}
        self.commits: dict[Op | Block, _Count] = {}
        _count_commits(kernel.body, self.commits)

    def require_known(self, op: Op, age: _Age) -> None:
        if age.problem:
            message, fix = age.problem
            self.errors.setdefault((op.loc, message), CompileError(message, op.loc, fix, code="C407"))

    def block(self, block: Block, ages: dict[Value, _Age]) -> None:
        """Brings `ages` from the beginning of `block` to its end."""
        for op in list(block.ops):
            made: dict[Value, _Age] = {}
            match op:
                case async_copy.Copy() if not op.grouped:
                    made[op.result] = _Age(_Count(-1), op)
                case async_copy.Wait():
                    self.wait(op, ages)
                case control.If():
                    made = self.if_(op, ages)
                case control.For() | control.While():
                    made = self.loop(op, ages)
                case _:
                    pass
            commits = self.commits[op]
            if commits != _NONE:
                ages.update({token: replace(age, count=age.count + commits) for token, age in ages.items()})
            ages.update(made)

    def wait(self, op: async_copy.Wait, ages: dict[Value, _Age]) -> None:
        for token in op.operands:
            self.require_known(op, ages[token])
        pending = min(ages[token].count.least for token in op.operands)
        Builder(op.block, op.loc, before=op).add(async_copy.WaitGroup(pending=pending))
        op.erase()

    def if_(self, op: control.If, ages: dict[Value, _Age]) -> dict[Value, _Age]:
        """The ages of its results. Where the sides commit differently, those from before it are not known."""
        sides, line = [dict(ages), dict(ages)], op.loc.line
        for block, side in zip(op.blocks, sides, strict=True):
            self.block(block, side)
        then, orelse = (self.commits[block] for block in op.blocks)
        if then != orelse and then.exact and orelse.exact:
            for token, age in ages.items():
                counts = f"{then.least} and {orelse.least}"
                why = f"is not known: the sides of the if in line {line} commit {counts} since {age.line}"
                ages[token] = age.unknown(why, "wait for it before the if, or make as many copies on both sides")
        found: dict[Value, _Age] = {}
        for (result,), yielded in _tokens(flows(op)[0]):
            first, second = (side[value] for side, value in zip(sides, yielded, strict=True))
            fix = "wait on both sides of the if, or make as many copies on both"
            second = second.unless_as(first, f"between the sides of the if in line {line}", fix)
            found[result] = first if first.problem else second
        return found

    def loop(self, op: control.For | control.While, ages: dict[Value, _Age]) -> dict[Value, _Age]:
        """The ages of its results. What it carries is as many groups back after an iteration as before the loop."""
        inside = dict(ages)
        if any(self.commits[block] != _NONE for block in op.blocks):
            for token, age in ages.items():
                why = f"differs between iterations: {age.line} was made before the loop, which commits too"
                inside[token] = age.unknown(why, "wait for it before the loop, or let the loop carry the token")
        around, *passing = flows(op)
        carried = [(targets, yielded, ages[init]) for targets, (init, yielded) in _tokens(around)]
        found = {target: age for targets, _, age in carried for target in targets}
        inside.update(found)
        self.block(op.blocks[0], inside)
        for flow in passing:  # of a while: what its condition passes to the second block, and out
            passed = {target: inside[value] for targets, (value,) in _tokens(flow) for target in targets}
            inside.update(passed)
            found.update(passed)
            self.block(op.blocks[1], inside)
        for _, yielded, age in carried:
            fix = "begin as many copies before the loop as an iteration begins after the one that it passes on"
            self.require_known(op, inside[yielded].unless_as(age, "between iterations", fix))
        return found


# -- tokens leave the control flow ------------------------------------------------------------------


def _drop_tokens(block: Block) -> None:
    """Outer ops first: what an inner one is given and gives has no other user then."""
    for op in block.ops:
        for flow in flows(op):
            flow.keep([not isinstance(targets[0].type, TokenType) for targets, _ in flow.slots])
        for inner in op.blocks:
            _drop_tokens(inner)

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import async_copy, control
from tiledsl.ir.types import TokenType
from tiledsl.passes.analysis.structure import flows, trip_count

__all__ = ["AsyncGroups"]


@dataclass(frozen=True)
class AsyncGroups:
    """Needs loops with tokens to be as they will run: unrolling comes first."""

    name: ClassVar[str] = "async-groups"

    def run(self, kernel: Kernel) -> None:
        copies = [op for op in kernel.walk() if isinstance(op, async_copy.Copy) and not op.grouped]
        if not copies:  # and so no tokens
            return
        errors = [_forgotten(op) for op in copies if not _is_settled(op.result, set())]
        if errors:
            raise CompileErrors(errors)
        _commit(kernel.body)
        flow = _Flow()
        flow.block(kernel.body, {})
        if flow.errors:
            raise CompileErrors(flow.errors)
        _drop_tokens(kernel.body)
        for op in copies:
            op.attrs["grouped"] = True


def _forgotten(op: async_copy.Copy) -> CompileError:
    what = "is never waited for" if not op.result.uses else "is not waited for on every path"
    return CompileError(
        f"this copy_async() {what}, so its tile cannot be read",
        op.loc,
        fix="token = copy_async(src, dst), then wait(token) where the tile is needed, whichever way the kernel takes",
    )


# -- every token is waited for ----------------------------------------------------------------------


def _is_settled(value: Value, assumed: set[Value]) -> bool:
    """True if every path from the definition of the token `value` leads to a wait for it."""
    if value in assumed:  # around a loop once more
        return True
    assumed = assumed | {value}
    owner = value.owner
    if isinstance(owner, Block):
        return _is_settled_in(value, owner, 0, assumed)
    assert owner.parent is not None
    return _is_settled_in(value, owner.parent, owner.parent.ops.index(owner) + 1, assumed)


def _is_settled_in(value: Value, block: Block, start: int, assumed: set[Value]) -> bool:
    for op in block.ops[start:]:
        if isinstance(op, async_copy.Wait) and value in op.operands:
            return True
        if isinstance(op, control.If) and all(_is_settled_in(value, side, 0, assumed) for side in op.blocks):
            return True
        if isinstance(op, control.For) and value in op.inits:
            return _all_settled(_places(op.inits, value, op.body.args[1:], op.results), assumed)
        if isinstance(op, control.While) and value in op.operands:
            return _all_settled(_places(op.operands, value, op.before.args), assumed)
        if isinstance(op, control.While) and _is_settled_in(value, op.before, 0, assumed):
            return True
    return _is_handed_on(value, block, assumed)


def _is_handed_on(value: Value, block: Block, assumed: set[Value]) -> bool:
    """True if the end of `block` passes the token on to where it is waited for."""
    owner, end = block.parent, block.terminator
    match owner:
        case control.If() if value in end.operands:
            return _all_settled(_places(end.operands, value, owner.results), assumed)
        case control.For() if value in end.operands:
            return _all_settled(_places(end.operands, value, owner.body.args[1:], owner.results), assumed)
        case control.While() if block is owner.before and value in end.operands[1:]:
            return _all_settled(_places(end.operands[1:], value, owner.after.args, owner.results), assumed)
        case control.While() if block is owner.after and value in end.operands:
            return _all_settled(_places(end.operands, value, owner.before.args), assumed)
        case _:
            return False


def _places(values: Sequence[Value], value: Value, *targets: Sequence[Value]) -> list[list[Value]]:
    """Where `value` goes, by its places among `values`: one of the places is enough, but there in all targets."""
    return [[target[i] for target in targets] for i, v in enumerate(values) if v is value]


def _all_settled(places: list[list[Value]], assumed: set[Value]) -> bool:
    return any(all(_is_settled(v, assumed) for v in targets) for targets in places)


# -- groups -----------------------------------------------------------------------------------------


def _commit(block: Block) -> None:
    """A commit behind each group of copies."""
    ops, block.ops = block.ops, []
    group: list[async_copy.Copy] = []
    last = 0  # where in the new list the last copy of the group stands

    def end() -> None:
        if group:
            commit = async_copy.CommitGroup(loc=group[-1].loc)
            commit.parent = block
            block.ops.insert(last + 1, commit)
            group.clear()

    for op in ops:
        is_copy = isinstance(op, async_copy.Copy) and not op.grouped
        if op.blocks or op.terminator or _ends(op) or (is_copy and group and not _together(group[-1], op)):
            end()
        block.append(op)
        if is_copy:
            assert isinstance(op, async_copy.Copy)
            group.append(op)
            last = len(block.ops) - 1
        for inner in op.blocks:
            _commit(inner)


def _ends(op: Op) -> bool:
    """Does a group end in front of it?"""
    waits = op.sync.completes in ("token", "cp_async") or op.sync.meets == "cta"
    return waits or op.sync.commits == "cp_async"


def _together(a: Op, b: Op) -> bool:
    return _users(a.results[0]) == _users(b.results[0])


def _users(token: Value) -> set[tuple[Op, int]]:
    """Who takes a token; its place among those of a wait does not matter."""
    return {(op, -1 if isinstance(op, async_copy.Wait) else position) for op, position in token.uses}


# -- how many groups back ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Count:
    """A number of groups: at least so many, and exactly so many where `exact`."""

    least: int
    exact: bool = True

    def __add__(self, other: _Count) -> _Count:
        return _Count(self.least + other.least, self.exact and other.exact)


_NONE = _Count(0)


class _Commits:
    """How many groups one pass through a block commits, which is asked for at every level of what is nested."""

    def __init__(self) -> None:
        self.known: dict[Block, _Count] = {}

    def of(self, block: Block) -> _Count:
        if block not in self.known:
            self.known[block] = self._count(block)
        return self.known[block]

    def _count(self, block: Block) -> _Count:
        total = _NONE
        for op in block.ops:
            match op:
                case async_copy.CommitGroup():
                    total += _Count(1)
                case control.If():
                    then, orelse = map(self.of, op.blocks)
                    total += _Count(min(then.least, orelse.least), then == orelse and then.exact)
                case control.For():
                    total += self.of_loop(op)
                case control.While():
                    before, after = map(self.of, op.blocks)
                    total += before + (_NONE if after == before == _NONE else _Count(0, exact=False))
                case _:
                    pass
        return total

    def of_loop(self, op: control.For) -> _Count:
        body, trips = self.of(op.body), trip_count(op)
        if trips is not None:
            return _Count(body.least * trips, body.exact)
        return body if body == _NONE else _Count(0, exact=False)


@dataclass(frozen=True, slots=True)
class _Age:
    """Groups committed since a token's own, -1 before that. problem: why it cannot be waited for here, and a fix."""

    count: _Count
    copy: Op
    problem: tuple[str, str] | None = None

    def later(self, commits: _Count) -> _Age:
        return replace(self, count=self.count + commits)

    @property
    def line(self) -> str:
        return f"the copy_async() of line {self.copy.loc.line}"


_Ages = dict[Value, _Age]


class _Flow:
    """Walks in program order with the age of every visible token, and replaces waits."""

    def __init__(self) -> None:
        self.errors: list[CompileError] = []
        self.commits = _Commits()

    def error(self, op: Op, problem: tuple[str, str]) -> None:
        if all((e.loc, e.message) != (op.loc, problem[0]) for e in self.errors):
            self.errors.append(CompileError(problem[0], op.loc, fix=problem[1]))

    def block(self, block: Block, ages: _Ages) -> None:
        """Brings `ages` from the beginning of `block` to its end."""
        for op in list(block.ops):
            match op:
                case async_copy.Copy() if not op.grouped:
                    ages[op.result] = _Age(_Count(-1), op)
                case async_copy.CommitGroup():
                    _advance(ages, _Count(1))
                case async_copy.Wait():
                    self.wait(op, ages)
                case control.If():
                    self.if_(op, ages)
                case control.For():
                    self.for_(op, ages)
                case control.While():
                    self.while_(op, ages)
                case _:
                    pass

    def wait(self, op: async_copy.Wait, ages: _Ages) -> None:
        for token in op.operands:
            problem = ages[token].problem
            if problem is not None:
                self.error(op, problem)
        pending = min(ages[token].count.least for token in op.operands)
        assert op.parent is not None
        Builder(op.parent, op.loc, before=op).add(async_copy.WaitGroup(pending=pending))
        op.erase()

    def if_(self, op: control.If, ages: _Ages) -> None:
        sides = [dict(ages), dict(ages)]
        for block, side in zip(op.blocks, sides, strict=True):
            self.block(block, side)
        counts = [self.commits.of(block) for block in op.blocks]
        total = _Count(min(c.least for c in counts), counts[0] == counts[1] and counts[0].exact)
        differ = counts[0] != counts[1] and counts[0].exact and counts[1].exact
        for token, age in ages.items():
            later = age.later(total)
            ages[token] = replace(later, problem=age.problem or _sides(op, age, counts)) if differ else later
        for result, *pair in zip(op.results, op.then.terminator.operands, op.orelse.terminator.operands, strict=True):
            if isinstance(result.type, TokenType):
                ages[result] = self.merged(op, [side[v] for side, v in zip(sides, pair, strict=True)])

    def merged(self, op: control.If, ages: list[_Age]) -> _Age:
        first, second = ages
        if first.count != second.count and not first.problem and not second.problem:
            numbers = f"{first.count.least} groups back if the condition holds, {second.count.least} if not"
            problem = (
                f"{first.line} or {second.line}, as the if of line {op.loc.line} decides: {numbers}, so how many "
                "groups are in flight here is not known",
                "wait on both sides of the if, or make as many copies on both",
            )
            return replace(first, problem=problem)
        return first if first.problem else second

    def for_(self, op: control.For, ages: _Ages) -> None:
        each = self.commits.of(op.body)
        inside = _in_loop(ages, each)
        entry = self.carry(op, op.inits, op.body.args[1:], ages, inside)
        self.block(op.body, inside)
        self.back_edge(op, entry, op.body.terminator.operands, inside)
        _advance(ages, self.commits.of_loop(op))
        ages.update({op.results[i]: age for i, age in entry.items()})

    def while_(self, op: control.While, ages: _Ages) -> None:
        each = self.commits.of(op.before) + self.commits.of(op.after)
        inside = _in_loop(ages, each)
        entry = self.carry(op, op.operands, op.before.args, ages, inside)
        self.block(op.before, inside)
        passed = self.carry(op, op.before.terminator.operands[1:], op.after.args, inside, inside)
        self.block(op.after, inside)
        self.back_edge(op, entry, op.after.terminator.operands, inside)
        _advance(ages, self.commits.of(op.before) + (_NONE if each == _NONE else _Count(0, exact=False)))
        ages.update({op.results[i]: age for i, age in passed.items()})

    def carry(
        self, op: Op, values: Sequence[Value], args: Sequence[Value], ages: _Ages, inside: _Ages
    ) -> dict[int, _Age]:
        """The ages of the tokens among `values`, by position; the arguments in their places have them too."""
        entry = {i: ages[v] for i, v in enumerate(values) if isinstance(v.type, TokenType)}
        inside.update({args[i]: age for i, age in entry.items()})
        return entry

    def back_edge(self, op: Op, entry: dict[int, _Age], yielded: Sequence[Value], inside: _Ages) -> None:
        for position, age in entry.items():
            after = inside[yielded[position]]
            if after.problem:
                self.error(op, after.problem)
            elif after.count != age.count:
                self.error(
                    op,
                    (
                        f"how many groups are in flight here differs between iterations: {age.line} is "
                        f"{age.count.least} groups back when the loop begins, and {after.line}, which takes its place, "
                        f"{after.count.least} after an iteration",
                        "begin as many copies before the loop as an iteration begins after the one that it hands on",
                    ),
                )


def _advance(ages: _Ages, commits: _Count) -> None:
    for token, age in ages.items():
        ages[token] = age.later(commits)


def _in_loop(ages: _Ages, each: _Count) -> _Ages:
    """Tokens from outside a loop, as the loop's body sees them."""
    if each == _NONE:
        return dict(ages)
    fix = "wait for it before the loop, or let the loop carry the token"
    text = (
        "how many groups are in flight here differs between iterations: {} was made before the loop, which commits too"
    )
    return {t: replace(a, problem=a.problem or (text.format(a.line), fix)) for t, a in ages.items()}


def _sides(op: control.If, age: _Age, counts: list[_Count]) -> tuple[str, str]:
    then, orelse = (c.least for c in counts)
    return (
        f"how many groups are in flight here is not known: the sides of the if in line {op.loc.line} commit {then} and "
        f"{orelse} since {age.line}",
        "wait for it before the if, or make as many copies on both sides",
    )


# -- tokens leave the control flow ------------------------------------------------------------------


def _drop_tokens(block: Block) -> None:
    """Outer ops first: what an inner one is given and gives has no other user then."""
    for op in block.ops:
        for flow in flows(op):
            flow.keep([not isinstance(targets[0].type, TokenType) for targets, _ in flow.slots])
        for inner in op.blocks:
            _drop_tokens(inner)

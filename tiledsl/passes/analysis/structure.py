"""Structured control flow, as passes read and edit it: how values move through it, trip counts, inlining."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple, TypeVar

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, tile
from tiledsl.passes.analysis.constants import integer


class Flow(NamedTuple):
    """Values that a control op moves in parallel: the values at position i of `targets` are one of those of `sources`.

    targets: results of an op or arguments of a block, from a number on. sources: operands of an op, from a number on.
    """

    targets: tuple[tuple[Op | Block, int], ...]
    sources: tuple[tuple[Op, int], ...]

    @property
    def slots(self) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
        """Targets and sources, position by position."""
        targets = zip(*(_defined(holder)[first:] for holder, first in self.targets), strict=True)
        sources = zip(*(op.operands[first:] for op, first in self.sources), strict=True)
        return zip(targets, sources, strict=True)

    def keep(self, flags: Sequence[bool]) -> None:
        """Keep only the flagged positions; targets of the others are unused."""
        if all(flags):
            return
        for holder, first in self.targets:
            values = _defined(holder)
            values[first:] = compress(values[first:], flags)
            for index, value in enumerate(values):
                value.index = index
        for op, first in self.sources:
            op.set_operands([*op.operands[:first], *compress(op.operands[first:], flags)])


def _defined(holder: Op | Block) -> list[Value]:
    return holder.args if isinstance(holder, Block) else holder.results


def flows(op: Op | Kernel | None) -> tuple[Flow, ...]:
    """How values move through a control op: into its blocks, around, and out of it. None for other ops."""
    match op:
        case control.If():
            return (Flow(((op, 0),), tuple((block.terminator, 0) for block in op.blocks)),)
        case control.For():
            return (Flow(((op.body, 1), (op, 0)), ((op, 3), (op.body.terminator, 0))),)
        case control.While():
            around = Flow(((op.before, 0),), ((op, 0), (op.after.terminator, 0)))
            return around, Flow(((op.after, 0), (op, 0)), ((op.before.terminator, 1),))
        case _:
            return ()


def incoming(value: Value) -> list[Value]:
    """The values that control flow may make `value` equal to; none for what an op computes or a loop counts."""
    owner = value.owner
    for flow in flows(owner if isinstance(owner, Op) else owner.parent):
        for holder, first in flow.targets:
            if holder is owner and value.index >= first:
                return [op.operands[start + value.index - first] for op, start in flow.sources]
    return []


def is_unchanged(result: Value) -> bool:
    """Whether a result of a control op is the same value whichever way it takes, and however often: a loop that only
    carries it, say."""

    def is_inside(value: Value) -> bool:
        return value is result or any(around is result.op for around, _ in ops_around(value.block))

    found = reached([result], lambda value: incoming(value) if is_inside(value) else [])
    made = [value for value in found if not is_inside(value) or not incoming(value)]
    return len(made) == 1 and not is_inside(made[0])


def deciders(op: Op) -> list[Value]:
    """What decides which way a control op takes, and how often."""
    match op:
        case control.For():
            return op.operands[:3]
        case control.While():
            return op.before.terminator.operands[:1]
        case _:
            return op.operands


def trip_count(op: control.For) -> int | None:
    """How often the loop's body runs, where lo, hi and step are constants; never by a step of 0."""
    lo, hi, step = integer(op.lo), integer(op.hi), integer(op.step)
    if step == 0:
        return 0
    return None if lo is None or hi is None or step is None else len(range(lo, hi, step))


T = TypeVar("T")


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """The values or ops `starts`, and whatever is reached from there step by step, the nearest first."""
    found: dict[T, None] = {}
    pending = [*starts]
    for here in pending:  # which grows meanwhile
        if here not in found:
            found[here] = None
            pending += following(here)
    return found


def operands_first(start: T, known: Container[T], operands: Callable[[T], list[T] | None]) -> Iterator[T]:
    """A value or an op and what it is made of, operands first, but for what is `known`, which the caller lets grow.

    Chains of ops may be longer than Python's stack.
    """
    pending = [start]
    while pending:
        here = pending[-1]
        missing = [] if here in known else [v for v in operands(here) or () if v not in known]
        if missing:
            pending += reversed(missing)
            continue
        pending.pop()
        if here not in known:
            yield here


def loops_around(value: Value, known: dict[Value, int]) -> int:
    """How many loops around it change `value`: none for a parameter, or what is computed from parameters alone.

    `known` keeps what was found, for the next question about the same IR.
    """
    for here in operands_first(value, known, _computed_from):
        made_of = _computed_from(here)
        known[here] = _nesting(here) if made_of is None else max((known[v] for v in made_of), default=0)
    return known[value]


def _computed_from(value: Value) -> list[Value] | None:
    """None for what no pure op computes."""
    op = value.op
    return op.operands if op is not None and op.is_pure and not op.blocks else None


def _nesting(value: Value) -> int:
    """How many loops there are around the place where `value` is made."""
    return sum(isinstance(op, (control.For, control.While)) for op, _ in ops_around(value.block))


def ops_around(block: Block | None) -> Iterator[tuple[Op, Block]]:
    """The ops that `block` lies in, the innermost first, each with that one of its blocks."""
    while block is not None and isinstance(block.parent, Op):
        yield block.parent, block
        block = block.parent.parent


def take_tiles(loop: Op) -> list[Op]:
    """Unlink the tiles that are allocated in a loop: each is one tile, and stands in front of the loop when that is
    written as another."""
    found: list[Op] = [op for op in loop.walk() if isinstance(op, tile.SharedAlloc)]
    for op in found:
        op.block.ops.remove(op)
    return found


def rewrite(block: Block, instead: Callable[[Op], list[Op] | None]) -> None:
    """Put `instead` of it in the place of each op, those of inner blocks first; None: it stays."""
    ops: list[Op] = []
    for op in block.ops:
        for inner in op.blocks:
            rewrite(inner, instead)
        new = instead(op)
        if new is None:
            ops.append(op)
            continue
        for each in new:
            each.parent = block
        ops += new
    block.ops = ops


def replace_op(op: Op, values: Sequence[Value]) -> None:
    """Let `values` stand for the results of `op`, which forgets its operands. The caller unlinks it."""
    for result, value in zip(op.results, values, strict=True):
        if result.name and not value.name:
            value.name = result.name
        result.replace_all_uses_with(value)
    op.drop_operands()
    op.parent = None

"""Structured control flow, as several passes read and edit it: what is around an op, trip counts, inlining, results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import control
from tiledsl.passes.analysis.constants import integer

__all__ = [
    "drop_carried",
    "drop_results",
    "drop_while_inputs",
    "drop_while_outputs",
    "loops_around",
    "ops_around",
    "replace_op",
    "take_block",
    "trip_count",
]


def trip_count(op: control.For) -> int | None:
    """How often the loop's body runs, where lo, hi and step are constants; never by a step of 0."""
    lo, hi, step = integer(op.lo), integer(op.hi), integer(op.step)
    if step == 0:
        return 0
    if lo is None or hi is None or step is None:
        return None
    return len(range(lo, hi, step))


def loops_around(value: Value, known: dict[Value, int] | None = None) -> int:
    """How many loops around it change `value`: none for a parameter, or what is computed from parameters alone.

    `known` keeps what was found, for the next question about the same IR.
    """
    depths = {} if known is None else known
    pending = [value]
    while pending:
        here = pending[-1]
        if here in depths:
            pending.pop()
            continue
        op = here.op
        inputs = op.operands if op is not None and op.is_pure and not op.blocks else []
        missing = [v for v in inputs if v not in depths]
        if missing:
            pending += missing
            continue
        pending.pop()
        own = 0 if op is not None and op.is_pure and not op.blocks else _nesting(here)
        depths[here] = max((own, *(depths[v] for v in inputs)))
    return depths[value]


def _nesting(value: Value) -> int:
    """How many loops there are around the place where `value` is made."""
    owner = value.owner
    block = owner.parent if isinstance(owner, Op) else owner
    return sum(isinstance(op, (control.For, control.While)) for op, _ in ops_around(block))


def ops_around(block: Block | None) -> Iterator[tuple[Op, Block]]:
    """The ops that `block` lies in, the innermost first, each with that one of its blocks."""
    while block is not None and isinstance(block.parent, Op):
        yield block.parent, block
        block = block.parent.parent


def replace_op(op: Op, values: Sequence[Value]) -> None:
    """Let `values` stand for the results of `op`, which forgets its operands. The caller unlinks it."""
    for result, value in zip(op.results, values, strict=True):
        if result.name and not value.name:
            value.name = result.name
        result.replace_all_uses_with(value)
    op.drop_operands()
    op.parent = None


def take_block(block: Block, arguments: Sequence[Value]) -> tuple[list[Op], Op]:
    """The ops of `block`, its arguments replaced by `arguments`, and its terminator; the block is empty then.

    The caller places the ops elsewhere and, once it has read the terminator's operands, drops them.
    """
    for arg, value in zip(block.args, arguments, strict=True):
        arg.replace_all_uses_with(value)
    ops, end = block.ops[:-1], block.terminator
    block.ops = []
    return ops, end


def drop_results(op: control.If, keep: Sequence[bool]) -> None:
    """Keep only the flagged results of an `if`; the others are unused."""
    _keep_results(op, keep)
    for block in op.blocks:
        end = block.terminator
        end.set_operands([v for v, k in zip(end.operands, keep, strict=True) if k])


def drop_carried(op: control.For, keep: Sequence[bool]) -> None:
    """Keep only the flagged carried values of a loop; arguments and results of the others are unused."""
    _keep_results(op, keep)
    op.set_operands([*op.operands[:3], *(v for v, k in zip(op.inits, keep, strict=True) if k)])
    end = op.body.terminator
    end.set_operands([v for v, k in zip(end.operands, keep, strict=True) if k])
    _keep_args(op.body, [True, *keep])


def drop_while_inputs(op: control.While, keep: Sequence[bool]) -> None:
    """Keep only the flagged arguments of a while loop's first block; the others are unused."""
    op.set_operands([v for v, k in zip(op.operands, keep, strict=True) if k])
    end = op.after.terminator
    end.set_operands([v for v, k in zip(end.operands, keep, strict=True) if k])
    _keep_args(op.before, keep)


def drop_while_outputs(op: control.While, keep: Sequence[bool]) -> None:
    """Keep only the flagged values that a while loop's condition passes on; the others are unused."""
    _keep_results(op, keep)
    end = op.before.terminator
    end.set_operands([end.operands[0], *(v for v, k in zip(end.operands[1:], keep, strict=True) if k)])
    _keep_args(op.after, keep)


def _keep_args(block: Block, keep: Sequence[bool]) -> None:
    block.args = [a for a, k in zip(block.args, keep, strict=True) if k]
    for index, arg in enumerate(block.args):
        arg.index = index


def _keep_results(op: Op, keep: Sequence[bool]) -> None:
    op.results = [r for r, k in zip(op.results, keep, strict=True) if k]
    for index, result in enumerate(op.results):
        result.index = index

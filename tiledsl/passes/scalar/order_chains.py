"""Order chains: what is computed for one element stands together, where that keeps fewer values alive.

A function of a fragment makes each of its steps for all elements before the next one, so that the intermediate results
of all elements are alive together. ptxas finds a better order of a long row of arithmetic in part only, and none at all
where a correctly rounded division or root has a slow path, a branch over which it moves nothing. So each value that
leaves a row of pure ops is computed by itself, with all that only it needs, if so many fewer values are alive in the
row at once that it matters. Other rows keep the order in which they were written, which may be deliberate: products of
matrices have as many values alive in any order.
"""

from __future__ import annotations

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith
from tiledsl.passes.analysis.structure import operands_first

FEWER = 32
"""How many values fewer must be alive: an eighth of a thread's registers."""


def order_chains(kernel: Kernel) -> None:
    """At thread level, at the end: nothing else is moved after it."""
    _block(kernel.body)


def _block(block: Block) -> None:
    ordered: list[Op] = []
    row: list[Op] = []
    for op in block.ops:
        if not op.blocks and op.is_pure:
            row.append(op)
            continue
        ordered += _ordered(row)
        ordered.append(op)
        row = []
        for inner in op.blocks:
            _block(inner)
    block.ops = ordered


def _ordered(row: list[Op]) -> list[Op]:
    if len(row) <= 2 * FEWER:
        return row
    chains = _by_chains(row)
    return chains if _most_alive(chains) + FEWER <= _most_alive(row) else row


def _by_chains(row: list[Op]) -> list[Op]:
    inside = set(row)
    ordered: dict[Op, None] = {}

    def makers(op: Op) -> list[Op]:
        return [made for v in op.operands if (made := v.op) is not None and made in inside]

    leaving = [op for op in row if any(user not in inside for result in op.results for user, _ in result.uses)]
    for op in [*leaving, *row]:
        for here in operands_first(op, ordered, makers):
            ordered[here] = None
    return [*ordered]


def _most_alive(row: list[Op]) -> int:
    """How many values are alive at once at most, of those that the row makes or uses up; constants are none."""
    inside = set(row)
    uses: dict[Value, int] = {}
    for op in row:
        for value in op.operands:
            uses[value] = uses.get(value, 0) + 1
    kept = {value for value in uses if any(user not in inside for user, _ in value.uses)}
    alive = most = sum(value.op not in inside for value in uses)
    for op in row:
        if isinstance(op, arith.Constant):
            continue
        alive += len(op.results)
        most = max(most, alive)
        for value in op.operands:
            uses[value] -= 1
            if uses[value] == 0 and value not in kept and not isinstance(value.op, arith.Constant):
                alive -= 1
    return most

"""Dead code elimination: keep what an effect depends on, directly or through loops; drop the rest.

Liveness is marked backwards from ops with effects. A loop-carried value that feeds only itself is
never marked, so it goes too. Reads count as no effect here: a value nobody needs is not loaded.
A loop without effects whose results nobody needs goes as well, whether or not it would end.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.passes.analysis.structure import deciders, flows, incoming, reached


def drop_dead_code(kernel: Kernel) -> None:
    effective: list[Op | Value] = [op for op in kernel.walk() if not op.blocks and op.effects - {"read"}]
    _sweep(kernel.body, reached(effective, _needed))


def _needed(here: Op | Value) -> Iterator[Op | Value]:
    """What a live op or value needs besides: carried values are live only where somebody needs them."""
    if isinstance(here, Op):
        yield from deciders(here) if here.blocks else here.operands
        around = here.block.parent
    else:
        yield from incoming(here)
        around = here.owner.parent if isinstance(here.owner, Block) else here.owner
    if isinstance(around, Op):
        yield around


def _sweep(block: Block, live: Container[Op | Value]) -> None:
    """Innermost last: a dead op's operands are dropped before the ops that define them are looked at."""
    kept: list[Op] = []
    for op in reversed(block.ops):
        if op not in live and not op.terminator:
            op.drop_operands()
            op.parent = None
            continue
        kept.append(op)
        for flow in flows(op):
            flow.keep([any(value in live for value in targets) for targets, _ in flow.slots])
        for inner in op.blocks:
            _sweep(inner, live)
    block.ops = kept[::-1]

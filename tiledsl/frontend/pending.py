"""Accumulators in flight are used exactly once on every path, and waited for in the end."""

from __future__ import annotations

from typing import Any, Iterator

from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import is_pending
from tiledsl.frontend.frame import Unit
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import control, wgmma


def check_pending(unit: Unit) -> None:
    """Report accumulators that are dropped, used twice, or taken by a loop that does not carry them."""
    for value in _values(unit.body):
        paths = [_path(value, op) for op, _ in value.uses]
        if not paths:
            unit.report(_dropped(value))
        for number, path in enumerate(paths):
            op = path[-1]
            if any(isinstance(around, (control.For, control.While)) for around in path[:-1]):
                fix = "give the result the name of what goes in: acc = wgmma(a, b, acc)"
                unit.report(CompileError("a loop takes the same accumulator in every iteration", op.loc, fix))
            for other in paths[:number]:
                # They part at a block where they are in different branches of one `if`.
                parting = next((here for here, there in zip(path, other, strict=False) if here is not there), op)
                if not isinstance(parting, Block):
                    unit.report(_twice(*sorted((op, other[-1]), key=lambda o: o.loc.line)))


def _values(body: Block) -> Iterator[Value]:
    for op in body.walk():
        yield from (v for v in op.results if is_pending(v))
        for block in op.blocks:
            yield from (v for v in block.args if is_pending(v))


def _path(value: Value, op: Op) -> list[Any]:
    """The blocks and ops around `op`, and `op` itself, from the block of `value` inwards."""
    home = value.owner if isinstance(value.owner, Block) else value.owner.parent
    found: list[Any] = [op]
    while found[-1] is not home:
        found.append(found[-1].parent)
    return found[::-1]


def _dropped(value: Value) -> CompileError:
    owner = value.owner
    loc = owner.loc if isinstance(owner, Op) else owner.parent.loc if owner.parent is not None else None
    assert loc is not None
    if isinstance(owner, wgmma.Begin):
        return CompileError("nothing is added to this accumulator, and nobody waits for it", loc, "remove it")
    message = "these products are never waited for: the accumulator is dropped"
    return CompileError(message, loc, "x = acc.wait() gives its elements")


def _twice(first: Op, second: Op) -> CompileError:
    message = f"this accumulator was used before, in line {first.loc.line}: its sum is in flight under another name"
    return CompileError(message, second.loc, "continue with the result of that: acc = wgmma(a, b, acc)")

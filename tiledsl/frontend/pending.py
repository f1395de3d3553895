"""Accumulators in flight are used exactly once on every path, and waited for in the end."""

from __future__ import annotations

from typing import Iterator

from tiledsl.errors import CompileError
from tiledsl.frontend.bindings import is_pending
from tiledsl.frontend.frame import Unit
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import control, wgmma

__all__ = ["check_pending"]


def check_pending(unit: Unit) -> None:
    """Report accumulators that are dropped, used twice, or taken by a loop that does not carry them."""
    for value in _values(unit.body):
        uses = [op for op, _ in value.uses]
        if not uses:
            unit.report(_dropped(value))
        for number, op in enumerate(uses):
            if _in_loop(value, op):
                fix = "give the result the name of what goes in: acc = wgmma(a, b, acc)"
                unit.report(CompileError("a loop takes the same accumulator in every iteration", op.loc, fix))
            for other in uses[:number]:
                if not _exclusive(value, op, other):
                    unit.report(_twice(*sorted((op, other), key=lambda o: o.loc.line)))


def _values(body: Block) -> Iterator[Value]:
    for op in body.walk():
        yield from (v for v in op.results if is_pending(v))
        for block in op.blocks:
            yield from (v for v in block.args if is_pending(v))


def _block(value: Value) -> Block:
    block = value.owner if isinstance(value.owner, Block) else value.owner.parent
    assert block is not None
    return block


def _path(value: Value, op: Op) -> list[tuple[Op, Block]]:
    """The ops around `op`, and `op` itself, each with the block that it stands in, from the value's block inwards."""
    found: list[tuple[Op, Block]] = []
    here: Op = op
    while True:
        block = here.parent
        assert block is not None
        found.append((here, block))
        if block is _block(value):
            return found[::-1]
        assert isinstance(block.parent, Op)
        here = block.parent


def _in_loop(value: Value, op: Op) -> bool:
    return any(isinstance(around, (control.For, control.While)) for around, _ in _path(value, op)[:-1])


def _exclusive(value: Value, a: Op, b: Op) -> bool:
    """Are the two in different branches of one `if`?"""
    for (x, in_x), (y, in_y) in zip(_path(value, a), _path(value, b), strict=False):
        if in_x is not in_y:
            return True
        if x is not y:
            return False
    return False


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

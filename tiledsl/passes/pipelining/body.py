"""The body of a pipelined loop: who accesses which memory, and what depends on what.

Producers are the copies at the top level of the body that fill shared tiles, with the pure ops that they need.
Consumers are all other ops with effects or results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, tile
from tiledsl.ir.types import GlobalType, SharedType
from tiledsl.passes.analysis.structure import reached


class LoopBody:
    """`ops`: those of the body, without its end; `inside`: with all that is in them, in program order.

    `copies`: the producers; `tiles`: what they fill. `variable`: what the loop counts.
    """

    def __init__(self, kernel: Kernel, op: control.For) -> None:
        self.kernel, self.op, self.block = kernel, op, op.body
        self.ops = op.body.ops[:-1]
        self.inside = dict.fromkeys(op.body.walk())
        self.copies = [c for c in self.ops if isinstance(c, tile.Copy) and fills(c)]
        self.tiles = dict.fromkeys(c.dst.memory for c in self.copies)
        self.variable = self.block.args[0]

    def slice(self, values: Iterable[Value]) -> list[Value]:
        """The local values that `values` depend on, themselves included, looking through pure ops only."""

        def made_of(value: Value) -> Iterable[Value]:
            return outside_values(value.op, self.block) if value.op is not None and value.op.is_pure else ()

        return list(reached((v for v in values if v.block is self.block), made_of))

    def blame(self, values: Iterable[Value]) -> str:
        """What `values` depend on besides the loop's variable, if it differs between iterations: a value that the loop
        carries, or an op with effects. "" where there is nothing."""
        for value in self.slice(values):
            if value.op is None and value is not self.variable:
                return f"{f'{value.name}, ' if value.name else ''}a value that one iteration hands to the next"
            if value.op is not None and not value.op.is_pure:
                return f"what line {value.op.loc.line} reads in the loop"
        return ""

    def needed(self, by: Iterable[Op], but: set[Op]) -> list[Op]:
        """The ops `by`, the loop's results and what both need, in program order; not `but`, nor what only they need."""

        def makers(op: Op) -> list[Op]:
            return [made for v in outside_values(op, self.block) if (made := v.op) is not None and made not in but]

        found = reached([*(op for op in by if op not in but), self.block.terminator], makers)
        return [op for op in self.ops if op in found]


def fills(copy: tile.Copy) -> bool:
    """True if the copy brings what is in global memory to a shared tile; between tiles it only moves what is there."""
    return isinstance(copy.src.type, GlobalType) and isinstance(copy.dst.type, SharedType)


def outside_values(op: Op, body: Block) -> Iterator[Value]:
    """Arguments of `body` and results of its ops that `op`, or an op inside it, uses."""
    return (value for inner in op.walk() for value in inner.operands if value.block is body)


def memories(op: Op) -> list[tuple[Value, bool]]:
    """Tensors and tiles that `op` itself accesses, each with whether it writes there."""
    return [(access.memory, access.writes) for access in op.accesses() if isinstance(access.memory, Value)]


def overlap(a: Value, b: Value) -> bool:
    """True if two tiles may share bytes: one lies over the other, or both over a third one."""
    return bool(_under(a) & _under(b))


def _under(memory: Value) -> set[Value]:
    """The tile and all that it lies over; nothing for a tensor."""
    alloc = memory.op
    return {memory}.union(*map(_under, alloc.operands)) if isinstance(alloc, tile.SharedAlloc) else set()

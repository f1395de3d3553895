"""Where values are used of which each path through a kernel uses one once: cursors of rings, accumulators in flight."""

from __future__ import annotations

from typing import NamedTuple

from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import control


class Use(NamedTuple):
    """path: the blocks and ops around `op`, from the block of the value inwards, and `op` itself."""

    op: Op
    path: list[Op | Block]

    @property
    def in_loop(self) -> bool:
        """Is it in a loop that the value comes into from outside?"""
        return any(isinstance(around, (control.For, control.While)) for around in self.path[:-1])

    def excludes(self, other: Use) -> bool:
        """Are they in different branches of one `if`?"""
        parting = next((here for here, there in zip(self.path, other.path, strict=False) if here is not there), None)
        return isinstance(parting, Block)


def uses_of(value: Value) -> list[Use]:
    found: list[Use] = []
    for op, _ in value.uses:
        path: list[Op | Block] = [op]
        while path[0] is not value.block:
            around = path[0].parent
            assert isinstance(around, (Op, Block))
            path.insert(0, around)
        found.append(Use(op, path))
    return found

"""Distribute: what a block or its warps do together becomes what one thread does.

Copies become loads and stores (`distribute_copies`), fragments that warps hold together the accesses of one lane
(`distribute_matrices`). After it every access is one thread's, at tile level still, so that the passes on layouts
and the checks of alignment see ordinary accesses at the line of the copy or load. Only `matrix.mma` stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tiledsl.errors import CompileError, CompileErrors, Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import async_copy, matrix, tile
from tiledsl.passes.analysis.structure import replace_op
from tiledsl.passes.distribute.distribute_copies import write_copy
from tiledsl.passes.distribute.distribute_matrices import write_convert, write_coordinates, write_load, write_store

__all__ = ["Distribute"]

Writer = Callable[[Any, Builder], Sequence[Value]]
"""Writes what an op becomes, and gives the values that stand for its results; CompileError where that cannot be had."""

_WRITERS: dict[type[Op], Writer] = {
    matrix.Load: write_load,
    matrix.Store: write_store,
    matrix.Coordinates: write_coordinates,
    matrix.Convert: write_convert,
}


@dataclass(frozen=True)
class Distribute:
    """Needs `check-collectives` to have found that all threads reach each copy; `async-groups` has taken the tokens."""

    name: ClassVar[str] = "distribute"

    def run(self, kernel: Kernel) -> None:
        walker = _Walker(kernel)
        walker.block(kernel.body)
        if walker.errors:
            raise CompileErrors(walker.errors.values())


class _Walker:
    """Rebuilds blocks. `errors` by location: an unrolled copy is wrong once."""

    def __init__(self, kernel: Kernel) -> None:
        def copy(op: tile.Copy, b: Builder) -> Sequence[Value]:
            return write_copy(kernel, op, b)

        self.writers: dict[type[Op], Writer] = {**_WRITERS, tile.Copy: copy, async_copy.Copy: copy}
        self.errors: dict[Loc, CompileError] = {}

    def block(self, block: Block) -> None:
        ops, block.ops = block.ops, []
        b = Builder(block)
        for op in ops:
            for inner in op.blocks:
                self.block(inner)
            writer = self.writers.get(type(op))
            if writer is None:
                block.append(op)
            else:
                b.loc = op.loc
                self.write(writer, op, b)

    def write(self, writer: Writer, op: Op, b: Builder) -> None:
        try:
            values = writer(op, b)
        except CompileError as error:
            self.errors.setdefault(op.loc, error)
            return
        assert values or not any(result.uses for result in op.results), f"{op.name} has a token that is still used"
        replace_op(op, values or op.results)

"""Distribute: what a block or its warps do together becomes what one thread does.

Copies become loads and stores (`distribute_copies`), fragments that warps hold together the accesses of one lane
(`distribute_matrices`). After it every access is one thread's, at tile level still, so that the passes on layouts
and the checks of alignment see ordinary accesses at the line of the copy or load. Only `matrix.mma` stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tiledsl.ir.builder import Builder, CachingBuilder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import async_copy, matrix, tile
from tiledsl.passes.analysis.structure import replace_op, rewrite
from tiledsl.passes.checks.checker import of_each
from tiledsl.passes.distribute.distribute_copies import write_copy
from tiledsl.passes.distribute.distribute_matrices import write_convert, write_coordinates, write_load, write_store

Writer = Callable[[Kernel, Any, Builder], Sequence[Value]]
"""Writes what an op becomes, and gives the values that stand for its results; CompileError where that cannot be had."""

_WRITERS: dict[type[Op], Writer] = {
    tile.Copy: write_copy,
    async_copy.Copy: write_copy,
    matrix.Load: write_load,
    matrix.Store: write_store,
    matrix.Coordinates: write_coordinates,
    matrix.Convert: write_convert,
}


def distribute(kernel: Kernel) -> None:
    """Needs `check-collectives` to have found that all threads reach each copy; `async-groups` has taken the tokens."""
    ops = [op for op in kernel.walk() if type(op) in _WRITERS]
    instead = dict(zip(ops, of_each(ops, partial(_written, kernel)), strict=True))
    rewrite(kernel.body, instead.get)


def _written(kernel: Kernel, op: Op) -> list[Op]:
    b = CachingBuilder(Block(), op.loc)
    values = _WRITERS[type(op)](kernel, op, b)
    assert values or not any(result.uses for result in op.results), f"{op.name} has a token that is still used"
    replace_op(op, values or op.results)
    return b.block.ops

"""What becomes of a pipelined loop: which ops run ahead, and in what steps the others compute.

Consumers fall into *steps* where they read the tiles by loads of their own (`matrix.load`, `tile.load`) whose place
follows from the loop's variable: the loads up to the first op that uses one of them, then the computing up to the
next load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tiledsl.errors import CompileError, CompileErrors
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import async_copy, control, gpu, matrix, tile
from tiledsl.ir.types import SharedType
from tiledsl.passes.analysis.called import name_of
from tiledsl.passes.analysis.structure import ops_around, trip_count
from tiledsl.passes.pipelining.body import LoopBody, memories, overlap
from tiledsl.passes.pipelining.checks import check_loop


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Loads of produced tiles, and the computing up to the next loads, in program order."""

    loads: tuple[Op, ...]
    compute: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoopPlan:
    """One pipelined loop, before it is rewritten.

    copies: the producers; tiles: what they fill. consumers: the rest that is needed, pure ops too. steps: what two
    steps of fragments overlap; none for one step. why: the reason for one. shares_with: an access to bytes of the
    tiles that may come before the loop, with no barrier since; None if there is none.
    """

    op: control.For
    copies: tuple[tile.Copy, ...]
    tiles: tuple[Value, ...]
    consumers: tuple[Op, ...]
    steps: tuple[Step, ...]
    why: str
    shares_with: Op | None

    @property
    def stages(self) -> int:
        return self.op.stages

    @property
    def trips(self) -> int | None:
        """How many iterations there are; None where only a launch knows."""
        return trip_count(self.op)

    @property
    def fragments(self) -> int:
        return 2 if self.steps else 1

    @property
    def shares(self) -> list[tuple[tile.Copy, ...]]:
        """The copies, in equal parts for the steps but the last, which begins with a wait for others of them."""
        parts = len(self.steps) - 1
        ends = [len(self.copies) * part // parts for part in range(parts + 1)] if parts > 0 else []
        return [self.copies[first:end] for first, end in pairwise(ends)]

    @property
    def is_async(self) -> bool:
        return any(isinstance(op, async_copy.Copy) for op in self.copies)


def plan_loop(kernel: Kernel, op: control.For) -> LoopPlan:
    """The plan of one loop, in whose body no tile is allocated. Raises CompileErrors for what cannot run ahead."""
    body = LoopBody(kernel, op)
    check_loop(body)
    consumers = body.needed([c for c in body.ops if not c.is_pure], set(body.copies))
    steps, why = _steps(body, consumers)
    if op.fragments == 2 and not steps:
        message = f"fragments=2 reads the operands of the next step from shared memory ahead, but {why}"
        raise CompileErrors([CompileError(message, op.loc, fix="pass fragments=1, or leave it out", code="C607")])
    return LoopPlan(op, tuple(body.copies), tuple(body.tiles), tuple(consumers), tuple(steps), why, _shares_with(body))


# -- steps ------------------------------------------------------------------------------------------


def _steps(body: LoopBody, consumers: list[Op]) -> tuple[list[Step], str]:
    """The steps, or none and the reason."""
    if body.op.fragments == 1:
        return [], "asked for"
    if body.op.stages == 1:
        return [], "with one stage nothing of the next iteration is there to be read"
    readers = [(op, m) for op in body.inside for m, writes in memories(op) if m in body.tiles and not writes]
    loads: set[Op] = set()
    for op, memory in readers:
        if op.parent is not body.block or not isinstance(op, (matrix.Load, tile.Load)):
            return [], f"line {op.loc.line} reads {name_of(memory)} by more than a load in the loop's own body"
        if blamed := body.blame(op.operands):
            return [], f"where line {op.loc.line} reads {name_of(memory)} depends on {blamed}"
        loads.add(op)
    if not loads:
        return [], "the loop does not load what it copies"
    computing = set(body.needed([op for op in consumers if not op.is_pure], loads))
    return list(_split([op for op in consumers if op in computing or op in loads], loads)), ""


def _split(consumers: list[Op], loads: set[Op]) -> Iterator[Step]:
    """Cut loads and computing into steps."""
    now: list[Op] = []
    compute: list[Op] = []
    for op in consumers:
        if op not in loads:
            compute.append(op)
            continue
        if _uses(compute, now):
            yield Step(tuple(now), tuple(compute))
            now, compute = [], []
        now.append(op)
    yield Step(tuple(now), tuple(compute))


def _uses(ops: list[Op], loads: list[Op]) -> bool:
    """True if one of `ops`, or an op inside it, uses what one of `loads` read."""
    results = {r for op in loads for r in op.results}
    return any(v in results for op in ops for inner in op.walk() for v in inner.operands)


# -- what was there before --------------------------------------------------------------------------


def _shares_with(body: LoopBody) -> Op | None:
    """An access to the tiles' bytes that may come before the loop with no barrier between."""
    if _after_barrier(body.op):
        return None
    loops = [op for op, _ in ops_around(body.op.parent) if isinstance(op, (control.For, control.While))]
    repeated = set(loops[-1].walk()) if loops else set[Op]()
    begun = False
    for op in body.kernel.walk():
        begun |= op is body.op
        if begun and op not in repeated:
            return None
        if op in body.inside and body.op.stages == 1:
            continue  # each of its iterations ends in a barrier
        if any(overlap(memory, t) for memory, _ in memories(op) for t in body.tiles):
            return op
    return None


def _after_barrier(loop: Op) -> bool:
    """True if a barrier stands before the loop, with nothing but harmless ops between."""
    ops = loop.block.ops
    for op in reversed(ops[: ops.index(loop)]):
        if isinstance(op, gpu.Barrier):
            return True
        if op.blocks or any(isinstance(memory.type, SharedType) for memory, _ in memories(op)):
            return False
    return False

"""Pipelining: the copies of a loop's later iterations go on while an earlier one computes.

``control.for {stages = N}`` becomes a plain loop over N buffers. With trips iterations, copies of iteration i fill slot
i mod N, and are the i-th commit group. (Copies with `tile.copy` are the threads' own stores: then there are no groups
and no waits. A group of an iteration that does not exist is empty, and so always complete.)

N >= 2, one step of fragments:                      N >= 2, two steps:

    copies of 0 .. N-2, a commit after each             copies of 0 .. N-2, a commit after each
    for i in 0 .. trips-1:                              if trips > 0:
        wait_group N-2; barrier                             wait_group N-2; barrier; loads of step 0 of iteration 0
        copies of i+N-1; commit                             for i in 0 .. trips-2:
        consumers of i                                          steps but the last, each after the loads of the next one
                                                                    and a part of the copies of i+N-1; commit
    N = 1:                                                      wait_group N-2; barrier; loads of step 0 of i+1
                                                                last step of i
    for i in 0 .. trips-1:                                  steps of trips-1, each after the loads of the next one
        copies of i; commit; wait_group 0; barrier
        consumers of i
        barrier

Why that is right, N >= 2:

- At the wait for iteration i, N-1+i groups are committed, so that group i, and all before it, has arrived: each
  thread's part of it. The barrier behind the wait shows every part to every thread; consumers of i, or their first
  loads, come after it.
- Copies of i+N-1 overwrite the slot of i-1. All loads of i-1 stand before the barrier of iteration i (with two
  steps: those of the last step too, since only computing comes after), the copies behind it. The same barrier serves
  both.
- Among the steps the copies take issue slots that the tensor cores leave; behind the barrier, all at once, they would
  stand in front of the loads that the next step waits for. They are under the condition that iteration i+N-1 exists,
  which becomes their predicate (`predicate-copies`).
- The last wait was for group trips-1, and later groups are empty: after the loop no copy is in flight, and another
  tile may be written `over` the buffers as soon as a barrier stands behind the last reads. That one is the author's.
- Before the first copies a barrier is needed only where the same bytes may have been accessed since the last one:
  by tiles that the buffers share bytes with, or by the loop itself if it lies in a loop (`LoopPlan.shares_with`).

N = 1: the first barrier shows the copies, the second keeps the next ones from overwriting what is still read. At two
steps the last iteration is peeled, so nothing is ever loaded from a slot that no copy has filled.

Slots are counters that wrap around by a select; a buffer's address is one multiply-add of its counter an iteration.
Trips are counted, not compared: any range that the loop may have is right, up to the last value of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import async_copy, control, gpu, matrix, tile
from tiledsl.ir.types import I64, INDEX, DType, SharedType, Type
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.structure import replace_op, take_tiles
from tiledsl.passes.pipelining.body import outside_values
from tiledsl.passes.pipelining.plan import LoopPlan, plan_loop
from tiledsl.passes.scalar.canonicalize import canonicalize


def pipeline_loops(kernel: Kernel) -> None:
    """Before: loops with `stages`. After: none; the async copies of those that were are `grouped`."""
    loops = _loops(kernel)
    for op in loops:
        _Writer(plan_loop(kernel, op)).write()
    if loops:
        canonicalize(kernel)


def loop_plans(kernel: Kernel) -> list[LoopPlan]:
    """What the pass does with `kernel`, which stays as it is: the plans are of a copy."""
    kernel = kernel.clone()
    return [plan_loop(kernel, op) for op in _loops(kernel)]


def _loops(kernel: Kernel) -> list[control.For]:
    """All pipelined loops in program order, without the tiles that are allocated in them."""
    loops = [op for op in kernel.walk() if isinstance(op, control.For) and op.stages > 0]
    for op in loops:
        for alloc in take_tiles(op):
            op.block.insert_before(op, alloc)
    return loops


@dataclass(frozen=True, slots=True, eq=False)
class _Iteration:
    """One copy of the body: `values` stand for the old ones in it, `slot` is the buffers' (None: there is one)."""

    body: Block
    values: dict[Value, Value]
    slot: Value | None

    def emit(self, block: Block, ops: Sequence[Op]) -> None:
        """Append `ops`, as far as they are not there yet, with the pure ops that they need."""
        for op in ops:
            if op.results and op.results[0] in self.values:
                continue
            for value in outside_values(op, self.body):
                if value not in self.values:
                    assert value.op is not None and value.op.is_pure, "a value of an iteration that has not begun"
                    self.emit(block, [value.op])
            copy = op.clone(self.values)
            if self.slot is not None:
                for inner in copy.walk():
                    _enter(inner, self.slot)
            if isinstance(copy, async_copy.Copy):
                copy.attrs["grouped"] = True
            block.append(copy)

    def results(self, values: Sequence[Value]) -> list[Value]:
        return [self.values.get(v, v) for v in values]


def _enter(op: Op, slot: Value) -> None:
    """Where `op` accesses a buffer as if it were one tile, make it access that of `slot`: its first axis."""
    if not any(map(_is_buffer, op.operands)):
        return
    op.set_operands([v for given in op.operands for v in ((given, slot) if _is_buffer(given) else (given,))])
    sides: dict[str, tile.Side] = {}
    if isinstance(op, tile.Copy):
        sides = {"src_axes": op.src, "dst_axes": op.dst}
    elif isinstance(op, matrix.Load):
        sides = {"axes": op.side}
    for name, side in sides.items():
        if _is_buffer(side.memory):
            op.attrs[name] = tuple(axis + 1 for axis in side.axes)


def _is_buffer(memory: Value) -> bool:
    return isinstance(memory.op, tile.SharedAlloc) and memory.op.stages > 1


class _Writer:
    """Writes one loop anew into `out`, which then takes the place of the old one."""

    def __init__(self, plan: LoopPlan) -> None:
        self.plan, self.op, self.count = plan, plan.op, plan.stages
        self.out = Block()
        self.b = Builder(self.out, plan.op.loc)
        self.buffers: dict[Value, Value] = {}
        self.counter: DType = INDEX if self.op.lo.dtype is INDEX else I64

    def write(self) -> None:
        for memory in self.plan.tiles if self.count > 1 else ():
            self.buffers[memory] = self.buffer(memory)
        if self.plan.shares_with is not None:
            self.b.add(gpu.Barrier())
        if self.count == 1:
            results = self.single()
        else:
            self.trips = self.trip_count()
            self.ahead = self.b.scalar("sub", self.trips, self.count - 1)
            for s in range(self.count - 1):
                self.copies_if(self.plan.copies, self.number(s), self.b.constant(s, INDEX), self.trips)
                self.commit()
            results = self.two_steps() if self.plan.steps else self.one_step()
        self.replace(results)

    def buffer(self, memory: Value) -> Value:
        """N tiles in the place of one."""
        alloc = tile.allocation(memory)
        type_ = SharedType(alloc.type.dtype, (self.count, *alloc.type.dims))
        new = tile.SharedAlloc(*alloc.operands, type=type_, layout=alloc.layout, stages=self.count, loc=alloc.loc)
        new.result.name = memory.name
        alloc.block.insert_before(alloc, new)
        return new.result

    def replace(self, results: Sequence[Value]) -> None:
        op, block = self.op, self.op.block
        replace_op(op, results)
        position = block.ops.index(op)
        block.ops[position : position + 1] = self.out.ops
        for new in self.out.ops:
            new.parent = block
        for old, new in self.buffers.items():
            old.replace_all_uses_with(new)  # of tiles that lie over it
            tile.allocation(old).erase()

    # -- iterations ----------------------------------------------------------------------------

    def number(self, value: int) -> Value:
        """As iterations are counted."""
        return self.b.constant(value, self.counter)

    def trip_count(self) -> Value:
        """(hi - lo) / step rounded up, at least 0; in 64 bits, where the loop's dtype is not index."""
        if self.plan.trips is not None:
            return self.number(self.plan.trips)
        b, step = self.b, integer(self.op.step)
        first, last, size = (b.cast(v, self.counter) for v in self.op.operands[:3])
        if step is not None and step < 0:
            first, last, size = last, first, self.number(-step)
        if step is None:
            up = b.scalar("gt", size, 0)
            first, last, size = b.select(up, first, last), b.select(up, last, first), b.scalar("abs", size)
        whole = b.scalar("floordiv", b.scalar("sub", b.scalar("sub", last, first), 1), size)
        trips = b.scalar("max", b.scalar("add", whole, 1), 0)
        return trips if step is not None else b.select(b.scalar("eq", size, 0), 0, trips)

    def iteration(self, number: Value, slot: Value, carried: Sequence[Value] = ()) -> _Iteration:
        """Iteration `number`, written where the builder is. Without `carried` only what needs no carried value."""
        op, b = self.op, self.b
        variable = b.scalar("add", op.lo, b.scalar("mul", b.cast(number, op.lo.dtype), op.step))
        variable.name = op.body.args[0].name
        values = {**self.buffers, op.body.args[0]: variable}
        values.update(zip(op.body.args[1:], carried, strict=False))
        return _Iteration(op.body, values, slot)

    def copies_if(self, copies: Sequence[Op], number: Value, slot: Value, limit: Value, by: int = 0) -> None:
        """Where number < limit, these copies of iteration number + by."""
        if copies:
            with self.b.when(self.b.scalar("lt", number, limit), predicated=self.plan.is_async):
                shifted = self.b.scalar("add", number, by) if by else number
                self.iteration(shifted, slot).emit(self.b.block, copies)

    def commit(self) -> None:
        if self.plan.is_async:
            self.b.add(async_copy.CommitGroup())

    def arrive(self, pending: int) -> None:
        """All but the last `pending` groups are there, for every thread."""
        if self.plan.is_async:
            self.b.add(async_copy.WaitGroup(pending=pending))
        self.b.add(gpu.Barrier())

    def next_slot(self, slot: Value) -> Value:
        following = self.b.scalar("add", slot, 1)
        return self.b.select(self.b.scalar("eq", following, self.count), 0, following)

    # -- schedules -----------------------------------------------------------------------------

    def single(self) -> Sequence[Value]:
        """One buffer: the loop as it is, with its barriers."""
        op = self.op
        body = Block([a.type for a in op.body.args], [a.name for a in op.body.args])
        with self.b.inside(body):
            iteration = _Iteration(op.body, dict(zip(op.body.args, body.args, strict=True)), None)
            iteration.emit(body, self.plan.copies)
            self.commit()
            self.arrive(0)
            iteration.emit(body, self.plan.consumers)
            self.b.add(gpu.Barrier())
            self.b.add(control.Yield(*iteration.results(op.body.terminator.operands)))
        return self.b.add(control.For(*op.operands, blocks=[body])).results

    def loop(
        self,
        last: Value,
        carried: Sequence[Value],
        like: Sequence[Value],
        write: Callable[[Value, Value, Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """A loop over iteration numbers below `last`; returns the slot to be read next, then the carried values.

        `write` gets the number, the slot to fill, the slot to read and the carried values, named as `like`; it
        returns the next slot to read and the next carried values. The slot that was read is the next one to be
        filled.
        """
        b = self.b
        inits = [b.constant(self.count - 1, INDEX), b.constant(0, INDEX), *carried]
        types: list[Type] = [self.counter, *(v.type for v in inits)]
        bounds = self.number(0), last, self.number(1)
        body = Block(types, ["", "fill", "slot", *(v.name for v in like)])
        number, fill, slot, *values = body.args
        with b.inside(body):
            b.add(control.Yield(slot, *write(number, fill, slot, values)))
        return b.add(control.For(*bounds, *inits, blocks=[body])).results[1:]

    def one_step(self) -> Sequence[Value]:
        def write(number: Value, fill: Value, slot: Value, carried: list[Value]) -> list[Value]:
            self.arrive(self.count - 2)
            self.copies_if(self.plan.copies, number, fill, self.ahead, self.count - 1)
            self.commit()
            iteration = self.iteration(number, slot, carried)
            iteration.emit(self.b.block, self.plan.consumers)
            return [self.next_slot(slot), *iteration.results(self.op.body.terminator.operands)]

        return self.loop(self.trips, self.op.inits, self.op.body.args[1:], write)[1:]

    def two_steps(self) -> Sequence[Value]:
        """All of it under ``trips > 0``; the results are the initial values otherwise."""
        return self.b.either(self.b.scalar("gt", self.trips, 0), self.peeled, self.op.inits)

    def peeled(self) -> Sequence[Value]:
        b, steps, op = self.b, self.plan.steps, self.op
        loaded = [r for load in steps[0].loads for r in load.results]

        def load_first(number: Value, slot: Value) -> list[Value]:
            self.arrive(self.count - 2)
            iteration = self.iteration(number, slot)
            iteration.emit(b.block, steps[0].loads)
            return iteration.results(loaded)

        def resumed(number: Value, slot: Value, values: list[Value]) -> _Iteration:
            """An iteration whose first loads were made before."""
            iteration = self.iteration(number, slot, values[len(loaded) :])
            iteration.values.update(zip(loaded, values, strict=False))
            return iteration

        def write(number: Value, fill: Value, slot: Value, values: list[Value]) -> list[Value]:
            iteration = resumed(number, slot, values)
            for step, following, copies in zip(steps, steps[1:], self.plan.shares, strict=False):
                iteration.emit(b.block, following.loads)
                self.copies_if(copies, number, fill, self.ahead, self.count - 1)
                iteration.emit(b.block, step.compute)
            if len(steps) == 1:
                self.copies_if(self.plan.copies, number, fill, self.ahead, self.count - 1)
            self.commit()
            next_slot = self.next_slot(slot)
            ahead = load_first(b.scalar("add", number, 1), next_slot)
            iteration.emit(b.block, steps[-1].compute)
            return [next_slot, *ahead, *iteration.results(op.body.terminator.operands)]

        before = [*load_first(self.number(0), b.constant(0, INDEX)), *op.inits]
        last = b.scalar("sub", self.trips, 1)
        slot, *values = self.loop(last, before, [*loaded, *op.body.args[1:]], write)
        iteration = resumed(last, slot, values)
        for step, following in zip_longest(steps, steps[1:]):
            iteration.emit(b.block, following.loads if following else ())
            iteration.emit(b.block, step.compute)
        return iteration.results(op.body.terminator.operands)

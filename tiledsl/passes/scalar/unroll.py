"""Unroll: carry out what `For.unroll` asks for.

0: the loop disappears; its trip count must be constant. n > 1: n copies of the body an iteration; a
trip count that n does not divide, or that is not constant, gets a second loop for the rest.
Outer loops first, and constants are folded in between, so that the bounds of an inner loop may
depend on an outer one. A shared tile allocated in the body stays one tile.
"""

from __future__ import annotations

from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import control
from tiledsl.ir.types import I64, INDEX
from tiledsl.passes.analysis.constants import integer
from tiledsl.passes.analysis.structure import replace_op, take_tiles, trip_count
from tiledsl.passes.scalar.canonicalize import canonicalize

MOST_OPS = 100_000
"""That the loops of a kernel may become together."""


def unroll(kernel: Kernel) -> None:
    sweep = _Unroller()
    while asking := [op for op in kernel.walk() if isinstance(op, control.For) and op.unroll != 1]:
        sweep.progress = False
        sweep.block(kernel.body)
        if not sweep.progress:
            raise CompileError(
                "the loop is to be unrolled fully, but its trip count is not known at compile time",
                asking[0].loc,
                fix="give it constant bounds, a partial factor (unroll=4), or none",
                code="C106",
            )
        canonicalize(kernel)


class _Unroller:
    """Every asking loop whose bounds allow it; loops inside it wait for the next sweep. `made`: ops so far."""

    made = 0
    progress = False

    def block(self, block: Block) -> None:
        ops, block.ops = block.ops, []
        for op in ops:
            if isinstance(op, control.For) and op.unroll != 1 and self.loop(op, block):
                continue
            block.append(op)
            for inner in op.blocks:
                self.block(inner)

    def loop(self, op: control.For, block: Block) -> bool:
        """Unroll `op` onto the end of `block`; False if it has to stay."""
        trips, step = trip_count(op), integer(op.step)
        if op.unroll == 0 and trips is None:
            return False
        self.progress = True
        if op.unroll and step is None:
            raise CompileError(
                f"unrolling {op.unroll} iterations needs a step that is known at compile time",
                op.loc,
                fix="give the loop a constant step, or do not unroll it",
                code="C106",
            )
        limit = 1 << (op.lo.dtype.bits - 1)
        if op.unroll and step is not None and not -limit <= step * op.unroll < limit:
            op.attrs["unroll"] = 1  # n steps at once leave the dtype, so n iterations are never reached
            return False
        self.check_size(op, op.unroll or trips or 0)
        b = Builder(block, op.loc)
        for alloc in take_tiles(op):
            block.append(alloc)
        if step is None or op.unroll == 0 or (trips is not None and trips < op.unroll):
            results = _copies(b, op, op.lo, op.inits, trips or 0)
        else:
            results = _partial(b, op, trips, step)
        replace_op(op, results)
        return True

    def check_size(self, op: control.For, copies: int) -> None:
        size = sum(1 for _ in op.body.walk())
        before, self.made = self.made, self.made + size * copies
        if self.made > MOST_OPS:
            others = f", and other loops became {before}" if before else ""
            raise CompileError(
                f"unrolling makes {copies} copies of {size} ops{others}; at most {MOST_OPS} ops are possible",
                op.loc,
                fix="unroll partially (unroll=4), or not at all",
                code="C110",
            )


def _copies(b: Builder, op: control.For, start: Value, carried: list[Value], count: int) -> list[Value]:
    """`count` copies of the body from induction value `start`; the carried values after them."""
    for trip in range(count):
        induction = _advanced(b, op, start, trip) if trip else start
        mapping: dict[Value, Value] = dict(zip(op.body.args, [induction, *carried], strict=True))
        for inner in op.body.ops[:-1]:
            b.block.append(inner.clone(mapping))
        carried = [mapping.get(v, v) for v in op.body.terminator.operands]
    return carried


def _advanced(b: Builder, op: control.For, start: Value, trips: int) -> Value:
    """start + trips * step; the canonicalizer folds it where it is constant."""
    return b.scalar("add", start, b.scalar("mul", op.step, trips))


def _partial(b: Builder, op: control.For, trips: int | None, step: int) -> list[Value]:
    """A main loop of `unroll` iterations at once, then a plain loop for what is left."""
    count = op.unroll
    wide_step = b.constant(step * count, op.lo.dtype)
    if trips is not None and trips % count == 0:
        return _loop(b, op, op.lo, op.hi, wide_step, op.inits, count)
    middle = _middle(b, op, step) if trips is None else _advanced(b, op, op.lo, trips // count * count)
    carried = _loop(b, op, op.lo, middle, wide_step, op.inits, count)
    return _loop(b, op, middle, op.hi, op.step, carried, 1)


def _loop(
    b: Builder, op: control.For, lo: Value, hi: Value, step: Value, carried: list[Value], count: int
) -> list[Value]:
    """A loop whose body is `count` copies of that of `op`."""
    args = op.body.args
    body = Block([a.type for a in args], [a.name for a in args])
    inner = Builder(body, op.loc)
    inner.add(control.Yield(*_copies(inner, op, body.args[0], body.args[1:], count)))
    return b.add(control.For(lo, hi, step, *carried, blocks=[body])).results


def _middle(b: Builder, op: control.For, step: int) -> Value:
    """Where the main loop ends: lo + (steps // n) * n * step, for the steps that fit between lo and hi, in 64 bits.

    That never passes hi, so it is a value of the dtype, and the rest begins at a multiple of the step from lo: what
    is known of the alignment of the loop's variable holds in both loops.
    """
    dtype = op.lo.dtype
    wide = dtype if dtype is INDEX else I64
    lo, hi = b.cast(op.lo, wide), b.cast(op.hi, wide)
    distance = b.scalar("sub", lo, hi) if step < 0 else b.scalar("sub", hi, lo)
    steps = b.scalar("max", b.scalar("floordiv", distance, abs(step)), 0)
    whole = b.scalar("mul", b.scalar("floordiv", steps, op.unroll), op.unroll)
    return b.cast(b.scalar("add", lo, b.scalar("mul", whole, step)), dtype)

"""Canonicalize: fold constants, apply exact identities, resolve what control flow is known.

One walk in program order rebuilds each block, so that an op sees simplified operands. A walk that
changed a loop after it had been walked asks for another one.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.expr import Expr
from tiledsl.ir.ops import arith, control, debug, gpu, mem
from tiledsl.ir.types import BOOL, PendingType, TokenType
from tiledsl.passes.analysis.constants import constant, integer
from tiledsl.passes.analysis.structure import flows, incoming, replace_op, trip_count
from tiledsl.passes.scalar.identities import (
    packed_word,
    simplify_bitcast,
    simplify_cast,
    simplify_scalar,
    simplify_select,
)

_ROUNDS = 8


def canonicalize(kernel: Kernel) -> None:
    for _ in range(_ROUNDS):
        walker = _Walker(kernel)
        walker.block(kernel.body)
        if not walker.again:
            return


class Simplifier(Builder):
    """Makes scalar ops that are simplified at once: what a rule makes may have a simpler form itself."""

    def scalar(self, fn: str, *operands: Value | int, nowrap: bool = False) -> Value:
        op = arith.scalar(fn, *self.values(operands), nowrap=nowrap)
        assert isinstance(op, arith.Scalar)
        value = simplify_scalar(self, op)
        if value is None:
            return self.value(op)
        op.drop_operands()
        return value


class _Walker:
    """Rebuilds blocks; `out` is the list that the current block grows."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.again = False
        self.b = Simplifier(kernel.body)
        self.simple: dict[type[Op], Callable[[Any], Value | None]] = {
            arith.Cast: lambda op: simplify_cast(self.b, op),
            arith.Bitcast: lambda op: simplify_bitcast(self.b, op),
            arith.Select: lambda op: simplify_select(self.b, op),
            mem.Offset: self.offset,
            gpu.ThreadId: lambda op: self.position(op, self.kernel.threads),
            gpu.BlockId: lambda op: self.position(op, self.kernel.grid),
        }
        self.structured: dict[type[Op], Callable[[Any], None]] = {
            control.If: self.if_,
            control.For: self.for_,
            control.While: self.while_,
            debug.Assert: self.assert_,
        }

    def block(self, block: Block) -> None:
        with self.b.anew(block) as ops:
            self.ops(ops)

    def ops(self, ops: list[Op]) -> None:
        """Simplify `ops` onto the end of the current block."""
        for op in ops:
            structured = self.structured.get(type(op))
            if structured is not None:
                structured(op)
                continue
            self.b.loc = op.loc
            if isinstance(op, arith.Scalar):
                value = simplify_scalar(self.b, op)
                if value is None and self.kernel.level == "thread":
                    value = packed_word(self.b, op)
            else:
                rule = self.simple.get(type(op))
                value = None if rule is None else rule(op)
            if value is None:
                self.keep(op)
            else:
                replace_op(op, [value])

    def keep(self, op: Op) -> None:
        self.b.block.append(op)

    # -- addresses and positions ---------------------------------------------------------------

    def offset(self, op: mem.Offset) -> Value | None:
        """Nothing added; constants added twice."""
        distance = integer(op.index)
        if distance is None:
            return None
        if distance == 0:
            return op.base
        inner = op.base.op
        if isinstance(inner, mem.Offset):
            known = integer(inner.index)
            dtype = op.index.dtype
            if known is not None and abs(known + distance) < 1 << (dtype.bits - 1):
                op.set_operands([inner.base, self.b.constant(known + distance, dtype)])
        return None

    def position(self, op: gpu.ThreadId | gpu.BlockId, extents: Sequence[Expr]) -> Value | None:
        """0 along an axis where there is only one."""
        only_one = op.axis >= len(extents) or extents[op.axis] == 1
        return self.b.constant(0, op.dtype) if only_one else None

    def assert_(self, op: debug.Assert) -> None:
        if constant(op.condition) is True:
            replace_op(op, ())
        else:
            self.keep(op)

    # -- if ------------------------------------------------------------------------------------

    def if_(self, op: control.If) -> None:
        known = constant(op.condition)
        if known is not None:
            self.inline(op, op.then if known else op.orelse, ())
            return
        self.flip(op)
        for block in op.blocks:
            self.block(block)
        self.again |= self.drop_redundant(op)
        kept = any(isinstance(r.type, (TokenType, PendingType)) for r in op.results)
        if kept or any(len(block.ops) > 1 for block in op.blocks):
            self.keep(op)
            return
        self.b.loc = op.loc
        then, orelse = (block.terminator for block in op.blocks)
        values = [self.b.select(op.condition, x, y) for x, y in zip(then.operands, orelse.operands, strict=True)]
        replace_op(op, values)

    def inline(self, op: Op, block: Block, arguments: Sequence[Value]) -> None:
        """Put `block` in the place of `op`, whose results are what it yields."""
        for arg, value in zip(block.args, arguments, strict=True):
            arg.replace_all_uses_with(value)
        ops, end, block.ops = block.ops[:-1], block.terminator, []
        self.ops(ops)
        results = end.operands[1:] if isinstance(end, control.Condition) else list(end.operands)
        end.set_operands(())
        replace_op(op, results)

    def flip(self, op: control.If) -> None:
        """``if not c`` with its blocks exchanged."""
        inner = op.condition.op
        if isinstance(inner, arith.Scalar) and inner.fn.name == "not" and not (op.likely or op.role or op.predicated):
            op.set_operand(0, inner.operands[0])
            op.blocks = op.blocks[::-1]

    # -- loops ---------------------------------------------------------------------------------

    def for_(self, op: control.For) -> None:
        trips = trip_count(op)
        if trips == 0:
            replace_op(op, op.inits)
            return
        if trips == 1 and op.stages == 0:  # a pipelined loop has waits and barriers to get
            self.inline(op, op.body, [op.lo, *op.inits])
            return
        self.drop_redundant(op)
        self.block(op.body)
        self.again |= self.drop_redundant(op)
        self.keep(op)

    def while_(self, op: control.While) -> None:
        self.drop_redundant(op)
        self.block(op.before)
        if constant(op.before.terminator.operands[0]) is False:
            self.inline(op, op.before, op.operands)
            return
        self.block(op.after)
        self.again |= self.drop_redundant(op)
        self.keep(op)

    # -- values that control flow moves ----------------------------------------------------------

    def drop_redundant(self, op: control.If | control.For | control.While) -> bool:
        """Take out values that are the same whichever way control flow goes, and unused results of an `if`."""
        self.b.loc = op.loc
        flow, keep = flows(op)[0], list[bool]()
        for targets, sources in flow.slots:
            entering = {_before(op, value) for value in sources}.difference(targets)
            value = entering.pop() if len(entering) == 1 else None
            if value is None and isinstance(op, control.If):
                value = self.same_constants(op, *sources)
            if value is not None:
                for target in targets:
                    target.replace_all_uses_with(value)
            keep.append(value is None and (bool(targets[0].uses) or not isinstance(op, control.If)))
        flow.keep(keep)
        return not all(keep)

    def same_constants(self, op: control.If, x: Value, y: Value) -> Value | None:
        a, c = constant(x), constant(y)
        if a is None or c is None:
            return None
        if x.type == BOOL and (a, c) == (True, False):
            return op.condition
        same = x.type == y.type and repr(a) == repr(c)
        return self.b.constant(a, x.dtype) if same else None


def _before(op: Op, value: Value) -> Value:
    """What `value` is in the first block of a while loop, if that passes it on."""
    return incoming(value)[0] if isinstance(op, control.While) and value.owner is op.after else value

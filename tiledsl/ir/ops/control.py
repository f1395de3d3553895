"""Structured control flow. `return`, `break` and `continue` are lowered to these by the frontend."""

from __future__ import annotations

from typing import Sequence

from tiledsl.ir.core import Block, Pure, Value, attribute, operand, operands
from tiledsl.ir.declare import MOST_STAGES
from tiledsl.ir.types import BOOL, DType, Type


def _types(values: Sequence[Value]) -> tuple[Type, ...]:
    return tuple(v.type for v in values)


class _Control(Pure):
    varies = "control"
    nan = "chooses"


class Yield(_Control):
    """Ends the block of a `For` or `If` and the second block of a `While`, with the block's results."""

    name = "control.yield"
    terminator = True
    values = operands(0)


class Return(_Control):
    """Ends the kernel's body."""

    name = "control.return"
    terminator = True


class Condition(_Control):
    """Ends the first block of a `While`: operand 0 (bool) says whether to go on; the rest are passed
    to the second block, or are the loop's results."""

    name = "control.condition"
    terminator = True
    go_on, passed = operand(0, BOOL), operands(1)


class If(_Control):
    """``%r = control.if %condition {then} {else}``. Both blocks end in a `Yield` of the same types.

    likely: the condition nearly always holds; what the second block costs decides nothing.
    predicated: asynchronous copies in the first block get the condition as their predicate, without a branch.
    role: (first, count): the first block is that of exactly these warps, all of them or, where `count` is 0, of one
    thread of warp `first`: a role of the block. Its `gpu.barrier`s and collective ops are the role's own.
    """

    name = "control.if"
    ends = (Yield, Yield)
    likely = attribute(bool, False)
    predicated = attribute(bool, False)
    role = attribute[tuple[int, ...]](tuple, ())
    condition = operand(0, BOOL)

    @property
    def then(self) -> Block:
        return self.blocks[0]

    @property
    def orelse(self) -> Block:
        return self.blocks[1]

    def infer(self) -> Sequence[Type]:
        return _types(self.then.terminator.operands)

    def verify(self) -> None:
        self.require(not any(b.args for b in self.blocks), "its blocks have no arguments")
        for block in self.blocks:
            self.require(_types(block.terminator.operands) == _types(self.results), "yielded types differ")


class For(_Control):
    """``for i in range(lo, hi, step)`` with loop-carried values.

    Operands: lo, hi, step (one integer dtype; signed or index), then the initial values. The block's
    arguments: the induction variable, then the carried values; it yields their next values. Python's range: the
    sign of `step` decides the direction, also at run time, and nothing wraps behind the last iteration. A `step` of 0
    makes no iterations.
    `unroll`: 1 is a plain loop; n > 1 asks the unroll pass for n copies of the body an iteration;
    0 asks for full unrolling, which needs a constant trip count.
    `stages`: 0 is a plain loop; n asks the pipeline pass to have the copies of n iterations in shared memory.
    `fragments`: of how many inner steps such a loop holds the matrix operands in registers, 1 or 2; 0 leaves it to
    the pass, which takes 2 where the body allows it.
    """

    name = "control.for"
    ends = (Yield,)
    unroll = attribute(int, 1)
    stages = attribute(int, 0, most=MOST_STAGES)
    fragments = attribute(int, 0, most=2)
    lo, hi, step, inits = operand(0), operand(1), operand(2), operands(3)

    @property
    def body(self) -> Block:
        return self.blocks[0]

    def infer(self) -> Sequence[Type]:
        return _types(self.inits)

    def verify(self) -> None:
        dtype = self.lo.type
        self.require(isinstance(dtype, DType) and dtype.kind in ("int", "index"), f"no loop over {dtype}")
        self.require(self.hi.type == dtype and self.step.type == dtype, "bounds and step differ in dtype")
        self.require(_types(self.body.args) == (dtype, *_types(self.inits)), "block arguments do not match")
        self.require(_types(self.body.terminator.operands) == _types(self.inits), "yielded types differ")
        self.require(self.stages == 0 or self.unroll == 1, "a pipelined loop is not unrolled")


class While(_Control):
    """A loop that tests first. Operands: initial values, passed to block 0, which ends in
    `Condition`; block 1 gets the condition's other operands and yields the next arguments of block 0."""

    name = "control.while"
    ends = (Condition, Yield)
    inits = operands(0)

    @property
    def before(self) -> Block:
        return self.blocks[0]

    @property
    def after(self) -> Block:
        return self.blocks[1]

    def infer(self) -> Sequence[Type]:
        return _types(self.before.terminator.operands[1:])

    def verify(self) -> None:
        self.require(_types(self.before.args) == _types(self.inits), "arguments of block 0 do not match")
        self.require(_types(self.after.args) == self.infer(), "arguments of block 1 do not match")
        self.require(_types(self.after.terminator.operands) == _types(self.inits), "yielded types differ")

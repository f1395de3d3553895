"""Which lanes of each warp reach an op, by the conditions and loops around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import arith, control
from tiledsl.passes.analysis.lanes import Bools, Lanes


@dataclass(frozen=True, slots=True)
class Mask:
    """Which lanes take part, [warps, 32]. `unknown`: conditions whose lanes are not known; they count as true."""

    lanes: Bools
    unknown: tuple[Op, ...] = ()

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.lanes & other.lanes, self.unknown + other.unknown)


class ActiveLanes:
    """Evaluates conditions by `lanes`, each block once."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._reaching: dict[Block, Mask] = {}

    def reaching(self, op: Op) -> Mask:
        """The lanes that execute `op` when their warp does."""
        block = op.parent
        if block is None or not isinstance(block.parent, Op):
            return Mask(self.lanes.exists)
        if block not in self._reaching:
            self._reaching[block] = self.reaching(block.parent) & self._entering(block, block.parent)
        return self._reaching[block]

    def _entering(self, block: Block, owner: Op) -> Mask:
        match owner:
            case control.If():
                return self._condition(owner.condition, block is owner.then, owner)
            case control.For():
                return self._iterating(owner)
            case control.While():
                go_on = owner.before.terminator.operands[0]
                if block is owner.after:
                    return self._condition(go_on, True, owner)
                return Mask(self.lanes.exists, () if self.lanes.is_uniform(go_on) else (owner,))
            case _:
                return Mask(self.lanes.exists, (owner,))

    def _condition(self, value: Value, wanted: bool, op: Op) -> Mask:
        form = self.lanes.of(value)
        if form is not None:
            return Mask(form.lanes == wanted)
        if self.lanes.is_uniform(value):
            return Mask(self.lanes.exists)
        inner = value.op
        if isinstance(inner, arith.Scalar):
            if inner.fn.name == "not":
                return self._condition(inner.operands[0], not wanted, op)
            if inner.fn.name == ("and" if wanted else "or"):
                a, b = (self._condition(v, wanted, op) for v in inner.operands)
                return a & b
        return Mask(self.lanes.exists, (op,))

    def _iterating(self, loop: control.For) -> Mask:
        if all(self.lanes.is_uniform(v) for v in (loop.lo, loop.hi, loop.step)):
            return Mask(self.lanes.exists)
        lo, hi, step = (self.lanes.of(v) for v in (loop.lo, loop.hi, loop.step))
        if lo is None or hi is None or step is None or not step.constant:
            return Mask(self.lanes.exists, (loop,))
        distance = hi.plus(lo, -1)
        if distance.terms:
            return Mask(self.lanes.exists, (loop,))
        trips = np.maximum(-(-distance.lanes // step.constant), 0)
        # Lanes that do not iterate at all are off; those that do must stop together.
        most = trips.max(axis=1, keepdims=True)
        together = bool(((trips == most) | (trips == 0) | ~self.lanes.exists).all())
        return Mask(trips > 0, () if together else (loop,))

"""Forward analyses: what is known of each value, from an optimistic start to a fixpoint."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import control
from tiledsl.passes.analysis.structure import flows


class Forward:
    """Walks in program order, loops until nothing changes. A subclass says what `op` and `join` note, and sets
    `changed` where that is something new.
    """

    changed = False

    def walk(self, block: Block) -> None:
        for op in block.ops:
            if op.blocks:
                self._control(op)
            else:
                self.op(op)

    def op(self, op: Op) -> None:
        """Note what the results of an op without blocks are."""
        raise NotImplementedError

    def join(self, op: Op, target: Value, sources: Sequence[Value]) -> None:
        """Note that the control op makes `target` one of `sources`; of a loop's variable, what it is computed from."""
        raise NotImplementedError

    def _control(self, op: Op) -> None:
        self._join(op, arguments=True)
        self.changed = True
        while self.changed:
            for block in op.blocks:
                self.walk(block)
            # What is known inside follows from the arguments: another walk over the same ones would find nothing.
            self.changed = False
            self._join(op, arguments=True)
        self._join(op, arguments=False)

    def _join(self, op: Op, *, arguments: bool) -> None:
        """Of arguments of blocks, or of results."""
        if arguments and isinstance(op, control.For):
            self.join(op, op.body.args[0], (op.lo, op.step))
        for flow in flows(op):
            if any(isinstance(holder, Block) == arguments for holder, _ in flow.targets):
                for targets, sources in flow.slots:
                    for target in targets:
                        if (target.op is None) == arguments:
                            self.join(op, target, sources)

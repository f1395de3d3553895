"""Dead code elimination: keep what an effect depends on, directly or through loops; drop the rest.

Liveness is marked backwards from ops with effects. A loop-carried value that feeds only itself is
never marked, so it goes too. Reads count as no effect here: a value nobody needs is not loaded.
A loop without effects whose results nobody needs goes as well, whether or not it would end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control
from tiledsl.passes.analysis.structure import drop_carried, drop_results, drop_while_inputs, drop_while_outputs

__all__ = ["DeadCode"]


@dataclass(frozen=True)
class DeadCode:
    name: ClassVar[str] = "dce"

    def run(self, kernel: Kernel) -> None:
        marker = _Marker()
        marker.roots(kernel.body)
        marker.flow()
        _sweep(kernel.body, marker)


class _Marker:
    """Live ops and values, closed under what they depend on."""

    def __init__(self) -> None:
        self.ops: set[Op] = set()
        self.values: set[Value] = set()
        self.pending: list[Value] = []

    def value(self, value: Value) -> None:
        if value not in self.values:
            self.values.add(value)
            self.pending.append(value)

    def op(self, op: Op) -> None:
        """`op` must run: it needs its operands, and the ops around it must run. Carried values wait."""
        if op in self.ops:
            return
        self.ops.add(op)
        match op:
            case control.For():
                needed = op.operands[:3]
            case control.While():
                needed = [op.before.terminator.operands[0]]
            case _:
                needed = op.operands
        for value in needed:
            self.value(value)
        parent = op.parent.parent if op.parent is not None else None
        if isinstance(parent, Op):
            self.op(parent)

    def roots(self, block: Block) -> None:
        for op in block.ops:
            if op.blocks:
                for inner in op.blocks:
                    self.roots(inner)
            elif op.effects - {"read"}:
                self.op(op)

    def flow(self) -> None:
        while self.pending:
            value = self.pending.pop()
            owner = value.owner
            if isinstance(owner, Block):
                self.argument(value, owner)
            else:
                self.op(owner)
                if owner.blocks:
                    self.result(value, owner)

    def argument(self, value: Value, block: Block) -> None:
        op = block.parent
        match op:
            case control.For() if value.index:
                self.carried(op, value.index - 1)
            case control.While() if block is op.before:
                self.op(op)
                self.value(op.operands[value.index])
                self.value(op.after.terminator.operands[value.index])
            case control.While():
                self.result(value, op)
            case Op():
                self.op(op)  # the induction variable
            case _:
                pass  # a parameter

    def result(self, value: Value, op: Op) -> None:
        match op:
            case control.If():
                for block in op.blocks:
                    self.value(block.terminator.operands[value.index])
            case control.For():
                self.carried(op, value.index)
            case control.While():
                self.value(op.before.terminator.operands[1 + value.index])
            case _:
                raise AssertionError(f"{op.name} has blocks that dce does not know")

    def carried(self, op: control.For, position: int) -> None:
        self.op(op)
        self.value(op.body.args[1 + position])
        self.value(op.inits[position])
        self.value(op.body.terminator.operands[position])


def _sweep(block: Block, marker: _Marker) -> None:
    """Innermost last: a dead op's operands are dropped before the ops that define them are looked at."""
    dead: list[Op] = []
    for op in reversed(block.ops):
        if op.terminator:
            continue
        if op not in marker.ops:
            dead.append(op)
            op.drop_operands()
            continue
        _trim(op, marker)
        for inner in op.blocks:
            _sweep(inner, marker)
    if dead:
        gone = set(dead)
        for op in dead:
            op.parent = None
        block.ops = [op for op in block.ops if op not in gone]


def _trim(op: Op, marker: _Marker) -> None:
    """Drop the dead results and carried values of a live control op."""
    live = marker.values
    results = [r in live for r in op.results]
    match op:
        case control.If() if not all(results):
            drop_results(op, results)
        case control.For():
            carried = [arg in live or r for arg, r in zip(op.body.args[1:], results, strict=True)]
            if not all(carried):
                drop_carried(op, carried)
        case control.While():
            outputs = [arg in live or r for arg, r in zip(op.after.args, results, strict=True)]
            inputs = [arg in live for arg in op.before.args]
            if not all(outputs):
                drop_while_outputs(op, outputs)
            if not all(inputs):
                drop_while_inputs(op, inputs)
        case _:
            pass

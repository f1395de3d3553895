"""Registers of wgmma, read off the IR: accumulators are nobody else's until their wait, and operands that ordinary ops
write need a fence before the product. (PTX ISA: wgmma.fence, wgmma.wait_group.)"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tiledsl.errors import HazardError, Side
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import control, wgmma
from tiledsl.ir.types import FragmentType
from tiledsl.passes.analysis.structure import flows, reached


def check_registers(kernel: Kernel) -> Iterator[HazardError]:
    """One for each op that takes an accumulator too early, and product that lacks its fence."""
    ops = list(kernel.walk())
    carried: defaultdict[Value, list[Value]] = defaultdict(list)  # what control ops make of a value
    for targets, sources in (slot for op in ops for flow in flows(op) for slot in flow.slots):
        for source in sources:
            carried[source] += targets
    for op in ops:
        if isinstance(op, wgmma.Instruction):
            yield from _touched(op, carried)
            yield from _unfenced(op, op.left if op.a_registers else [])
            yield from _unfenced(op, [v for v in op.accumulators if not _is_ready(v)])
        elif isinstance(op, wgmma.Mma) and isinstance(op.a.type, FragmentType):
            yield from _unfenced(op, [op.a])


def _is_ready(accumulator: Value) -> bool:
    """Of a product, or not written yet: it needs no fence."""
    maker = accumulator.op
    of_product = maker is not None and any(touch.done == "wgmma" for touch in maker.touches)
    return of_product or isinstance(maker, wgmma.Registers)


# -- accumulators ----------------------------------------------------------------------------------

_MAY_HOLD = (wgmma.WaitGroup, control.For, control.While, control.Yield, control.Condition)
"""Who may take a register of a product in flight, besides products."""


def _touched(op: wgmma.Instruction, carried: Mapping[Value, list[Value]]) -> Iterator[HazardError]:
    def passed_on(value: Value) -> list[Value]:
        waits = [(user, at) for user, at in value.uses if isinstance(user, wgmma.WaitGroup) and user.pending]
        return [*carried.get(value, ()), *(wait.results[at] for wait, at in waits)]

    for value in reached(op.results, passed_on):
        for user, position in value.uses:
            asks_for_own = isinstance(user, wgmma.Instruction) and position >= 2 + len(user.left)
            if not asks_for_own and not isinstance(user, _MAY_HOLD):
                yield HazardError(
                    f"{user.name} uses a register of the product at {op.loc}, which is in flight",
                    user.loc,
                    "wait for the accumulator first: acc.wait()",
                    code="T307",
                    sides=(Side(user.loc, user.name, does="uses"), Side(op.loc, op.name, does="began")),
                    missing="product-wait",
                )


# -- fences ----------------------------------------------------------------------------------------


def _unfenced(op: Op, values: list[Value]) -> Iterator[HazardError]:
    for value in values:
        maker = value.op
        if maker is not None and not _fence_between(maker, op):
            yield HazardError(
                f"{op.name} uses a register that {maker.name} at {maker.loc} writes, with no wgmma.fence between",
                op.loc,
                "put wgmma_fence() between the two",
                code="T306",
                sides=(Side(op.loc, op.name, does="uses"), Side(maker.loc, maker.name, does="writes")),
                missing="wgmma-fence",
            )


def _fence_between(maker: Op, op: Op) -> bool:
    """Does a fence stand between the two, in the block of `op` or one around it?"""
    block = op.block
    before = block.ops[: block.ops.index(op)]
    if block is maker.parent:
        return any(isinstance(o, wgmma.Fence) for o in before[before.index(maker) :])
    assert isinstance(block.parent, Op), "a value is used outside the block that defines it"
    return any(isinstance(o, wgmma.Fence) for o in before) or _fence_between(maker, block.parent)

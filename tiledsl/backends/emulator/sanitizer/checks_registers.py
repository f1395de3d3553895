"""Registers of wgmma, read off the IR: accumulators are nobody else's until their wait, and operands that ordinary ops
write need a fence before the product. (PTX ISA: wgmma.fence, wgmma.wait_group.)"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import control, wgmma
from tiledsl.ir.types import FragmentType


def check_registers(kernel: Kernel) -> None:
    """Raise HazardError at the first op that takes an accumulator too early, or product that lacks its fence."""
    for op in kernel.walk():
        if isinstance(op, wgmma.Instruction):
            _require_untouched(op)
            _require_fenced(op, op.left if op.a_registers else [])
            _require_fenced(op, [v for v in op.accumulators if not _is_ready(v)])
        elif isinstance(op, wgmma.Mma) and isinstance(op.a.type, FragmentType):
            _require_fenced(op, [op.a])


def _is_ready(accumulator: Value) -> bool:
    """Of a product, or not written yet: it needs no fence."""
    maker = accumulator.op
    return maker is not None and (
        isinstance(maker, wgmma.Registers) or any(touch.done == "wgmma" for touch in maker.touches)
    )


# -- accumulators ----------------------------------------------------------------------------------


def _require_untouched(op: wgmma.Instruction) -> None:
    seen: set[Value] = set()
    todo: list[Value] = list(op.results)
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for user, position in value.uses:
            if isinstance(user, wgmma.WaitGroup):
                todo += [user.results[position]] if user.pending else []
            elif isinstance(user, wgmma.Instruction) and position >= 2 + len(user.left):
                continue  # it asks for its own results
            elif isinstance(user, (control.For, control.While, control.Yield, control.Condition)):
                todo += _carried(user, position)
            else:
                raise HazardError(
                    f"{user.name} uses a register of the product at {op.loc}, which is in flight",
                    user.loc,
                    "wait for the accumulator first: acc.wait()",
                )


def _carried(user: Op, position: int) -> Iterator[Value]:
    """The values that a control op makes of its operand at this position."""
    if isinstance(user, control.For):
        targets, first = (user.body.args[1:], user.results), 3
    elif isinstance(user, control.While):
        targets, first = (user.before.args,), 0
    else:
        assert user.parent is not None
        owner = user.parent.parent
        if isinstance(owner, control.For):
            targets, first = (owner.body.args[1:], owner.results), 0
        elif isinstance(owner, control.While) and isinstance(user, control.Condition):
            targets, first = (owner.after.args, owner.results), 1
        elif isinstance(owner, control.While):
            targets, first = (owner.before.args,), 0
        else:
            assert isinstance(owner, control.If)
            targets, first = (owner.results,), 0
    return (values[position - first] for values in targets)


# -- fences ----------------------------------------------------------------------------------------


def _require_fenced(op: Op, values: list[Value]) -> None:
    for value in values:
        maker = value.op
        if maker is not None and not _fence_between(maker, op):
            raise HazardError(
                f"{op.name} uses a register that {maker.name} at {maker.loc} writes, with no wgmma.fence between",
                op.loc,
                "put wgmma_fence() between the two",
            )


def _fence_between(maker: Op, op: Op) -> bool:
    """Does a fence stand between the two, in the block of `op` or one around it?"""
    block = op.parent
    assert block is not None
    before = block.ops[: block.ops.index(op)]
    if block is maker.parent:
        return any(isinstance(o, wgmma.Fence) for o in before[before.index(maker) :])
    assert isinstance(block.parent, Op), "a value is used outside the block that defines it"
    return any(isinstance(o, wgmma.Fence) for o in before) or _fence_between(maker, block.parent)

"""Common subexpression elimination, scoped: an op is replaced by an equal one that dominates it.

Equal: same class, operands, attributes and result types; operands of commutative ops in any order.
Ops with effects stay, so loads are never merged. Control ops stay too.
"""

from __future__ import annotations

from typing import Any, Hashable

from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith
from tiledsl.passes.analysis.structure import replace_op


def merge_common_subexpressions(kernel: Kernel) -> None:
    _Scope().block(kernel.body)


class _Scope:
    """Known ops by key. Leaving a block forgets what it added."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[Value]] = {}

    def block(self, block: Block) -> None:
        added: list[Hashable] = []
        kept: list[Op] = []
        for op in block.ops:
            if op.blocks or not op.is_pure:
                for inner in op.blocks:
                    self.block(inner)
                kept.append(op)
                continue
            key = _key(op)
            known = self.known.get(key)
            if known is None:
                self.known[key] = op.results
                added.append(key)
                kept.append(op)
            else:
                _weaken(known, op)
                replace_op(op, known)
        block.ops = kept
        for key in added:
            del self.known[key]


def _weaken(known: list[Value], op: Op) -> None:
    """The op that stays may promise only what both did."""
    kept = known[0].op if known else None
    if isinstance(kept, arith.Scalar) and not op.attrs["nowrap"]:
        kept.attrs["nowrap"] = False


def _key(op: Op) -> Hashable:
    """What makes two ops equal. `id` is safe: every op that is compared is alive."""
    cls = type(op)
    if cls is arith.Constant:
        value = op.attrs["value"]
        return cls, op.attrs["dtype"].name, repr(value) if isinstance(value, float) else value  # -0.0 == 0.0
    operands = [id(v) for v in op.operands]
    if isinstance(op, arith.Scalar):  # `nowrap` makes no difference: see `_weaken`
        if op.fn.commutative:
            operands.sort()
        return cls, *operands
    attrs: tuple[Any, ...] = tuple(op.attrs.values())
    return cls, *operands, attrs

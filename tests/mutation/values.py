"""Values in other places: whether one is visible from an op, and a copy of what computes it with parts replaced."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tests.mutation.places import kernel_of
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.ops import mem
from tiledsl.ir.types import DType, PtrType

__all__ = ["bases_like", "computable", "elements", "following", "index_of", "recomputed", "root_of", "visible"]


@lru_cache(maxsize=4)
def _by_name(kernel: Kernel) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in kernel.walk():
        found.setdefault(op.name, []).append(op)
    return found


def following(op: Op) -> list[Op]:
    """List the ops of the same kind after this one in the kernel as it was when first asked, at most 64."""
    like = _by_name(kernel_of(op)).get(op.name, [])
    at = next((at for at, each in enumerate(like) if each is op), len(like))
    return like[at + 1 : at + 65]


def visible(value: Value, op: Op) -> bool:
    """Return True if `op` may use the value: it is defined earlier in the op's block or in a block around it."""
    inside, block = op, op.block
    while value.block is not block:
        around = block.parent
        if not isinstance(around, Op):
            return False
        inside, block = around, around.block
    return value.op is None or block.ops.index(value.op) < block.ops.index(inside)


def computable(value: Value, op: Op) -> bool:
    """Return True if the value is visible from `op`, or if pure ops compute it from values that are."""
    if visible(value, op):
        return True
    made = value.op
    return made is not None and made.is_pure and not made.blocks and all(computable(each, op) for each in made.operands)


def recomputed(value: Value, before: Op, instead: Mapping[Value, Value]) -> Value:
    """Insert a copy of what computes a computable value before an op, with some values replaced.

    Args:
        value: the value; it is returned as it is if it is visible and depends on nothing that is replaced.
        before: the op that is to use the copy.
        instead: values, each with the visible one that takes its place.
    """
    if value in instead:
        return instead[value]
    made = value.op
    if made is None or made.blocks or not made.is_pure:
        return value
    given = [recomputed(each, before, instead) for each in made.operands]
    if given == made.operands and visible(value, before):
        return value
    copy = made.clone(dict(zip(made.operands, given, strict=True)))
    return before.block.insert_before(before, copy).results[value.index]


# -- addresses in shared memory --------------------------------------------------------------------


def root_of(address: Value) -> mem.SharedBase | None:
    """Return the base of an address in shared memory, if it is a base with offsets."""
    made = address.op
    while isinstance(made, mem.Offset):
        made = made.base.op
    return made if isinstance(made, mem.SharedBase) else None


def index_of(address: Value) -> list[Value]:
    """List the indices that are added to the base of an address."""
    found: list[Value] = []
    made = address.op
    while isinstance(made, mem.Offset):
        found.append(made.index)
        made = made.base.op
    return found


def bases_like(base: mem.SharedBase) -> list[mem.SharedBase]:
    """List the other bases of the kernel for elements of the same dtype."""
    found = _by_name(kernel_of(base)).get(base.name, [])
    return [
        each for each in found if isinstance(each, mem.SharedBase) and each is not base and each.dtype == base.dtype
    ]


def elements(base: mem.SharedBase) -> int:
    """Return how many elements the tile at a base has."""
    type_ = base.result.type
    assert isinstance(type_, PtrType) and isinstance(type_.dtype, DType)
    return base.attrs["bytes"] // type_.dtype.bytes

"""Ways to make one access use another mbarrier, another stage of a ring, or another swizzle than the other side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.mutation.operators import Change, Operator, chosen, constant_before
from tests.mutation.values import bases_like, computable, elements, index_of, recomputed, root_of, visible
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import arith, barriers, mem
from tiledsl.ir.types import I32, U64, DType, PtrType

__all__ = ["arith_before", "next_stage", "other_barrier", "other_swizzle", "own_rank"]


def other_barrier(*positions: int | str) -> Operator:
    """Use the element at the same place of another tile of mbarriers: "free" for "full"."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            base = root_of(op.operands[at])
            for other in bases_like(base) if base is not None and base.dtype == U64 else ():
                if computable(other.result, op):
                    yield Change(f"operand {at} in {other.label}", partial(_rebase, op, at, base, other))

    return Operator("other_barrier", changes)


def _rebase(op: Op, at: int, base: mem.SharedBase, other: mem.SharedBase) -> None:
    there = recomputed(other.result, op, {})
    op.set_operand(at, recomputed(op.operands[at], op, {base.result: there}))


def next_stage(*positions: int | str) -> Operator:
    """Use the next stage, or the previous one, of a ring of tiles or mbarriers."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            base = root_of(op.operands[at])
            step = _stage(op.operands[at], base) if base is not None else 0
            if base is None or not step:
                continue
            total = elements(base)
            for name, by in ("next", step), ("previous", total - step):
                yield Change(f"operand {at}: the {name} stage", partial(_set_index, op, at, base, _Moved(by, total)))
                if 2 * step == total:
                    break

    return Operator("next_stage", changes)


def _stage(address: Value, base: mem.SharedBase) -> int:
    """Return the elements of a stage of the tile at `base`; 0 if it has one stage only, or if that is not known."""
    total, indices = elements(base), index_of(address)
    if len({each.type for each in indices}) > 1:
        return 0
    if base.dtype == U64:
        return 1 if total > 1 else 0
    sizes = {size for each in indices for size in _factors(each) if total % size == 0 and 2 <= total // size <= 8}
    return max(sizes, default=0)


def _factors(value: Value, deep: int = 6) -> Iterator[int]:
    """List the constants that parts of a sum are multiplied by."""
    made = value.op
    if made is None or deep == 0 or not made.name.startswith("arith."):
        return
    if made.name in ("arith.mul", "arith.shl"):
        by = made.operands[1].op
        if isinstance(by, arith.Constant) and by.value > 0:
            yield by.value if made.name == "arith.mul" else 1 << min(by.value, 20)
    for each in made.operands:
        yield from _factors(each, deep - 1)


class _Moved:
    """A rule for an index: `by` elements further, around the end of `total`."""

    def __init__(self, by: int, total: int) -> None:
        self.by, self.total = by, total

    def __call__(self, op: Op, index: Value) -> Value:
        further = arith_before(op, "add", index, self.by)
        return arith_before(op, "mod", further, self.total)


class _Swizzled:
    """A rule for an index: the 16-byte part of a row of 128 bytes is exchanged with another, by the row's number."""

    def __init__(self, size: int) -> None:
        self.part = {1: 4, 2: 3, 4: 2, 8: 1}[size]

    def __call__(self, op: Op, index: Value) -> Value:
        row = arith_before(op, "and", arith_before(op, "shr", index, self.part + 3), 7)
        place = arith_before(op, "shl", row, self.part)
        return op.block.insert_before(op, arith.scalar("xor", index, place, loc=op.loc)).result


def arith_before(op: Op, fn: str, value: Value, by: int) -> Value:
    """Insert a function of a value and a constant before an op."""
    assert isinstance(value.type, DType)
    return op.block.insert_before(op, arith.scalar(fn, value, constant_before(op, value.type, by), loc=op.loc)).result


def _set_index(op: Op, at: int, base: mem.SharedBase, rule: _Moved | _Swizzled) -> None:
    """Replace an address by one whose index, the sum of all, is changed by the rule."""
    given = index_of(op.operands[at])
    total = given[0] if given else constant_before(op, I32, 0)
    for each in given[1:]:
        total = op.block.insert_before(op, arith.scalar("add", total, each, loc=op.loc)).result
    made = mem.Offset(base.result, rule(op, total), loc=op.loc)
    op.set_operand(at, op.block.insert_before(op, made).result)


def other_swizzle(*positions: int | str) -> Operator:
    """Swizzle the address of this access alone, or swizzle it once more, which undoes a swizzle of 128 bytes."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            type_, base = op.operands[at].type, root_of(op.operands[at])
            if base is None or base.dtype == U64 or not isinstance(type_, PtrType):
                continue
            given = index_of(op.operands[at])
            if given and all(visible(each, op) for each in given) and len({each.type for each in given}) == 1:
                rule = _Swizzled(type_.dtype.bytes)
                yield Change(f"operand {at} swizzled", partial(_set_index, op, at, base, rule))

    return Operator("other_swizzle", changes)


def own_rank(group: str) -> Operator:
    """Use the block's own rank in the cluster for that of another block."""

    def changes(op: Op) -> Iterator[Change]:
        start = 0
        for name, values in op.groups.items():
            if name == group and values and values[-1].type == I32:
                yield Change("its own rank", partial(_own_rank, op, start + len(values) - 1))
            start += len(values)

    return Operator("own_rank", changes)


def _own_rank(op: Op, at: int) -> None:
    op.set_operand(at, op.block.insert_before(op, barriers.ClusterRank(loc=op.loc)).result)

"""Ways to break a protocol between threads: mistakes of two ops, of some threads, or of some iterations.

`operators` has those that change one op by itself, `stages` those that change an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.mutation.operators import Change, Changes, Operator, chosen, put_before, set_attribute
from tests.mutation.places import apart
from tests.mutation.stages import arith_before
from tests.mutation.values import computable, following, recomputed, visible
from tiledsl.ir.core import Block, Op, Value
from tiledsl.ir.ops import arith, control, gpu, mem
from tiledsl.ir.types import BOOL, I32, I64, U32, DType, PtrType

__all__ = [
    "compares",
    "drops",
    "exchange",
    "exchange_operand",
    "exchange_within",
    "inverted_inits",
    "narrower",
    "partly",
    "past_next",
    "past_previous",
    "rescale",
    "skips",
    "transposes",
    "weaker",
]

# -- two ops exchange something --------------------------------------------------------------------


def exchange(name: str) -> Operator:
    """Make an op and the next one of its kind with another value of this attribute exchange their values."""

    def changes(op: Op) -> Iterator[Change]:
        mine = op.attrs[name]
        other = next((each for each in following(op) if each.attrs[name] != mine), None)
        if other is not None:
            yield Change(f"{name} {mine} <-> {other.attrs[name]}", partial(_exchange, op, other, name))

    return Operator("exchange", changes, (name,))


def _exchange(op: Op, other: Op, name: str) -> None:
    mine, theirs = op.attrs[name], other.attrs[name]
    set_attribute(op, name, theirs)
    set_attribute(other, name, mine)


def exchange_operand(*positions: int | str) -> Operator:
    """Make an op and the next one of its kind exchange the operand at this position."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            other = next((each for each in following(op) if _differs(op, each, at)), None)
            if other is not None:
                yield Change(f"operand {at} <-> {_line(other)}", partial(_exchange_operand, op, other, at))

    return Operator("exchange_operand", changes)


def _line(op: Op) -> str:
    return f"line {op.loc.line}"


def _differs(op: Op, other: Op, at: int) -> bool:
    if len(other.operands) <= at:
        return False
    mine, theirs = op.operands[at], other.operands[at]
    same = mine is theirs or mine.type != theirs.type
    return not same and computable(theirs, op) and computable(mine, other)


def _exchange_operand(op: Op, other: Op, at: int) -> None:
    mine = recomputed(op.operands[at], other, {})
    theirs = recomputed(other.operands[at], op, {})
    op.set_operand(at, theirs)
    other.set_operand(at, mine)


def exchange_within(group: str) -> Operator:
    """Exchange the last two operands of a group, as the row and the column of an index."""

    def changes(op: Op) -> Iterator[Change]:
        start = 0
        for name, values in op.groups.items():
            last = start + len(values) - 1
            a, b = values[-2:] if len(values) > 1 else (None, None)
            if name == group and a is not None and b is not None and a is not b and a.type == b.type:
                yield Change(f"operands {last - 1} and {last} exchanged", partial(_swap, op, last))
            start += len(values)

    return Operator("exchange_within", changes)


def _swap(op: Op, last: int) -> None:
    a, b = op.operands[last - 1], op.operands[last]
    op.set_operand(last - 1, b)
    op.set_operand(last, a)


# -- numbers and orders ----------------------------------------------------------------------------


def rescale(*names: str, by: tuple[int, ...] = (2, 32)) -> Operator:
    """Multiply and divide these attributes."""

    def changes(op: Op) -> Iterator[Change]:
        for name in names:
            value = op.attrs[name]
            for new in dict.fromkeys(each for n in by for each in (value * n, value // n)):
                if new != value and not op.attributes[name].problem(new) and abs(new - value) != _one(name):
                    yield Change(f"{name} {value} -> {new}", partial(set_attribute, op, name, new))

    return Operator("rescale", changes, names)


def _one(name: str) -> int:
    """Return the step that `off_by_one` takes, so that no change is made twice."""
    return {"bytes": 16, "threads": 32}.get(name, 1)


def weaker(name: str, *ranks: str) -> Operator:
    """Use each value that is weaker by two ranks or more; `weaken` has the next weaker one."""

    def changes(op: Op) -> Iterator[Change]:
        value = op.attrs[name]
        for new in ranks[: max(0, ranks.index(value) - 1)] if value in ranks else ():
            if not op.attributes[name].problem(new):
                yield Change(f"{name} {value} -> {new}", partial(set_attribute, op, name, new))

    return Operator("weaker", changes, (name,))


def _narrows(op: Op) -> Iterator[Change]:
    """Let the lanes of a warp meet in place of the block, the block in place of the cluster."""
    made = gpu.Barrier(loc=op.loc) if op.name == "cluster.wait" else gpu.SyncWarp(loc=op.loc)
    yield Change(f"{made.name} in its place", partial(_replace, op, made))


def _replace(op: Op, made: Op) -> None:
    op.block.insert_before(op, made)
    op.erase()


# -- further away than the neighbor ----------------------------------------------------------------


def past_next(*names: str) -> Operator:
    """Move an op after the next one of these kinds in its block: a commit after the wait for it."""

    def changes(op: Op) -> Iterator[Change]:
        ops = op.block.ops
        at = ops.index(op)
        past = next((each for each in ops[at + 1 : -1] if each.name in names), None)
        if past is None:
            return
        between = ops[at + 1 : ops.index(past) + 1]
        near = next((each for each in between if not apart(op, each)), None)
        used = {value for each in between for inner in each.walk() for value in inner.operands}
        if near is not past and not used & {*op.results}:
            place = ops[ops.index(past) + 1]
            yield Change(f"after {past.name}", partial(put_before, op.block, [op], place), past=tuple(between))

    return Operator("past_next", changes)


def past_previous(*names: str) -> Operator:
    """Move an op before the previous one of these kinds in its block: a wait before the commit."""

    def changes(op: Op) -> Iterator[Change]:
        ops = op.block.ops
        at = ops.index(op)
        past = next((each for each in reversed(ops[:at]) if each.name in names), None)
        if past is None:
            return
        between = ops[ops.index(past) : at]
        near = next((each for each in reversed(between) if not apart(op, each)), None)
        if near is not past and all(visible(each, past) for each in op.operands):
            yield Change(f"before {past.name}", partial(put_before, op.block, [op], past), past=tuple(between))

    return Operator("past_previous", changes)


# -- by some threads, in some iterations -----------------------------------------------------------


def _without_results(changes: Changes) -> Changes:
    return lambda op: iter(()) if op.results or op.blocks or op.terminator else changes(op)


def _partly(op: Op) -> Iterator[Change]:
    """Let only warps of even number execute an op; of an op of single threads, only lanes of even number.

    The passes refuse it for what a warpgroup or a block must execute together.
    """
    if op.scope not in ("thread", "warp"):
        return
    yield Change("by even warps only", partial(_guard, op, partial(_even, op, gpu.WarpId)), guarded=True)
    if op.scope == "thread":
        yield Change("by even lanes only", partial(_guard, op, partial(_even, op, gpu.LaneId)), guarded=True)


def _even(op: Op, number: type[gpu.WarpId | gpu.LaneId]) -> Value:
    lowest = arith_before(op, "and", op.block.insert_before(op, number(dtype=I32, loc=op.loc)).result, 1)
    return arith_before(op, "eq", lowest, 0)


def _skips(op: Op) -> Iterator[Change]:
    """Leave an op out in the first, or in the last, iteration of the loop around it."""
    inside, block = op, op.block
    while isinstance(block.parent, Op) and not isinstance(block.parent, control.For):
        inside, block = block.parent, block.parent.block
    loop = block.parent
    if isinstance(loop, control.For) and inside.name != "control.while":
        for name in ("first", "last"):
            make = partial(_guard, op, partial(_is_other, op, loop, name))
            yield Change(f"not in the {name} iteration", make, guarded=True)


def _is_other(op: Op, loop: control.For, name: str) -> Value:
    counter = loop.body.args[0]
    if name == "first":
        return op.block.insert_before(op, arith.scalar("ne", counter, loop.lo, loc=op.loc)).result
    following_one = op.block.insert_before(op, arith.scalar("add", counter, loop.step, loc=op.loc)).result
    return op.block.insert_before(op, arith.scalar("lt", following_one, loop.hi, loc=op.loc)).result


def _guard(op: Op, condition: Callable[[], Value]) -> None:
    """Execute the op only where the condition holds, which the function computes before it."""
    sides = Block(), Block()
    for side in sides:
        side.append(control.Yield(loc=op.loc))
    around = control.If(condition(), blocks=sides, loc=op.loc)
    op.block.insert_before(op, around)
    op.block.ops.remove(op)
    around.then.insert_before(around.then.terminator, op)


# -- values ----------------------------------------------------------------------------------------

_OR_EQUAL = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}


def _compares(op: Op) -> Iterator[Change]:
    """Compare with equality where it was without, or without where it was with."""
    fn = op.name.removeprefix("arith.")
    yield Change(f"{fn} -> {_OR_EQUAL[fn]}", partial(_become, op, _OR_EQUAL[fn], *op.operands))


def _become(op: Op, fn: str, *operands: Value) -> None:
    made = op.block.insert_before(op, arith.scalar(fn, *operands, loc=op.loc))
    op.result.replace_all_uses_with(made.result)
    op.erase()


def _drops(op: Op) -> Iterator[Change]:
    """Leave out a part of an expression: one of two predicates, a term of an index, the xor of a swizzle or parity."""
    for at in range(len(op.operands)):
        if op.operands[at].type == op.result.type and len(op.operands) > 1:
            yield Change(f"is its operand {at}", partial(op.result.replace_all_uses_with, op.operands[at]))


def _transposes(op: Op) -> Iterator[Change]:
    """Exchange row and column in an index of global memory: ``column * stride + row``."""
    row, column = op.operands[0].op, op.operands[1]
    type_ = op.result.type
    if row is None or row.name != "arith.mul" or type_ not in (I32, I64) or not _addresses_global(op):
        return
    if row.operands[0] is not column:
        yield Change("row and column exchanged", partial(_transpose, op, row))


def _addresses_global(op: Op) -> bool:
    users = [user for user, _ in op.result.uses]
    pointers = [each.base.type for each in users if isinstance(each, mem.Offset)]
    return any(isinstance(each, PtrType) and each.space == "global" for each in pointers)


def _transpose(op: Op, row: Op) -> None:
    product = op.block.insert_before(op, arith.scalar("mul", op.operands[1], row.operands[1], loc=op.loc)).result
    _become(op, "add", product, row.operands[0])


def _inverted_inits(op: Op) -> Iterator[Change]:
    """Begin a loop with the other parity, or the other bool: for all that use it alike."""
    first = len(op.operands) - len(op.results)
    for at in range(first, len(op.operands)):
        if op.operands[at].type in (U32, BOOL):
            yield Change(f"operand {at} inverted from the start", partial(_invert, op, at))


def _invert(op: Op, at: int) -> None:
    value = op.operands[at]
    assert isinstance(value.type, DType)
    if value.type == BOOL:
        made = op.block.insert_before(op, arith.scalar("not", value, loc=op.loc)).result
    else:
        made = arith_before(op, "xor", value, 1)
    op.set_operand(at, made)


compares = Operator("compares", _compares)
drops = Operator("drops", _drops)
inverted_inits = Operator("inverted_inits", _inverted_inits)
narrower = Operator("narrower", _narrows)
partly = Operator("partly", _without_results(_partly))
skips = Operator("skips", _without_results(_skips))
transposes = Operator("transposes", _transposes)

"""Ways to make an op wrong. Each lists its changes of one op, which is left as it is until a change is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.mutation.places import apart
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith
from tiledsl.ir.types import BOOL, DType

__all__ = [
    "Change",
    "Operator",
    "chosen",
    "constant",
    "constant_before",
    "delete",
    "fixed",
    "flip",
    "map_changes",
    "move_earlier",
    "move_later",
    "negate",
    "off_by_one",
    "other_value",
    "put_before",
    "set_attribute",
    "shift",
    "swap",
    "weaken",
    "wrong_operand",
]


@dataclass(frozen=True)
class Change:
    """A way to make an op wrong, in words (`what`) and as a function that does it (`make`).

    stronger: it only makes the op wait for more, or for longer.
    past: what the op is moved past.
    guarded: only some threads, or some iterations, execute the op, in a branch around it.
    """

    what: str
    make: Callable[[], None]
    stronger: bool = False
    past: tuple[Op, ...] = ()
    guarded: bool = False


Changes = Callable[[Op], Iterator[Change]]


@dataclass(frozen=True)
class Operator:
    """`changes`: lists those of an op. `attributes`: the ones that it changes."""

    name: str
    changes: Changes
    attributes: tuple[str, ...] = ()


# -- the op as a whole -----------------------------------------------------------------------------


def _deletes(op: Op) -> Iterator[Change]:
    """Without the op. What it gives is taken from its operands, as of a wait, or is zero, as of a load."""
    stand_ins = [_stand_in(op, result) for result in op.results]
    if all(each is not None or not result.uses for each, result in zip(stand_ins, op.results, strict=True)):
        yield Change("deleted", partial(_delete, op))


def _stand_in(op: Op, result: Value) -> Value | DType | None:
    """The operand that comes back as this result, or the dtype whose zero it becomes."""
    back = op.operands[len(op.operands) - len(op.results) :]
    if len(back) == len(op.results) and back[result.index].type == result.type:
        return back[result.index]
    return result.type if isinstance(result.type, DType) else None


def _delete(op: Op) -> None:
    for result in op.results:
        found = _stand_in(op, result)
        if result.uses and found is not None:
            result.replace_all_uses_with(constant_before(op, found, 0) if isinstance(found, DType) else found)
    op.erase()


def constant_before(before: Op, dtype: DType, value: int) -> Value:
    """Insert a constant before an op."""
    made = arith.Constant(value=dtype.python(value), dtype=dtype, loc=before.loc)
    return before.block.insert_before(before, made).result


def _earlier(op: Op) -> Iterator[Change]:
    """To before the last op in front of it that it has to do with; what computes its operands goes along."""
    block = op.block
    at = block.ops.index(op)
    past = next((each for each in reversed(block.ops[:at]) if not apart(op, each)), None)
    if past is not None and (moved := _needed(op, block.ops.index(past))) is not None:
        change = partial(put_before, block, moved, past)
        yield Change(f"before {past.name}", change, past=tuple(block.ops[block.ops.index(past) : at]))


def _needed(op: Op, to: int) -> list[Op] | None:
    """The ops of its block from this place on that it needs, itself the last; None if one of them cannot move."""
    block, needed, pending = op.block, {op}, [op]
    while pending:
        current = pending.pop()
        inside = [value for each in current.walk() for value in each.operands]
        for made in (value.op for value in inside):
            if made is None or made.parent is not block or made in needed or block.ops.index(made) < to:
                continue
            if made.effects - {"identity"} or block.ops.index(made) == to:
                return None
            needed.add(made)
            pending.append(made)
    return [each for each in block.ops if each in needed]


def _later(op: Op) -> Iterator[Change]:
    """Move an op after the next one that it must stay in order with."""
    block = op.block
    at = block.ops.index(op)
    rest = block.ops[at + 1 : -1]
    past = next((each for each in rest if not apart(op, each)), None)
    if past is None:
        return
    between = rest[: rest.index(past) + 1]
    used = {value for each in between for inner in each.walk() for value in inner.operands}
    if not used & set(op.results):
        place = block.ops[block.ops.index(past) + 1]
        yield Change(f"after {past.name}", partial(put_before, block, [op], place), past=tuple(between))


def put_before(block: Block, moved: list[Op], place: Op) -> None:
    for each in moved:
        block.ops.remove(each)
    at = block.ops.index(place)
    block.ops[at:at] = moved


# -- attributes ------------------------------------------------------------------------------------


def off_by_one(*names: str, by: int = 1) -> Operator:
    """These attributes, or the items of those that are tuples, one more and one less; where there are only some values,
    the next and the previous one. by: what one is."""

    def changes(op: Op) -> Iterator[Change]:
        for name in names:
            declared, value = op.attributes[name], op.attrs[name]
            for new in _neighbours(value, declared.among, by):
                if not declared.problem(new):
                    fewer = name in ("pending", "in_flight") and isinstance(new, int) and new < value
                    yield Change(f"{name} {value} -> {new}", partial(set_attribute, op, name, new), stronger=fewer)

    return Operator("off_by_one", changes, names)


def _neighbours(value: Any, among: Any, by: int) -> Iterator[Any]:
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value
        for at, item in enumerate(items):
            yield from ((*items[:at], item + step, *items[at + 1 :]) for step in (by, -by))
    elif among:
        listed = list(among)
        at = listed.index(value)
        yield from (listed[i] for i in (at + 1, at - 1) if 0 <= i < len(listed))
    else:
        yield from (value + by, value - by)


def flip(*names: str) -> Operator:
    """These attributes of bool."""

    def changes(op: Op) -> Iterator[Change]:
        for name in names:
            value = op.attrs[name]
            stronger = (name == "read" and value) or (name == "wait" and not value)
            yield Change(
                f"{name} {value} -> {not value}", partial(set_attribute, op, name, not value), stronger=stronger
            )

    return Operator("flip", changes, names)


def weaken(name: str, *ranks: str) -> Operator:
    """To what is next weaker, from the weakest to the strongest; and to what is stronger, which is no fault."""

    def changes(op: Op) -> Iterator[Change]:
        value = op.attrs[name]
        at = ranks.index(value)
        if at > 0:
            yield Change(f"{name} {value} -> {ranks[at - 1]}", partial(set_attribute, op, name, ranks[at - 1]))

    return Operator("weaken", changes, (name,))


def other_value(name: str, *values: Any) -> Operator:
    """Each of these that it does not have; of a tuple without values its items in the opposite order."""

    def changes(op: Op) -> Iterator[Change]:
        value = op.attrs[name]
        for new in values or (value[::-1],):
            if new != value and not op.attributes[name].problem(new):
                yield Change(f"{name} {value} -> {new}", partial(set_attribute, op, name, new))

    return Operator("other_value", changes, (name,))


def set_attribute(op: Op, name: str, value: Any) -> None:
    op.attrs[name] = value


# -- operands --------------------------------------------------------------------------------------


def shift(*positions: int | str) -> Operator:
    """Integer operands one more: at these positions, or in these groups; the group's first and last only."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            type_ = op.operands[at].type
            if isinstance(type_, DType) and type_.kind in ("int", "uint", "index"):
                yield Change(f"operand {at} + 1", partial(_shift, op, at))

    return Operator("shift", changes)


def _shift(op: Op, at: int) -> None:
    value = op.operands[at]
    assert isinstance(value.type, DType)
    one = constant_before(op, value.type, 1)
    op.set_operand(at, op.block.insert_before(op, arith.scalar("add", value, one, loc=op.loc)).result)


def chosen(op: Op, positions: tuple[int | str, ...]) -> list[int]:
    found: list[int] = []
    for each in positions:
        if isinstance(each, int):
            found += [each % len(op.operands)] if each < len(op.operands) else []
            continue
        start = 0
        for name, values in op.groups.items():
            if name == each and values:
                found += sorted({start, start + len(values) - 1})
            start += len(values)
    return found


def negate(*positions: int | str) -> Operator:
    """Predicates (operands of bool), and parities and other words (with their lowest bit inverted)."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            type_ = op.operands[at].type
            if isinstance(type_, DType) and (type_ == BOOL or type_.is_integer):
                yield Change(f"operand {at} inverted", partial(_negate, op, at))

    return Operator("negate", changes)


def _negate(op: Op, at: int) -> None:
    value = op.operands[at]
    assert isinstance(value.type, DType)
    if value.type == BOOL:
        made = arith.scalar("not", value, loc=op.loc)
    else:
        made = arith.scalar("xor", value, constant_before(op, value.type, 1), loc=op.loc)
    op.set_operand(at, op.block.insert_before(op, made).result)


def fixed(*positions: int | str) -> Operator:
    """Predicates that always hold, and never."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            if op.operands[at].type == BOOL:
                for value in (1, 0):
                    yield Change(f"operand {at} is {bool(value)}", partial(_fix, op, at, value))

    return Operator("fixed", changes)


def _fix(op: Op, at: int, value: int) -> None:
    op.set_operand(at, constant_before(op, BOOL, value))


def _swaps(op: Op) -> Iterator[Change]:
    """The first two operands of one type in each other's place."""
    for first, a in enumerate(op.operands):
        for second in range(first + 1, len(op.operands)):
            b = op.operands[second]
            if a.type == b.type and a is not b:
                yield Change(f"operands {first} and {second} swapped", partial(_swap, op, first, second))
                return


def _swap(op: Op, first: int, second: int) -> None:
    a, b = op.operands[first], op.operands[second]
    op.set_operand(first, b)
    op.set_operand(second, a)


def wrong_operand(*positions: int | str) -> Operator:
    """Another value of the same type: the nearest one in front of the op, in its block."""

    def changes(op: Op) -> Iterator[Change]:
        for at in chosen(op, positions):
            if (other := _other(op, at)) is not None:
                yield Change(f"operand {at} is another value", partial(op.set_operand, at, other))

    return Operator("wrong_operand", changes)


def _other(op: Op, at: int) -> Value | None:
    block, value = op.block, op.operands[at]
    before = reversed(block.ops[: block.ops.index(op)])
    near = [result for each in before for result in each.results] + block.args
    return next((each for each in near if each.type == value.type and each is not value), None)


def _constants(op: Op) -> Iterator[Change]:
    """A constant one more and one less; the opposite of a bool; twice a float, and its negative."""
    value, dtype = op.attrs["value"], op.attrs["dtype"]
    if isinstance(value, bool):
        news: list[Any] = [not value]
    elif isinstance(value, float):
        news = [value * 2, -value, value + 1]
    else:
        news = [value + 1, value - 1]
    for new in dict.fromkeys(news):
        if new != value and not (dtype.is_integer and not dtype.limits[0] <= new <= dtype.limits[1]):
            yield Change(f"{value} -> {new}", partial(set_attribute, op, "value", new))


delete = Operator("delete", _deletes)
move_earlier = Operator("move_earlier", _earlier)
move_later = Operator("move_later", _later)
swap = Operator("swap", _swaps)
constant = Operator("constant", _constants, ("value",))


# -- tensor maps -----------------------------------------------------------------------------------


def map_changes(kernel: Kernel, number: int) -> Iterator[tuple[str, Change]]:
    """Of a tensor map of a thread-level kernel, which is no op: the operator's name with each change."""
    map_ = kernel.tensor_maps[number]

    def set_to(**fields: Any) -> None:
        maps = list(kernel.tensor_maps)
        maps[number] = replace(map_, **fields)
        kernel.tensor_maps = tuple(maps)

    for box in _neighbours(map_.box, (), 8):
        yield "off_by_one", Change(f"box {map_.box} -> {box}", partial(set_to, box=box))
    for swizzle in (0, 32, 64, 128):
        if swizzle != map_.swizzle:
            yield "other_value", Change(f"swizzle {map_.swizzle} -> {swizzle}", partial(set_to, swizzle=swizzle))
    axes = map_.axes[1::-1] + map_.axes[2:]
    yield "other_value", Change(f"axes {map_.axes} -> {axes}", partial(set_to, axes=axes))
    if map_.every > 1:
        first = (map_.first + 1) % map_.every
        yield "off_by_one", Change(f"first {map_.first} -> {first}", partial(set_to, first=first))

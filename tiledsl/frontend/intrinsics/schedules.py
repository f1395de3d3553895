"""`Schedule`, `tile_schedule` and `persistent`, and the loop over work items."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generator

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import LanguageObject, Ranges, describe
from tiledsl.frontend.calls import Call, inline, intrinsic
from tiledsl.frontend.cooperation import KLoop, Place
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.intrinsics.barriers import compile_time_int, needs
from tiledsl.frontend.intrinsics.launch import host_expression
from tiledsl.frontend.intrinsics.rings import skip_slots
from tiledsl.function import TileFunction
from tiledsl.ir.core import Block, Value
from tiledsl.ir.expr import BinExpr, ConstExpr, NameExpr
from tiledsl.ir.ops import arith, barriers, gpu
from tiledsl.ir.types import I32, INDEX
from tiledsl.lang.schedules import tile_count, tile_item

__all__ = ["ScheduleObject", "WorkItemObject", "WorkLoop", "along_k", "one_item"]


@dataclass(frozen=True, eq=False)
class ScheduleObject(LanguageObject):
    """count, item: its functions, args: what both are given besides. place: of this block in its cluster; items: how
    many there are, of a persistent schedule."""

    call: Call
    count: TileFunction[..., Any]
    item: TileFunction[..., Any]
    args: tuple[Any, ...]
    place: Place = field(default_factory=Place)
    items: Value | None = None

    described_by = lang.Schedule
    shown = "a schedule"
    offers = "go through it: for t in work:"

    def counted(self, frame: Frame) -> Value:
        node = self.call.node
        count = inline(frame, node, self.count, [self.place, *self.args], {})
        return as_value(count, INDEX, frame, node, "count of a schedule")

    def at(self, frame: Frame, node: ast.AST, index: Value) -> WorkItemObject:
        """Work item number `index`."""
        item = inline(frame, self.call.node, self.item, [index, self.place, *self.args], {})
        if not isinstance(item, WorkItemObject):
            fix = "WorkItem(m=tile(i, BM), n=tile(j, BN), k=tiles(K, BK))"
            raise frame.error(node, f"{self.item.name}() gives {describe(item)}, not a work item", fix)
        return WorkItemObject({"index": index, **item.parts})


@dataclass(frozen=True, eq=False)
class WorkItemObject(LanguageObject):
    parts: dict[str, Any]

    described_by = None
    shown = "a work item"

    @property
    def offers(self) -> str:  # type: ignore[override]
        return f"it has {', '.join('.' + name for name in self.parts)}"

    def data(self, name: str) -> Any:
        return self.parts.get(name)


# -- making one ------------------------------------------------------------------------------------


@intrinsic(lang.Schedule)
def _schedule(call: Call) -> ScheduleObject:
    for name in ("count", "item"):
        if not isinstance(call[name], TileFunction):
            raise call.error(f"Schedule(): {name} is a tile function, got {describe(call[name])}", "@tile_function")
    return _made(call, call["count"], call["item"], call["args"])


def _made(call: Call, count: Any, item: Any, args: tuple[Any, ...]) -> ScheduleObject:
    if not call.frame.at_top_level:
        what = f"{call.callee.__name__}() under a run-time condition, in a loop or in a role"
        raise call.error(what, "make it at the kernel's top level")
    return ScheduleObject(call, count, item, args)


@intrinsic(lang.WorkItem)
def _work_item(call: Call) -> WorkItemObject:
    parts: dict[str, Any] = {}
    for name, part in call["parts"].items():
        parts[name] = replace(part, of_item=name == "k") if isinstance(part, Ranges) else part
    return WorkItemObject(parts)


@intrinsic(lang.tile_schedule)
def _tile_schedule(call: Call) -> ScheduleObject:
    what = "tile_schedule()"
    extents = {name: as_value(call[name], INDEX, call.frame, call.node, name) for name in ("m", "n", "k")}
    times: list[Value | None] = []
    for name in ("batches", "splits"):
        value = as_value(call[name], INDEX, call.frame, call.node, name)
        known = int(value.op.value) if isinstance(value.op, arith.Constant) else None
        if name == "splits" and known is not None and known < 1:
            raise call.error(f"{what}: splits={known}, no positive number", "splits=1 for all of k at once")
        times.append(None if known == 1 else value)
    given: Any = call["tile"]
    sizes: tuple[Any, ...] = given if isinstance(given, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(sizes) != 3 or any(type(n) is not int or n < 1 for n in sizes):
        raise call.error(
            f"{what}: tile= is three positive compile-time ints, got {describe(given)}", "tile=(BM, BN, BK)"
        )
    group = compile_time_int(call, "group", what, 1, 1 << 20, "how many tiles a band has: 8 or 16, as a rule")
    if call["along"] not in ("m", "n"):
        raise call.error(f"{what}: along={call['along']!r}", 'bands lie along "m" or "n"')
    args = (*extents.values(), sizes, (group, call["along"] == "m"), *times)
    return _made(call, tile_count, tile_item, args)


@intrinsic(lang.persistent)
def _persistent(call: Call) -> ScheduleObject:
    what, builder, unit = "persistent()", call.builder, call.frame.unit
    schedule, shape = call["schedule"], call["cluster"]
    if not isinstance(schedule, ScheduleObject) or schedule.items is not None:
        raise call.error(
            f"{what} takes what tile_schedule() gives, got {describe(schedule)}", "persistent(tile_schedule(...))"
        )
    if not isinstance(shape, lang.Cluster):
        raise call.error(f"{what}: cluster= is {describe(shape)}", "cluster=Cluster(m=2)")
    if unit.grid is not None or not call.frame.at_top_level:
        wrong = "in a kernel with a grid" if unit.grid is not None else "under a run-time condition or loop"
        raise call.error(f"{what} {wrong}", "it declares the grid, once, at the kernel's top level")
    if unit.cooperation.rings:
        raise call.error(f"{what} after Ring()", "write it first: rings are initialised for the whole cluster")
    place = Place(shape.m, shape.n)
    if place.blocks > 1:
        needs(call, "cluster", "a cluster")
        rank, across = builder.value(barriers.ClusterRank()), builder.constant(shape.m, I32)
        at = [builder.cast(builder.scalar(fn, rank, across), INDEX) for fn in ("mod", "floordiv")]
        place = Place(shape.m, shape.n, at[0], at[1])
        unit.cluster = (place.blocks, 1, 1)
    unit.cooperation.cluster = place
    schedule = replace(schedule, place=place)
    items = schedule.counted(call.frame)
    most = BinExpr("floordiv", NameExpr("processors"), ConstExpr(place.blocks))
    clusters = most if place.blocks > 1 else NameExpr("processors")
    try:
        grid = BinExpr("min", host_expression(call, items), clusters)
    except CompileError:  # it depends on memory, say: blocks that have no item end at once
        grid = clusters
    unit.grid = (BinExpr("mul", grid, ConstExpr(place.blocks)) if place.blocks > 1 else grid,)
    return replace(schedule, items=items)


# -- going through it ------------------------------------------------------------------------------


def one_item(frame: Frame, node: ast.For, schedule: ScheduleObject) -> WorkItemObject:
    """The only item of a block, where the schedule is not persistent: it declares one block an item."""
    unit, role = frame.unit, frame.unit.cooperation.role
    grid = host_expression(schedule.call, schedule.counted(frame))
    if unit.grid not in (None, (grid,)):
        raise frame.error(node.iter, "a schedule in a kernel with a grid of its own", "leave grid(...) out")
    if role is not None and role.instances > 1:
        fix = "work = persistent(tile_schedule(...))"
        raise frame.error(node.iter, f"{role.shown} has instances, and a block one item", fix)
    unit.grid = (grid,)
    return schedule.at(frame, node, frame.builder.value(gpu.BlockId(axis=0)))


class WorkLoop:
    """The items of this block: the first one, the end of them all, and the step; `at` is the item of an index."""

    def __init__(self, frame: Frame, node: ast.For, schedule: ScheduleObject) -> None:
        builder = frame.builder
        self.node, self.schedule = node, schedule
        blocks = builder.constant(schedule.place.blocks, INDEX)
        self.first = builder.scalar("floordiv", builder.value(gpu.BlockId(axis=0)), blocks)
        self.step = builder.scalar("floordiv", builder.value(gpu.GridSize(axis=0)), blocks)
        assert schedule.items is not None
        self.end = schedule.items

    def at(self, frame: Frame, index: Value) -> WorkItemObject:
        return self.schedule.at(frame, self.node, index)

    def skip(self, frame: Frame, item: Value | None) -> None:
        """In a role with instances, go past the slots of rings that other instances use: before the loop (no item)
        those of instances with lower numbers, behind `item` those of the next one, which is the other's."""
        role, builder = frame.unit.cooperation.role, frame.builder
        if role is None or role.instances == 1:
            return
        theirs = self.first if item is None else builder.scalar("add", item, self.step)
        k = self.at(frame, theirs).data("k")
        if not isinstance(k, Ranges):
            message = f"{role.shown} has instances, and work items without k: how many slots each uses is not known"
            raise frame.error(self.node.iter, message, "WorkItem(..., k=tiles(K, BK))")
        start, extent = (as_value(x, INDEX, frame, self.node) for x in (k.start, k.extent))
        size = builder.constant(k.size, INDEX)
        length = extent if k.start == 0 and not isinstance(k.start, Value) else builder.scalar("sub", extent, start)
        last = builder.scalar("add", length, builder.constant(k.size - 1, INDEX))
        steps = builder.scalar("floordiv", last, size)
        if length is not extent:  # of a part that is empty
            steps = builder.scalar("max", steps, builder.constant(0, INDEX))
        if item is None:
            assert isinstance(role.index, Value)
            steps = builder.scalar("mul", steps, role.index)
        skip_slots(frame, steps)


@contextmanager
def along_k(frame: Frame, body: Block, of_item: bool) -> Generator[None, None, None]:
    """What is built meanwhile is the body of a loop over a work item's tiles along k, if `of_item`."""
    state = frame.unit.cooperation
    outer = state.k_loop
    state.k_loop = KLoop(body) if of_item else outer
    try:
        yield
    finally:
        state.k_loop = outer

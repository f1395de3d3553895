"""`tile_schedule` and `persistent`: which tiles a block computes, in which order."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generator

from tiledsl import lang
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import LanguageObject, Range, Ranges, describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.frontend.hopper import ClusterShape, RingObject
from tiledsl.frontend.intrinsics.barriers import compile_time_int, needs
from tiledsl.frontend.intrinsics.launch import host_expression
from tiledsl.frontend.intrinsics.rings import skip_slots
from tiledsl.ir.core import Block, Value
from tiledsl.ir.expr import BinExpr, ConstExpr, Expr, NameExpr
from tiledsl.ir.ops import arith, barriers, gpu
from tiledsl.ir.types import I32, INDEX

__all__ = [
    "KLoop",
    "ScheduleObject",
    "WorkItemObject",
    "along_k",
    "go_past_others",
    "item_at",
    "of_instance",
    "one_item",
    "settle_schedule",
    "work_items",
]


@dataclass(eq=False)
class ScheduleObject(LanguageObject):
    """Tiles of an m x n result. rows, columns: how many tiles there are (of a cluster: of tiles of all its blocks).

    grid: blocks, as the host computes them. count: work items, as the kernel does.
    """

    call: Call
    extents: dict[str, Value]
    tile: tuple[int, int, int]
    group: int
    along: str
    batches: Value | None
    splits: Value | None
    hosts: dict[str, Expr]
    cluster: ClusterShape = field(default_factory=ClusterShape)
    persistent: bool = False
    rows: Any = None
    columns: Any = None
    count: Any = None

    described_by = lang.Schedule
    shown = "a schedule"
    offers = "go through it: for t in work:"


@dataclass(eq=False)
class WorkItemObject(LanguageObject):
    """One tile of the result."""

    schedule: ScheduleObject
    index: Value
    m: Range
    n: Range
    k: Ranges
    batch: Any
    split: Any

    described_by = lang.WorkItem
    shown = "a work item"
    offers = "it has .m, .n, .k, .batch, .split and .index"

    def data(self, name: str) -> Any:
        return getattr(self, name) if name in ("m", "n", "k", "batch", "split", "index") else None


@dataclass(eq=False)
class KLoop:
    """A loop over a work item's tiles along k that is being built. used: the rings of which it has used a slot."""

    block: Block
    used: list[RingObject] = field(default_factory=list[RingObject])


# -- making one ------------------------------------------------------------------------------------


@intrinsic(lang.tile_schedule)
def _tile_schedule(call: Call) -> ScheduleObject:
    what = "tile_schedule()"
    if not call.frame.at_top_level:
        raise call.error(
            f"{what} under a run-time condition, in a loop or in a role", "make it at the kernel's top level"
        )
    extents: dict[str, Value] = {}
    hosts: dict[str, Expr] = {}
    for name in ("m", "n", "k", "batches", "splits"):
        extents[name] = as_value(call[name], INDEX, call.frame, call.node, name)
        hosts[name] = host_expression(call, extents[name])
    parts = extents["splits"].op
    if isinstance(parts, arith.Constant) and int(parts.value) < 1:
        raise call.error(f"{what}: splits={int(parts.value)}, no positive number", "splits=1 for all of k at once")
    given: Any = call["tile"]
    sizes: tuple[Any, ...] = given if isinstance(given, tuple) else ()  # pyright: ignore[reportUnknownVariableType]
    if len(sizes) != 3 or any(type(n) is not int or n < 1 for n in sizes):
        raise call.error(
            f"{what}: tile= is three positive compile-time ints, got {describe(given)}", "tile=(BM, BN, BK)"
        )
    group = compile_time_int(call, "group", what, 1, 1 << 20, "how many tiles a band has: 8 or 16, as a rule")
    if call["along"] not in ("m", "n"):
        raise call.error(f"{what}: along={call['along']!r}", 'bands lie along "m" or "n"')
    batches, splits = (None if _is_one(extents[name]) else extents[name] for name in ("batches", "splits"))
    size = (sizes[0], sizes[1], sizes[2])
    schedule = ScheduleObject(call, extents, size, group, call["along"], batches, splits, hosts)
    _count(schedule)
    state = call.frame.unit.hopper
    state.scheduled = state.scheduled or schedule
    return schedule


def _count(schedule: ScheduleObject) -> None:
    """How many tiles there are, in units of a cluster's."""
    builder, cluster = schedule.call.builder, schedule.cluster

    def tiles(extent: str, size: int) -> Value:
        last = builder.scalar("add", schedule.extents[extent], builder.constant(size - 1, INDEX))
        return builder.scalar("floordiv", last, builder.constant(size, INDEX))

    schedule.rows = tiles("m", schedule.tile[0] * cluster.m)
    schedule.columns = tiles("n", schedule.tile[1] * cluster.n)
    # 2^31 tiles have a result that no launch could hold.
    schedule.count = builder.scalar("mul", schedule.rows, schedule.columns, nowrap=True)
    for times in (schedule.batches, schedule.splits):
        if times is not None:
            schedule.count = builder.scalar("mul", schedule.count, times, nowrap=True)


def _is_one(value: Value) -> bool:
    return isinstance(value.op, arith.Constant) and value.op.value == 1


def _host_count(schedule: ScheduleObject) -> Expr:
    """The same on the host."""

    def tiles(extent: str, size: int) -> Expr:
        last = BinExpr("add", schedule.hosts[extent], ConstExpr(size - 1))
        return BinExpr("floordiv", last, ConstExpr(size))

    cluster = schedule.cluster
    rows, columns = tiles("m", schedule.tile[0] * cluster.m), tiles("n", schedule.tile[1] * cluster.n)
    count = BinExpr("mul", rows, columns)
    for name, times in (("batches", schedule.batches), ("splits", schedule.splits)):
        if times is not None:
            count = BinExpr("mul", count, schedule.hosts[name])
    return count


@intrinsic(lang.persistent)
def _persistent(call: Call) -> ScheduleObject:
    what, builder, unit = "persistent()", call.builder, call.frame.unit
    schedule, shape = call["schedule"], call["cluster"]
    if not isinstance(schedule, ScheduleObject) or schedule.persistent:
        raise call.error(
            f"{what} takes what tile_schedule() gives, got {describe(schedule)}", "persistent(tile_schedule(...))"
        )
    if not isinstance(shape, lang.Cluster):
        raise call.error(f"{what}: cluster= is {describe(shape)}", "cluster=Cluster(m=2)")
    if unit.grid is not None or not call.frame.at_top_level:
        wrong = "in a kernel with a grid" if unit.grid is not None else "under a run-time condition or loop"
        raise call.error(f"{what} {wrong}", "it declares the grid, once, at the kernel's top level")
    if unit.hopper.rings:
        raise call.error(f"{what} after Ring()", "write it first: rings are initialised for the whole cluster")
    blocks = shape.m * shape.n
    if blocks > 1:
        needs(call, "cluster", "a cluster")
    schedule.persistent, schedule.cluster = True, ClusterShape(shape.m, shape.n)
    if blocks > 1:
        rank = builder.value(barriers.ClusterRank())
        across = builder.constant(shape.m, I32)
        at_m, at_n = builder.scalar("mod", rank, across), builder.scalar("floordiv", rank, across)
        schedule.cluster = ClusterShape(shape.m, shape.n, rank, at_m, at_n)
        unit.cluster = (blocks, 1, 1)
        _count(schedule)
    unit.hopper.cluster = schedule.cluster
    clusters = BinExpr("floordiv", NameExpr("processors"), ConstExpr(blocks)) if blocks > 1 else NameExpr("processors")
    most = BinExpr("min", _host_count(schedule), clusters)
    unit.grid = (BinExpr("mul", most, ConstExpr(blocks)) if blocks > 1 else most,)
    return schedule


def settle_schedule(unit: Unit) -> None:
    """A schedule without `persistent` declares one block a tile, unless the kernel has a grid."""
    schedule = unit.hopper.scheduled
    if schedule is not None and unit.grid is None:
        unit.grid = (_host_count(schedule),)


# -- going through it ------------------------------------------------------------------------------


def work_items(frame: Frame, node: ast.For, schedule: ScheduleObject) -> tuple[Value, Value, Value] | None:
    """First work item of this block, end of them all, and step; None where it has one alone."""
    builder, role = frame.builder, frame.unit.hopper.role
    if not schedule.persistent:
        if frame.unit.grid is not None:
            raise frame.error(node.iter, "a schedule in a kernel with a grid of its own", "leave grid(...) out")
        if role is not None and role.instances > 1:
            fix = "work = persistent(tile_schedule(...))"
            raise frame.error(node.iter, f"{role.shown} has instances, and a block one item", fix)
        return None
    blocks = builder.constant(schedule.cluster.blocks, INDEX)
    first = builder.scalar("floordiv", builder.value(gpu.BlockId(axis=0)), blocks)
    step = builder.scalar("floordiv", builder.value(gpu.GridSize(axis=0)), blocks)
    return first, schedule.count, step


def of_instance(frame: Frame, ends: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
    """Of these items those that the role's instance takes: every second one, where there are two."""
    builder, role = frame.builder, frame.unit.hopper.role
    if role is None or role.instances == 1:
        return ends
    assert isinstance(role.index, Value)
    first = builder.scalar("add", ends[0], builder.scalar("mul", role.index, ends[2]))
    return first, ends[1], builder.scalar("mul", ends[2], builder.constant(role.instances, INDEX))


def one_item(frame: Frame, schedule: ScheduleObject) -> WorkItemObject:
    """The only item of a block."""
    return item_at(frame, schedule, frame.builder.value(gpu.BlockId(axis=0)))


def item_at(frame: Frame, schedule: ScheduleObject, index: Value) -> WorkItemObject:
    """Work item number `index`: bands of `group` tiles along one axis, in a band those along that axis first."""
    builder, cluster = frame.builder, schedule.cluster

    def scalar(fn: str, a: Value, b: Value | int) -> Value:
        # Places in a problem whose tiles can be counted.
        nowrap = fn in ("add", "sub", "mul")
        return builder.scalar(fn, a, builder.constant(b, INDEX) if isinstance(b, int) else b, nowrap=nowrap)

    along_m = schedule.along == "m"
    banded, across = (schedule.rows, schedule.columns) if along_m else (schedule.columns, schedule.rows)
    group = max(1, schedule.group // (cluster.m if along_m else cluster.n))
    place, each = index, scalar("mul", schedule.rows, schedule.columns)
    batch: Any = 0
    split: Any = 0
    if schedule.batches is not None:
        of_batch = each if schedule.splits is None else scalar("mul", each, schedule.splits)
        batch, place = scalar("floordiv", place, of_batch), scalar("mod", place, of_batch)
    if schedule.splits is not None:
        split, place = scalar("floordiv", place, each), scalar("mod", place, each)
    in_band = scalar("mul", across, group)
    first = scalar("mul", scalar("floordiv", place, in_band), group)
    size = scalar("min", scalar("sub", banded, first), group)
    within = scalar("mod", place, in_band)
    i, j = scalar("add", first, scalar("mod", within, size)), scalar("floordiv", within, size)
    m, n = (i, j) if along_m else (j, i)
    if cluster.blocks > 1:
        assert cluster.at_m is not None and cluster.at_n is not None
        m = scalar("add", scalar("mul", m, cluster.m), builder.cast(cluster.at_m, INDEX))
        n = scalar("add", scalar("mul", n, cluster.n), builder.cast(cluster.at_n, INDEX))
    starts = [scalar("mul", i, size) for i, size in ((m, schedule.tile[0]), (n, schedule.tile[1]))]
    for axis, start in zip("mn", starts, strict=True):
        start.name = axis
        frame.unit.hopper.varies[axis].add(start)
    rows, columns = (Range(start, size) for start, size in zip(starts, schedule.tile, strict=False))
    return WorkItemObject(schedule, index, rows, columns, _along_k(frame, schedule, split), batch, split)


def _along_k(frame: Frame, schedule: ScheduleObject, split: Any) -> Ranges:
    """The tiles along k, or those of one part of it: all parts have as many, but for the last ones."""
    builder, size, end = frame.builder, schedule.tile[2], schedule.extents["k"]
    if schedule.splits is None:
        return Ranges(end, size, of_item=True)
    one, step = builder.constant(1, INDEX), builder.constant(size, INDEX)

    def divided(a: Value, b: Value) -> Value:
        return builder.scalar("floordiv", builder.scalar("add", a, builder.scalar("sub", b, one)), b)

    part = builder.scalar("mul", divided(divided(end, step), schedule.splits), step, nowrap=True)
    start = builder.scalar("mul", split, part, nowrap=True)
    return Ranges(builder.scalar("min", end, builder.scalar("add", start, part)), size, of_item=True, start=start)


@contextmanager
def along_k(frame: Frame, body: Block, of_item: bool) -> Generator[None, None, None]:
    """What is built meanwhile is the body of a loop over a work item's tiles along k, if `of_item`."""
    state = frame.unit.hopper
    outer = state.k_loop
    state.k_loop = KLoop(body) if of_item else outer
    try:
        yield
    finally:
        state.k_loop = outer


def go_past_others(frame: Frame, schedule: ScheduleObject, first: bool) -> None:
    """In a role with instances, go past the slots of rings that other instances use: before the loop over work items
    (`first`) those of instances with lower numbers, behind each item those of all others."""
    role, builder = frame.unit.hopper.role, frame.builder
    if role is None or role.instances == 1:
        return
    assert isinstance(role.index, Value)
    if schedule.splits is not None:
        message = (
            f"{role.shown} has instances, and the items of a schedule with splits need not have equally many tiles"
        )
        raise schedule.call.error(message, "leave splits= or instances= out")
    size = schedule.tile[2]
    last = builder.scalar("add", schedule.extents["k"], builder.constant(size - 1, INDEX))
    each = builder.scalar("floordiv", last, builder.constant(size, INDEX))
    items = role.index if first else builder.constant(role.instances - 1, INDEX)
    skip_slots(frame, builder.scalar("mul", each, items))

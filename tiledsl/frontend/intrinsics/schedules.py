"""`Schedule`, `tile_schedule` and `persistent`, and the loop over work items."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field, replace
from typing import Any

from tiledsl import lang
from tiledsl.errors import CompileError
from tiledsl.frontend.alike import differing
from tiledsl.frontend.analysis import loop_exits
from tiledsl.frontend.arithmetic import as_value
from tiledsl.frontend.bindings import LanguageObject, Ranges, describe, is_int
from tiledsl.frontend.call import Call, bind, intrinsic
from tiledsl.frontend.calls import inline
from tiledsl.frontend.control import build_side, merge_sides
from tiledsl.frontend.cooperation import Place
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.intrinsics.launch import host_expression
from tiledsl.frontend.steps import Bounds
from tiledsl.function import TileFunction
from tiledsl.ir.core import Block, Value
from tiledsl.ir.expr import PROCESSORS, CallExpr, Expr
from tiledsl.ir.ops import barriers, gpu, rings, roles, tile
from tiledsl.ir.types import I32, INDEX
from tiledsl.lang.schedules import tile_count, tile_item


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
    use = "go through it: for t in work:"

    def counted(self, frame: Frame, node: ast.AST) -> Value:
        """How many items there are, computed here."""
        given = inline(frame, node, self.count, [self.place, *self.args], {})
        count = as_value(given, INDEX, self.call.frame, self.call.node, f"count that {self.count.name}() gives")
        self._check_alike(self.count, "", count)
        return count

    def at(self, frame: Frame, node: ast.AST, index: Value) -> WorkItemObject:
        """Work item number `index`, computed here."""
        item = inline(frame, node, self.item, [index, self.place, *self.args], {})
        if not isinstance(item, WorkItemObject):
            fix = "return WorkItem(m=tile(i, BM), n=tile(j, BN), k=tiles(K, BK))"
            raise self.call.error(f"{self.item.name}() gives {describe(item)}, not a work item", fix, code="C606")
        for name, part in item.parts.items():
            self._check_alike(self.item, f" as .{name}", part)
        return WorkItemObject({"index": index, **item.parts})

    def _check_alike(self, function: TileFunction[..., Any], where: str, part: Any) -> None:
        """All roles go through the same items: what one is does not depend on the thread that asks."""
        op = differing(part)
        if op is not None:
            at = f" (line {op.loc.line})" if op.loc.line else ""
            message = f"what {function.name}() gives{where} differs between the threads of a block"
            fix = "compute it from the item's number, extents, consts and memory that the kernel does not write"
            raise self.call.error(f"{message}: it depends on {op.cause or op.name}{at}", fix, code="C606")


@dataclass(frozen=True, eq=False)
class WorkItemObject(LanguageObject):
    parts: dict[str, Any]

    described_by = lang.WorkItem
    shown = "a work item"

    @property
    def data(self) -> dict[str, Any]:
        return self.parts


# -- making one ------------------------------------------------------------------------------------


@intrinsic(lang.Schedule)
def _schedule(call: Call) -> ScheduleObject:
    for name, given in (("count", ["place"]), ("item", ["i", "place"])):
        function = call[name]
        if not isinstance(function, TileFunction):
            fix = f"@tile_function above def {name}({', '.join(given)}, ...)"
            raise call.error(f"Schedule(): {name} is a tile function, got {describe(function)}", fix, code="C606")
        bind(call.frame, call.node, inspect.signature(function.fn), function, [*given, *call["args"]], {})
    return _made(call, call["count"], call["item"], call["args"])


def _made(call: Call, count: Any, item: Any, args: tuple[Any, ...]) -> ScheduleObject:
    if not call.frame.at_top_level:
        what = f"{call.callee.__name__}() under a run-time condition, in a loop or in a role"
        raise call.error(what, "make it at the kernel's top level", code="C606")
    return ScheduleObject(call, count, item, args)


@intrinsic(lang.WorkItem)
def _work_item(call: Call) -> WorkItemObject:
    if "index" in call["parts"]:
        raise call.error(
            "WorkItem(index=...): .index is the number that every item has", "give the part another name", code="C606"
        )
    return WorkItemObject(call["parts"])


@intrinsic(lang.tile_schedule)
def _tile_schedule(call: Call) -> ScheduleObject:
    extents = [call.value(name, INDEX) for name in ("m", "n", "k")]
    times: list[Value | None] = []
    for name in ("batches", "splits"):
        given = call[name]
        if name == "splits" and is_int(given) and given < 1:
            raise call.error(
                f"{call.what}: splits={given}, no positive number", "splits=1 for all of k at once", code="C606"
            )
        times.append(None if is_int(given) and given == 1 else call.value(name, INDEX))
    sizes = call.extents("tile", 3, "tile=(BM, BN, BK)")
    group = call.integer("group", 1, 1 << 20, "how many tiles a band has: 8 or 16, as a rule")
    args = (*extents, sizes, (group, call.choice("along", ("m", "n")) == "m"), *times)
    return _made(call, tile_count, tile_item, args)


@intrinsic(lang.persistent)
def _persistent(call: Call) -> ScheduleObject:
    what, builder, kernel = call.what, call.builder, call.unit.kernel
    schedule, shape = call["schedule"], call["cluster"]
    if not isinstance(schedule, ScheduleObject) or schedule.items is not None:
        message = f"{what} takes what tile_schedule() gives, got {describe(schedule)}"
        raise call.error(message, "persistent(tile_schedule(...))", code="C606")
    if not isinstance(shape, lang.Cluster):
        raise call.error(f"{what}: cluster= is {describe(shape)}", "cluster=Cluster(m=2)", code="C606")
    if kernel.grid or not call.frame.at_top_level:
        wrong = "in a kernel with a grid" if kernel.grid else "under a run-time condition or loop"
        raise call.error(f"{what} {wrong}", "it declares the grid, once, at the kernel's top level", code="C606")
    if call.state.rings:
        raise call.error(
            f"{what} after Ring()", "write it first: rings are initialised for the whole cluster", code="C606"
        )
    place = Place(shape.m, shape.n)
    if place.blocks > 1:
        call.needs("cluster", "a cluster")
        rank, across = builder.value(barriers.ClusterRank()), builder.constant(shape.m, I32)
        at = [builder.cast(builder.scalar(fn, rank, across), INDEX) for fn in ("mod", "floordiv")]
        place = Place(shape.m, shape.n, at[0], at[1])
        kernel.cluster = (place.blocks, 1, 1)
    most: Expr = CallExpr("floordiv", (PROCESSORS, place.blocks)) if place.blocks > 1 else PROCESSORS
    call.state.cluster = place
    schedule = replace(schedule, place=place)
    items = schedule.counted(call.frame, call.node)
    try:
        grid = CallExpr("min", (host_expression(call, items), most))
    except CompileError:  # it depends on memory, say: blocks that have no item end at once
        grid = most
    kernel.grid = (CallExpr("mul", (grid, place.blocks)) if place.blocks > 1 else grid,)
    return replace(schedule, items=items)


# -- going through it ------------------------------------------------------------------------------


def one_item(frame: Frame, node: ast.For, schedule: ScheduleObject) -> WorkItemObject:
    """The only item of a block, where the schedule is not persistent: it declares one block an item."""
    unit, role, call = frame.unit, frame.unit.cooperation.role, schedule.call
    count = schedule.counted(frame, node)
    try:
        grid = (host_expression(call, count),)
    except CompileError:
        message = f"how many items {schedule.count.name}() counts, the host does not know before the launch"
        fix = "persistent(...) has a block for each processor; or count by extents, consts and integer scalars alone"
        raise call.error(message, fix, code="C606") from None
    if unit.kernel.grid not in ((), grid):
        if unit.cooperation.cluster is not None:
            message = "this schedule is not persistent, and the kernel has the grid of one that is"
            raise frame.error(node.iter, message, "work = persistent(...), and go through what that gives", code="C606")
        raise frame.error(
            node.iter, "a schedule in a kernel with a grid of its own", "leave grid(...) out", code="C606"
        )
    if role is not None and role.instances > 1:
        fix = "work = persistent(tile_schedule(...))"
        raise frame.error(node.iter, f"{role.shown} has instances, and a block one item", fix, code="C606")
    unit.kernel.grid = grid
    return schedule.at(frame, node, frame.builder.value(gpu.BlockId(axis=0)))


class WorkLoop(Bounds):
    """A loop over the items of this block."""

    loop = roles.Work

    def __init__(self, frame: Frame, node: ast.For, schedule: ScheduleObject) -> None:
        builder = frame.builder
        self.node, self.schedule = node, schedule
        role = frame.unit.cooperation.role
        self.instances = role.instances if role is not None else 1
        if role is not None and role.instances > 1:
            self._check_instances(frame, role)
        blocks = schedule.place.blocks
        first = builder.scalar("floordiv", builder.value(gpu.BlockId(axis=0)), blocks)
        step = builder.scalar("floordiv", builder.value(gpu.GridSize(axis=0)), blocks)
        super().__init__(frame, node.iter, first, schedule.items, step)
        self.known = self.known or 1  # upwards, in steps that are all one here
        self.item: Value | None = None
        self.skip()

    def _check_instances(self, frame: Frame, role: roles.Region) -> None:
        """Where instances skip each other's slots: all of them, once."""
        what, where, block = "loop over work items", f"{role.shown}, which has instances", frame.builder.block
        if loop_exits(self.node.body) & {ast.Break, ast.Return}:
            fix = "put the statements to skip under an `if`"
            raise frame.error(self.node.iter, f"a {what} that {where}, may leave", fix, code="C606")
        if block is not role.body:
            raise frame.error(
                self.node.iter, f"a {what} under a condition or in a loop, in {where}", "take it out", code="C606"
            )
        if any(isinstance(op, roles.Work) for op in block.ops):
            raise frame.error(
                self.node.iter, f"a second {what} in {where}", "go through all items in one loop", code="C606"
            )

    def variable(self, value: Value) -> WorkItemObject:
        self.item, item = value, self.schedule.at(self.frame, self.node, value)
        state = self.frame.unit.cooperation
        state.work, state.k = self.frame.builder.block, item.parts.get("k")
        return item

    def finish(self) -> None:
        self.frame.unit.cooperation.work = None
        self.skip()

    def skip(self) -> None:
        """In a role with instances, skip the slots of rings that other instances use: before the loop (no item) those
        of instances with lower numbers, after an item those of the next one, which is the other's, if there is one:
        schedules are asked for no item past the end."""
        frame, item, builder = self.frame, self.item, self.frame.builder
        if self.instances == 1:
            return
        theirs = self.lo if item is None else builder.scalar("add", item, self.step)

        with frame.into(Block()) as asked:
            k = self._along_k(theirs)
            depends = any(isinstance(end, Value) and end.op in asked.ops for end in (k.start, k.extent))
            if depends:
                self._skip_tiles(k)
            side = asked, frame.env
        if depends:
            there = builder.scalar("lt", theirs, self.hi)
            merge_sides(frame, there, side, build_side(frame, lambda: None), self.node)
            return
        for op in asked.ops:
            op.drop_operands()
        self._skip_tiles(k)  # every item's is the same, and after the last one nothing is used

    def _along_k(self, item: Value) -> Ranges:
        k = self.schedule.at(self.frame, self.node, item).parts.get("k")
        if not isinstance(k, Ranges):
            role: Any = self.frame.unit.cooperation.role
            message = f"{role.shown} has instances, and work items without k: how many slots each uses is not known"
            raise self.frame.error(self.node.iter, message, "WorkItem(..., k=tiles(K, BK))", code="C606")
        return k

    def _skip_tiles(self, k: Ranges) -> None:
        """Skip a slot of each ring for each of the tiles; none where they would end before they start."""
        frame, builder = self.frame, self.frame.builder
        start, extent = (as_value(x, INDEX, frame, self.node) for x in (k.start, k.extent))
        whole = not isinstance(k.start, Value) and k.start == 0
        length = extent if whole else builder.scalar("sub", extent, start)
        steps = builder.scalar("floordiv", builder.scalar("add", length, k.size - 1), k.size)
        if not (whole and isinstance(extent.op, tile.Dim)):  # an extent of a tensor is not negative
            steps = builder.scalar("max", steps, 0)
        if self.item is None:
            steps = builder.scalar("mul", steps, builder.value(roles.Instance()))
        for ring in frame.unit.cooperation.rings:
            frame.env[ring.cursor] = builder.value(rings.Skip(ring.value, frame.env[ring.cursor], steps))


def along_k(frame: Frame, ranges: Ranges) -> bool:
    """Is a loop over these, here, the one over the tiles along k of a work item, directly in the loop over items?"""
    state = frame.unit.cooperation
    return ranges is state.k and frame.builder.block is state.work

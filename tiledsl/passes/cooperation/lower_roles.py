"""Make branches of roles: on the warp's number, with `setmaxnreg` where roles say how many registers they need.

Barriers inside become named ones. Of a turn, barrier ``first + i`` is that of instance i: it waits there, and the other
one arrives behind the body if there is a next item. Before the loop over work items instance 1 arrives for instance 0
if there is a first one. (PTX ISA: barrier.cta.sync, .arrive; setmaxnreg.)
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generator

from tiledsl.arch import (
    LEAST_SETMAXNREG,
    MOST_THREADS,
    NAMED_BARRIERS,
    REGISTER_UNIT,
    WARP,
    WARPGROUP,
    WARPGROUP_WARPS,
)
from tiledsl.errors import CompileError, Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import barriers, control, gpu, roles, tma
from tiledsl.ir.types import I32
from tiledsl.passes.analysis.structure import replace_op
from tiledsl.passes.cooperation.lower_rings import leads_warp, lower_rings
from tiledsl.passes.manager import Pass


def _lower_roles(kernel: Kernel) -> None:
    regions = roles.roles_of(kernel.body)
    if regions:
        _check_threads(kernel, regions)
        _check_registers(kernel, regions)
    block = roles.Region(title="the block", first=0, warps=-(-kernel.thread_count // WARP))
    _Lowering(kernel, regions).block(kernel.body, _Role(block, barrier=0))


COOPERATION: list[Pass] = [Pass("lower-rings", lower_rings), Pass("lower-roles", _lower_roles)]
"""The passes that make barriers and branches of rings and roles. Rings first: the role around says who waits."""


# -- what roles need together ----------------------------------------------------------------------


def _check_threads(kernel: Kernel, regions: list[roles.Region]) -> None:
    threads = [region.all_threads for region in regions]
    total = sum(threads)
    have = f"the roles have {' + '.join(map(str, threads))} = {total} threads"
    if total > MOST_THREADS:
        message = f"{have}; a block has at most {MOST_THREADS}"
        raise CompileError(message, regions[-1].loc, "use fewer warpgroups", code="C704")
    if total != kernel.thread_count:
        message = f"{have}, the block has {kernel.thread_count}"
        raise CompileError(message, regions[-1].loc, f"write threads({total}), or leave threads() out", code="C602")


def _check_registers(kernel: Kernel, regions: list[roles.Region]) -> None:
    asked = [region for region in regions if region.registers]
    if not asked:
        return
    silent = next((region for region in regions if not region.registers), None)
    if silent is not None:
        message = f"{silent.shown} says no registers=, and {asked[0].shown} does"
        raise CompileError(message, silent.loc, "say it for every role, or for none", code="C705")
    # What a role gives away, others take; more than the block has got at its launch they wait for, for ever.
    threads, at_launch = kernel.thread_count, barriers.registers_at_launch(kernel)
    limit, total = threads * at_launch, sum(region.all_threads * region.registers for region in regions)
    if total <= limit:
        return
    parts = " + ".join(f"{region.all_threads} x {region.registers}" for region in regions)
    message = f"the roles' registers are {parts} = {total}; the block has {threads} x {at_launch} = {limit}"
    most = max(regions, key=lambda region: region.all_warps * region.registers)
    rest = limit - total + most.all_threads * most.registers
    fits = rest // most.all_threads // REGISTER_UNIT * REGISTER_UNIT
    fix = f"registers={fits} fits {most.shown}" if fits >= LEAST_SETMAXNREG else "use fewer warpgroups"
    raise CompileError(message, most.loc, fix, code="C705")


# -- lowering --------------------------------------------------------------------------------------


@dataclass
class _Role:
    """barrier: the named one of instance 0, 0 for the block; groups: of the first of its warpgroups, 0 where none meets
    by itself. instance: its number, where there are several. Of the loop over work items that is lowered, turns: the
    first barrier of each; item: the instance's one, how far the next one of all is, and where they end."""

    region: roles.Region
    barrier: int
    groups: int = 0
    instance: Value | None = None
    turns: dict[str, int] = field(default_factory=dict[str, int])
    item: tuple[Value, Value, Value] | None = None


class _Lowering:
    def __init__(self, kernel: Kernel, regions: list[roles.Region]) -> None:
        self.kernel, self.b = kernel, Builder(kernel.body)
        self.roles: dict[Op, _Role] = {}
        self.taken = 1
        for region in regions:
            self.roles[region] = _Role(region, self.take(region.instances, region.loc, "role()"))

    def take(self, count: int, loc: Loc, what: str) -> int:
        """The first of so many named barriers."""
        first = self.taken
        if first + count > NAMED_BARRIERS:
            message = f"{what} needs {count} more named barriers, and {first - 1} of {NAMED_BARRIERS - 1} are taken"
            raise CompileError(
                message, loc, "each role takes one for each instance, and each of its turns as many", code="C704"
            )
        self.taken += count
        return first

    def block(self, block: Block, role: _Role) -> None:
        with self.b.anew(block) as ops:
            self.ops(ops, role)

    def ops(self, ops: list[Op], role: _Role) -> None:
        for op in ops:
            self.b.loc = op.loc
            match op:
                case roles.Region():
                    self.region(op, self.roles[op])
                case roles.Enter() | roles.Leave():
                    if op.title in role.turns:
                        given = self.enter if isinstance(op, roles.Enter) else self.leave
                        given(role, role.turns[op.title])
                case roles.Work():
                    self.work(op, role)
                case roles.Leads():
                    replace_op(op, [self.leads(role)])
                case roles.Instance():
                    assert role.instance is not None
                    replace_op(op, [role.instance])
                case roles.GroupBarrier():
                    self.group_barrier(role)
                case gpu.Barrier() if role.barrier:
                    self.barrier(role)
                case _:
                    self.b.block.append(op)
                    for block in op.blocks:
                        self.block(block, role)

    def region(self, op: roles.Region, role: _Role) -> None:
        """Roles stand one after the other, so that two comparisons of the warp's number do, or one."""
        b = self.b
        warp = b.value(gpu.WarpId())
        inside = b.scalar("lt", warp, op.first + op.all_warps)
        if op.first:
            inside = b.scalar("and", b.scalar("ge", warp, op.first), inside)
        with b.when(inside, role=(op.first, op.all_warps)):
            self.begin(op, role)
            with self.one_thread(op, role) if op.one_thread else nullcontext():
                self.ops(op.body.ops[:-1], role)
        op.blocks = []

    @contextmanager
    def one_thread(self, op: roles.Region, role: _Role) -> Generator[None]:
        """TMA takes its operands from uniform registers. In a branch on an election ptxas knows that one thread has
        them; in any other it makes a loop over the threads of the warp around each TMA instruction."""
        b = self.b
        if not any(isinstance(inside, tma.Load) for inside in op.walk()):
            with b.when(self.leads(role), role=op.role):
                yield
            return
        first_warp = b.scalar("eq", b.value(gpu.WarpId()), op.first)
        with b.when(first_warp), b.when(b.value(barriers.Elect()), role=op.role):
            yield

    def begin(self, op: roles.Region, role: _Role) -> None:
        b = self.b
        at_launch = barriers.registers_at_launch(self.kernel)
        if op.registers not in (0, at_launch):
            b.add(barriers.SetMaxNReg(registers=op.registers, increase=op.registers > at_launch))
        if op.instances > 1:
            role.instance = b.scalar("floordiv", b.scalar("sub", b.value(gpu.WarpId()), op.first), op.warps)
            role.instance.name = "instance"

    def leads(self, role: _Role) -> Value:
        """Is this thread the first one of the role's instance, or of the block?"""
        b, region = self.b, role.region
        warp, first = b.value(gpu.WarpId()), region.first
        if region.instances > 1:
            warp, first = b.scalar("mod", b.scalar("sub", warp, first), region.warps), 0
        return b.scalar("and", b.scalar("eq", warp, first), leads_warp(b))

    def barrier(self, role: _Role) -> None:
        """Of the instance's threads."""
        own = [] if role.instance is None else [self.b.cast(role.instance, I32)]
        self.b.add(barriers.NamedBarrier(*own, number=role.barrier, threads=role.region.threads))

    def group_barrier(self, role: _Role) -> None:
        b, region = self.b, role.region
        groups = region.all_warps // WARPGROUP_WARPS
        if groups == 1:
            self.barrier(role)
            return
        role.groups = role.groups or self.take(groups, b.loc, "a role of several warpgroups")
        own = b.scalar("sub", b.value(gpu.WarpId()), region.first)
        group = b.cast(b.scalar("floordiv", own, WARPGROUP_WARPS), I32)
        b.add(barriers.NamedBarrier(group, number=role.groups, threads=WARPGROUP))

    # -- work and turns ------------------------------------------------------------------------

    def work(self, op: roles.Work, role: _Role) -> None:
        """The items of this block, or of the role's instance."""
        b, instance, instances, (lo, hi, step) = self.b, role.instance, role.region.instances, op.operands[:3]
        first, each, body = lo, step, op.body
        if instance is not None:
            first, each = b.scalar("add", lo, b.scalar("mul", instance, step)), b.scalar("mul", step, instances)
            entered = {inner.title: inner.loc for inner in body.ops if isinstance(inner, roles.Enter)}
            role.turns = {title: self.take(instances, loc, "a turn") for title, loc in entered.items()}
            role.item = body.args[0], step, hi
            if role.turns:
                with b.when(b.scalar("and", b.scalar("eq", instance, 1), b.scalar("lt", lo, hi))):
                    for turn in role.turns.values():
                        self.arrive(role, turn)
        op.blocks = []
        self.block(body, role)
        b.loc = op.loc
        replace_op(op, b.add(control.For(first, hi, each, *op.inits, blocks=[body])).results)

    def enter(self, role: _Role, first: int) -> None:
        """This instance waits for its turn."""
        assert role.instance is not None
        self.meet(role, first, role.instance, wait=True)

    def leave(self, role: _Role, first: int) -> None:
        """The other instance has the next item."""
        assert role.item is not None
        item, step, hi = role.item
        with self.b.when(self.b.scalar("lt", self.b.scalar("add", item, step), hi)):
            self.arrive(role, first)

    def arrive(self, role: _Role, first: int) -> None:
        """Where the other instance waits."""
        assert role.instance is not None
        self.meet(role, first, self.b.scalar("sub", 1, role.instance), wait=False)

    def meet(self, role: _Role, first: int, instance: Value, *, wait: bool) -> None:
        number, threads = self.b.cast(instance, I32), role.region.all_threads
        self.b.add(barriers.NamedBarrier(number, number=first, threads=threads, wait=wait))

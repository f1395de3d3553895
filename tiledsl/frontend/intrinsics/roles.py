"""`role`: regions of some of the block's warps; who is here, and who leads."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Callable

from tiledsl import lang
from tiledsl.arch import LEAST_SETMAXNREG, MOST_THREADS, NAMED_BARRIERS, REGISTER_UNIT, WARPGROUP, WARPGROUP_WARPS
from tiledsl.errors import CompileError, Loc
from tiledsl.frontend.analysis import assigned_names
from tiledsl.frontend.bindings import POISON, Region, Unusable, describe, is_place
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame, Unit
from tiledsl.frontend.hopper import RoleObject
from tiledsl.frontend.intrinsics.barriers import compile_time_int, needs
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import barriers, control, gpu, tma
from tiledsl.ir.types import I32, INDEX

__all__ = [
    "add_if",
    "check_roles",
    "end_stores",
    "group_barrier",
    "if_",
    "leads",
    "leads_warp",
    "leads_warpgroup",
    "refuse_in_role",
    "settle_roles",
    "take_barriers",
    "warpgroup_barrier",
]

MAX_ROLE_REGISTERS = 240
MAX_WARPGROUPS = MOST_THREADS // WARPGROUP


@dataclass(eq=False)
class _RoleRegion(Region):
    call: Call
    role: RoleObject

    shown = "a role"

    def build(self, frame: Frame, node: ast.With, body: Callable[[Any], None]) -> None:
        role, state, builder = self.role, frame.unit.hopper, frame.builder
        _check_place(self.call, role)
        state.roles.append(role)
        errors, loc = len(frame.unit.errors), builder.loc
        state.role = role
        try:
            with frame.into(Block()) as block:
                _begin(frame, role)
                if role.one_thread:
                    _of_one_thread(frame, role, body)
                else:
                    body(role)
                builder.loc = loc
                if role.stores:
                    end_stores(frame)
                builder.add(control.Yield())
        finally:
            state.role = None
        builder.loc = loc
        inside = _inside(builder, role)
        builder.add(control.If(inside, blocks=[block, _empty(frame)], role=(role.first, role.all_warps)))
        failed = len(frame.unit.errors) > errors
        fix = "what roles share is in shared memory; what all need is computed before them"
        for name in assigned_names([node]):
            if is_place(frame.env.get(name)):
                continue  # an element of it was written
            message = f"{name} is assigned in {role.shown}, and is that role's own"
            frame.env[name] = POISON if failed else Unusable(message, fix)


def _of_one_thread(frame: Frame, role: RoleObject, body: Callable[[Any], None]) -> None:
    builder, loc = frame.builder, frame.builder.loc
    with frame.into(Block()) as block:
        body(role)
        builder.loc = loc
        builder.add(control.Yield())
    builder.add(control.If(leads(frame), blocks=[block, _empty(frame)], role=(role.first, 0)))


def _empty(frame: Frame) -> Block:
    with frame.into(Block()) as block:
        frame.builder.add(control.Yield())
    return block


def _begin(frame: Frame, role: RoleObject) -> None:
    builder = frame.builder
    if role.registers:
        op = builder.add(barriers.SetMaxNReg(registers=role.registers, increase=False))
        assert isinstance(op, barriers.SetMaxNReg)
        role.setmaxnreg = op
    if role.instances > 1:
        own = builder.scalar("sub", builder.value(gpu.WarpId()), builder.constant(role.first, INDEX))
        role.index = builder.scalar("floordiv", own, builder.constant(role.warps, INDEX))
        role.index.name = "instance"


def end_stores(frame: Frame) -> None:
    """Stores that are still reading their tiles do so to the end before the threads that began them go."""
    if_(frame, leads(frame), lambda: frame.builder.add(tma.BulkWait(pending=0, read=True)))


def _check_place(call: Call, role: RoleObject) -> None:
    unit = call.frame.unit
    if unit.hopper.role is not None:
        raise call.error(f"{role.shown} inside {unit.hopper.role.shown}", "roles stand side by side")
    if not call.frame.at_top_level or call.frame.caller is not None:
        raise call.error("role() under a condition, in a loop or in a tile function", "write it in the kernel itself")
    for other in unit.hopper.roles:
        if other.name == role.name:
            raise call.error(f"a second role {role.name!r}; the first one is in line {other.loc.line}", "rename it")


@intrinsic(lang.role)
def _role(call: Call) -> Region:
    what = "role()"
    needs(call, "mbarrier", what)
    state, name = call.frame.unit.hopper, call["name"]
    if not isinstance(name, str) or not name:
        raise call.error(f"the name of a role is a string, got {describe(name)}", 'role("load", ...)')
    groups = compile_time_int(call, "warpgroups", what, 1, MAX_WARPGROUPS, f"each is {WARPGROUP} threads")
    instances = compile_time_int(call, "instances", what, 1, 2, "two of them take turns")
    threads = compile_time_int(call, "threads", what, 0, 1, "threads=1: one thread runs the body; else leave it out")
    registers = _registers(call, what)
    if threads and (groups > 1 or instances > 1):
        raise call.error(f"{what} of one thread with several warpgroups", "leave warpgroups and instances out")
    first = sum(r.all_warps for r in state.roles)
    barrier = take_barriers(call.frame.unit, call.frame.loc(call.node), instances, what)
    role = RoleObject(
        name, call.frame.loc(call.node), first, WARPGROUP_WARPS * groups, instances, registers, bool(threads), barrier
    )
    return _RoleRegion(call, role)


def _registers(call: Call, what: str) -> int:
    registers = call["registers"]
    if registers == 0:
        return 0
    fix = "a multiple of 8; 24 to 40 for a role that only loads, up to 240 for one that multiplies"
    value = compile_time_int(call, "registers", what, LEAST_SETMAXNREG, MAX_ROLE_REGISTERS, fix)
    needs(call, "setmaxnreg", f"{what} with registers=")
    below = value // REGISTER_UNIT * REGISTER_UNIT
    if value != below:
        message = f"{what}: {value} registers, no multiple of {REGISTER_UNIT}"
        raise call.error(message, f"pass {below} or {below + REGISTER_UNIT}")
    return value


def take_barriers(unit: Unit, loc: Loc, count: int, what: str) -> int:
    """Numbers of so many named barriers; gives the first one."""
    state = unit.hopper
    first = state.barriers
    if first + count > NAMED_BARRIERS:
        message = f"{what} needs {count} more named barriers, and {first - 1} of {NAMED_BARRIERS - 1} are taken"
        raise CompileError(message, loc, "each role takes one for each instance, and each of its turns as many")
    state.barriers += count
    return first


# -- who is here -----------------------------------------------------------------------------------


def _inside(builder: Builder, role: RoleObject) -> Value:
    """Is this one of the role's warps? Roles stand one after the other, so that two comparisons do, or one."""
    warp, last = builder.value(gpu.WarpId()), role.first + role.all_warps
    below = builder.scalar("lt", warp, builder.constant(last, INDEX))
    if role.first == 0:
        return below
    return builder.scalar("and", builder.scalar("ge", warp, builder.constant(role.first, INDEX)), below)


def leads_warp(builder: Builder) -> Value:
    """Is this thread the first one of its warp?"""
    return builder.scalar("eq", builder.value(gpu.LaneId()), builder.constant(0, INDEX))


def leads(frame: Frame) -> Value:
    """Is this thread the first one of the role's instance, or of the block?"""
    builder, role = frame.builder, frame.unit.hopper.role
    warp, first = builder.value(gpu.WarpId()), 0 if role is None else role.first
    if role is not None and role.instances > 1:
        own = builder.scalar("sub", warp, builder.constant(role.first, INDEX))
        warp, first = builder.scalar("mod", own, builder.constant(role.warps, INDEX)), 0
    is_first = builder.scalar("eq", warp, builder.constant(first, INDEX))
    return builder.scalar("and", is_first, leads_warp(builder))


def leads_warpgroup(builder: Builder) -> Value:
    """Is this thread the first one of its warpgroup?"""
    own = builder.scalar("mod", builder.value(gpu.WarpId()), builder.constant(WARPGROUP_WARPS, INDEX))
    return builder.scalar("and", builder.scalar("eq", own, builder.constant(0, INDEX)), leads_warp(builder))


def if_(frame: Frame, condition: Value, then: Callable[[], Any]) -> None:
    """Ops under a condition that bind nothing."""
    with frame.into(Block()) as block:
        then()
    add_if(frame.builder, condition, block)


def add_if(builder: Builder, condition: Value, then: Block) -> None:
    """The ops of a block, which has no end yet, under a condition."""
    blocks = [then, Block()]
    for block in blocks:
        Builder(block, builder.loc).add(control.Yield())
    builder.add(control.If(condition, blocks=blocks))


def group_barrier(call: Call, what: str = "barrier()") -> None:
    """The barrier of those that are here: of the role's instance, or of the block."""
    builder, role = call.builder, call.frame.unit.hopper.role
    if role is None:
        builder.add(gpu.Barrier())
        return
    if role.one_thread:
        raise call.error(f"{what} in {role.shown}, whose body one thread runs", "mbarriers are what it waits for")
    _role_barrier(builder, role)


def _role_barrier(builder: Builder, role: RoleObject) -> None:
    instance = [builder.cast(role.index, I32)] if isinstance(role.index, Value) else []
    builder.add(barriers.NamedBarrier(*instance, number=role.barrier, threads=role.threads))


def warpgroup_barrier(unit: Unit, builder: Builder, role: RoleObject) -> None:
    """The barrier of one warpgroup of the role."""
    groups = role.all_warps // WARPGROUP_WARPS
    if groups == 1:
        _role_barrier(builder, role)
        return
    if not role.group_barriers:
        role.group_barriers = take_barriers(unit, builder.loc, groups, "a role of several warpgroups")
    own = builder.scalar("sub", builder.value(gpu.WarpId()), builder.constant(role.first, INDEX))
    group = builder.scalar("floordiv", own, builder.constant(WARPGROUP_WARPS, INDEX))
    builder.add(barriers.NamedBarrier(builder.cast(group, I32), number=role.group_barriers, threads=WARPGROUP))


def refuse_in_role(call: Call, what: str, fix: str) -> None:
    """An error for what all threads of the block do together."""
    role = call.frame.unit.hopper.role
    if role is not None:
        raise call.error(f"{what} is done by all threads of the block, and {role.shown} has some of them", fix)


# -- the end ---------------------------------------------------------------------------------------


def settle_roles(unit: Unit) -> None:
    """The block's threads are those of its roles, where threads() was not called."""
    if unit.hopper.roles and unit.threads is None:
        unit.threads = (sum(r.all_threads for r in unit.hopper.roles),)


def check_roles(unit: Unit) -> None:
    """Report sums of threads and registers that do not fit; says whether a role takes registers or gives them."""
    roles = unit.hopper.roles
    if not roles or unit.threads is None:
        return
    threads = 1
    for extent in unit.threads:
        threads *= extent
    sums = " + ".join(str(r.all_threads) for r in roles)
    total = sum(r.all_threads for r in roles)
    if total != threads:
        message = f"the roles have {sums} = {total} threads, the block has {threads}"
        unit.report(CompileError(message, roles[-1].loc, f"write threads({total}), or leave threads() out"))
    elif total > MOST_THREADS:
        message = f"the roles have {sums} = {total} threads; a block has at most {MOST_THREADS}"
        unit.report(CompileError(message, roles[-1].loc, "use fewer warpgroups"))
    else:
        _check_registers(unit, threads)


def _check_registers(unit: Unit, threads: int) -> None:
    roles = unit.hopper.roles
    asked = [r for r in roles if r.registers]
    if not asked:
        return
    silent = next((r for r in roles if not r.registers), None)
    if silent is not None:
        message = f"{silent.shown} says no registers=, and {asked[0].shown} does"
        unit.report(CompileError(message, silent.loc, "say it for every role, or for none"))
        return
    # What a role gives away, others take; more than the block has got at its launch they wait for, for ever.
    at_launch = barriers.registers_at_launch(threads, unit.blocks_per_sm)
    limit = threads * at_launch
    total = sum(r.all_threads * r.registers for r in roles)
    if total > limit:
        parts = " + ".join(f"{r.all_threads} x {r.registers}" for r in roles)
        message = f"the roles' registers are {parts} = {total}; the block has {threads} x {at_launch} = {limit}"
        most = max(roles, key=lambda r: r.all_warps * r.registers)
        rest = (limit - (total - most.all_threads * most.registers)) // most.all_threads
        rest = rest // REGISTER_UNIT * REGISTER_UNIT
        fix = f"registers={rest} fits {most.shown}" if rest >= LEAST_SETMAXNREG else "use fewer warpgroups"
        unit.report(CompileError(message, most.loc, fix))
        return
    for role in roles:
        assert role.setmaxnreg is not None
        role.setmaxnreg.attrs["increase"] = role.registers > at_launch
        if role.registers == at_launch:
            role.setmaxnreg.erase()

"""`role`: regions of some of the block's warps; their barrier, and the turns of instances."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Generator

from tiledsl import lang
from tiledsl.arch import LEAST_SETMAXNREG, MOST_THREADS, REGISTER_UNIT, WARPGROUP, WARPGROUP_WARPS
from tiledsl.frontend.analysis import assigned_names
from tiledsl.frontend.bindings import POISON, Region, Unusable, describe, is_place
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.control import runtime_if
from tiledsl.frontend.cooperation import RoleObject
from tiledsl.frontend.frame import Frame, during
from tiledsl.ir.core import Block, Value
from tiledsl.ir.ops import control, gpu, rings, roles, tma

MAX_ROLE_REGISTERS = 240
MAX_WARPGROUPS = MOST_THREADS // WARPGROUP


@intrinsic(lang.role)
def _role(call: Call) -> Region:
    call.needs("mbarrier")
    name = _name(call, "a role", 'role("load", ...)')
    groups = call.integer("warpgroups", 1, MAX_WARPGROUPS, f"each is {WARPGROUP} threads")
    instances = call.integer("instances", 1, 2, "two of them take turns")
    threads = call.integer("threads", 0, 1, "threads=1: one thread runs the body; else leave it out")
    registers = _registers(call)
    if threads and (groups > 1 or instances > 1):
        message = f"{call.what} of one thread with several warpgroups"
        raise call.error(message, "leave warpgroups and instances out")
    first = sum(r.all_warps for r in call.state.roles)
    loc, warps = call.frame.loc(call.node), WARPGROUP_WARPS * groups
    role = RoleObject(name, loc, first, warps, instances, registers, bool(threads))
    return Region("a role", partial(_around_role, call, role))


def _name(call: Call, what: str, example: str) -> str:
    name = call["name"]
    if not isinstance(name, str) or not name:
        raise call.error(f"the name of {what} is a string, got {describe(name)}", example)
    return name


def _registers(call: Call) -> int:
    if call["registers"] == 0:
        return 0
    fix = "a multiple of 8; 24 to 40 for a role that only loads, up to 240 for one that multiplies"
    value = call.integer("registers", LEAST_SETMAXNREG, MAX_ROLE_REGISTERS, fix)
    call.needs("setmaxnreg", f"{call.what} with registers=")
    below = value // REGISTER_UNIT * REGISTER_UNIT
    if value != below:
        message = f"{call.what}: {value} registers, no multiple of {REGISTER_UNIT}"
        raise call.error(message, f"pass {below} or {below + REGISTER_UNIT}")
    return value


@contextmanager
def _around_role(call: Call, role: RoleObject, frame: Frame, node: ast.With) -> Generator[RoleObject]:
    state, builder = call.state, call.builder
    _check_place(call, role)
    errors, loc = len(call.unit.errors), builder.loc
    with frame.into(Block()) as block:
        if role.instances > 1:
            role = replace(role, index=builder.value(roles.Instance()))
        frame.env |= {ring.cursor: builder.value(rings.Cursor(ring.value)) for ring in state.rings}
        state.roles.append(role)
        with during(state, role=role, role_body=block):
            yield role
            builder.loc = loc
            if role in state.stores:
                end_stores(frame, node)
                builder.loc = loc
            builder.add(control.Yield())
    builder.loc = loc
    how: dict[str, Any] = {"title": role.name, "first": role.first, "warps": role.warps}
    how |= {"instances": role.instances, "one_thread": role.one_thread, "registers": role.registers}
    builder.add(roles.Region(blocks=[block], **how))
    failed = len(call.unit.errors) > errors
    fix = "what roles share is in shared memory; what all need is computed before them"
    for name in assigned_names([node]):
        if not is_place(frame.env.get(name)):  # else an element of it was written
            message = f"{name} is assigned in {role.shown}, and is that role's own"
            frame.env[name] = POISON if failed else Unusable(message, fix)


def _check_place(call: Call, role: RoleObject) -> None:
    around = call.state.role
    if around is not None:
        raise call.error(f"{role.shown} inside {around.shown}", "roles stand side by side")
    if not call.frame.at_top_level or call.frame.caller is not None:
        raise call.error("role() under a condition, in a loop or in a tile function", "write it in the kernel itself")
    for other in call.state.roles:
        if other.name == role.name:
            raise call.error(f"a second role {role.name!r}; the first one is in line {other.loc.line}", "rename it")


# -- turns -----------------------------------------------------------------------------------------


@intrinsic(lang.Role.turn)
def _turn(call: Call) -> Region:
    name = _name(call, "a turn", 'r.turn("mma")')
    return Region("a turn", lambda frame, node: _around_turn(call, call["self"], name))


@contextmanager
def _around_turn(call: Call, role: RoleObject, name: str) -> Generator[None]:
    builder, state = call.builder, call.state
    if state.role is None or state.role.name != role.name:
        raise call.error(f"a turn of {role.shown} outside of it", "it orders the instances of a role")
    if state.work is None or state.work.block is not builder.block:
        fix = "write it directly in `for t in work:`, so that each instance takes it once for an item"
        raise call.error(f"the turn {name!r} under a condition, or outside of the loop over work items", fix)
    if any(isinstance(op, roles.Enter) and op.title == name for op in builder.block.ops):
        raise call.error(f"a second turn {name!r}", "each turn has a name of its own")
    loc = builder.loc
    builder.add(roles.Enter(title=name))
    with during(state, turn=True):
        yield
    builder.loc = loc
    builder.add(roles.Leave(title=name))


# -- who is here -----------------------------------------------------------------------------------


def leads(frame: Frame) -> Value:
    """Is this thread the first one of the role's instance, or of the block?"""
    return frame.builder.value(roles.Leads())


def if_(frame: Frame, condition: Value, add: Callable[[], Any], node: ast.AST) -> None:
    """The ops that `add` adds, under a condition; they bind nothing."""

    def then() -> None:
        add()

    runtime_if(frame, condition, then, lambda: None, node)


def end_stores(frame: Frame, node: ast.AST) -> None:
    """Stores that are still reading their tiles do so to the end before the threads that began them go."""
    if_(frame, leads(frame), lambda: frame.builder.add(tma.BulkWait(pending=0, read=True)), node)


def group_barrier(call: Call) -> None:
    """The barrier of those that are here: of the role's instance, or of the block."""
    role = call.state.role
    if role is not None and role.one_thread:
        raise call.error(f"{call.what} in {role.shown}, whose body one thread runs", "mbarriers are what it waits for")
    call.builder.add(gpu.Barrier())


def refuse_in_role(call: Call, fix: str, what: str = "") -> None:
    """An error for what all threads of the block do together."""
    role = call.state.role
    if role is not None:
        message = f"{what or call.what} is done by all threads of the block, and {role.shown} has some of them"
        raise call.error(message, fix)

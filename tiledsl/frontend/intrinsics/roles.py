"""`role`: regions of some of the block's warps; their barrier, and the turns of instances."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from functools import partial
from typing import Any, Generator

from tiledsl import lang
from tiledsl.arch import LEAST_SETMAXNREG, MOST_THREADS, REGISTER_UNIT, WARPGROUP, WARPGROUP_WARPS
from tiledsl.frontend.analysis import assigned_names
from tiledsl.frontend.bindings import POISON, Region, Unusable, is_place
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.cooperation import RoleObject
from tiledsl.frontend.frame import Frame, during
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block
from tiledsl.ir.ops import control, gpu, rings, roles, tma

MAX_ROLE_REGISTERS = 240
MAX_WARPGROUPS = MOST_THREADS // WARPGROUP


@intrinsic(lang.role)
def _role(call: Call) -> Region:
    call.needs("mbarrier")
    groups = call.integer("warpgroups", 1, MAX_WARPGROUPS, f"each is {WARPGROUP} threads")
    instances = call.integer("instances", 1, 2, "two of them take turns")
    threads = call.integer("threads", 0, 1, "threads=1: one thread runs the body; else leave it out")
    registers = 0
    if call["registers"] != 0:
        fix = "24 to 40 for a role that only loads, up to 240 for one that multiplies"
        registers = call.integer("registers", LEAST_SETMAXNREG, MAX_ROLE_REGISTERS, fix, multiple=REGISTER_UNIT)
        call.needs("setmaxnreg", f"{call.what} with registers=")
    if threads and (groups > 1 or instances > 1):
        message = f"{call.what} of one thread with several warpgroups"
        raise call.error(message, "leave warpgroups and instances out", code="C602")
    how = {"title": call["name"], "warps": WARPGROUP_WARPS * groups, "instances": instances, "registers": registers}
    return Region("a role", partial(_around_role, call, {**how, "one_thread": bool(threads)}))


@contextmanager
def _around_role(call: Call, how: dict[str, Any], frame: Frame, node: ast.With) -> Generator[RoleObject]:
    state, builder, title = call.state, call.builder, how["title"]
    if not frame.at_top_level or frame.caller is not None:
        message = "role() under a condition, in a loop, in another role or in a tile function"
        raise call.error(message, "write it in the kernel itself: roles stand side by side", code="C602")
    others = roles.roles_of(builder.block)
    for other in others:
        if other.title == title:
            raise call.error(
                f"a second role {title!r}; the first one is in line {other.loc.line}", "rename it", code="C602"
            )
    errors, loc = len(call.unit.errors), builder.loc
    role = roles.Region(blocks=[Block()], first=sum(other.all_warps for other in others), **how)
    builder.add(role)
    with frame.into(role.body), during(state, role=role):
        index = builder.value(roles.Instance()) if role.instances > 1 else 0
        frame.env |= {ring.cursor: builder.value(rings.Cursor(ring.value)) for ring in state.rings}
        yield RoleObject(role, index)
        builder.loc = loc
        if role in state.stores:
            end_stores(builder)
        builder.add(control.Yield())
    builder.loc = loc
    failed = len(call.unit.errors) > errors
    fix = "what roles share is in shared memory; what all need is computed before them"
    for name in assigned_names([node]):
        if not is_place(frame.env.get(name)):  # else an element of it was written
            message = f"{name} is assigned in {role.shown}, and is that role's own"
            frame.env[name] = POISON if failed else Unusable(message, fix, code="C103")


# -- turns -----------------------------------------------------------------------------------------


@intrinsic(lang.Role.turn)
def _turn(call: Call) -> Region:
    return Region("a turn", lambda frame, node: _around_turn(call, call["name"]))


@contextmanager
def _around_turn(call: Call, name: str) -> Generator[None]:
    builder, loc = call.builder, call.builder.loc
    if call.state.work is not builder.block:
        fix = "write it directly in `for t in work:`, so that each instance takes it once for an item"
        raise call.error(
            f"the turn {name!r} under a condition, or outside of the loop over work items", fix, code="C605"
        )
    if any(isinstance(op, roles.Enter) and op.title == name for op in builder.block.ops):
        raise call.error(f"a second turn {name!r}", "each turn has a name of its own", code="C605")
    builder.add(roles.Enter(title=name))
    yield
    builder.loc = loc
    builder.add(roles.Leave(title=name))


# -- who is here -----------------------------------------------------------------------------------


def end_stores(builder: Builder) -> None:
    """Stores that are still reading their tiles do so to the end before the threads that began them go."""
    with builder.when(builder.value(roles.Leads())):
        builder.add(tma.BulkWait(pending=0, read=True))


def group_barrier(call: Call) -> None:
    """The barrier of those that are here: of the role's instance, or of the block."""
    role = call.state.role
    if role is not None and role.one_thread:
        raise call.error(
            f"{call.what} in {role.shown}, whose body one thread runs", "mbarriers are what it waits for", code="C609"
        )
    call.builder.add(gpu.Barrier())


def refuse_in_role(call: Call, fix: str, what: str = "") -> None:
    """An error for what all threads of the block do together."""
    role = call.state.role
    if role is not None:
        message = f"{what or call.what} is done by all threads of the block, and {role.shown} has some of them"
        raise call.error(message, fix, code="C609")

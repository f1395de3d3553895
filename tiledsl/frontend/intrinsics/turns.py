"""Turns of a role's instances: named barriers by which one gives the other its word.

Of each turn, barrier ``first + i`` is that of instance i: it waits there, and the other one arrives. Before the loop
instance 1 lets instance 0 begin. Behind the loop the instance whose turn would be next takes the last word, so that
every arrival is met.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Callable

from tiledsl import lang
from tiledsl.frontend.bindings import Region, describe
from tiledsl.frontend.calls import Call, intrinsic
from tiledsl.frontend.frame import Frame
from tiledsl.frontend.hopper import RoleObject, WorkLoop
from tiledsl.frontend.intrinsics.roles import if_, take_barriers
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Op, Value
from tiledsl.ir.ops import barriers
from tiledsl.ir.types import I32, INDEX

__all__ = ["begin_turns", "end_turns"]


@dataclass(eq=False)
class _Turn(Region):
    call: Call
    role: RoleObject
    name: str

    shown = "a turn"

    def build(self, frame: Frame, node: ast.With, body: Callable[[Any], None]) -> None:
        role, builder, work = self.role, frame.builder, frame.unit.hopper.work
        if role is not frame.unit.hopper.role:
            raise self.call.error(f"a turn of {role.shown} outside of it", "it orders the instances of a role")
        if work is None or work.body is not builder.block:
            fix = "write it directly in `for t in work:`, so that each instance takes it once for an item"
            raise self.call.error(
                f"the turn {self.name!r} under a condition, or outside of the loop over work items", fix
            )
        if self.name in role.turns:
            raise self.call.error(f"a second turn {self.name!r}", "each turn has a name of its own")
        first, loc = 0, builder.loc
        if role.instances > 1:
            first = take_barriers(frame.unit, frame.loc(self.call.node), role.instances, "a turn")
        role.turns[self.name] = first
        if first:
            work.turns.append(first)
            _wait(builder, role, first)
        body(None)
        builder.loc = loc
        if first:
            _give(builder, role, first)


@intrinsic(lang.Role.turn)
def _turn(call: Call) -> Region:
    name = call["name"]
    if not isinstance(name, str) or not name:
        raise call.error(f"the name of a turn is a string, got {describe(name)}", 'r.turn("mma")')
    return _Turn(call, call["self"], name)


def _wait(builder: Builder, role: RoleObject, first: int) -> None:
    assert isinstance(role.index, Value)
    own = builder.cast(role.index, I32)
    builder.add(barriers.NamedBarrier(own, number=first, threads=role.threads * role.instances))


def _give(builder: Builder, role: RoleObject, first: int) -> None:
    assert isinstance(role.index, Value)
    other = builder.scalar("sub", builder.constant(1, I32), builder.cast(role.index, I32))
    builder.add(barriers.NamedBarrier(other, number=first, threads=role.threads * role.instances, wait=False))


def begin_turns(frame: Frame, work: WorkLoop, loop: Op) -> None:
    """Before the loop over work items, instance 1 gives instance 0 its word."""
    role = frame.unit.hopper.role
    if role is None or not work.turns:
        return
    outer, frame.builder.before = frame.builder.before, loop
    assert isinstance(role.index, Value)
    last = frame.builder.scalar("eq", role.index, frame.builder.constant(1, INDEX))
    if_(frame, last, lambda: [_give(frame.builder, role, first) for first in work.turns])
    frame.builder.before = outer


def end_turns(frame: Frame, work: WorkLoop, first: Value, end: Value, step: Value) -> None:
    """Behind it, the instance of the first item that is none any more takes the word that is left. first, end, step: of
    all the block's items."""
    role, builder = frame.unit.hopper.role, frame.builder
    if role is None or not work.turns:
        return
    assert isinstance(role.index, Value)
    one, zero = builder.constant(1, INDEX), builder.constant(0, INDEX)
    left = builder.scalar("max", builder.scalar("sub", end, first), zero)
    up = builder.scalar("sub", builder.scalar("add", left, step), one)
    items = builder.scalar("floordiv", up, step)
    following = builder.scalar("mod", items, builder.constant(role.instances, INDEX))
    mine = builder.scalar("eq", following, role.index)
    if_(frame, mine, lambda: [_wait(builder, role, number) for number in work.turns])

"""Checks that roles and rings are used as passes rely on, in a kernel that is well formed otherwise. The invariants:

1. Roles and `ring.make` stand directly in the kernel's body; roles have different warps.
2. What asks for the role around it stands in one: `role.instance` in a role with instances, `role.group_barrier` in one
   of whole warpgroups.
3. `role.enter` and `role.leave` stand directly in a work loop of a role, as one pair for each title.
4. A cursor is that of one ring. On every path it is advanced, or carried, once at most, and not used after that; what a
   loop advances is the loop's own.
5. Each `ring.wait` has a `ring.release`, each `ring.acquire` a `ring.publish` of the same ring after it in the same
   block. Uses are nested, or follow each other.
"""

from __future__ import annotations

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, rings, roles
from tiledsl.ir.single_use import Use, uses_of
from tiledsl.ir.types import CURSOR

_ADVANCE = (rings.Publish, rings.Release, rings.Drain, rings.Skip, rings.Take)
_BEGIN: dict[type[Op], type[rings.RingOp]] = {rings.Publish: rings.Acquire, rings.Release: rings.Wait}
"""What begins the use or fill that an op ends."""


def verify_roles(kernel: Kernel) -> None:
    """Raise VerifyError at the first of these invariants that does not hold."""
    _check_warps(kernel)
    order = {op: number for number, op in enumerate(kernel.walk())}
    _check_uses(kernel.body)
    for top in kernel.body.ops:
        for op in top.walk():
            _check_place(kernel, op, top if isinstance(top, roles.Region) else None)
            if isinstance(op, rings.RingOp) and op.at.type == CURSOR:
                op.require(_rings_of(op.at) == {op.ring}, "the cursor is another ring's")
            for block in op.blocks:
                _check_uses(block)
            for value in (*op.results, *(arg for block in op.blocks for arg in block.args)):
                if value.type == CURSOR:
                    _check_advanced_once(value, order)


def _check_warps(kernel: Kernel) -> None:
    taken: dict[int, roles.Region] = {}
    for region in roles.roles_of(kernel.body):
        for warp in range(region.first, region.first + region.all_warps):
            other = taken.setdefault(warp, region)
            region.require(other is region, f"warp {warp} is one of {other.shown}, too")


def _check_place(kernel: Kernel, op: Op, role: roles.Region | None) -> None:
    match op:
        case roles.Region() | rings.Make() if op.parent is not kernel.body:
            op.refuse("not at the top level of the kernel")
        case roles.Instance() if role is None or role.instances == 1:
            op.refuse("not in a role with instances")
        case roles.GroupBarrier() if role is None or role.one_thread or role.warps % WARPGROUP_WARPS:
            op.refuse("not in a role of whole warpgroups")
        case roles.Enter() | roles.Leave() if role is None or not _in_work(op):
            op.refuse("not directly in a work loop of a role")
        case roles.Work():
            _check_turns(op)
        case _:
            pass


def _in_work(op: Op) -> bool:
    return op.parent is not None and isinstance(op.parent.parent, roles.Work)


def _check_turns(loop: roles.Work) -> None:
    found: dict[str, list[Op]] = {}
    for op in loop.body.ops:
        if isinstance(op, (roles.Enter, roles.Leave)):
            found.setdefault(op.title, []).append(op)
    for title, turn in found.items():
        if [type(op) for op in turn] != [roles.Enter, roles.Leave]:
            turn[-1].refuse(f"the turn {title} is not entered once and then left once")


# -- rings -----------------------------------------------------------------------------------------


def _check_advanced_once(cursor: Value, order: dict[Op, int]) -> None:
    advanced: list[Use] = []
    for use in sorted(uses_of(cursor), key=lambda use: order[use.op]):
        op, name = use.op, cursor.name or "?"
        op.require(all(map(use.excludes, advanced)), f"uses the cursor {name} after what advances it")
        if isinstance(op, (*_ADVANCE, control.Yield, control.Condition)) or op.blocks:
            op.require(not use.in_loop, "advances a cursor in a loop that does not carry it")
            advanced.append(use)


def _rings_of(cursor: Value) -> set[Value]:
    """The rings whose cursor this may be."""
    found: set[Value] = set()
    pending, seen = [cursor], {cursor}
    while pending:
        value = pending.pop()
        op = value.owner if isinstance(value.owner, Op) else value.owner.parent
        assert isinstance(op, Op)
        if isinstance(op, (rings.Cursor, rings.RingOp)):
            found.add(op.ring)
            continue
        ends = [block.terminator.operands for block in op.blocks]
        moved = [op.operands, *(block.args for block in op.blocks), *ends, op.results]
        cursors = [[v for v in values if v.type == CURSOR] for values in moved]
        position = next(values.index(value) for values in cursors if value in values)
        same = {values[position] for values in cursors if values}
        pending += same - seen
        seen |= same
    return found


def _check_uses(block: Block) -> None:
    """What the ops of a block begin, they end."""
    begun: list[Op] = []
    for op in block.ops:
        if isinstance(op, (rings.Acquire, rings.Wait)):
            begun.append(op)
        elif isinstance(op, (rings.Publish, rings.Release)):
            begin = _BEGIN[type(op)]
            last = begun.pop() if begun else None
            same = isinstance(last, begin) and last.ring is op.ring
            op.require(same, f"ends no use of this ring that {begin.name} has begun here")
    for op in begun:
        op.refuse("the use that begins here does not end in this block")

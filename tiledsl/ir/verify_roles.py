"""Checks that roles and rings are used as passes rely on, in a kernel that is well formed otherwise. The invariants:

1. Roles and `ring.make` stand directly in the kernel's body; roles have different warps.
2. What asks for the role around it stands in one: `role.instance` in a role with instances, `role.group_barrier` in one
   of whole warpgroups.
3. `role.enter` and `role.leave` stand directly in a work loop of a role, as one pair for each title.
4. A cursor is that of one ring. On every way through the kernel it is moved on, or carried on, once at most, and not
   used behind that; what a loop moves on is the loop's own.
5. `ring.release` and `ring.publish` are behind a `ring.wait` and a `ring.acquire` of the same ring in the same block.
   Uses are nested, or follow each other. What was waited for is released, or skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tiledsl.arch import WARPGROUP_WARPS
from tiledsl.errors import VerifyError
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import control, rings, roles
from tiledsl.ir.types import CURSOR

_MOVES = (rings.Publish, rings.Release, rings.Drain, rings.Skip)
_ENDS: dict[type[Op], tuple[type[rings.RingOp], ...]] = {
    rings.Acquire: (rings.Publish,),
    rings.Wait: (rings.Release, rings.Skip),
}
"""What ends that which an op begins."""


def verify_roles(kernel: Kernel) -> None:
    """Raise VerifyError at the first of these invariants that does not hold."""
    _check_warps([op for op in kernel.body.ops if isinstance(op, roles.Region)])
    _Walker(kernel).block(kernel.body, None)


def _fail(op: Op, message: str) -> NoReturn:
    raise VerifyError(f"{op.name}: {message}", op.loc)


def _check_warps(regions: Sequence[roles.Region]) -> None:
    taken: dict[int, roles.Region] = {}
    for region in regions:
        for warp in range(region.first, region.first + region.all_warps):
            other = taken.setdefault(warp, region)
            region.require(other is region, f"warp {warp} is one of {other.shown}, too")


class _Walker:
    """One walk in program order. ring: of each cursor. moved: the cursors that are not to be used any more.
    outside: those that were there when the innermost loop began."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ring: dict[Value, Value] = {}
        self.moved: set[Value] = set()
        self.outside: set[Value] = set()

    def block(self, block: Block, role: roles.Region | None) -> None:
        self.uses(block)
        for op in block.ops:
            self.place(op, role)
            self.cursors(op)
            self.inside(op, op if isinstance(op, roles.Region) else role)
            self.results(op)

    def place(self, op: Op, role: roles.Region | None) -> None:
        match op:
            case roles.Region() | rings.Make() if op.parent is not self.kernel.body:
                _fail(op, "not at the top level of the kernel")
            case roles.Instance() if role is None or role.instances == 1:
                _fail(op, "not in a role with instances")
            case roles.GroupBarrier() if role is None or role.one_thread or role.warps % WARPGROUP_WARPS:
                _fail(op, "not in a role of whole warpgroups")
            case roles.Enter() | roles.Leave() if role is None or not _in_work(op):
                _fail(op, "not directly in a work loop of a role")
            case roles.Work():
                _check_turns(op)
            case _:
                pass

    # -- cursors -------------------------------------------------------------------------------

    def cursors(self, op: Op) -> None:
        """Those that the op uses."""
        for value in op.operands:
            if value.type != CURSOR:
                continue
            op.require(value not in self.moved, f"uses the cursor {value.name or '?'} behind what moved it on")
            if isinstance(op, (rings.RingOp, rings.Slot)):
                op.require(self.ring[value] is op.ring, "the cursor is another ring's")
            if isinstance(op, (*_MOVES, control.Yield, control.Condition)) or op.blocks:
                op.require(value not in self.outside, "moves a cursor on in a loop that does not carry it")
                self.moved.add(value)

    def inside(self, op: Op, role: roles.Region | None) -> None:
        """Its blocks: branches begin with the same cursors, and loops have their own ones."""
        loop = isinstance(op, (control.For, control.While))
        outer, before, after = self.outside, set(self.moved), set(self.moved)
        self.outside = set(self.ring) if loop else outer
        given: Sequence[Value] = op.operands[3:] if isinstance(op, control.For) else op.operands
        for block in op.blocks:
            if loop:
                own = block.args[1:] if isinstance(op, control.For) else block.args
                self.carry(op, given, own)
                given = block.terminator.operands[isinstance(block.terminator, control.Condition) :]
            self.moved = after if loop else set(before)
            self.block(block, role)
            after |= self.moved
        self.moved, self.outside = after, outer

    def carry(self, op: Op, given: Sequence[Value], own: Sequence[Value]) -> None:
        for value, argument in zip(given, own, strict=True):
            if value.type == CURSOR:
                ring = self.ring.setdefault(argument, self.ring[value])
                op.require(ring is self.ring[value], "a cursor is another ring's in the next iteration")

    def results(self, op: Op) -> None:
        if isinstance(op, (rings.Cursor, *_MOVES)):
            self.ring[op.results[0]] = op.ring
        for block in op.blocks:
            end = block.terminator
            given = end.operands[isinstance(end, control.Condition) :]
            if isinstance(op, control.While) and block is op.after:
                self.carry(op, given, op.before.args)
                continue
            if isinstance(op, control.For):
                self.carry(op, given, block.args[1:])
            self.carry(op, given, op.results)

    # -- uses ----------------------------------------------------------------------------------

    def uses(self, block: Block) -> None:
        """What the ops of a block begin, they end."""
        begun: list[rings.RingOp] = []
        for op in block.ops:
            if isinstance(op, (rings.Acquire, rings.Wait)):
                begun.append(op)
                continue
            if begun and isinstance(op, _ENDS[type(begun[-1])]) and op.ring is begun[-1].ring:
                begun.pop()
            elif isinstance(op, (rings.Publish, rings.Release)):
                other = "ring.acquire" if isinstance(op, rings.Publish) else "ring.wait"
                _fail(op, f"ends no use of this ring that {other} has begun here")
        for op in begun:
            _fail(op, "the use that begins here does not end in this block")


def _in_work(op: Op) -> bool:
    return op.parent is not None and isinstance(op.parent.parent, roles.Work)


def _check_turns(loop: roles.Work) -> None:
    """Each title once, and what is entered is left."""
    entered: dict[str, roles.Enter] = {}
    left: set[str] = set()
    for op in loop.body.ops:
        if isinstance(op, roles.Enter):
            op.require(op.title not in entered, f"a second turn {op.title}")
            entered[op.title] = op
        elif isinstance(op, roles.Leave):
            op.require(op.title in entered and op.title not in left, f"the turn {op.title} has not begun")
            left.add(op.title)
    for title, op in entered.items():
        op.require(title in left, f"the turn {title} does not end")

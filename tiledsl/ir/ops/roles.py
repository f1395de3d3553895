"""Roles: what some warps of a block do while others do something else; who is meant; turns; work items.

The pass `lower-roles` makes branches, named barriers and `setmaxnreg` of them.
"""

from __future__ import annotations

from tiledsl.arch import WARP
from tiledsl.ir.core import Block, Op, Orders, Pure, attribute
from tiledsl.ir.facts import NOTHING, Sync
from tiledsl.ir.ops.barriers import REGISTER_COUNTS
from tiledsl.ir.ops.control import For, Yield
from tiledsl.ir.types import BOOL, INDEX


class Region(Op):
    """The body is run by `warps` warps from warp `first` on, `instances` times as many where there are several.

    `gpu.barrier` inside is that of the instance's threads, and collective ops are theirs.
    one_thread: one thread alone runs it. registers: of each thread, 0 where no role says so.
    """

    name = "role.region"
    level = "tile"
    touches, sync, stays, scope, features = (), NOTHING, "", "thread", ()
    ends = (Yield,)
    title = attribute(str)
    first = attribute(int)
    warps = attribute(int, least=1)
    instances = attribute(int, 1, least=1, most=2)
    one_thread = attribute(bool, False)
    registers = attribute(int, 0, among=(0, *REGISTER_COUNTS))

    @property
    def body(self) -> Block:
        return self.blocks[0]

    @property
    def all_warps(self) -> int:
        return self.warps * self.instances

    @property
    def threads(self) -> int:
        """Of one instance."""
        return WARP * self.warps

    @property
    def all_threads(self) -> int:
        return self.threads * self.instances

    @property
    def role(self) -> tuple[int, int]:
        """As of `control.If`."""
        return self.first, 0 if self.one_thread else self.all_warps

    @property
    def shown(self) -> str:
        return f"the role {self.title}"

    def verify(self) -> None:
        self.require(not self.body.args and not self.body.terminator.operands, "gives nothing on")
        self.require(not self.one_thread or self.instances == 1, "one thread is one instance")


def roles_of(body: Block) -> list[Region]:
    """The roles of a kernel with this body."""
    return [op for op in body.ops if isinstance(op, Region)]


class _Turn(Orders):
    level = "tile"
    scope, alike = "warp", ()
    called = "a turn"
    title = attribute(str)


class Enter(_Turn):
    """A turn begins: instances of the role run what comes before `Leave` one after the other, instance 0 first, once
    for each work item. Both stand directly in the body of a `Work` loop, one pair for each title."""

    name = "role.enter"
    sync = Sync(meets="cta")


class Leave(_Turn):
    """The turn is the other instance's."""

    name = "role.leave"
    sync = Sync(releases="cta")


class Work(For):
    """A loop over the work items of this block, as `control.For`, in a role with instances those of the instance: every
    second one, where there are two."""

    name = "role.work"
    level = "tile"

    def verify(self) -> None:
        super().verify()
        self.require(self.unroll == 1 and self.stages == 0, "work items are not unrolled")


class Leads(Pure):
    """True in one thread of those that are here: the first one of the role's instance, or of the block."""

    name = "role.leads"
    level = "tile"
    varies, cause, nan = "thread", "the thread's place in its role", "computes"
    gives = (BOOL,)


class Instance(Pure):
    """Number of this instance of the role, an index."""

    name = "role.instance"
    level = "tile"
    varies, cause, nan = "warp", "the instance of the role", "computes"
    gives = (INDEX,)


class GroupBarrier(Orders):
    """The threads of each warpgroup of the role wait for each other."""

    name = "role.group_barrier"
    level = "tile"
    sync = Sync(meets="cta")
    scope, alike = "warpgroup", ()
    called = "a barrier of a warpgroup"

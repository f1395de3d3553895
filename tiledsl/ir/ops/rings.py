"""Rings: stages of shared tiles through which one role passes data to another, slot by slot.

A cursor says where a role is in a ring. It is a value, which loops carry: an end of a use gives the cursor of the next
slot. Who fills and who uses a ring, and by what (threads, TMA, asynchronous products), follows from the roles in which
these ops stand and from what is accessed there. The pass `lower-rings` makes mbarriers, fences and waits of it.
"""

from __future__ import annotations

from math import prod
from typing import Sequence

from tiledsl.ir.core import Kernel, Op, Orders, Pure, Value, attribute, operand
from tiledsl.ir.facts import NOTHING, Sync
from tiledsl.ir.types import CURSOR, INDEX, RingType, Type


class Make(Op):
    """A ring of tiles that have all its stages along their first axis, each used by nothing but the ring's slots.

    Operands: the tiles; then, in a cluster of several blocks, where this block is along m and along n, two indices.
    cluster: its blocks along m and n, which number ``m + n * cluster[0]``.
    """

    name = "ring.make"
    level = "tile"
    touches, sync, stays, scope = (), NOTHING, "identity", "thread"
    features = ("mbarrier",)
    varies, nan = "operands", "sees"
    called = "Ring()"
    variadic = True
    parts = ("tiles", "place")
    stages = attribute(int)
    cluster = attribute[tuple[int, ...]](tuple, (1, 1))

    @property
    def tiles(self) -> list[Value]:
        return self.operands[: len(self.operands) - len(self.place)]

    @property
    def place(self) -> list[Value]:
        return self.operands[-2:] if self.cluster != (1, 1) else []

    def infer(self) -> Sequence[Type]:
        return (RingType(self.stages),)

    def verify(self) -> None:
        dims = [getattr(v.type, "dims", ()) for v in self.tiles]
        self.require(bool(dims) and all(d[:1] == (self.stages,) for d in dims), f"takes tiles of {self.stages} stages")
        self.require([v.type for v in self.place] in ([], [INDEX, INDEX]), "takes its place in the cluster")

    def verify_in(self, kernel: Kernel) -> None:
        self.require(len(self.cluster) == 2 and min(self.cluster) > 0, f"a cluster of {self.cluster} blocks")
        blocks, cluster = prod(self.cluster), prod(kernel.cluster)
        self.require(blocks in (1, cluster), f"a cluster of {blocks} blocks in a kernel with one of {cluster}")


class Cursor(Pure):
    """The beginning of a ring: slot 0, which is free to fill, and nothing is held."""

    name = "ring.cursor"
    level = "tile"
    varies, nan = "grid", "sees"
    gives = (CURSOR,)
    ring = operand(0, RingType)


class RingOp(Orders):
    """Base: operands are a ring, then `at`: a cursor, or the number of a slot."""

    level = "tile"
    features = ("mbarrier",)
    varies, cause, nan = "thread", "a slot of a ring", "sees"
    ring, at = operand(0, RingType), operand(1)


class _Begins(RingOp):
    """Waits for the cursor's slot. Result: its number, an index."""

    sync = Sync(meets="cta", completes="mbarrier")
    gives = (INDEX,)
    cursor = operand(1, CURSOR)


class _Moves(RingOp):
    """Gives the role's next cursor."""

    gives = (CURSOR,)
    cursor = operand(1, CURSOR)


class Acquire(_Begins):
    """A fill begins: waits until the slot is free."""

    name = "ring.acquire"
    called = "ring.fill()"


class Publish(_Moves):
    """Ends the fill that `Acquire` began. The slot is filled once its writes are complete: stores of threads, or TMA
    loads, whose bytes count at the slot's mbarrier. Result: the cursor of the next slot."""

    name = "ring.publish"
    sync = Sync(releases="cta")
    called = "ring.fill()"


class Wait(_Begins):
    """A use begins: waits until the slot is filled. Its asynchronous MMAs are one group, which may stay in flight past
    `in_flight` later uses."""

    name = "ring.wait"
    called = "ring.use()"
    in_flight = attribute(int, 0, most=7)


class Release(_Moves):
    """Ends the use that `Wait` began. The slot used `in_flight` uses before is released, once its group has completed
    and threads have read it; later slots are held. Result: the next slot's cursor."""

    name = "ring.release"
    sync = Sync(releases="cta")
    called = "ring.use()"


class Drain(_Moves):
    """Releases the slots that are held; their MMAs have completed. Result: the cursor of the same slot."""

    name = "ring.drain"
    sync = Sync(releases="cta")
    called = "acc.wait()"


class Skip(_Moves):
    """Advances by `count` slots, which are another instance's."""

    name = "ring.skip"
    sync = NOTHING
    count = operand(2, INDEX)


class Take(_Begins):
    """Waits until the slot is filled; `Free` releases it. Results: its number, and the cursor of the next slot."""

    name = "ring.take"
    called = "ring.take()"
    gives = (INDEX, CURSOR)


class Free(RingOp):
    """Releases the slot of this number, which was taken and which threads have read."""

    name = "ring.free"
    sync = Sync(releases="cta")
    called = "ring.free()"
    slot = operand(1, INDEX)

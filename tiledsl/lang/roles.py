"""Roles of a block's warpgroups, and rings of stages through which one role passes tiles to another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from tiledsl.lang.dtypes import Scalar, index
from tiledsl.lang.memory import SharedTile, View
from tiledsl.lang.misuse import only_in_kernel

__all__ = ["Ring", "Role", "Slot", "role"]

D = TypeVar("D", bound=Scalar)


class Role:
    """What ``with role(...) as r`` binds."""

    @property
    def index(self) -> index:
        """Number of this instance of the role, the same in all its threads; 0 where there is one alone."""
        raise only_in_kernel(".index")

    def turn(self, name: str) -> AbstractContextManager[None]:
        """``with r.turn("mma"):`` the instances of the role run the body in turns, instance 0 first.

        It stands directly in the loop over work items, once for each name. Each takes two named barriers: an instance
        waits for the other one at the first before the body, and arrives at the second behind it.
        (PTX ISA: barrier.cta.sync, .arrive.)
        """
        raise only_in_kernel(".turn()")


def role(
    name: str, *, warpgroups: int = 1, registers: int = 0, threads: int = 0, instances: int = 1
) -> AbstractContextManager[Role]:
    """``with role("math", warpgroups=2, registers=232):`` the body is run by these warps alone, others pass by.

    Roles stand at the kernel's top level and take the block's warpgroups, of 128 threads, in the order in which they
    stand; ``threads(...)`` may be left out. `barrier` in a role is that of its threads. What is assigned in one is its
    own.

    registers: of each thread, a multiple of 8 from 24 to 240; roles that need fewer give them to others. The sum over
    all threads is at most what they have at the launch, 65536 distributed evenly and in eights (168 to each of 384);
    either every role says it or none does. threads=1: one thread of the role runs the body, as `tma_load` needs it.
    instances=2: there are two of the role, each with its own warpgroups: `Role.index` tells them apart, each takes
    every second work item, and rings skip what is the other's. (PTX ISA: setmaxnreg.)
    """
    raise only_in_kernel("role()")


class Slot(Generic[D]):
    """One stage of a ring: its tiles by their names, ``s.a``."""

    def __getattr__(self, name: str) -> View[D]:
        raise only_in_kernel(f".{name}")


class Ring(Generic[D]):
    """``ring = Ring(4, a=shared((BM, BK), bf16, layout=swizzle_128b), b=...)``: `stages` of each of the given tiles.

    One role fills the slots, by TMA or by its threads, another uses them, both in the same order and each at its own
    pace: `fill` waits until a slot is free, `use` until it is filled. Either may be a role with ``threads=1``. The
    tiles that are given say shape, dtype and layout of a stage; they are used in no other way. Made at the kernel's top
    level, after `persistent` where there is one. (PTX ISA: mbarrier.)
    """

    def __init__(self, stages: int, **tiles: SharedTile[D]) -> None:
        raise only_in_kernel("Ring()")

    def fill(self) -> AbstractContextManager[Slot[D]]:
        """``with ring.fill() as s:`` waits until the next slot is free; the body fills each of its tiles.

        By `tma_load`, in a role with ``threads=1``: the bytes that users wait for are those. Or threads write them,
        ``s.a[i, j] = x``, ``store(x, s.a)``: behind the body each warp arrives for itself, after a proxy fence where
        `wgmma` or TMA read what it wrote. All fills of a ring are of one kind, in a role with one instance.
        (PTX ISA: mbarrier.try_wait, mbarrier.arrive.expect_tx, mbarrier.arrive, fence.proxy.async.)
        """
        raise only_in_kernel(".fill()")

    def use(self, in_flight: int = 0) -> AbstractContextManager[Slot[D]]:
        """``with ring.use(in_flight=1) as s:`` waits until the next slot has been filled.

        The products of `wgmma` in the body are one group. Behind it, at most `in_flight` groups stay in flight, and
        the slot of the one that has just ended is free; ``acc.wait()`` frees the others. Where threads read tiles
        themselves, they make a proxy fence at the end of the body; of a ring without products each warp then
        releases the slot for itself. (PTX ISA: mbarrier.try_wait, wgmma.commit_group, wgmma.wait_group,
        fence.proxy.async, mbarrier.arrive.)
        """
        raise only_in_kernel(".use()")

    def take(self) -> index:
        """``i = ring.take()`` waits until the next slot has been filled, and gives its number.

        Both ends of a use, where one does not fit into a region: the first operands of the next slot, say, are loaded
        before the last products of this one. Slots are taken in the order in which they are filled, and released by
        `free`. In a role with one instance. (PTX ISA: mbarrier.try_wait.)
        """
        raise only_in_kernel(".take()")

    def slot(self, number: index) -> Slot[D]:
        """The slot of this number, which was taken and not released: ``ring.slot(i).a``."""
        raise only_in_kernel(".slot()")

    def free(self, number: index) -> None:
        """``ring.free(i)`` releases a slot that was taken, after a proxy fence: all threads of the role have read it.

        (PTX ISA: fence.proxy.async, mbarrier.arrive.)
        """
        raise only_in_kernel(".free()")

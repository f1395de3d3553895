"""Kernels with asynchronous copies for the emulator's tests: short ones, and a ring of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from emulator_kernels import at, either, loop
from numpy.typing import NDArray

from tiledsl.backends.emulator import Options, run
from tiledsl.ir.abi import abi_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.ops import async_copy, control, gpu, mem
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import F32, I32, GlobalType

__all__ = ["CHECKED", "COMMIT", "COPY", "HALF", "READ", "THREADS", "Ring", "result", "thread_kernel", "wait"]

Array = NDArray[Any]
CHECKED = Options(checks=True)

THREADS = 64
LINES = {"copy": 11, "commit": 12, "wait": 13, "barrier": 14, "read": 15}


# -- short kernels ---------------------------------------------------------------------------------


def thread_kernel(body: str, threads: int = 32, elements: tuple[int, int] = (1024, 1024)) -> Kernel:
    """X and Y are f32 tensors of so many `elements`; %s is 2048 bytes of shared memory, %t the thread.

    %x, %y and %p: the addresses of the thread's elements in X, Y and shared memory.
    """
    abi = f"pointer X f32 [{elements[0]}], pointer Y f32 [{elements[1]}]"
    head = f"kernel k(%X: ptr<global, f32>, %Y: ptr<global, f32>) grid(1) threads({threads}) level(thread)"
    return parse_kernel(f"""{head} shared_bytes(2048) abi({abi}) {{
  %t = gpu.thread_id {{axis = 0}} : i32
  %s = mem.shared_base {{dtype = f32, offset = 0, bytes = 2048, label = "S"}} : ptr<shared, f32>
  %x = mem.offset %X, %t : ptr<global, f32>
  %y = mem.offset %Y, %t : ptr<global, f32>
  %p = mem.offset %s, %t : ptr<shared, f32>
{body}
  control.return
}}""")


def result(body: str, options: Options = CHECKED, threads: int = 32) -> Array:
    """Y after a run on X = 1, 2, 3 ..."""
    x, y = np.arange(1, 1025, dtype=np.float32), np.zeros(1024, np.float32)
    run(thread_kernel(body, threads), {"X": x, "Y": y}, options=options)
    return y


COPY = "mem.cp_async %p, %x {bytes = 4}\n"
COMMIT = "async.commit_group\n"
READ = "%v = mem.load %p : f32\nmem.store %y, %v"


def wait(pending: int = 0) -> str:
    return f"async.wait_group {{pending = {pending}}}\n"


HALF = """
%half = arith.constant 16 : i32
%low = arith.lt %t, %half : bool
control.if %low {{ {} control.yield }} else {{ {} control.yield }}
"""


# -- a ring of tiles -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """Each thread copies one f32 of a tile of 64 an iteration, and sums up those that its counterpart in the other warp
    has copied: ``Y[t] = sum over i of X[64 i + (t ^ 32)]``.

    stages: how many tiles are there and copied ahead, the one that is read included. `slots`: how many there are
    really. copy_first: the next copy begins before the barrier. overrun: it begins even if there is no next
    iteration. The others: whether the ops are there.
    """

    stages: int
    slots: int = 0
    wait: bool = True
    commit: bool = True
    barrier: bool = True
    copy_first: bool = False
    overrun: bool = False

    def kernel(self) -> Kernel:
        return _Writer(self).kernel()


class _Writer:
    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.slots = ring.slots or ring.stages

    def kernel(self) -> Kernel:
        abi = abi_of([("X", GlobalType(F32, ("N",), 0, 16)), ("Y", GlobalType(F32, (THREADS,), 0, 16))], 32)
        body = Block([x.type for x in abi], [x.name for x in abi])
        x, y, n = body.args
        b = Builder(body, at(3))
        self.size = b.constant(THREADS, I32)
        self.thread = b.value(gpu.ThreadId(axis=0, dtype=I32))
        self.trips = b.scalar("floordiv", n, self.size)
        self.count = b.constant(self.slots, I32)
        total = self.slots * THREADS * 4
        self.tiles = b.value(mem.SharedBase(dtype=F32, offset=0, bytes=total, label="S"))
        self.x = x
        for i in range(self.ring.stages - 1):
            self.copy(b, b.constant(i, I32))
        zero = b.constant(0, I32)
        (acc,) = loop(b, zero, self.trips, b.constant(1, I32), [b.constant(0.0, F32)], self.step)
        b.op(mem.Store, b.value(mem.Offset(y, self.thread)), acc)
        b.op(control.Return)
        return Kernel(
            "ring", body, (parse_expr("1"),), (THREADS,), level="thread", shared_bytes=total, abi=abi, loc=at(1)
        )  # pyright: ignore[reportArgumentType]

    def element(self, b: Builder, tile: Value, thread: Value) -> Value:
        return b.scalar("add", b.scalar("mul", tile, self.size), thread)

    def copy(self, b: Builder, i: Value) -> None:
        b.loc = at(LINES["copy"])

        def begin(j: Builder) -> list[Value]:
            # A copy that there is nothing for takes the first tile.
            source = j.scalar("mod", i, self.trips) if self.ring.overrun else i
            src = j.value(mem.Offset(self.x, self.element(j, source, self.thread)))
            slot = j.scalar("mod", i, self.count)
            dst = j.value(mem.Offset(self.tiles, self.element(j, slot, self.thread)))
            j.op(mem.CpAsync, dst, src, bytes=4)
            return []

        if self.ring.overrun:
            begin(b)
        else:
            either(b, b.scalar("lt", i, self.trips), begin, lambda j: [])
        if self.ring.commit:
            b.loc = at(LINES["commit"])
            b.op(async_copy.CommitGroup)

    def step(self, b: Builder, i: Value, acc: Value) -> list[Value]:
        ahead = b.scalar("add", i, b.constant(self.ring.stages - 1, I32))
        if self.ring.copy_first:
            self.copy(b, ahead)
        if self.ring.wait:
            b.loc = at(LINES["wait"])
            b.op(async_copy.WaitGroup, pending=self.ring.stages - 1 if self.ring.copy_first else self.ring.stages - 2)
        if self.ring.barrier:
            b.loc = at(LINES["barrier"])
            b.op(gpu.Barrier)
        if not self.ring.copy_first:
            self.copy(b, ahead)
        b.loc = at(LINES["read"])
        other = b.scalar("xor", self.thread, b.constant(32, I32))
        slot = b.scalar("mod", i, self.count)
        return [b.scalar("add", acc, b.value(mem.Load(b.value(mem.Offset(self.tiles, self.element(b, slot, other))))))]

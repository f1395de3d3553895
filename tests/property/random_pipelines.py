"""Random kernels with one pipelined loop, valid and deterministic: tiles, stages, ranges, steps, surroundings.

``random_shape(random)`` gives a tile-level kernel and arguments for it. Every thread
reads tiles at places that other threads have copied, so that a wait or a barrier too few is a race.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.errors import Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, tile
from tiledsl.ir.types import F32, I32, INDEX, DType, GlobalType, SharedType, Type

__all__ = ["Shape", "random_shape"]

THREADS = 64
ROWS = 40
LAYOUTS = {
    8: ["auto", "row", "padded(12)", "swizzled(unit=4, span=2)"],
    16: ["auto", "padded(20)", "swizzled(unit=4, span=4)"],
}


@dataclass(frozen=True)
class Shape:
    """What a kernel is like. tiles: rows and columns, layout, whether it is copied in two halves.

    lo, step: constants, or None for arguments of the kernel. trips: how often the loop shall run. around: an outer
    loop of so many iterations (0: none), at whose end a tile over the buffers is written and read. inner: the last
    step reads in an inner loop, so that there are no steps. stores: every iteration writes to a tensor.
    """

    tiles: tuple[tuple[int, int, str, bool], ...]
    stages: int
    fragments: int
    is_async: bool
    dtype: DType
    lo: int | None
    step: int | None
    constant_hi: bool
    trips: int
    steps: int
    around: int
    inner: bool
    stores: bool
    seed: int

    @property
    def first(self) -> int:
        return 3 if self.lo is None else self.lo

    @property
    def stride(self) -> int:
        return 2 if self.step is None else self.step

    @property
    def hi(self) -> int:
        """A bound that gives so many trips, somewhere in the last step."""
        if not self.trips:
            return self.first - self.stride
        past = Random(self.seed).randrange(abs(self.stride))
        return self.first + self.trips * self.stride - (past if self.stride > 0 else -past)

    def kernel(self) -> Kernel:
        return _Maker(self).kernel()

    def arguments(self, bounds: tuple[int, int, int] | None = None) -> dict[str, Any]:
        """Fresh ones; equal for equal shapes. bounds: lo, hi and step, those of the shape if left out."""
        rng = np.random.default_rng(self.seed)
        given: dict[str, Any] = {}
        for number in range(len(self.tiles)):
            a: NDArray[np.float32] = rng.integers(-4, 5, (ROWS, 64)).astype(np.float32)
            given[f"A{number}"] = a
        given |= {"OUT": np.zeros((THREADS,), np.float32), "LOG": np.zeros((64, THREADS), np.float32)}
        if bounds is None:
            bounds = self.first, self.hi, self.stride
        return given | {name: np.int32(value) for name, value in zip(("lo", "hi", "step"), bounds, strict=True)}


def random_shape(random: Random, *, is_async: bool) -> Shape:
    tiles: list[tuple[int, int, str, bool]] = []
    for _ in range(random.randint(1, 3)):
        columns = random.choice([8, 16])
        rows = random.choice([8, 16, 32])
        halves = rows * columns >= 2 * THREADS and random.random() < 0.3
        tiles.append((rows, columns, random.choice(LAYOUTS[columns]), halves))
    stages = random.randint(1, 4)
    return Shape(
        tiles=tuple(tiles),
        stages=stages,
        fragments=random.choice([0, 1]),
        is_async=is_async,
        dtype=random.choice([INDEX, I32]),
        lo=random.choice([None, 0, 5]),
        step=random.choice([None, 1, 3, -1, -2]),
        constant_hi=random.random() < 0.3,
        trips=random.randint(0, 6),
        steps=random.randint(1, 3),
        around=random.choice([0, 0, 0, 2]),
        inner=random.random() < 0.2,
        stores=random.random() < 0.3,
        seed=random.randrange(1 << 30),
    )


class _Maker:
    def __init__(self, shape: Shape) -> None:
        self.shape, self.random = shape, Random(shape.seed)
        count = len(shape.tiles)
        types: list[Type] = [GlobalType(F32, ("M", "K"), 1, 16)] * count
        types += [GlobalType(F32, ("T",), 0, 4), GlobalType(F32, ("L", "T"), 1, 4), I32, I32, I32]
        self.body = Block(types, [*(f"A{n}" for n in range(count)), "OUT", "LOG", "lo", "hi", "step"])
        self.sources = self.body.args[:count]
        self.out, self.log, *self.bounds = self.body.args[count:]
        self.b = Builder(self.body)
        self.line = 0

    def kernel(self) -> Kernel:
        b = self.b
        self.thread = b.value(gpu.ThreadId(axis=0))
        self.tiles: list[Value] = []
        for number, (rows, columns, layout, _) in enumerate(self.shape.tiles):
            alloc = b.value(tile.SharedAlloc(type=SharedType(F32, (rows, columns)), layout=layout))
            alloc.name = f"S{number}"
            self.tiles.append(alloc)
        total = b.constant(0.0, F32)
        if self.shape.around:
            self.over = b.value(tile.SharedAlloc(*self.tiles, type=SharedType(F32, (THREADS,))))
            total = self.outer(total)
        else:
            total = self.loop(total)
        b.add(tile.Store(self.out, self.thread, total))
        b.add(control.Return())
        return Kernel("pipelined", self.body, (1,), (THREADS,))

    def next_line(self) -> None:
        self.line += 1
        self.b.loc = Loc("random.py", self.line)

    def index(self, value: int) -> Value:
        return self.b.constant(value, INDEX)

    def outer(self, total: Value) -> Value:
        """The loop several times, with an exchange through a tile over its buffers."""
        b, body = self.b, Block([INDEX, F32])
        b.block = body
        value = self.loop(body.args[1])
        self.next_line()
        b.add(gpu.Barrier())
        b.add(tile.Store(self.over, self.thread, value))
        b.add(gpu.Barrier())
        neighbour = b.scalar("xor", self.thread, self.index(33))
        value = b.scalar("add", value, b.value(tile.Load(self.over, neighbour)))
        b.add(control.Yield(value))
        b.block = self.body
        bounds = self.index(0), self.index(self.shape.around), self.index(1)
        return b.value(control.For(*bounds, total, blocks=[body]))

    def loop(self, total: Value) -> Value:
        b, shape, outer = self.b, self.shape, self.b.block
        dtype = shape.dtype
        known = (shape.lo, shape.hi if shape.constant_hi else None, shape.step)
        limits = [
            b.cast(arg, dtype) if value is None else b.constant(value, dtype)
            for arg, value in zip(self.bounds, known, strict=True)
        ]
        count = b.constant(0.0, F32)
        body = Block([dtype, F32, F32], ["k", "acc", "n"])
        b.block = body
        k, acc, n = body.args
        k = b.cast(k, INDEX)
        for number in range(len(self.tiles)):
            self.copy(number, k)
        for _ in range(shape.steps):
            acc = self.step(acc)
        if shape.inner:
            acc = self.inner(acc)
        if shape.stores:
            self.next_line()
            row = b.scalar("mod", k, self.index(64))
            b.add(tile.Put(self.log, row, self.thread, acc))
        b.add(control.Yield(acc, b.scalar("add", n, b.constant(1.0, F32))))
        b.block = outer
        self.next_line()
        attrs: dict[str, Any] = {"stages": shape.stages, "fragments": shape.fragments}
        total, count = b.add(control.For(*limits, total, count, blocks=[body], **attrs)).results
        return b.scalar("fma", count, b.constant(100.0, F32), total)

    def copy(self, number: int, k: Value) -> None:
        rows, columns, _, halves = self.shape.tiles[number]
        parts = [(0, rows // 2), (rows // 2, rows // 2)] if halves else [(0, rows)]
        column = self.b.scalar("mul", self.b.scalar("mod", k, self.index(12)), self.index(4))
        for first, size in parts:
            self.next_line()
            at = [self.index(first), column, self.tiles[number], self.index(first), self.index(0)]
            cls = async_copy.Copy if self.shape.is_async else tile.Copy
            vec = 16 if size * columns >= 4 * THREADS else 4
            self.b.add(cls(self.sources[number], *at, shape=(size, columns), src_axes=(0, 1), dst_axes=(0, 1), vec=vec))

    def place(self, number: int, shift: int) -> list[Value]:
        rows, columns, _, _ = self.shape.tiles[number]
        b = self.b
        moved = b.scalar("add", self.thread, self.index(shift))
        row = b.scalar("mod", moved, self.index(rows))
        return [row, b.scalar("mod", b.scalar("mul", moved, self.index(5)), self.index(columns))]

    def step(self, acc: Value) -> Value:
        self.next_line()
        loads: list[Value] = []
        for _ in range(self.random.randint(1, 3)):
            number = self.random.randrange(len(self.tiles))
            place = self.place(number, self.random.randrange(100))
            loads.append(self.b.value(tile.Load(self.tiles[number], *place)))
        for value in loads:
            acc = self.b.scalar("fma", value, self.b.constant(self.random.choice([1.0, 2.0, -1.0]), F32), acc)
        return acc

    def inner(self, acc: Value) -> Value:
        """Reads in a loop of its own."""
        b, outer = self.b, self.b.block
        body = Block([INDEX, F32])
        b.block = body
        rows, columns, _, _ = self.shape.tiles[0]
        place = [b.scalar("mod", b.scalar("add", self.thread, body.args[0]), self.index(n)) for n in (rows, columns)]
        b.add(control.Yield(b.scalar("add", body.args[1], b.value(tile.Load(self.tiles[0], *place)))))
        b.block = outer
        return b.value(control.For(self.index(0), self.index(3), self.index(1), acc, blocks=[body]))

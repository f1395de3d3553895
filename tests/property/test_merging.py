"""Merging accesses keeps what threads read and write, and a vector never costs more than its elements."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.backends import emulator
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import control, gpu, tile
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import DTYPES, I32, INDEX, U32, FragmentType, GlobalType, SharedType
from tiledsl.ir.verifier import verify
from tiledsl.layout.banks import PHASES, Kind, cost
from tiledsl.layout.shared import AUTO
from tiledsl.passes.banks.merge_accesses import merge_accesses
from tiledsl.passes.pipeline import pipeline, run_pipeline

THREADS, COLUMNS = 32, 16
LAYOUTS = (AUTO, "row", "row", "padded(18)", "padded(20)", "swizzled(unit=2, span=4)", "swizzled(unit=4, span=4)")
NUMBERS = tuple(DTYPES[name] for name in ("u8", "i16", "u32", "f32", "i64"))

seeds = st.integers(0, 2**32 - 1)


class Neighbours:
    """Threads load and store neighbouring elements of their own rows, of two tiles and one that lies over the first."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.dtype = random.choice(NUMBERS)
        self.body = Block([GlobalType(U32, ("T", 2), 1, 4), I32], ["OUT", "n"])
        self.b = b = Builder(self.body)
        self.thread, n = b.value(gpu.ThreadId(axis=0)), b.cast(self.body.args[1], INDEX)
        two, four, eight = map(self.number, (2, 4, 8))
        self.aligned = [b.scalar("mul", n, four), b.scalar("mul", b.scalar("mod", self.thread, two), four)]
        self.other = [n, b.scalar("mod", self.thread, eight)]
        self.total = b.constant(1, U32)
        self.tiles = self.allocate()
        for memory in self.tiles[:2]:
            for column in range(COLUMNS):
                self.b.add(tile.Store(memory, self.thread, self.number(column), self.element(column)))
        for _ in range(random.randint(4, 24)):
            random.choices((self.load, self.store, self.between), (4, 4, 1))[0]()
        for memory in self.tiles:
            for column in range(COLUMNS):
                self.add_up(b.value(tile.Load(memory, self.thread, self.number(column))))
        b.add(tile.Store(self.body.args[0], self.thread, self.number(0), self.total))
        b.add(control.Return())
        self.kernel = Kernel("neighbours", self.body, (1,), (THREADS,))

    def allocate(self) -> list[Value]:
        type_, layouts = SharedType(self.dtype, (THREADS, COLUMNS)), self.random.choices(LAYOUTS, k=2)
        tiles = [self.b.value(tile.SharedAlloc(type=type_, layout=layout)) for layout in layouts]
        if layouts[0] != AUTO:  # laid out alike, a thread's rows are its own in both
            tiles.append(self.b.value(tile.SharedAlloc(tiles[0], type=type_, layout=layouts[0])))
        return tiles

    def number(self, value: int) -> Value:
        return self.b.constant(value, INDEX)

    def element(self, value: int) -> Value:
        return self.b.constant(self.dtype.python(value), self.dtype)

    def place(self) -> tuple[int, tuple[Value, Value, Value]]:
        """How many elements, and a tile with indices of this thread's row."""
        memory, base = self.random.choice(self.tiles), self.random.choice([None, *self.aligned, *self.other])
        vec = self.random.choice([1, 1, 1, 2, 4]) if base not in self.other else 1
        assert isinstance(memory.op, tile.SharedAlloc)
        while vec * self.dtype.bytes > memory.op.placement.vector_bytes(memory.op.type.dims, self.dtype.bytes):
            vec //= 2
        column = self.number(self.random.randrange(0, 8, vec))
        return vec, (memory, self.thread, column if base is None else self.b.scalar("add", base, column))

    def load(self) -> None:
        vec, place = self.place()
        values = self.b.value(tile.Load(*place, vec=vec))
        for e in range(vec):
            self.add_up(values if vec == 1 else self.b.value(tile.Extract(values, at=(e,))))

    def add_up(self, value: Value) -> None:
        tripled = self.b.scalar("mul", self.total, self.b.constant(3, U32))
        self.total = self.b.scalar("add", tripled, self.b.cast(value, U32))

    def store(self) -> None:
        vec, place = self.place()
        value = self.b.cast(self.b.scalar("mod", self.total, self.b.constant(97, U32)), self.dtype)
        if vec > 1:
            rest = [self.element(e) for e in range(1, vec)]
            value = self.b.value(tile.Pack(value, *rest, type=FragmentType(self.dtype, (vec,))))
        self.b.add(tile.Store(*place, value, vec=vec))

    def between(self) -> None:
        """What some accesses may not move past, or all."""
        kind = self.random.choice(("barrier", "tensor", "guarded", "branch", "loop"))
        if kind == "barrier":
            self.b.add(gpu.Barrier())
        elif kind == "tensor":
            self.b.add(tile.Store(self.body.args[0], self.thread, self.number(1), self.total))
        elif kind == "guarded":
            self.b.add(tile.Put(*self.place()[1], self.element(5)))
            self.add_up(self.b.value(tile.Get(*self.place()[1], self.element(7))))
        else:
            self.inside(kind)

    def inside(self, kind: str) -> None:
        """An access in a block of its own."""
        inner, outer = Block([INDEX] if kind == "loop" else []), self.b.block
        self.b.block = inner
        self.store()
        self.b.add(control.Yield())
        self.b.block = outer
        if kind == "loop":
            self.b.add(control.For(self.number(0), self.number(2), self.number(1), blocks=[inner]))
            return
        orelse = Block()
        orelse.append(control.Yield())
        condition = self.b.scalar("lt", self.thread, self.number(20))
        self.b.add(control.If(condition, blocks=[inner, orelse]))


def outputs(kernel: Kernel) -> NDArray[np.uint32]:
    out = np.zeros((THREADS, 2), np.uint32)
    emulator.run(kernel, {"OUT": out, "n": np.int32(1)})
    return out


@settings(max_examples=18)
@given(seed=seeds)
def test_results_stay(seed: int) -> None:
    """At tile level, where every tile has bytes of its own, and at thread level, where two share theirs."""
    kernel = Neighbours(seed).kernel
    verify(kernel)
    merged, unmerged = kernel.clone(), kernel.clone()
    merge_accesses(merged)
    verify(merged)
    assert np.array_equal(outputs(merged.clone()), outputs(kernel.clone())), print_kernel(merged)
    for item in pipeline():
        if item.name != "merge-accesses":
            item.run(unmerged)
    assert np.array_equal(outputs(run_pipeline(kernel, verify_each=True)), outputs(unmerged)), print_kernel(kernel)


def test_most_random_kernels_have_something_to_merge() -> None:
    """The property above would hold of a pass that does nothing."""
    fewer = 0
    for seed in range(40):
        kernel = Neighbours(seed).kernel
        before = sum(isinstance(op, tile.Access) for op in kernel.walk())
        merge_accesses(kernel)
        fewer += sum(isinstance(op, tile.Access) for op in kernel.walk()) < before - 8
    assert fewer >= 30


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("width", [2, 4, 8, 16])
@given(seed=seeds)
def test_a_vector_takes_no_more_wavefronts_than_its_elements(kind: Kind, width: int, seed: int) -> None:
    """Where it is kept together and aligned: for any lanes at any such addresses, by the bank model."""
    random = Random(seed)
    words = random.choice([4, 16, 64, 1024])
    starts = [random.randrange(words) * width for _ in range(WARP)]
    active = [random.random() < 0.8 for _ in range(WARP)]
    assert (kind, width) in PHASES
    for element in (1, 2, 4, 8):
        if element < width:
            parts = [[start + e for start in starts] for e in range(0, width, element)]
            singles = sum(cost(part, element, active, kind).wavefronts for part in parts)
            assert cost(starts, width, active, kind).wavefronts <= singles

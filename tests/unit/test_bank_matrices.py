"""Tiles of matrix operands and results: layouts without bank conflicts for ldmatrix, cp.async and staged stores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.bank_counts import count_both
from tiledsl import Global, barrier, coordinates, f32, fragment, grid, i32, mma, shared, threads, tile_kernel
from tiledsl.dims import M, N
from tiledsl.errors import Loc
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, matrix, tile
from tiledsl.ir.types import (
    BF16,
    E4M3,
    F16,
    F32,
    F64,
    I32,
    INDEX,
    TF32,
    U32,
    DType,
    FragmentType,
    GlobalType,
    SharedType,
)
from tiledsl.ir.verifier import verify
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.mma import SHAPES
from tiledsl.layout.shared import AUTO
from tiledsl.passes.banks.bank_conflicts import bank_report
from tiledsl.passes.distribute.distribute import distribute

SLOTS = 3
WARPS = (2, 2)


@dataclass(frozen=True)
class Operand:
    """A tile of `dims`, filled by copies of 16 bytes and read as operand `name` in steps along its axis `k`.

    vec: bytes of a plain load; 0 for ldmatrix.
    """

    dtype: DType
    dims: tuple[int, int]
    shape: str
    name: str
    k: int
    vec: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}_{'x'.join(map(str, self.dims))}_{self.name}_k{self.k}"

    @property
    def layout(self) -> FragmentLayout:
        acc = FragmentLayout(SHAPES[self.shape], "acc", WARPS)
        return acc.a if self.name == "a" else acc.b

    @property
    def axes(self) -> tuple[int, int]:
        """The axes of the tile, after that of the slots, along which rows and columns of the fragment run."""
        return (1, 2) if (self.name == "a") == (self.k == 1) else (2, 1)

    @property
    def step(self) -> FragmentType:
        """What is loaded at once: one instruction along k."""
        k, other = SHAPES[self.shape].k, self.dims[1 - self.k]
        return FragmentType(self.dtype, (other, k) if self.name == "a" else (k, other), self.layout)


def kernel(dtype: DType) -> tuple[Kernel, Builder]:
    """128 threads; a tensor A to copy from and to, and n, which is not known."""
    body = Block([GlobalType(dtype, ("M", "N"), 1, 16), I32], ["A", "n"])
    return Kernel("k", body, (1,), (32 * WARPS[0] * WARPS[1],)), Builder(body, Loc("k.py", 1))


def finished(made: Kernel, b: Builder) -> Kernel:
    b.op(control.Return)
    verify(made)
    distribute(made)
    return made


def pipelined(operand: Operand, *others: Operand, layout: str = AUTO) -> Kernel:
    """Each iteration copies into one slot of the tile and loads all steps along k from another one.

    others: further operands that are read off the same tile.
    """
    made, b = kernel(operand.dtype)
    S = b.value(tile.SharedAlloc(type=SharedType(operand.dtype, (SLOTS, *operand.dims)), layout=layout))
    zero, one = b.constant(0, INDEX), b.constant(1, INDEX)
    body = Block([INDEX, INDEX], ["i", "slot"])
    outer, b.block = b.block, body
    i, slot = body.args
    copied = {"shape": operand.dims, "src_axes": (0, 1), "dst_axes": (1, 2), "vec": 16}
    b.loc = Loc("k.py", 2)
    b.op(async_copy.Copy, made.body.args[0], i, zero, S, slot, zero, zero, **copied)
    for line, read in enumerate((operand, *others), 3):
        b.loc = Loc("k.py", line)
        for k in range(0, read.dims[read.k], SHAPES[read.shape].k):
            at = [slot, zero, zero]
            at[1 + read.k] = b.constant(k, INDEX)
            keep(b, b.value(matrix.Load(S, *at, type=read.step, axes=read.axes, vec=read.vec)))
    following = b.scalar("add", slot, one)
    wrapped = b.select(b.scalar("lt", following, b.constant(SLOTS, INDEX)), following, zero)
    b.op(control.Yield, wrapped)
    b.block = outer
    n = b.cast(made.body.args[1], INDEX)
    b.op(control.For, zero, n, one, zero, blocks=[body])
    return finished(made, b)


def keep(b: Builder, fragment: Value) -> None:
    """Something must need what was loaded, or the loads do not count."""
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    b.op(tile.Pack, *(b.value(tile.Extract(fragment, at=(e,))) for e in range(type_.size)), type=type_)


def staged(dtype: DType, dims: tuple[int, int], vec: int) -> Kernel:
    """An accumulator stored by accesses of `vec` bytes, or stmatrix, then copied out by rows of 16 bytes."""
    made, b = kernel(dtype)
    S = b.value(tile.SharedAlloc(type=SharedType(dtype, dims)))
    zero = b.constant(0, INDEX)
    layout = FragmentLayout(SHAPES["m16n8k16"], "acc", WARPS)
    acc = b.value(tile.Pack(b.constant(dtype.python(0), dtype), type=FragmentType(dtype, dims, layout)))
    b.loc = Loc("k.py", 2)
    b.op(matrix.Store, acc, S, zero, zero, axes=(0, 1), vec=vec)
    b.op(gpu.Barrier)
    b.loc = Loc("k.py", 3)
    axes = {"shape": dims, "src_axes": (0, 1), "dst_axes": (0, 1)}
    b.op(tile.Copy, S, zero, zero, made.body.args[0], zero, zero, vec=16, **axes)
    return finished(made, b)


TILES_16 = ((128, 32), (128, 64), (64, 32), (32, 128), (64, 64), (32, 64), (128, 128), (16, 256))
K_MAJOR = [Operand(F16, dims, "m16n8k16", name, 1) for dims in TILES_16 for name in "ab" if dims[0] >= 32]
TRANSPOSED = [Operand(BF16, dims, "m16n8k16", name, 0) for dims in TILES_16 for name in "ab"]
OTHERS = [
    *(Operand(E4M3, dims, "m16n8k32", name, 1) for dims in ((128, 64), (128, 32), (64, 128)) for name in "ab"),
    *(Operand(TF32, dims, "m16n8k8", name, 1) for dims in ((128, 32), (128, 16), (64, 64)) for name in "ab"),
]


@pytest.mark.parametrize("operand", [*K_MAJOR, *TRANSPOSED, *OTHERS], ids=str)
def test_operands_are_copied_and_loaded_without_conflicts(operand: Operand) -> None:
    found = bank_report(pipelined(operand))
    assert found.tiles[0].wavefronts == found.tiles[0].ideal
    assert found.tiles[0].bytes == found.tiles[0].row_bytes, "a swizzle does it, so nothing is padded"
    assert [a.kind for a in found.accesses] == ["cp_async", "ldmatrix"]
    assert all(a.is_known and a.least == a.most for a in found.accesses)


PICKED = [
    (Operand(F16, (128, 32), "m16n8k16", "a", 1), "swizzled(unit=8, span=4, every=2)", 16),
    (Operand(F16, (64, 32), "m16n8k16", "b", 1), "swizzled(unit=8, span=4, every=2)", 16),
    (Operand(F16, (128, 64), "m16n8k16", "a", 1), "swizzled(unit=8, span=8)", 32),
    (Operand(F16, (32, 128), "m16n8k16", "a", 1), "swizzled(unit=8, span=8, every=2)", 32),
    (Operand(F16, (32, 128), "m16n8k16", "b", 0), "swizzled(unit=8, span=8, every=2)", 32),
    (Operand(F16, (64, 32), "m16n8k16", "a", 0), "swizzled(unit=8, span=4, every=2)", 16),
    (Operand(E4M3, (128, 64), "m16n8k32", "a", 1), "swizzled(unit=16, span=4, every=2)", 16),
    (Operand(TF32, (128, 32), "m16n8k8", "a", 1), "swizzled(unit=4, span=8)", 32),
]


@pytest.mark.parametrize(("operand", "layout", "row_order"), PICKED, ids=str)
def test_what_docs_bank_conflicts_says_is_picked(operand: Operand, layout: str, row_order: int) -> None:
    found = bank_report(pipelined(operand))
    assert found.tiles[0].layout == layout
    assert [(a.row_order, a.chosen) for a in found.accesses] == [(4, 4), (row_order, 4)]


PLAIN = [
    Operand(TF32, (32, 128), "m16n8k8", "b", 0, vec=4),
    Operand(TF32, (128, 32), "m16n8k8", "a", 1, vec=4),
    Operand(F64, (64, 16), "m8n8k4", "a", 1, vec=8),
    Operand(F64, (16, 64), "m16n8k8", "b", 0, vec=8),
    Operand(E4M3, (64, 128), "m16n8k32", "b", 0, vec=1),
    Operand(F16, (128, 32), "m16n8k16", "a", 1, vec=4),
]


@pytest.mark.parametrize("operand", PLAIN, ids=str)
def test_operands_that_no_matrix_load_reaches(operand: Operand) -> None:
    """Formats that ldmatrix does not transpose, and f64, by plain loads of what a lane holds."""
    (plan,) = bank_report(pipelined(operand)).tiles
    assert plan.row_wavefronts > plan.ideal
    assert (plan.wavefronts, plan.bytes) == (plan.ideal, plan.row_bytes)


@pytest.mark.parametrize("columns", [80, 96, 144, 176, 208])
def test_widths_that_are_no_powers_of_two(columns: int) -> None:
    """A swizzle needs panels of a power of two only, and conflicts are of no higher order than the row's own power."""
    found = bank_report(pipelined(Operand(F16, (64, columns), "m16n8k16", "b", 0)))
    (plan,) = found.tiles
    assert plan.layout == f"swizzled(unit=8, span={'4, every=2' if columns == 96 else '2, every=4'})"
    assert plan.row_wavefronts > plan.ideal
    assert (plan.wavefronts, plan.bytes) == (plan.ideal, plan.row_bytes)
    assert found.accesses[1].ideal is not None
    assert (found.accesses[1].ideal < 4) == (columns % 32 == 16), "then a warp's last load is of two matrices"


def test_rows_that_need_nothing() -> None:
    """Rows of 80 bytes: eight of them never meet in a bank."""
    (plan,) = bank_report(pipelined(Operand(F16, (128, 40), "m16n8k8", "a", 1))).tiles
    assert (plan.layout, plan.by) == ("row", "row order is best")


def test_one_tile_in_both_orientations() -> None:
    """The same tile as A, and transposed as B, of one product: what cures rows cures columns of matrices."""
    found = bank_report(
        pipelined(Operand(F16, (64, 64), "m16n8k16", "a", 1), Operand(F16, (64, 64), "m16n8k16", "b", 0))
    )
    assert [a.kind for a in found.accesses] == ["cp_async", "ldmatrix", "ldmatrix"]
    assert found.conflicts == 0
    assert found.tiles[0].layout == "swizzled(unit=8, span=8)"


def test_padding_costs_copies_what_it_saves_loads() -> None:
    """Rows of 64 bytes, padded by 16: loads are free, but of the two rows that eight lanes fill two chunks meet."""
    found = bank_report(pipelined(Operand(F16, (128, 32), "m16n8k16", "a", 1), layout="padded(40)"))
    assert [(a.kind, a.chosen, a.ideal) for a in found.accesses] == [("cp_async", 8, 4), ("ldmatrix", 4, 4)]


def test_a_slot_that_is_not_known() -> None:
    """Slots of 36 rows begin at different places of a pattern of eight rows: all are counted, and agree."""
    made, b = kernel(F16)
    S = b.value(tile.SharedAlloc(type=SharedType(F16, (SLOTS, 36, 32)), layout="swizzled(unit=8, span=4, every=2)"))
    n = b.cast(made.body.args[1], INDEX)
    lane = b.value(gpu.LaneId(dtype=INDEX))
    row, chunk = (b.scalar(fn, lane, b.constant(8, INDEX)) for fn in ("mod", "floordiv"))
    column = b.scalar("mul", chunk, b.constant(8, INDEX))
    b.op(tile.Pack, *b.op(matrix.LdMatrix, S, n, row, column, vec=8).results, type=FragmentType(U32, (4,)))
    (access,) = bank_report(finished(made, b)).accesses
    assert (access.row_order, access.chosen, access.least, access.most) == (16, 4, 4, 4)


@tile_kernel
def turned(C: Global[f32, M, N]):
    grid(1)
    threads(128)
    rows, columns = coordinates(fragment((64, 32), f32, mma.m16n8k16.acc(warps=WARPS)))
    S = shared((32, 64), f32)
    S[columns, rows] = f32(i32(64 * columns + rows))
    barrier()
    C[rows, columns] = S[columns, rows]


def test_indices_that_are_coordinates_are_known_by_lane() -> None:
    C = np.zeros((64, 32), np.float32)
    both = count_both(turned, C)
    np.testing.assert_array_equal(C, np.add.outer(np.arange(64), 64 * np.arange(32)))
    assert both.differences == []
    for kind in both.kinds:
        static, emulated = both.of_kind(kind)
        assert static == emulated > 0
    assert [(a.kind, a.row_order, a.chosen) for a in both.report.accesses] == [("store", 4, 1), ("load", 4, 1)]


@pytest.mark.parametrize("dims", [(128, 128), (128, 64), (64, 256), (32, 32)], ids=str)
@pytest.mark.parametrize(("dtype", "vec"), [(F16, 4), (F32, 8), (I32, 8), (F16, 0), (BF16, 0)], ids=str)
def test_results_are_staged_without_conflicts(dtype: DType, vec: int, dims: tuple[int, int]) -> None:
    """Stored in pairs, or as matrices; read back in rows of 16 bytes."""
    found = bank_report(staged(dtype, dims, vec))
    assert found.conflicts == 0
    assert found.tiles[0].bytes == found.tiles[0].row_bytes
    if dims == (128, 128):
        assert found.tiles[0].layout == f"swizzled(unit=8, span={'8, every=2' if dtype.bytes == 2 else '4, every=4'})"
    store = ("store", vec) if vec else ("stmatrix", 16)
    # Where a row of the tensor ends inside a vector, single elements are read; that has no say.
    often, rarely = found.accesses[:2], found.accesses[2:]
    assert [(a.kind, a.bytes) for a in often] == [store, ("load", 16)]
    assert [(a.kind, a.bytes, a.weight) for a in rarely] == [("load", dtype.bytes, 0)]
    assert rarely[0].notes[-1] == "hardly ever runs"

"""TMA, wgmma, mbarriers and clusters on the emulator: both levels compute the product, and the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from emulator_rings import CHECKED, CLUSTER, RING, kernel_of, operands, run_ring
from numpy.typing import NDArray

from tiledsl.backends.emulator import Options, run
from tiledsl.backends.emulator.native.dot import add_terms
from tiledsl.backends.emulator.rules.matrices import (
    Descriptor,
    held_matrices,
    operand_addresses,
    registers,
    swizzled,
)
from tiledsl.errors import KernelArgumentError
from tiledsl.ir import tensor_core
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES
from tiledsl.layout.fragments import FragmentLayout, of_warpgroups
from tiledsl.layout.mma import SHAPES, find_row
from tiledsl.layout.shared import Paneled
from tiledsl.layout.wgmma import WGMMA, WgmmaRow, find_wgmma
from tiledsl.passes.pipeline import run_pipeline

Array = NDArray[Any]


def lowered(kernel: Kernel) -> Kernel:
    return run_pipeline(kernel, verify_each=True)


# -- the ring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [RING, CLUSTER], ids=["ring", "cluster"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 32, 64), (256, 64, 512), (100, 40, 72), (1, 4, 8)])
def test_a_ring_multiplies(text: str, m: int, n: int, k: int) -> None:
    """Also where the last tiles lie across the edge, and blocks of a cluster beyond it: TMA brings zeros."""
    if text is CLUSTER:
        m = -(-m // 128) * 128
    for kernel in (kernel_of(text), lowered(kernel_of(text))):
        run_ring(kernel, m, n, k, Options())


def test_blocks_are_emulated_in_any_number() -> None:
    """One cluster at a time gives what all at once give."""
    for threads in (32, 512, 65536):
        run_ring(lowered(kernel_of(CLUSTER)), 256, 64, 192, Options(chunk_threads=threads))


def test_a_grid_is_whole_clusters() -> None:
    with pytest.raises(KernelArgumentError, match="the grid has 1 blocks along y, no multiple of the cluster's 2"):
        run_ring(kernel_of(CLUSTER), 64)


def test_a_grid_may_depend_on_the_processors() -> None:
    kernel = parse_kernel("""kernel count(%X: global<i32, [N], unit=0, align=4>) grid(processors) threads(1)
  level(tile) index_bits(32) {
  %b = gpu.block_id {axis = 0} : index
  %v = arith.cast %b : i32
  tile.store %X, %b, %v
  control.return
}""")
    for processors in (1, 6):
        x = np.full(8, -1, np.int32)
        run(kernel, {"X": x}, options=Options(processors=processors))
        assert x.tolist() == [*range(processors), *[-1] * (8 - processors)]


def test_ranks_count_x_first() -> None:
    kernel = parse_kernel("""kernel ranks(%X: global<i32, [2, 4, 6], unit=2, align=4>) grid(6, 4, 2) threads(1)
  cluster(2, 2, 1) level(tile) index_bits(32) {
  %x = gpu.block_id {axis = 0} : index
  %y = gpu.block_id {axis = 1} : index
  %z = gpu.block_id {axis = 2} : index
  %r = cluster.rank : i32
  tile.store %X, %z, %y, %x, %r
  control.return
}""")
    x = np.full((2, 4, 6), -1, np.int32)
    run(kernel, {"X": x}, options=Options(chunk_threads=64))
    assert (x == np.tile([[0, 1], [2, 3]], (2, 3))).all()


def test_one_lane_is_elected() -> None:
    kernel = parse_kernel("""kernel elect(%X: global<i32, [64], unit=0, align=4>) grid(1) threads(64)
  level(tile) index_bits(32) {
  %t = gpu.thread_id {axis = 0} : index
  %e = warp.elect : bool
  %v = arith.cast %e : i32
  tile.store %X, %t, %v
  control.return
}""")
    x = np.full(64, -1, np.int32)
    run(kernel, {"X": x})
    assert x.reshape(2, 32).sum(axis=1).tolist() == [1, 1]


# -- one product -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``A B`` of m x n x k by so many warpgroups. turned_a, turned_b: the operand's m or n axis is contiguous.

    swizzle: bytes of the span, of both tiles. held: A comes from registers.
    """

    row: str
    m: int = 64
    n: int = 16
    k: int = 64
    groups: int = 1
    turned_a: bool = False
    turned_b: bool = False
    swizzle: int = 128
    held: bool = False

    @property
    def dtypes(self) -> tuple[str, str, str]:
        a, b, acc = self.row.split()
        return a, b, acc

    def kernel(self) -> Kernel:
        a, b, acc = self.dtypes
        dims_a, axes_a = ((self.k, self.m), "(1, 0)") if self.turned_a else ((self.m, self.k), "(0, 1)")
        dims_b, axes_b = ((self.k, self.n), "(0, 1)") if self.turned_b else ((self.n, self.k), "(1, 0)")
        bytes_ = (self.m * self.k * DTYPES[a].bits + self.n * self.k * DTYPES[b].bits) // 8
        held = f"fragment<{a}, [{self.m}, {self.k}], wgmma.a({self.groups})>"
        load = (
            f"%h = matrix.load %A, %c0, %c0 {{type = {held}, axes = {axes_a}, vec = {DTYPES[a].bits // 8}}} : {held}\n"
        )
        left, left_axes = ("%a, %c0, %c0", axes_a) if not self.held else ("%h", "()")
        fragment = f"fragment<{acc}, [{self.m}, {self.n}], wgmma.acc({self.groups})>"
        pending = f"pending<{fragment}>"
        return parse_kernel(f"""kernel one(%A: global<{a}, {list(dims_a)}, unit=1, align=16>,
  %B: global<{b}, {list(dims_b)}, unit=1, align=16>, %C: global<{acc}, [{self.m}, {self.n}], unit=1, align=16>)
  grid(1) threads({128 * self.groups}) level(tile) index_bits(32) {{
  %c0 = arith.constant 0 : index
  %even = arith.constant 0 : u32
  %no = arith.constant false : bool
  %t = gpu.thread_id {{axis = 0}} : index
  %a = tile.shared_alloc {{layout = "swizzle_{self.swizzle}b"}} : shared<{a}, {list(dims_a)}>
  %b = tile.shared_alloc {{layout = "swizzle_{self.swizzle}b"}} : shared<{b}, {list(dims_b)}>
  %bar = tile.shared_alloc : shared<u64, [1]>
  %first = arith.eq %t, %c0 : bool
  control.if %first {{
    mbarrier.init %bar, %c0 {{count = 1}}
    fence.mbarrier_init
    mbarrier.expect_tx %bar, %c0 {{bytes = {bytes_}}}
    tma.load %a, %c0, %c0, %A, %c0, %c0, %bar, %c0 {{box = {dims_a}, axes = (0, 1)}}
    tma.load %b, %c0, %c0, %B, %c0, %c0, %bar, %c0 {{box = {dims_b}, axes = (0, 1)}}
    control.yield
  }} else {{ control.yield }}
  gpu.barrier
  mbarrier.wait %bar, %c0, %even
  {load if self.held else ""}%acc = wgmma.begin {{type = {pending}}} : {pending}
  wgmma.fence
  %sum = wgmma.mma %acc, %no, {left}, %b, %c0, %c0 {{k = {self.k}, a_axes = {left_axes}, b_axes = {axes_b}}} : {pending}
  wgmma.commit_group
  %r = wgmma.wait %sum {{pending = 0}} : {fragment}
  matrix.store %r, %C, %c0, %c0 {{axes = (0, 1), vec = {DTYPES[acc].bits // 8}}}
  control.return
}}""")

    def operands(self, integers: bool = True) -> dict[str, Array]:
        rng = np.random.default_rng(7)
        a, b, acc = (numpy_dtype(DTYPES[name]) for name in self.dtypes)
        shapes = (self.m, self.k), (self.n, self.k)
        if integers:
            left, right = (rng.integers(0, 4, shape).astype(np.float64) for shape in shapes)
        else:
            left, right = (rng.normal(size=shape) for shape in shapes)
        return {
            "A": np.ascontiguousarray((left.T if self.turned_a else left).astype(a)),
            "B": np.ascontiguousarray((right.T if self.turned_b else right).astype(b)),
            "C": np.zeros((self.m, self.n), acc),
        }

    def product(self, arrays: dict[str, Array]) -> Array:
        a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
        return (a.T if self.turned_a else a) @ (b if self.turned_b else b.T)


F16 = "f16 f16 f32"
CASES = [
    Case(F16),
    Case("bf16 bf16 f32", m=256, n=40, groups=2),
    Case("f16 f16 f16", n=24),
    Case("tf32 tf32 f32", n=8),
    Case("i8 u8 i32", k=128),
    Case("e4m3 e4m3 f32", k=128),
    *(Case(F16, swizzle=swizzle, k=32, n=64) for swizzle in (64, 32)),
    *(Case(F16, m=128, n=128, k=128, turned_a=a, turned_b=b) for a in (False, True) for b in (False, True)),
    Case(F16, m=256, n=64, k=32, groups=2, swizzle=64, turned_a=True, turned_b=True),
    Case(F16, m=64, n=64, k=32, swizzle=32, turned_a=True, turned_b=True),
    Case(F16, m=128, groups=1, held=True),
    Case("bf16 bf16 f32", m=128, groups=2, held=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_levels_multiply(case: Case) -> None:
    for kernel in (case.kernel(), lowered(case.kernel())):
        arrays = case.operands()
        run(kernel, arrays, options=CHECKED)
        np.testing.assert_array_equal(arrays["C"].astype(np.float64), case.product(arrays))


@pytest.mark.parametrize("case", [c for c in CASES if not c.row.startswith("i8")], ids=str)
def test_both_levels_round_alike(case: Case) -> None:
    results: list[Array] = []
    for kernel in (case.kernel(), lowered(case.kernel())):
        arrays = case.operands(integers=False)
        run(kernel, arrays)
        results.append(arrays["C"])
        np.testing.assert_allclose(arrays["C"].astype(np.float64), case.product(arrays), rtol=0.05, atol=0.2)
    assert results[0].tobytes() == results[1].tobytes()


# -- what the hardware addresses -------------------------------------------------------------------


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_descriptors_read_what_the_layout_says_along_k(span: int, size: int) -> None:
    """Rows of one panel: 8 rows of a span are a pattern, the next 8 are `stride` further."""
    rows, k = 64, 32 // size
    layout = Paneled(span, size)
    dims = rows, layout.width
    at = np.asarray(layout.offset([np.arange(rows)[:, None], np.arange(dims[1])], dims)) * size
    for step in range(dims[1] // k):
        described = Descriptor(2048 + step * 32, 16, 8 * span, span)
        expected = 2048 + at[:, step * k : (step + 1) * k]
        np.testing.assert_array_equal(operand_addresses(described, rows, k, size, transposed=False), expected)


@pytest.mark.parametrize("span", [128, 64, 32])
def test_descriptors_read_what_the_layout_says_along_n(span: int) -> None:
    """A tile of k rows and n columns in panels: `leading` leads to the next one, `stride` to the next 8 rows."""
    layout = Paneled(span, 2)
    dims = 16, 4 * layout.width
    at = np.asarray(layout.offset([np.arange(16)[:, None], np.arange(dims[1])], dims)) * 2
    described = Descriptor(1024, 2 * layout.panel_size(dims), 8 * span, span)
    np.testing.assert_array_equal(operand_addresses(described, dims[1], 16, 2, transposed=True), 1024 + at.T)


def test_fields_of_a_descriptor() -> None:
    bits = 0x1234 | 0x55 << 16 | 0x40 << 32 | 1 << 62
    assert Descriptor.of(bits) == Descriptor(0x12340, 0x550, 0x400, 128)
    assert Descriptor.of(bits - (1 << 64) | 3 << 62).span == 32


def test_operands_begin_where_the_pattern_does() -> None:
    """Advancing along k stays in the first row of the pattern; the rows behind it would ask for a base offset."""
    begin = [start for start in range(0, 2048, 16) if Descriptor(start, 16, 1024, 128).begins_pattern]
    assert begin == [*range(0, 128, 16), *range(1024, 1152, 16)]


def test_a_swizzle_permutes_by_address() -> None:
    """128B: bits 4 to 6 of the address are XORed with bits 7 to 9; 64B: 4 and 5 with 7 and 8; 32B: 4 with 7."""
    chunk = np.arange(256)
    for span, mask in ((128, 7), (64, 3), (32, 1)):
        np.testing.assert_array_equal(swizzled(chunk, span), chunk ^ (chunk >> 3 & mask))
    np.testing.assert_array_equal(swizzled(chunk, 0), chunk)


# -- registers -------------------------------------------------------------------------------------


def held(layout: FragmentLayout, dims: tuple[int, int], matrix: Array) -> tuple[Array, ...]:
    """What each lane of a warpgroup holds of `matrix`, as the layout says: [1, 4, 32] an element."""
    warps, lanes = np.arange(4)[:, None], np.arange(32)
    places = (layout.place(dims, matrix.itemsize * 8, e, warps, lanes) for e in range(layout.size(dims)))
    return tuple(matrix[place][None] for place in places)


def test_accumulators_lie_as_the_fragment_layout_says() -> None:
    layout, matrix = of_warpgroups(1), np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
    values = held(layout, (64, 24), matrix)
    got = held_matrices(layout, (64, 24), values, (1, 4, 32), matrix.dtype)
    np.testing.assert_array_equal(got[0, 0], matrix)
    np.testing.assert_array_equal(np.stack(registers(layout, got, (1, 4, 32), matrix.dtype)), np.stack(values))


def test_accumulators_of_f16_come_in_words() -> None:
    layout, matrix = of_warpgroups(1), np.arange(64 * 16, dtype=np.float16).reshape(1, 1, 64, 16)
    words = registers(layout, matrix, (1, 4, 32), np.dtype(np.uint32))
    assert len(words) == 4
    np.testing.assert_array_equal(held_matrices(layout, (64, 16), words, (1, 4, 32), matrix.dtype), matrix)
    assert words[1][0, 2, 5:6].view(np.float16).tolist() == matrix[0, 0, 32 + 1 + 8, 2:4].tolist()


@pytest.mark.parametrize(("dtype", "k"), [("f16", 16), ("tf32", 8), ("i8", 32)])
def test_left_operands_in_registers(dtype: str, k: int) -> None:
    """Words as those of mma.sync's A, 16 rows for each warp."""
    numpy = numpy_dtype(DTYPES[dtype])
    matrix = np.arange(64 * k).astype(np.uint8).astype(numpy).reshape(64, k)
    layout = FragmentLayout(SHAPES[f"m16n8k{k}"], "a", (4, 1))
    elements = np.stack(held(layout, (64, k), matrix), axis=-1)
    words = np.moveaxis(np.ascontiguousarray(elements).view(np.uint32), -1, 0)
    left = replace(layout, interleaved=4)
    np.testing.assert_array_equal(held_matrices(left, (64, k), list(words), (1, 4, 32), numpy)[0, 0], matrix)


def test_operands_are_read_where_they_are() -> None:
    """A tensor with gaps between rows, and one of rank 3 would be read the same way: by its strides."""
    arrays = operands(64, 32, 128)
    padded = np.zeros((64, 192), arrays["A"].dtype)
    padded[:, :128] = arrays["A"]
    arrays["A"] = padded[:, :128]
    expected = arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32).T
    run(lowered(kernel_of(RING)), arrays, options=CHECKED)
    np.testing.assert_array_equal(arrays["C"], expected)


@pytest.mark.parametrize("row", [row for row in WGMMA if row.acc != "i32"], ids=str)
@pytest.mark.parametrize("spread", [0, 30])
def test_compiled_sums_are_those_of_the_definition(row: WgmmaRow, spread: int) -> None:
    """Also with exponents far apart, zeros and infinities."""
    rng = np.random.default_rng(spread)

    def some(shape: tuple[int, ...], dtype: str) -> Array:
        values = rng.normal(size=shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
        values[rng.random(shape) < 0.1] = 0
        if spread:
            values[rng.random(shape) < 0.01] = np.inf
        with np.errstate(over="ignore"):
            return values.astype(np.float32).astype(numpy_dtype(DTYPES[dtype]))

    a, b, c = some((2, 64, 2 * row.k), row.a), some((2, 40, 2 * row.k), row.b), some((2, 64, 40), row.acc)
    assert tensor_core.wgmma(row, a, b, c).tobytes() == tensor_core.wgmma(row, a, b, c, add_terms()).tobytes()


def test_wgmma_of_16_bits_is_what_mma_sync_computes() -> None:
    rng = np.random.default_rng(3)
    row, small = find_wgmma("f16", "f16", "f32"), find_row(SHAPES["m16n8k16"], "f16", "f16", "f32")
    assert row is not None and small is not None
    a, b = (rng.normal(size=(1, n, 32)).astype(np.float16) for n in (64, 8))
    c = rng.normal(size=(1, 64, 8)).astype(np.float32)
    expected = c[0].reshape(4, 16, 8)
    for k in (slice(0, 16), slice(16, 32)):
        expected = tensor_core.mma(small, a[0, :, k].reshape(4, 16, 16), b[0, :, k].T, expected)
    assert tensor_core.wgmma(row, a, b, c)[0].tobytes() == expected.reshape(64, 8).tobytes()

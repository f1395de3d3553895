"""Tiles in panels, as TMA writes and wgmma reads them, and accumulators that warpgroups hold."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tiledsl.errors import VerifyError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import arith, gpu
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import I32
from tiledsl.ir.verifier import verify
from tiledsl.layout.banks import cost
from tiledsl.layout.fragments import FragmentLayout, of_warpgroups, parse_fragment_layout
from tiledsl.layout.mma import SHAPES
from tiledsl.layout.shared import Paneled, parse_layout
from tiledsl.passes.analysis.intervals import Intervals

MASKS = {128: 7, 64: 3, 32: 1}
"""Bits of the 128-byte line's number that a swizzle of each span uses. (PTX ISA: tensor swizzling modes.)"""


@pytest.mark.parametrize(
    ("span", "element", "dims"),
    [(128, 2, (3, 16, 192)), (128, 2, (12, 64)), (64, 2, (16, 64)), (32, 4, (8, 24)), (128, 1, (2, 2, 8, 256))],
)
def test_places_are_those_of_the_hardware(span: int, element: int, dims: tuple[int, ...]) -> None:
    """Panels one after the other, rows of one span, and the 16-byte chunk XORed with bits of its address."""
    layout = Paneled(span, element)
    assert layout.problem(dims) is None
    panels, rows = dims[-1] * element // span, dims[-2]
    seen: set[int] = set()
    for *lead, row, column in product(*map(range, dims)):
        stage = int(np.ravel_multi_index(lead, dims[:-2])) if lead else 0
        panel, within = divmod(column * element, span)
        address = ((stage * panels + panel) * rows + row) * span + within
        address ^= (address >> 7 & MASKS[span]) << 4
        assert layout.offset((*lead, row, column), dims) * element == address
        seen.add(address)
    assert len(seen) == layout.footprint(dims) and max(seen) < layout.footprint(dims) * element


def test_arrays_of_indices_are_places_too() -> None:
    layout, dims = Paneled(128, 2), (2, 16, 128)
    stage, row, column = np.meshgrid(*map(np.arange, dims), indexing="ij")
    places = layout.offset((stage, row, column), dims)
    assert places[1, 9, 70] == layout.offset((1, 9, 70), dims)
    assert sorted(places.ravel()) == list(range(2 * 16 * 128))


def test_text_and_alignment() -> None:
    for span in (128, 64, 32):
        layout = parse_layout(f"swizzle_{span}b", 2)
        assert layout == Paneled(span, 2) and str(layout) == f"swizzle_{span}b" and layout.alignment == 1024
    with pytest.raises(ValueError, match="not a layout"):
        parse_layout("swizzle_96b", 2)
    with pytest.raises(ValueError, match="not a layout"):
        parse_layout("swizzle_128b(2)", 2)


@pytest.mark.parametrize(
    ("span", "element", "dims", "message", "fix"),
    [
        (
            128,
            2,
            (64, 96),
            "panels of 64 columns (128 bytes), and 96 is no multiple",
            "128 columns, or use swizzle_64b",
        ),
        (128, 2, (2, 12, 64), "panels of 12 rows do not begin where the pattern of 8 rows does", "(16)"),
        (32, 2, (12, 32), "panels of 12 rows", "(16)"),
        (128, 2, (64,), "on a tile of one axis", "leave layout= out"),
    ],
)
def test_what_does_not_fit(span: int, element: int, dims: tuple[int, ...], message: str, fix: str) -> None:
    problem = Paneled(span, element).problem(dims)
    assert problem is not None and message in problem.message and fix in problem.fix


def test_columns_of_a_swizzled_tile_are_free_of_conflicts() -> None:
    """Eight rows of 16 bytes, what stmatrix and ldmatrix move: 8 wavefronts in row order, one in panels."""
    layout, dims = Paneled(128, 2), (64, 64)
    for column in range(0, 64, 8):
        rows = [layout.offset((row, column), dims) * 2 for row in range(8)]
        lanes = rows + [0] * 24
        assert cost(lanes, 16, [i < 8 for i in range(32)], "stmatrix").wavefronts == 1


# -- fragments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("warpgroups", [1, 2, 3])
def test_an_accumulator_lies_as_wgmma_gives_it(warpgroups: int) -> None:
    """Of each 64 rows warp w has 16, and in them row g + 8 * (v // 2 % 2), column 8 * (v // 4) + 2t + v % 2."""
    layout, n, blocks = of_warpgroups(warpgroups), 24, 2
    dims = (64 * blocks * warpgroups, n)
    each = n // 2
    assert layout.size(dims) == blocks * each
    for block, v, warp, lane in product(range(blocks), range(each), range(4 * warpgroups), range(32)):
        g, t = divmod(lane, 4)
        row = (warp // 4 * blocks + block) * 64 + warp % 4 * 16 + g + 8 * (v // 2 % 2)
        column = 8 * (v // 4) + 2 * t + v % 2
        assert layout.place(dims, 32, block * each + v, warp, lane) == (row, column)


@pytest.mark.parametrize(("bits", "k"), [(16, 16), (32, 8), (8, 32)])
def test_a_left_operand_has_four_words_a_step(bits: int, k: int) -> None:
    """A of m64 in registers: (PTX ISA: wgmma, register fragments.)"""
    layout, dims = of_warpgroups(1).a, (64, 32)
    run = max(1, 32 // bits)
    for step, word, inside, warp, lane in product(range(32 // k), range(4), range(run), range(4), range(32)):
        g, t = divmod(lane, 4)
        row, column = 16 * warp + g + 8 * (word % 2), k * step + run * t + inside + (k // 2) * (word // 2)
        assert layout.place(dims, bits, (4 * step + word) * run + inside, warp, lane) == (row, column)


def test_a_role_holds_a_fragment_from_its_first_warp_on() -> None:
    whole, role = of_warpgroups(2), of_warpgroups(2, 4)
    assert [role.place((128, 8), 32, 0, warp, 5) for warp in range(4, 12)] == [
        whole.place((128, 8), 32, 0, warp, 5) for warp in range(8)
    ]
    assert role.a.first == 4 and str(role.a) == "wgmma.a(2, 4)"


@pytest.mark.parametrize(
    "text", ["wgmma.acc(1)", "wgmma.a(2, 4)", "mma.m16n8k16.acc(2, 2)", "mma.m16n8k8.b(2, 2, 4)", "wgmma.b(3)"]
)
def test_layouts_have_a_text(text: str) -> None:
    assert str(parse_fragment_layout(text)) == text


def test_every_place_is_held_once() -> None:
    for layout in (of_warpgroups(2, 4), FragmentLayout(SHAPES["m16n8k16"], "acc", (2, 2), first=2)):
        dims = (128, 32)
        places = {
            layout.place(dims, 32, register, layout.first + warp, lane)
            for register, warp, lane in product(range(layout.size(dims)), range(layout.threads // 32), range(32))
        }
        assert places == set(product(range(128), range(32)))


# -- ranges, which tell where columns of panels cannot carry ------------------------------------------


def test_the_largest_value_of_an_index() -> None:
    b = Builder(Block())
    intervals = Intervals(Kernel("k", b.block, (1,), (256,)))

    def most(value: Value) -> int | None:
        least, largest = intervals.of(value)
        return largest if least >= 0 else None

    lane, thread = b.value(gpu.LaneId(dtype=I32)), b.value(gpu.ThreadId(axis=0, dtype=I32))

    def number(value: int) -> Value:
        return b.constant(value, I32)

    assert most(b.scalar("mul", b.scalar("and", lane, number(3)), number(2))) == 6
    assert most(b.scalar("add", b.scalar("floordiv", lane, number(4)), number(8))) == 15
    assert most(b.scalar("mod", thread, number(128))) == 127
    assert most(b.scalar("shl", b.scalar("shr", lane, number(4)), number(3))) == 8
    assert most(b.scalar("sub", lane, number(1))) is None
    assert most(number(-1)) is None
    assert most(b.value(arith.Cast(lane, to=I32))) == 31
    few = b.scalar("lt", lane, number(4))
    assert most(b.select(few, lane, number(0))) == 3
    assert most(b.select(few, number(0), lane)) == 31


# -- what a kernel says of clusters and tensor maps -----------------------------------------------------


def test_clusters_and_tensor_maps_have_a_text() -> None:
    text = (
        "kernel k(%A: ptr<global, bf16>, %M: i32, %K: i32, %A_stride0: i32)\n"
        "  grid(mul(processors, 1)) threads(128) level(thread) index_bits(32) abi(pointer A bf16 [M, K], extent M i32, "
        "extent K i32, stride A 0 i32) cluster(2, 1, 1) "
        "tensor_maps(map(A, axes=[1, 0], box=[64, 128], swizzle=128), map(A, axes=[1, 0], box=[8, 8], swizzle=0)) {\n"
        "  control.return\n}\n"
    )
    kernel = parse_kernel(text)
    verify(kernel)
    assert kernel.cluster == (2, 1, 1) and [m.swizzle for m in kernel.tensor_maps] == [128, 0]
    assert print_kernel(kernel) == text and print_kernel(kernel.clone()) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("map(A", "map(B", "a tensor map of no parameter"),
        ("cluster(2, 1, 1)", "cluster(2, 0, 1)", "3 positive extents"),
        ("{map = 0}", "{map = 1}", "names tensor map 1 of 1"),
        ("grid(processors)", "grid(sockets)", "the grid needs sockets"),
        ("swizzle = 128}", "swizzle = 96}", "swizzle is 96; 128, 64, 32 are possible"),
        ("stride = 1024", "stride = 1000", "byte offsets"),
        ("n = 8,", "n = 12,", "n = 12"),
    ],
)
def test_what_the_verifier_refuses(old: str, new: str, message: str) -> None:
    text = """kernel k(%A: ptr<global, bf16>, %M: i32, %K: i32, %A_stride0: i32)
  grid(processors) threads(128) level(thread) index_bits(32) shared_bytes(1024) cluster(2, 1, 1)
  abi(pointer A bf16 [M, K], extent M i32, extent K i32, stride A 0 i32)
  tensor_maps(map(A, axes=[1, 0], box=[64, 8], swizzle=128)) {
  %no = arith.constant false : bool
  %S = mem.shared_base {dtype = bf16, offset = 0, bytes = 1024} : ptr<shared, bf16>
  mem.tma_prefetch {map = 0}
  %a, %b, %c, %d = ptx.wgmma_registers {dtype = f32, count = 4} : f32, f32, f32, f32
  %desc = ptx.wgmma_descriptor %S {leading = 16, stride = 1024, swizzle = 128} : i64
  %e, %f, %g, %h = ptx.wgmma %no, %desc, %desc, %a, %b, %c, %d {n = 8, a = bf16, b = bf16, acc = f32}
      : f32, f32, f32, f32
  control.return
}
"""
    verify(parse_kernel(text))
    with pytest.raises(VerifyError, match=message):
        verify(parse_kernel(text.replace(old, new, 1)))

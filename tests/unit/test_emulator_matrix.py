"""Matrix operands on the emulator: whole products, which lanes take part, bounds, and races of ldmatrix and stmatrix.

What single instructions compute, and which lane holds what, is in tests/filetests/{matrix,ptx,mem}.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.backends.emulator import Access, Hook, Options, run
from tiledsl.errors import EmulatorError, HazardError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.tensor_core import mma
from tiledsl.layout.mma import SHAPES, find_row
from tiledsl.passes.pipeline import run_pipeline

Array = NDArray[Any]
CHECKED = Options(checks=True)

# -- a whole product -------------------------------------------------------------------------------

GEMM = """
kernel gemm(%A: global<f16, [M, K], unit=1, align=16>, %B: global<f16, [K, N], unit=1, align=16>,
            %C: global<f32, [M, N], unit=1, align=16>)
  grid(floordiv(N, 32), floordiv(M, 64)) threads(128) level(tile) {
  %0 = arith.constant 0 : index
  %16 = arith.constant 16 : index
  %32 = arith.constant 32 : index
  %64 = arith.constant 64 : index
  %zero = arith.constant 0.0 : f32
  %K = tile.dim %A {axis = 1} : index
  %bx = gpu.block_id {axis = 0} : index
  %by = gpu.block_id {axis = 1} : index
  %m = arith.mul %by, %64 : index
  %n = arith.mul %bx, %32 : index
  %As = tile.shared_alloc {type = shared<f16, [64, 32]>} : shared<f16, [64, 32]>
  %Bs = tile.shared_alloc {type = shared<f16, [32, 32]>} : shared<f16, [32, 32]>
  %c = tile.pack %zero {type = ACC} : ACC
  %r = control.for %0, %K, %32, %c {stages = STAGES} : ACC (%k: index, %acc: ACC) {
    %s = async.copy %A, %m, %k, %As, %0, %0 {shape = (64, 32), src_axes = (0, 1), dst_axes = (0, 1), vec = 16} : token
    %t = async.copy %B, %k, %n, %Bs, %0, %0 {shape = (32, 32), src_axes = (0, 1), dst_axes = (0, 1), vec = 16} : token
    %a = matrix.load %As, %0, %0 {type = LEFT, axes = (0, 1)} : LEFT
    %b = matrix.load %Bs, %0, %0 {type = RIGHT, axes = (0, 1)} : RIGHT
    %d = matrix.mma %a, %b, %acc : ACC
    control.yield %d
  }
  matrix.store %r, %C, %m, %n {axes = (0, 1), vec = 8}
  control.return
}
"""
TYPES = {
    "ACC": "fragment<f32, [64, 32], mma.m16n8k16.acc(2, 2)>",
    "LEFT": "fragment<f16, [64, 32], mma.m16n8k16.a(2, 2)>",
    "RIGHT": "fragment<f16, [32, 32], mma.m16n8k16.b(2, 2)>",
}


def gemm(stages: int) -> Kernel:
    text = GEMM.replace("STAGES", str(stages))
    for name, type_ in TYPES.items():
        text = text.replace(name, type_)
    return parse_kernel(text)


def product(a: Array, b: Array) -> Array:
    """By `tensor_core.mma` on blocks of the matrices, steps along k in order."""
    row = find_row(SHAPES["m16n8k16"], "f16", "f16", "f32")
    assert row is not None
    m, k, n = *a.shape, b.shape[1]
    left = a.reshape(m // 16, 1, 16, k // 16, 16).transpose(3, 0, 1, 2, 4)
    right = b.reshape(k // 16, 16, n // 8, 8).transpose(0, 2, 1, 3)
    total = np.zeros((m // 16, n // 8, 16, 8), np.float32)
    for x, y in zip(left, right, strict=True):
        total = mma(row, x, y, total)
    return total.transpose(0, 2, 1, 3).reshape(m, n)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("depth", [0, 32, 160])
def test_a_product_through_copies_ldmatrix_and_mma(stages: int, depth: int) -> None:
    """Bit for bit at both levels, and without a hazard, the copies of one, two and three iterations in flight."""
    rng = np.random.default_rng(stages)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((128, depth), (depth, 96)))
    expected = product(a, b)
    for kernel in (gemm(stages), run_pipeline(gemm(stages))):
        c = np.full((128, 96), np.nan, np.float32)
        run(kernel, {"A": a, "B": b, "C": c}, options=CHECKED)
        np.testing.assert_array_equal(c, expected)


def test_chunks_of_blocks_give_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((192, 64), (64, 64)))
    kernel = run_pipeline(gemm(2))
    results: list[Array] = []
    for threads in (1, 256, 65536):
        results.append(np.zeros((192, 64), np.float32))
        run(kernel, {"A": a, "B": b, "C": results[-1]}, options=Options(chunk_threads=threads))
    for c in results:
        np.testing.assert_array_equal(c, product(a, b))


# -- which lanes take part -------------------------------------------------------------------------


def tile_kernel(body: str, threads: int = 64, tensors: str = "") -> Kernel:
    """%S is 64 rows of 8 u16, %t the thread, %w its warp, %lane its lane."""
    return parse_kernel(f"""kernel k({tensors}) grid(1) threads({threads}) level(tile) {{
  %0 = arith.constant 0 : index
  %t = gpu.thread_id {{axis = 0}} : index
  %w = gpu.warp_id : index
  %lane = gpu.lane_id : index
  %S = tile.shared_alloc {{type = shared<u16, [64, 8]>}} : shared<u16, [64, 8]>
{body}
  control.return
}}""")


LDMATRIX = "%a, %b, %c, %d = matrix.ldmatrix %S, %lane, %0 {vec = 8, num = 4} : u32, u32, u32, u32"
MMA = """
%u = arith.constant 0 : u32
%f = arith.constant 1.0 : f32
%p, %q, %r, %s = ptx.mma_sync %u, %u, %u, %u, %u, %u, %f, %f, %f, %f
  {shape = "m16n8k16", a = f16, b = f16, acc = f32} : f32, f32, f32, f32
"""
STMATRIX = "%z = arith.constant 7 : u32\nmatrix.stmatrix %S, %lane, %0, %z, %z, %z, %z {vec = 8, num = 4}"
COLLECTIVE = {"ldmatrix": LDMATRIX, "mma_sync": MMA, "stmatrix": STMATRIX}


@pytest.mark.parametrize("op", COLLECTIVE)
def test_all_lanes_of_a_warp_take_part(op: str) -> None:
    some = f"""
    %limit = arith.constant 40 : index
    %few = arith.lt %t, %limit : bool
    control.if %few {{ {COLLECTIVE[op]} control.yield }} else {{ control.yield }}
    """
    with pytest.raises(EmulatorError, match=rf"{op} takes part with all 32 lanes .* thread \(32, 0, 0\)"):
        run(tile_kernel(some), {})
    with pytest.raises(EmulatorError, match=rf"{op} .* the last warp of a block has fewer"):
        run(tile_kernel(COLLECTIVE[op], threads=48), {})


def test_whole_warps_may_stay_away() -> None:
    """The second warp alone stores; what the first one's rows hold stays as it was."""
    body = """
    %one = arith.constant 1 : index
    %last = arith.eq %w, %one : bool
    %32 = arith.constant 32 : index
    %row = arith.add %lane, %32 : index
    %x = arith.constant 3 : u16
    tile.store %S, %t, %0, %x
    gpu.barrier
    control.if %last {
      %z = arith.constant 458759 : u32
      matrix.stmatrix %S, %row, %0, %z, %z, %z, %z {vec = 8, num = 4}
      control.yield
    } else { control.yield }
    gpu.barrier
    %v = tile.load %S, %t, %0 : u16
    tile.store %Y, %t, %v
    """
    y = np.zeros(64, np.uint16)
    run(tile_kernel(body, tensors="%Y: global<u16, [64], unit=0, align=2>"), {"Y": y}, options=CHECKED)
    assert y.tolist() == [3] * 32 + [7] * 32


def test_values_that_vary_along_some_axes_only() -> None:
    """A from the lane, B the same in all lanes, C from the block and the warp."""
    kernel = parse_kernel("""kernel k(%Y: global<f32, [3, 64], unit=1, align=4>) grid(3) threads(64) level(tile) {
  %block = gpu.block_id {axis = 0} : index
  %t = gpu.thread_id {axis = 0} : index
  %w = gpu.warp_id : index
  %lane = gpu.lane_id : index
  %4 = arith.constant 4 : index
  %g = arith.floordiv %lane, %4 : index
  %n = arith.cast %g : i32
  %x = arith.cast %n : f32
  %a = arith.bitcast %x : tf32
  %sum = arith.add %block, %w : index
  %c = arith.cast %sum : f32
  %b = arith.constant 0.5 : tf32
  %d0, %d1, %d2, %d3 = ptx.mma_sync %a, %a, %b, %c, %c, %c, %c
    {shape = "m16n8k4", a = tf32, b = tf32, acc = f32} : f32, f32, f32, f32
  tile.store %Y, %block, %t, %d1
  control.return
}""")
    y = np.zeros((3, 64), np.float32)
    run(kernel, {"Y": y})
    t = np.arange(64)
    expected = 4 * 0.5 * (t % 32 // 4) + t // 32 + np.arange(3)[:, None]
    np.testing.assert_array_equal(y, expected)


# -- bounds, alignment, hooks ----------------------------------------------------------------------


def thread_kernel(address: str, num: int) -> Kernel:
    """ldmatrix from 16 rows of 16 bytes; `address` computes %at, in bytes, from %t."""
    results = ", ".join(f"%r{i}" for i in range(num))
    return parse_kernel(f"""kernel k() grid(1) threads(32) level(thread) shared_bytes(512) abi() {{
  %t = gpu.thread_id {{axis = 0}} : i32
  %16 = arith.constant 16 : i32
  {address}
  %S = mem.shared_base {{dtype = u8, offset = 256, bytes = 256, label = "S"}} : ptr<shared, u8>
  %p = mem.offset %S, %at : ptr<shared, u8>
  {results} = mem.ldmatrix %p {{num = {num}}} : {", ".join(["u32"] * num)}
  control.return
}}""")


def test_rows_lie_inside_and_are_aligned() -> None:
    row = "%at = arith.mul %t, %16 : i32"
    run(thread_kernel(row, 2), {})  # lanes 16 to 31 point past the end, which does not matter
    with pytest.raises(EmulatorError, match=r"out of bounds: mem.ldmatrix of 16 bytes at byte 256 of S"):
        run(thread_kernel(row, 4), {})
    shifted = "%row = arith.mul %t, %16 : i32\n  %8 = arith.constant 8 : i32\n  %at = arith.add %row, %8 : i32"
    with pytest.raises(EmulatorError, match=r"misaligned access: mem.ldmatrix .* 8 past a multiple of 16, byte 8 of S"):
        run(thread_kernel(shifted, 1), {})


def test_at_tile_level_a_row_ends_with_the_tile() -> None:
    body = "%one = arith.constant 1 : index\n" + LDMATRIX.replace("%lane, %0", "%lane, %one")
    with pytest.raises(EmulatorError, match=r"out of bounds: matrix.ldmatrix at S\[0, 1\] and the 7 elements after it"):
        run(tile_kernel(body), {})


@pytest.mark.parametrize("num", [1, 2, 4])
def test_hooks_see_the_rows_that_lanes_address(num: int) -> None:
    class Seen(Hook):
        def __init__(self) -> None:
            self.accesses: list[Access] = []

        def on_access(self, access: Access) -> None:
            self.accesses.append(access)

    seen = Seen()
    run(
        thread_kernel(
            "%15 = arith.constant 15 : i32\n %row = arith.and %t, %15 : i32\n%at = arith.mul %row, %16 : i32", num
        ),
        {},
        options=Options(hooks=(seen,)),
    )
    (access,) = seen.accesses
    assert (access.kind, access.width, access.label) == ("read", 16, "S")
    assert access.threads.tolist() == list(range(8 * num))
    assert (access.addresses - access.base).tolist() == [16 * (t % 16) for t in range(8 * num)]


# -- races -----------------------------------------------------------------------------------------

# Each lane of a warp writes a row of its own, 16 bytes, and the warp reads these rows as matrices.
WRITE = """
%32 = arith.constant 32 : index
%first = arith.mul %w, %32 : index
%row = arith.add %first, %lane : index
%x = arith.constant 1 : u16
%eight = tile.pack %x {type = fragment<u16, [8]>} : fragment<u16, [8]>
tile.store %S, %row, %0, %eight {vec = 8}
"""
READ = LDMATRIX.replace("%lane, %0", "%row, %0")
OTHER_WARP = "%far = arith.xor %row, %32 : index\n"


def test_a_lane_gets_what_other_lanes_have_written() -> None:
    """Lane 4 g + t gets 4 bytes of row g, also where it gives the address of a row that it wrote itself."""
    race = r"race: thread \(1, 0, 0\) .* reads byte 4 of S .*, which thread \(0, 0, 0\) wrote"
    with pytest.raises(HazardError, match=race):
        run(tile_kernel(WRITE + READ), {}, options=CHECKED)
    run(tile_kernel(WRITE + "gpu.sync_warp\n" + READ), {}, options=CHECKED)


def test_matrices_of_another_warp_need_a_barrier() -> None:
    across = OTHER_WARP + READ.replace("%row", "%far")
    with pytest.raises(
        HazardError, match=r"race: thread \(0, 0, 0\) .* reads byte 512 of S .*, which .*\(32, 0, 0\) wrote"
    ):
        run(tile_kernel(WRITE + "gpu.sync_warp\n" + across), {}, options=CHECKED)
    run(tile_kernel(WRITE + "gpu.barrier\n" + across), {}, options=CHECKED)


def test_stmatrix_races_with_readers() -> None:
    reads = WRITE + "gpu.barrier\n" + OTHER_WARP + READ.replace("%row", "%far") + "\n"
    writes = STMATRIX.replace("%lane, %0", "%row, %0")
    with pytest.raises(HazardError, match=r"race: .* writes byte .* of S .*, which thread .* read"):
        run(tile_kernel(reads + writes), {}, options=CHECKED)
    run(tile_kernel(reads + "gpu.barrier\n" + writes), {}, options=CHECKED)


def test_ldmatrix_reads_what_somebody_wrote() -> None:
    with pytest.raises(HazardError, match=r"uninitialised read: .* reads byte 0 of S"):
        run(tile_kernel(LDMATRIX), {}, options=CHECKED)

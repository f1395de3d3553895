"""What the emulator says of shared memory that threads and TMA touch in turns: who writes, and who reads what TMA
overwrites, makes a proxy fence first, whatever barriers there are. TMA and wgmma themselves need none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator_rings import CHECKED, RING, kernel_of, run_ring
from numpy.typing import NDArray

from tiledsl import (
    Global,
    barrier,
    bf16,
    const,
    f32,
    fragment,
    grid,
    load_matrix,
    mma,
    ptx,
    shared,
    store,
    swizzle_128b,
    threads,
    tile_kernel,
    tiles,
    tma_load,
    u32,
    u64,
    unroll,
)
from tiledsl.backends.emulator import run
from tiledsl.dims import K, M
from tiledsl.errors import HazardError
from tiledsl.passes.pipeline import run_pipeline

Array = NDArray[Any]

# Warp 0's first thread fills a tile of 8 x 32 again and again; warp 1 adds up its second row. `#name` marks what a
# test may take out, or put something else in the place of.
REFILL = """
kernel refill(%X: global<f32, [64, 32], unit=1, align=16>, %Y: global<f32, [32], unit=0, align=4>)
  grid(1) threads(64) level(tile) index_bits(32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %u1 = arith.constant 1 : u32
  %zero = arith.constant 0.0 : f32
  %t = gpu.thread_id {axis = 0} : index
  %lane = gpu.lane_id : index
  %w = gpu.warp_id : index
  %S = tile.shared_alloc {layout = "row"} : shared<f32, [8, 32]>
  %table = tile.shared_alloc {layout = "row"} : shared<f32, [64]>
  %full = tile.shared_alloc : shared<u64, [1]>
  %empty = tile.shared_alloc : shared<u64, [1]>
  %first = arith.eq %t, %c0 : bool
  %leads = arith.eq %lane, %c0 : bool
  %some = arith.lt %lane, %c16 : bool
  %reads = arith.eq %w, %c1 : bool
  tile.store %table, %t, %zero
  control.if %first {
    mbarrier.init %full, %c0 {count = 1}
    mbarrier.init %empty, %c0 {count = 1}
    fence.mbarrier_init
    control.yield
  } else { control.yield }
  gpu.barrier
  control.if %first {
    control.for %c0, %c8, %c1 (%i: index) {
      %odd = arith.mod %i, %c2 : index
      %phase = arith.cast %odd : u32
      %before = arith.xor %phase, %u1 : u32
      mbarrier.wait %empty, %c0, %before
      mbarrier.expect_tx %full, %c0 {bytes = 1024} #loader
      %row = arith.mul %i, %c8 : index
      tma.load %S, %c0, %c0, %X, %row, %c0, %full, %c0 {box = (8, 32), axes = (0, 1)}
      control.yield
    }
    control.yield
  } else { control.yield }
  control.if %reads {
    %sum = control.for %c0, %c8, %c1, %zero : f32 (%i: index, %s: f32) {
      %odd = arith.mod %i, %c2 : index
      %phase = arith.cast %odd : u32
      mbarrier.wait %full, %c0, %phase #read
      %v = tile.load %S, %c1, %lane : f32
      %n = arith.add %s, %v : f32
      fence.proxy_async #fence
      gpu.sync_warp
      control.if %leads { mbarrier.arrive %empty, %c0 control.yield } else { control.yield } #behind
      control.yield %n
    }
    tile.store %Y, %lane, %sum
    control.yield
  } else { control.yield }
  control.return
}
"""
READ = "      %v = tile.load %S, %c1, %lane : f32\n"
FENCE = "      fence.proxy_async #fence\n"
ARRIVE = "mbarrier.arrive %empty, %c0 "
UNFENCED = (
    r"warp 0 of block .* copies to byte \d+ of S .* which thread \((32|48), 0, 0\) read at .* with no proxy fence since"
)


def refill(level: str, *replaced: tuple[str, str]) -> tuple[Array, Array]:
    """X as it is then, and Y."""
    kernel = kernel_of(REFILL, replaced=replaced)
    if level == "thread":
        kernel = run_pipeline(kernel, verify_each=True)
    x, y = numbers(), np.zeros(32, np.float32)
    run(kernel, {"X": x, "Y": y}, options=CHECKED)
    return x, y


def numbers() -> Array:
    return np.arange(64 * 32, dtype=np.float32).reshape(64, 32)


def only(condition: str, *ops: str) -> str:
    return f"      control.if {condition} {{ {' '.join(ops)} control.yield }} else {{ control.yield }}\n"


# -- readers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_readers_that_fence_are_silent(level: str) -> None:
    _, y = refill(level)
    np.testing.assert_array_equal(y, numbers()[1::8].sum(axis=0))


MISSING = {
    "none": [(FENCE, "")],
    # The barriers order the read and the load, but the fence is another warp's, or that of some lanes.
    "the loader's": [(FENCE, ""), (" #loader\n", "\n      fence.proxy_async\n")],
    "some lanes'": [(FENCE, only("%some", "fence.proxy_async"))],
    "before the read": [(FENCE, ""), (READ, "      fence.proxy_async\n" + READ)],
    "behind the arrival": [(FENCE, ""), (" #behind\n", "\n      fence.proxy_async\n")],
    # It makes mbarriers known, and nothing else.
    "of another kind": [(FENCE, "      fence.mbarrier_init\n")],
}


@pytest.mark.parametrize("level", ["tile", "thread"])
@pytest.mark.parametrize("which", MISSING)
def test_a_fence_of_the_readers_that_is_missing(which: str, level: str) -> None:
    with pytest.raises(HazardError, match=UNFENCED) as caught:
        refill(level, *MISSING[which])
    assert "let the threads that did so execute fence_proxy_async()" in str(caught.value)


def test_an_arrival_that_is_too_early_is_named_first() -> None:
    """The loader does not know that the tile has been read: that is what to mend, and the fence comes with it."""
    early = [(ARRIVE, ""), (READ, only("%leads", "mbarrier.arrive %empty, %c0") + READ)]
    for fence in (FENCE, ""):
        with pytest.raises(HazardError, match=r"which thread \(32, 0, 0\) read at .* nothing orders the two"):
            refill("thread", (FENCE, fence), *early)


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_thread_that_reads_and_loads_makes_a_fence_between(level: str) -> None:
    others = [(READ, ""), (FENCE, ""), ("%n = arith.add %s, %v", "%n = arith.add %s, %zero")]
    others.append(("    tile.store %Y, %lane, %sum\n", ""))
    load = "axes = (0, 1)}\n"
    reads = """      mbarrier.wait %full, %c0, %phase
      %v = tile.load %S, %c1, %c0 : f32
      tile.store %Y, %c0, %v
"""
    refill(level, *others, (load, load + reads + "      fence.proxy_async\n"))
    with pytest.raises(HazardError, match=r"which thread \(0, 0, 0\) read at .* with no proxy fence since"):
        refill(level, *others, (load, load + reads))


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_fence_counts_for_the_lane_that_makes_it(level: str) -> None:
    """Lane 0 alone reads what is filled again, and fences it; the others have read something else, and make none."""
    alone = "%e = tile.load %S, %c0, %c0 : f32", "tile.store %Y, %c0, %e"
    table = READ.replace("%S, %c1", "%table")
    refill(level, (FENCE, ""), (READ, table + only("%leads", *alone, "fence.proxy_async")))
    with pytest.raises(HazardError, match=r"byte 0 of S .* with no proxy fence since"):
        refill(level, (FENCE, ""), (READ, table + only("%leads", *alone)))


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_store_by_tma_needs_no_fence_before_the_next_load(level: str) -> None:
    """It reads by the proxy that overwrites; to wait until it has read is enough."""
    store = "tma.store %S, %c0, %c0, %X, %r, %c0 {box = (8, 32), axes = (0, 1)} tma.commit_group"
    wait = "tma.wait_group {pending = 0, read = true}"
    changes = [(FENCE, ""), ("%n = arith.add %s, %v", "%n = arith.add %s, %zero")]
    row = "      %r = arith.mul %i, %c8 : index\n"
    x, _ = refill(level, *changes, (READ, row + only("%leads", store, wait)))
    np.testing.assert_array_equal(x, numbers())
    with pytest.raises(HazardError, match="may still read"):
        refill(level, *changes, (READ, row + only("%leads", store)))


# -- writers and mbarriers -------------------------------------------------------------------------


def test_a_fence_of_mbarriers_is_none_of_what_threads_wrote() -> None:
    with pytest.raises(HazardError, match=r"byte 0 of out .* with no proxy fence since"):
        run_ring(kernel_of(RING, replaced=[("fence.proxy_async #proxy_fence", "fence.mbarrier_init")]))


@pytest.mark.parametrize("fence", ["fence.mbarrier_init", "fence.proxy_async"])
def test_who_initialised_an_mbarrier_makes_it_known(fence: str) -> None:
    """The other lanes of its warp have written something else, which is nobody's business."""
    refill("thread", ("fence.mbarrier_init", fence))
    with pytest.raises(HazardError, match="was initialised without a fence"):
        refill("thread", ("    fence.mbarrier_init\n", ""))


# -- as it is written in the language --------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def by_hand(A: Global[bf16, M, K], C: Global[f32, M, M], *, FENCE: const = 1) -> None:
    """C = A A^T of 32 rows: one tile, which is loaded anew for each step, with barriers that are written out."""
    grid(1)
    tid = threads(128)
    tile, arrived = shared((32, 64), bf16, layout=swizzle_128b), shared((1,), u64)
    if tid == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    acc, phase = fragment((32, 32), f32, mma.m16n8k16.acc(warps=(2, 2))), u32(0)
    for k in tiles(K, 64):
        if tid == 0:
            ptx.mbarrier_expect_tx(arrived, 0, bytes=32 * 64 * 2)
            tma_load(A[0:32, k], tile, mbarrier=(arrived, 0))
        ptx.mbarrier_wait(arrived, 0, parity=phase)
        phase = phase ^ 1
        for kk in unroll(tiles(64, 16)):
            acc = mma(load_matrix(tile[:, kk], acc.a), load_matrix(tile.T[kk, :], acc.b), acc)
        if FENCE:
            ptx.fence_proxy_async()
        barrier()
    store(acc, C[0:32, 0:32])


def test_a_kernel_with_mbarriers_of_its_own() -> None:
    A = np.random.default_rng(0).integers(-4, 5, (32, 200)).astype(ml_dtypes.bfloat16)
    C = np.zeros((32, 32), np.float32)
    by_hand.check(A, C)
    np.testing.assert_array_equal(C, A.astype(np.float32) @ A.astype(np.float32).T)
    with pytest.raises(HazardError, match=r"of tile .* which thread \(0, 0, 0\) read .* with no proxy fence since"):
        by_hand.check(A, C, FENCE=0)

"""Rings at whose ends one thread issues asynchronous MMAs into a memory of its own, completing slots by commit.

The compiler has no such op; `async_mma` declares one, as Blackwell will. Three roles: "load" fills a ring of A and B by
TMA; "mma", one thread, uses it and fills a ring of accumulators; "store" reads those and writes C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import async_mma
import ml_dtypes
import numpy as np
import pytest
from hopper_ir import ops
from numpy.typing import NDArray

from tiledsl.backends import emulator
from tiledsl.errors import CompileErrors, HazardError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers, control, gpu
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.analysis.structure import ops_around
from tiledsl.passes.cooperation.lower_roles import COOPERATION

Array = NDArray[Any]

GEMM = """
kernel gemm(%A: global<bf16, [M, K], unit=1, align=16>, %B: global<bf16, [N, K], unit=1, align=16>,
            %C: global<f32, [M, N], unit=1, align=16>)
  grid(processors) threads(256) level(tile) index_bits(64) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %depth = arith.constant 16 : index
  %height = arith.constant 128 : index
  %m = tile.dim %A {axis = 0} : index
  %k = tile.dim %A {axis = 1} : index
  %items = arith.floordiv %m, %height : index
  %first = gpu.block_id {axis = 0} : index
  %blocks = gpu.grid_size {axis = 0} : index
  %a = tile.shared_alloc {layout = "swizzle_32b"} : shared<bf16, [3, 128, 16]>
  %b = tile.shared_alloc {layout = "swizzle_32b"} : shared<bf16, [3, 16, 16]>
  %acc = test.tensor_alloc {dtype = f32, dims = (2, 128, 16)}
  %operands = ring.make %a, %b {stages = 3} : ring<3>
  %sums = ring.make %acc {stages = 2} : ring<2>
  role.region {title = "load", first = 0, warps = 2, one_thread = true} {
    %start = ring.cursor %operands : cursor
    %end = role.work %first, %items, %blocks, %start : cursor (%t: index, %outer: cursor) {
      %row = arith.mul %t, %height : index
      %next = control.for %zero, %k, %depth, %outer : cursor (%at: index, %here: cursor) {
        %slot = ring.acquire %operands, %here : index
        tma.load %a, %slot, %zero, %zero, %A, %row, %at, %operands, %slot {box = (128, 16), axes = (0, 1)}
        tma.load %b, %slot, %zero, %zero, %B, %zero, %at, %operands, %slot {box = (16, 16), axes = (0, 1)}
        %filled = ring.publish %operands, %here : cursor
        control.yield %filled
      }
      control.yield %next
    }
    control.yield
  }
  role.region {title = "mma", first = 2, warps = 2, one_thread = true} {
    %start = ring.cursor %operands : cursor
    %start_sums = ring.cursor %sums : cursor
    %end, %end_sums = role.work %first, %items, %blocks, %start, %start_sums : cursor, cursor
        (%t: index, %outer: cursor, %sum: cursor) {
      %into = ring.acquire %sums, %sum : index
      %next = control.for %zero, %k, %depth, %outer : cursor (%at: index, %here: cursor) {
        %slot = ring.wait %operands, %here : index
        %more = arith.gt %at, %zero : bool
        test.mma %acc, %into, %a, %slot, %b, %slot, %more
        %used = ring.release %operands, %here : cursor
        control.yield %used
      }
      %filled = ring.publish %sums, %sum : cursor
      control.yield %next, %filled
    }
    control.yield
  }
  role.region {title = "store", first = 4, warps = 4} {
    %start = ring.cursor %sums : cursor
    %warp = gpu.warp_id : index
    %lane = gpu.lane_id : index
    %four = arith.constant 4 : index
    %lanes = arith.constant 32 : index
    %own = arith.mod %warp, %four : index
    %above = arith.mul %own, %lanes : index
    %in_tile = arith.add %above, %lane : index
    %end = role.work %first, %items, %blocks, %start : cursor (%t: index, %here: cursor) {
      %row = arith.mul %t, %height : index
      %mine = arith.add %row, %in_tile : index
      %slot = ring.wait %sums, %here : index
      control.for %zero, %depth, %one (%column: index) {
        %x = test.tensor_load %acc, %slot, %column : f32
        tile.store %C, %mine, %column, %x
        control.yield
      }
      %used = ring.release %sums, %here : cursor
      control.yield %used
    }
    control.yield
  }
  control.return
}
"""
"""C = A B^T, 128 x 16 an item, 16 of k a slot."""


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with async_mma.known():
        yield


def written() -> Kernel:
    kernel = parse_kernel(GEMM)
    verify(kernel)
    return kernel


def lowered(kernel: Kernel) -> Kernel:
    for lower in COOPERATION:
        lower.run(kernel)
        verify(kernel)
    return kernel


def role(kernel: Kernel, first: int) -> Op:
    return next(op for op in ops(kernel, control.If) if op.role and op.role[0] == first)


AT_MBARRIERS = (barriers.Wait, barriers.Arrive, barriers.ExpectTx, async_mma.Commit)


def steps(within: Op) -> list[str]:
    """What orders a role, and what it orders, with the mbarriers where it waits and arrives."""
    others = (barriers.FenceProxy, gpu.SyncWarp, async_mma.Mma, async_mma.Load)
    found = ops(within, *AT_MBARRIERS, *others)
    return [f"{op.name} {op.place[0].name}" if type(op) in AT_MBARRIERS else op.name for op in found]


# -- what becomes of it ----------------------------------------------------------------------------


def test_it_prints() -> None:
    text = print_kernel(written())
    assert "%acc = test.tensor_alloc {dtype = f32, dims = (2, 128, 16)} : tensor<f32, [2, 128, 16]>" in text
    assert "%sums = ring.make %acc {stages = 2} : ring<2>" in text


def test_who_arrives_and_by_what() -> None:
    """Both rings' slots are handed on by commits of the one thread, and the accumulators' released by each warp. No
    fence: by the time that a commit arrives TMA may write, and tensor memory knows of no proxies."""
    kernel = lowered(written())
    assert steps(role(kernel, 0)) == ["mbarrier.wait empty", "mbarrier.expect_tx full"]
    assert steps(role(kernel, 2)) == [
        "mbarrier.wait empty1",
        "mbarrier.wait full",
        "test.mma",
        "test.mma_commit empty",
        "test.mma_commit full1",
    ]
    assert steps(role(kernel, 4)) == [
        "mbarrier.wait full1",
        "test.tensor_load",
        "gpu.sync_warp",
        "mbarrier.arrive empty1",
    ]


def test_how_many_arrive() -> None:
    counts = {(op.place[0].name, op.count) for op in ops(lowered(written()), barriers.Init)}
    assert counts == {("full", 1), ("empty", 1), ("full1", 1), ("empty1", 4)}


def test_one_thread_issues_it() -> None:
    kernel = parse_kernel(GEMM.replace("first = 2, warps = 2, one_thread = true", "first = 2, warps = 2"))
    with pytest.raises(CompileErrors, match=r"mma_async\(\) in the role mma, whose body 64 threads run"):
        lowered(kernel)


def test_it_is_of_one_kind_with_nothing_else() -> None:
    """Its row says that its commit speaks for no thread: what one reads besides it would not be released."""
    besides = "%x = tile.load %a, %slot, %zero, %zero : bf16\n"
    kernel = parse_kernel(GEMM.replace("%used = ring.release %operands", f"{besides}%used = ring.release %operands"))
    with pytest.raises(CompileErrors, match=r"reaches the tiles of a ring by load\(\) and by mma_async\(\)"):
        lowered(kernel)


# -- what it computes ------------------------------------------------------------------------------


def arguments(items: int = 5, depth: int = 80) -> dict[str, Array]:
    """Small integers, whose sums are exact. With one processor both rings wrap, several times."""
    rng = np.random.default_rng(items + depth)
    A, B = (rng.integers(-2, 3, (rows, depth)).astype(ml_dtypes.bfloat16) for rows in (128 * items, 16))
    return {"A": A, "B": B, "C": np.full((128 * items, 16), 7, np.float32)}


def run(kernel: Kernel, given: dict[str, Array], processors: int = 1) -> Array:
    emulator.run(kernel, given, options=emulator.Options(checks=True, processors=processors))
    return given["C"]


@pytest.mark.parametrize(("items", "depth", "processors"), [(5, 80, 1), (7, 48, 2), (1, 16, 1), (2, 160, 3)])
def test_it_computes_a_product_with_every_check(items: int, depth: int, processors: int) -> None:
    given = arguments(items, depth)
    expected = given["A"].astype(np.float32) @ given["B"].astype(np.float32).T
    np.testing.assert_array_equal(run(lowered(written()), given, processors), expected)


# -- nothing of it is superfluous ------------------------------------------------------------------


def outcome(kernel: Kernel) -> str:
    """What the emulator says of a kernel that lacks something."""
    try:
        run(kernel, arguments())
    except HazardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("number", range(8))
def test_each_wait_arrival_and_commit_is_needed(number: int) -> None:
    kernel = lowered(written())
    found = ops(kernel, *AT_MBARRIERS)
    assert len(found) == 8
    found[number].erase()
    assert "error: " in outcome(kernel)


@pytest.mark.parametrize("number", range(4))
def test_each_wait_is_needed_in_every_round(number: int) -> None:
    """Not only in the loop's first iteration, behind which nothing has been waited for as long as slots are new."""
    kernel = lowered(written())
    wait: Op = ops(kernel, barriers.Wait)[number]
    loop = next(op for op, _ in ops_around(wait.parent) if isinstance(op, control.For))
    assert wait.parent is loop.body
    b = Builder(loop.body, wait.loc, before=wait)
    with b.when(b.scalar("eq", loop.body.args[0], 0)):
        b.add(wait.clone({}))
    wait.erase()
    verify(kernel)
    assert "error: " in outcome(kernel)


@pytest.mark.parametrize(
    ("number", "found"),
    [
        (0, "copies to byte 0 of a at .*, which work of warp 2 read at"),
        (1, "reads byte 0 of acc at .*, which work of warp 2 wrote at"),
    ],
)
def test_an_arrival_of_the_thread_is_no_commit(number: int, found: str) -> None:
    """It says what the thread has done, and its products go on."""
    kernel = lowered(written())
    commit: Op = ops(kernel, async_mma.Commit)[number]
    assert commit.parent is not None
    Builder(commit.parent, commit.loc, before=commit).add(barriers.Arrive(*commit.operands))
    commit.erase()
    assert re.search(f"race: .*{found}.*, and nothing orders the two", outcome(kernel))

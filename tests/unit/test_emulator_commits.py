"""Work that one thread begins and a commit lets arrive at an mbarrier, as the check of hazards sees it: who may touch
what it reads and writes, and when a block may end. `async_mma` has the ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import async_mma
import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.backends import emulator
from tiledsl.errors import HazardError
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.verifier import verify

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with async_mma.known():
        yield


PRODUCT = """
kernel product(%C: global<f32, [32, 16], unit=1, align=16>)
  grid(1) threads(32) level(tile) index_bits(32) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %columns = arith.constant 16 : index
  %even = arith.constant 0 : u32
  %two = arith.constant 2.0 : bf16
  %new = arith.constant false : bool
  %lane = gpu.lane_id : index
  %row = arith.mod %lane, %columns : index
  %first = arith.eq %lane, %zero : bool
  %a = tile.shared_alloc : shared<bf16, [1, 32, 16]>
  %b = tile.shared_alloc : shared<bf16, [1, 16, 16]>
  %ended = tile.shared_alloc : shared<u64, [1]>
  %acc = test.tensor_alloc {{dtype = f32, dims = (1, 32, 16)}}
  control.for %zero, %columns, %one (%k: index) {{
    tile.store %a, %zero, %lane, %k, %two
    control.if %first {{
      control.for %zero, %columns, %one (%n: index) {{
        tile.store %b, %zero, %n, %k, %two
        control.yield
      }}
      control.yield
    }} else {{
      control.yield
    }}
    control.yield
  }}
  {fence}
  control.if %first {{
    mbarrier.init %ended, %zero {{count = 1}}
    {made}
    control.yield
  }} else {{
    control.yield
  }}
  gpu.barrier
  control.if %first {{
    test.mma %acc, %zero, %a, %zero, %b, %zero, %new
    {own}
    {commit}
    control.yield
  }} else {{
    control.yield
  }}
  {early}
  {wait}
  control.for %zero, %columns, %one (%n: index) {{
    {load}
    control.yield
  }}
  control.return
}}
"""
"""Of twos, by one warp; where it can be wrong has a name."""
RIGHT = {
    "fence": "fence.proxy_async",
    "made": "fence.mbarrier_init",
    "own": "",
    "commit": "test.mma_commit %ended, %zero",
    "early": "",
    "wait": "mbarrier.wait %ended, %zero, %even",
    "load": "%x = test.tensor_load %acc, %zero, %n : f32\n tile.store %C, %lane, %n, %x",
}


def product(**parts: str) -> Array:
    kernel = parse_kernel(PRODUCT.format(**{**RIGHT, **parts}))
    verify(kernel)
    C = np.zeros((32, 16), np.float32)
    emulator.run(kernel, {"C": C}, options=emulator.Options(checks=True))
    return C


def test_a_product_that_is_waited_for() -> None:
    np.testing.assert_array_equal(product(), np.full((32, 16), 64, np.float32))


OVERWRITTEN = "tile.store %a, %zero, %lane, %zero, %two"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"fence": ""}, "lets TMA or wgmma read byte 0 of a .* with no proxy fence since"),
        ({"made": ""}, "test.mma_commit: ended.* was initialised without a fence, and TMA or another block"),
        ({"wait": ""}, "reads byte 0 of acc .*, which work of warp 0 wrote"),
        ({"commit": "mbarrier.arrive %ended, %zero"}, "reads byte 0 of acc .*, which work of warp 0 wrote"),
        ({"early": OVERWRITTEN}, "writes byte 0 of a .*, which work of warp 0 read"),
        ({"own": OVERWRITTEN}, "writes byte 0 of a .*, which work of warp 0 read"),
        ({"commit": "", "wait": "", "load": ""}, "warp 0 .* ends, and has not committed all work that it has begun"),
        ({"wait": "", "load": ""}, "may go on when the block ends: nobody waits for its last commit"),
        (
            {"own": RIGHT["commit"], "commit": "test.mma %acc, %zero, %a, %zero, %b, %zero, %new"},
            "which work of warp 0 wrote",
        ),
    ],
)
def test_work_that_nothing_waits_for(parts: dict[str, str], found: str) -> None:
    with pytest.raises(HazardError, match=found):
        product(**parts)


def test_a_commit_speaks_for_its_own_thread() -> None:
    """Another lane's arrives at once, since that has begun nothing; and one thread of a warp begins all."""
    by_another = """%second = arith.eq %lane, %one : bool
        control.if %second {
          test.mma_commit %ended, %zero
          control.yield
        } else {
          control.yield
        }"""
    with pytest.raises(HazardError, match=r"reads byte 0 of acc .*, which work of warp 0 wrote"):
        product(commit="", early=by_another)
    issued = by_another.replace("test.mma_commit %ended, %zero", "test.mma %acc, %zero, %a, %zero, %b, %zero, %new")
    with pytest.raises(HazardError, match=r"warp 0 of .* begins work in lane 1, and has begun some in lane 0"):
        product(early=issued)


def test_products_of_one_thread_are_done_in_order() -> None:
    """The second adds to what the first has begun, and nothing waits between."""
    added = "%more = arith.constant true : bool\n test.mma %acc, %zero, %a, %zero, %b, %zero, %more"
    np.testing.assert_array_equal(product(own=added), np.full((32, 16), 128, np.float32))

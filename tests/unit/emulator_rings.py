"""A ring of stages between a thread that loads by TMA and a warpgroup that multiplies, for the emulator's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.backends.emulator import Options, RunResult, run
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel

__all__ = ["CHECKED", "CLUSTER", "RING", "kernel_of", "operands", "pieces_of", "run_ring"]

Array = NDArray[Any]
CHECKED = Options(checks=True)

# C = A B^T in tiles of 64 x 32: warp 0's first thread loads steps of 64 along K, warps 4 to 7 multiply. The result
# leaves in two chunks of 16 columns by way of one buffer. `#name` marks what a test may take out.
RING = """
kernel ring(%A: global<bf16, [M, K], unit=1, align=16>, %B: global<bf16, [N, K], unit=1, align=16>, \
%C: global<f32, [M, N], unit=1, align=16>)
  grid(floordiv(add(N, 31), 32), floordiv(add(M, 63), 64)) threads(256) level(tile) index_bits(32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %c63 = arith.constant 63 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %u1 = arith.constant 1 : u32
  %c4 = arith.constant 4 : i32
  %no = arith.constant 0 : i32
  %t = gpu.thread_id {axis = 0} : index
  %w = gpu.warp_id : i32
  %bx = gpu.block_id {axis = 0} : index
  %by = gpu.block_id {axis = 1} : index
  %n0 = arith.mul %bx, %c32 : index
  %m0 = arith.mul %by, %c64 : index
  %n1 = arith.add %n0, %c16 : index
  %K = tile.dim %A {axis = 1} : index
  %K63 = arith.add %K, %c63 : index
  %steps = arith.floordiv %K63, %c64 : index
  %a = tile.shared_alloc {layout = "swizzle_128b"} : shared<bf16, [2, 64, 64]>
  %b = tile.shared_alloc {layout = "swizzle_128b"} : shared<bf16, [2, 32, 64]>
  %out = tile.shared_alloc {layout = "row"} : shared<f32, [64, 16]>
  %full = tile.shared_alloc : shared<u64, [2]>
  %empty = tile.shared_alloc : shared<u64, [2]>
  %first = arith.eq %t, %c0 : bool
  control.if %first {
    mbarrier.init %full, %c0 {count = 1}
    mbarrier.init %full, %c1 {count = 1}
    mbarrier.init %empty, %c0 {count = 1}
    mbarrier.init %empty, %c1 {count = 1}
    fence.mbarrier_init #init_fence
    control.yield
  } else { control.yield }
  gpu.barrier #init_barrier
  control.if %first {role = (0, 0)} {
    control.for %c0, %steps, %c1 (%i: index) {
      %slot = arith.mod %i, %c2 : index
      %round = arith.floordiv %i, %c2 : index
      %odd = arith.mod %round, %c2 : index
      %phase = arith.cast %odd : u32
      %before = arith.xor %phase, %u1 : u32
      %k = arith.mul %i, %c64 : index
      mbarrier.wait %empty, %slot, %before #empty_wait
      mbarrier.expect_tx %full, %slot {bytes = 12288} #expect
      tma.load %a, %slot, %c0, %c0, %A, %m0, %k, %full, %slot {box = (64, 64), axes = (0, 1)}
      tma.load %b, %slot, %c0, %c0, %B, %n0, %k, %full, %slot {box = (32, 64), axes = (0, 1)}
      control.yield
    }
    control.yield
  } else { control.yield }
  %math = arith.ge %w, %c4 : bool
  control.if %math {role = (4, 4)} {
    %acc0 = wgmma.begin {type = PENDING} : PENDING
    %acc = control.for %c0, %steps, %c1, %acc0 : PENDING (%i: index, %sum: PENDING) {
      %slot = arith.mod %i, %c2 : index
      %round = arith.floordiv %i, %c2 : index
      %odd = arith.mod %round, %c2 : index
      %phase = arith.cast %odd : u32
      %some = arith.gt %i, %c0 : bool
      mbarrier.wait %full, %slot, %phase #full_wait
      wgmma.fence #wgmma_fence
      %s1 = wgmma.mma %sum, %some, %a, %slot, %c0, %c0, %b, %slot, %c0, %c0 {k = 64, a_axes = (1, 2), b_axes = (2, 1)} \
: PENDING
      wgmma.commit_group #commit
      %s2 = wgmma.wait %s1 {pending = 1, finish = false} : PENDING #wait_one
      %leader = arith.eq %t, %c128 : bool
      %release = arith.and %leader, %some : bool
      control.if %release {
        %next = arith.add %slot, %c1 : index
        %other = arith.mod %next, %c2 : index
        mbarrier.arrive %empty, %other #release
        control.yield
      } else { control.yield }
      control.yield %s2
    }
    %r = wgmma.wait %acc {pending = 0} : FRAGMENT
    %leader = arith.eq %t, %c128 : bool
    %left = matrix.slice %r {columns = (0, 16)} : HALF
    matrix.store %left, %out, %c0, %c0 {axes = (0, 1), vec = 8}
    fence.proxy_async #proxy_fence
    gpu.named_barrier {number = 1, threads = 128} #store_barrier
    control.if %leader {
      tma.store %out, %c0, %c0, %C, %m0, %n0 {box = (64, 16), axes = (0, 1)}
      tma.commit_group #store_commit
      tma.wait_group {pending = 0, read = true} #read_wait
      control.yield
    } else { control.yield }
    gpu.named_barrier {number = 1, threads = 128} #reuse_barrier
    %right = matrix.slice %r {columns = (16, 16)} : HALF
    matrix.store %right, %out, %c0, %c0 {axes = (0, 1), vec = 8}
    fence.proxy_async
    gpu.named_barrier {number = 1, threads = 128}
    control.if %leader {
      tma.store %out, %c0, %c0, %C, %m0, %n1 {box = (64, 16), axes = (0, 1)}
      tma.commit_group
      tma.wait_group {pending = 0, read = true} #last_wait
      control.yield
    } else { control.yield }
    control.yield
  } else { control.yield }
  control.return
}
"""

# The same by clusters of two blocks along M: each loads half of B for both.
_CHANGES = (
    ("threads(256)", "threads(256) cluster(1, 2, 1)"),
    ("%empty, %c0 {count = 1}", "%empty, %c0 {count = 2}"),
    ("%empty, %c1 {count = 1}", "%empty, %c1 {count = 2}"),
    ("  gpu.barrier #init_barrier\n", "  cluster.arrive\n  cluster.wait #init_barrier\n"),
    (
        "      tma.load %b, %slot, %c0, %c0, %B, %n0, %k, %full, %slot {box = (32, 64), axes = (0, 1)}\n",
        "      %nb = arith.add %n0, %half : index\n"
        "      tma.load %b, %slot, %half, %c0, %B, %nb, %k, %full, %slot, %both "
        '{box = (16, 64), axes = (0, 1), multicast = "m"}\n',
    ),
    (
        "  %first = ",
        "  %rank = cluster.rank : i32\n  %rank_index = arith.cast %rank : index\n"
        "  %half = arith.mul %rank_index, %c16 : index\n  %both = arith.constant 3 : u16\n"
        "  %r0 = arith.constant 0 : i32\n  %r1 = arith.constant 1 : i32\n  %first = ",
    ),
    (
        "        mbarrier.arrive %empty, %other #release\n",
        "        mbarrier.arrive %empty, %other, %r0 #release\n"
        "        mbarrier.arrive %empty, %other, %r1 #release_other\n",
    ),
    ("  control.return", "  cluster.arrive #last_arrive\n  cluster.wait #last_cluster\n  control.return"),
)


def _changed(text: str, changes: Sequence[tuple[str, str]]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


CLUSTER = _changed(RING, _CHANGES)

TYPES = {
    "PENDING": "pending<FRAGMENT>",
    "FRAGMENT": "fragment<f32, [64, 32], wgmma.acc(1, 4)>",
    "HALF": "fragment<f32, [64, 16], wgmma.acc(1, 4)>",
}


def pieces_of(text: str) -> list[str]:
    """Everything that a test may take out."""
    return [line.rpartition("#")[2].strip() for line in text.splitlines() if "#" in line]


def kernel_of(text: str, without: str = "", replaced: Sequence[tuple[str, str]] = ()) -> Kernel:
    """`without`: the name of a piece to leave out. replaced: pairs of texts."""
    lines = [_line(line, without) for line in _changed(text, replaced).splitlines()]
    body = "\n".join(lines)
    for name, type_ in TYPES.items():
        body = body.replace(name, type_)
    return parse_kernel(body)


def _line(line: str, without: str) -> str:
    code, _, name = line.partition("#")
    if not without or name.strip() != without:
        return code
    if "= wgmma.wait" in code:
        # The value stays, the waiting goes.
        return code.replace("pending = 1", "pending = 1000")
    return ""


def operands(m: int, n: int, k: int, seed: int = 0) -> dict[str, Array]:
    """A, B and an empty C: small integers, so that products are exact."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    return {"A": a, "B": b, "C": np.full((m, n), np.nan, np.float32)}


def run_ring(kernel: Kernel, m: int = 64, n: int = 32, k: int = 320, options: Options = CHECKED) -> RunResult:
    """Raises AssertionError for a wrong product."""
    arrays = operands(m, n, k)
    result = run(kernel, arrays, options=options)
    expected = arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32).T
    np.testing.assert_array_equal(arrays["C"], expected)
    return result

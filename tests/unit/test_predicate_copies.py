"""Copies under a condition become predicated copies: the same bytes arrive, and no branch is left in the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from async_kernels import CHECKED, COMMIT, COPY, READ, thread_kernel, wait

from tiledsl import Global, copy_async, f32, grid, pipelined, shared, threads, tile, tile_kernel, tiles
from tiledsl.backends.emulator import run
from tiledsl.dims import K, M
from tiledsl.ir.ops import control, mem
from tiledsl.ir.types import F32
from tiledsl.passes.pipelining.predicate_copies import predicate_copies
from tiledsl.signatures.signature import GlobalSpec, Specialization

BRANCH = """
%half = arith.constant {} : i32
%low = arith.lt %t, %half : bool
control.if %low {{predicated = true}} {{ {} control.yield }} else {{ control.yield }}
"""
ZERO = """
%z = arith.constant 0.0 : f32
mem.store %p, %z
"""
SHIFTED = """
  %far = arith.constant 1000 : i32
  %past = arith.mul %t, %far : i32
  %x1 = mem.offset %X, %past : ptr<global, f32>
  mem.cp_async %p, %x1 {bytes = 4}
"""


@pytest.mark.parametrize("lanes", [0, 1, 16, 32])
def test_the_same_arrives(lanes: int) -> None:
    kernel = thread_kernel(ZERO + BRANCH.format(lanes, COPY) + COMMIT + wait() + READ)
    results: list[np.ndarray[Any, Any]] = []
    for _ in range(2):
        x, y = np.arange(1, 1025, dtype=np.float32), np.zeros(1024, np.float32)
        run(kernel, {"X": x, "Y": y}, options=CHECKED)
        results.append(y)
        predicate_copies(kernel)
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].tolist() == [*range(1, lanes + 1)] + [0] * (1024 - lanes)
    assert not any(isinstance(op, control.If) for op in kernel.walk())


def test_an_address_that_is_not_used_may_lie_anywhere() -> None:
    """Computed in any case: of lanes whose condition is false, outside of the tensor."""
    kernel = thread_kernel(ZERO + BRANCH.format(2, SHIFTED) + COMMIT + wait() + READ)
    predicate_copies(kernel)
    x, y = np.arange(1, 1025, dtype=np.float32), np.zeros(1024, np.float32)
    run(kernel, {"X": x, "Y": y}, options=CHECKED)
    assert y[:3].tolist() == [1, 1001, 0]


@tile_kernel
def row_sums(A: Global[f32, M, K], C: Global[f32, M]):
    """C[i] is the sum of row i of A, through a pipelined loop of two steps."""
    grid(1)
    t = threads(32)
    S = shared((32, 8), f32)
    total = f32(0)
    for k in pipelined(tiles(A.shape[1], 8), stages=3):
        copy_async(A[tile(0, 32), k], S, vec=16)
        for j in range(8):
            total += S[t, j]
    C.put(t, total)


def thread_level(whole: bool) -> Any:
    tensors = (("A", GlobalSpec(F32, 1, 16, whole)), ("C", GlobalSpec(F32, 0, 16)))
    kernel = row_sums.builds.lowered(Specialization(tensors, ()), "sm_90a").kernel
    return kernel


@pytest.mark.parametrize("whole", [True, False])
def test_no_branch_is_left_around_the_copies_of_a_pipelined_loop(whole: bool) -> None:
    ops = list(thread_level(whole).walk())
    copies = [op for op in ops if isinstance(op, mem.CpAsync)]
    assert copies and all(op.condition is not None and op.src_bytes is not None for op in copies)
    assert not any(isinstance(op, control.If) and op.predicated for op in ops)


@pytest.mark.parametrize("extent", [0, 3, 8, 12, 16, 20, 40, 61])
def test_trips_that_do_not_exist_copy_nothing(extent: int) -> None:
    """Fewer iterations than stages, rows that end in a vector, and rows of whole ones."""
    a = np.arange(30 * 64, dtype=np.float32).reshape(30, 64)[:, :extent]
    c = np.zeros(30, np.float32)
    row_sums.check(a, c)
    np.testing.assert_array_equal(c, a.sum(1))

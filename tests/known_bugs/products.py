"""Shipped bugs around wgmma: operands that are not there, are overwritten early, or reach it by another proxy."""

from __future__ import annotations

import numpy as np

from known_bugs.case import Case
from tiledsl import (
    Const,
    Global,
    barrier,
    f16,
    f32,
    grid,
    load_matrix,
    ptx,
    role,
    shared,
    store,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
    unroll,
    wgmma,
)
from tiledsl.dims import K, M, N

__all__ = ["CASES"]


@tile_kernel(arch="sm_90a")
def released_before_the_wait(
    A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, SAFE: Const[bool] = True
):
    """A role releases a slot right behind its products, with no wait: TMA overwrites their operands."""
    grid(1)
    a, b = shared((64, 64), f16, layout=swizzle_128b), shared((8, 64), f16, layout=swizzle_128b)
    full, free = shared((1,), u64), shared((1,), u64)
    t = threads(256)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    with role("load", threads=1):
        for k in range(K // 64):
            if k > 0:
                ptx.mbarrier_wait(free, 0, parity=u32((k + 1) % 2))
            ptx.mbarrier_expect_tx(full, 0, bytes=(64 + 8) * 64 * 2)
            tma_load(A[tile(0, 64), tile(k, 64)], a, mbarrier=(full, 0))  # found: T107
            tma_load(B[tile(0, 8), tile(k, 64)], b, mbarrier=(full, 0))  # found: T107
    with role("math"):
        acc = wgmma.accumulator((64, 8), f32)
        for k in range(K // 64):
            ptx.mbarrier_wait(full, 0, parity=u32(k % 2))  # found: T421
            ptx.wgmma_fence()
            acc = wgmma(a, b.T, acc)
            ptx.wgmma_commit()
            if SAFE:
                ptx.wgmma_wait(0)
            if t == 128:
                ptx.mbarrier_arrive(free, 0)
        store(acc.wait(), C[tile(0, 64), tile(0, 8)])


@tile_kernel(arch="sm_90a")
def one_operand_of_two_buffered(
    A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, SAFE: Const[bool] = True
):
    """One product stays in flight, for which only one of its operands has a second buffer."""
    grid(1)
    t = threads(128)
    a = shared((2, 64, 64), f16, layout=swizzle_128b)
    b = shared((2 if SAFE else 1, 8, 64), f16, layout=swizzle_128b)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    acc = wgmma.accumulator((64, 8), f32)
    for k in range(K // 64):
        i = k % 2
        j = i if SAFE else i * 0
        if t == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=(64 + 8) * 64 * 2)
            tma_load(A[tile(0, 64), tile(k, 64)], a[i, :, :], mbarrier=(full, 0))
            tma_load(B[tile(0, 8), tile(k, 64)], b[j, :, :], mbarrier=(full, 0))  # found: T107
        ptx.mbarrier_wait(full, 0, parity=u32(k % 2))
        ptx.wgmma_fence()
        acc = wgmma(a[i, :, :], b[j, :, :].T, acc)
        ptx.wgmma_commit()
        ptx.wgmma_wait(1)
        barrier()
    store(acc.wait(), C[tile(0, 64), tile(0, 8)])


@tile_kernel(arch="sm_90a")
def operands_without_a_proxy_fence(
    A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, SAFE: Const[bool] = True
):
    """Threads write an operand, a barrier follows, and wgmma reads it: no proxy fence."""
    grid(1)
    t = threads(128)
    a, b = shared((64, 64), f16, layout=swizzle_128b), shared((8, 64), f16, layout=swizzle_128b)
    for i in range(32):
        a[i * 2 + t // 64, t % 64] = A[i * 2 + t // 64, t % 64]
    for i in range(4):
        b[i * 2 + t // 64, t % 64] = B[i * 2 + t // 64, t % 64]
    if SAFE:
        ptx.fence_proxy_async()
    barrier()
    acc = wgmma.accumulator((64, 8), f32)
    ptx.wgmma_fence()
    acc = wgmma(a, b.T, acc)  # found: T104
    ptx.wgmma_commit()
    store(acc.wait(), C[tile(0, 64), tile(0, 8)])


@tile_kernel(arch="sm_90a")
def multiplied_before_it_arrives(
    A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, SAFE: Const[bool] = True
):
    """A and B have an mbarrier each, and the one for A is waited for behind the product."""
    grid(1)
    t = threads(128)
    a, b = shared((64, 64), f16, layout=swizzle_128b), shared((8, 64), f16, layout=swizzle_128b)
    full = shared((2,), u64)
    if t == 0:
        for i in unroll(2):
            ptx.mbarrier_init(full, i, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=64 * 64 * 2)
        tma_load(A[tile(0, 64), tile(0, 64)], a, mbarrier=(full, 0))
        ptx.mbarrier_expect_tx(full, 1, bytes=8 * 64 * 2)
        tma_load(B[tile(0, 8), tile(0, 64)], b, mbarrier=(full, 1))
    barrier()
    if SAFE:
        ptx.mbarrier_wait(full, 0, parity=0)
    ptx.mbarrier_wait(full, 1, parity=0)
    acc = wgmma.accumulator((64, 8), f32)
    ptx.wgmma_fence()
    acc = wgmma(a, b.T, acc)  # found: T106
    ptx.wgmma_commit()
    if not SAFE:
        ptx.mbarrier_wait(full, 0, parity=0)
    store(acc.wait(), C[tile(0, 64), tile(0, 8)])


@tile_kernel(arch="sm_90a")
def registers_without_a_fence(
    A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, SAFE: Const[bool] = True
):
    """A product takes registers that its threads have written, with no wgmma.fence between."""
    grid(1)
    t = threads(128)
    a, b = shared((64, 64), f16, layout=swizzle_128b), shared((8, 64), f16, layout=swizzle_128b)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=(64 + 8) * 64 * 2)
        tma_load(A[tile(0, 64), tile(0, 64)], a, mbarrier=(full, 0))
        tma_load(B[tile(0, 8), tile(0, 64)], b, mbarrier=(full, 0))
    barrier()
    ptx.mbarrier_wait(full, 0, parity=0)
    acc = wgmma.accumulator((64, 8), f32)
    left = load_matrix(a, acc.a)
    if SAFE:
        ptx.wgmma_fence()
    acc = wgmma(left, b.T, acc)  # found: T306
    ptx.wgmma_commit()
    store(acc.wait(), C[tile(0, 64), tile(0, 8)])


@tile_kernel(arch="sm_90a")
def registers_never_released(Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Warpgroups ask for more registers, and none gives up enough of its own."""
    grid(1)
    t = threads(384)
    if t < 128:
        ptx.setmaxnreg(40 if SAFE else 168, increase=False)
        Y[t] = 0
    else:
        ptx.setmaxnreg(232, increase=True)  # found: T401
        Y[t] = 1


def operands(k: int) -> dict[str, np.ndarray]:
    return {"A": np.ones((64, k), np.float16), "B": np.ones((8, k), np.float16), "C": np.zeros((64, 8), np.float32)}


CASES = [
    Case(released_before_the_wait, "NVIDIA/Fuser#3561", operands(192)),
    Case(one_operand_of_two_buffered, "triton-lang/triton#3106", operands(192)),
    Case(operands_without_a_proxy_fence, "tile-ai/tilelang#2634", operands(64)),
    Case(multiplied_before_it_arrives, "facebookexperimental/CUTracer#106", operands(64)),
    Case(registers_without_a_fence, "NVIDIA/Fuser#3680", operands(64)),
    Case(registers_never_released, "pytorch/helion#3620", {"Y": np.zeros(384, np.float32)}),
]

"""A ring of stages: copies run STAGES - 1 steps ahead of the products.

Each stage has an mbarrier of its own. One group of MMAs stays in flight while the next one starts; when the one
before it has completed, its stage is free, and thread 0 starts the copy for the step STAGES - 1 ahead.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    Memory,
    SharedTile,
    View,
    barrier,
    cdiv,
    const,
    f32,
    grid,
    index,
    ptx,
    shared,
    store,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tma_load,
    u32,
    u64,
    unroll,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import as_stored, matrix, staging

D = TypeVar("D", bound=Float)


@tile_kernel(arch="sm_90a")
def hopper_ring(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 64,
    STAGES: const = 4,
):
    assert STAGES > 1, f"copies run STAGES - 1 steps ahead, at least one: STAGES is 2 or more, got {STAGES}"
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(128)
    m, n, steps = tile(by, BM), tile(bx, BN), cdiv(K, BK)
    As, Bs, arrived = staging(A, BM, BK, STAGES), staging(B, BK, BN, STAGES), shared((STAGES,), u64)
    if t == 0:
        for s in unroll(STAGES):
            ptx.mbarrier_init(arrived, s, count=1)
        ptx.fence_mbarrier_init()
        for s in unroll(STAGES - 1):
            if s < steps:
                fetch(A[m, tile(s, BK)], B[tile(s, BK), n], As[s, :, :], Bs[s, :, :], arrived, s)
    barrier()
    slot, phase = index(0), u32(0)
    acc = wgmma.accumulator((BM, BN), f32)
    for step in range(steps):
        ptx.mbarrier_wait(arrived, slot, parity=phase)
        ptx.wgmma_fence()
        acc = wgmma(matrix(As[slot, :, :], A), matrix(Bs[slot, :, :], B), acc)
        ptx.wgmma_commit()
        ptx.wgmma_wait(1)
        barrier()
        ahead, free = step + STAGES - 1, (slot + STAGES - 1) % STAGES
        if t == 0 and ahead < steps:
            k = tile(ahead, BK)
            fetch(A[m, k], B[k, n], As[free, :, :], Bs[free, :, :], arrived, free)
        slot += 1
        if slot == STAGES:
            slot, phase = index(0), phase ^ 1
    store(acc.wait().to(C.dtype), C[m, n])


@tile_function
def fetch(a: View[D], b: View[D], As: Memory[D], Bs: Memory[D], arrived: SharedTile[u64], slot: index | int) -> None:
    """Starts the copies of one step's tiles of A and B to a stage."""
    ptx.mbarrier_expect_tx(arrived, slot, bytes=(a.shape[0] + b.shape[1]) * a.shape[1] * a.dtype.bytes)
    tma_load(as_stored(a), As, mbarrier=(arrived, slot))
    tma_load(as_stored(b), Bs, mbarrier=(arrived, slot))


if __name__ == "__main__":
    from gallery import main

    main(hopper_ring)

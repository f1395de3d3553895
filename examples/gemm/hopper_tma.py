"""Hopper: one thread makes the TMA unit copy whole tiles, a warpgroup multiplies them directly from shared memory.

TMA needs no registers and no address arithmetic: one instruction a tile, and an mbarrier that counts the bytes as
they arrive. wgmma reads both operands from shared memory, so only the accumulators are in registers. But each step
waits for its copy, and the next copy for the products: the tensor cores idle for the whole latency.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    barrier,
    cdiv,
    const,
    f32,
    grid,
    ptx,
    shared,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    u32,
    u64,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import as_stored, matrix, staging

D = TypeVar("D", bound=Float)


@tile_kernel(arch="sm_90a")
def hopper_tma(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 64,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs, arrived = staging(A, BM, BK), staging(B, BK, BN), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    phase = u32(0)
    acc = wgmma.accumulator((BM, BN), f32)
    for k in tiles(K, BK):
        if t == 0:
            ptx.mbarrier_expect_tx(arrived, 0, bytes=(BM + BN) * BK * A.dtype.bytes)
            tma_load(as_stored(A[m, k]), As, mbarrier=(arrived, 0))
            tma_load(as_stored(B[k, n]), Bs, mbarrier=(arrived, 0))
        ptx.mbarrier_wait(arrived, 0, parity=phase)
        ptx.wgmma_fence()
        acc = wgmma(matrix(As, A), matrix(Bs, B), acc)
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        barrier()
        phase = phase ^ 1
    store(acc.wait().to(C.dtype), C[m, n])


if __name__ == "__main__":
    from gallery import main

    main(hopper_tma)

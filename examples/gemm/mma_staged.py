"""The result through shared memory: a warp stores whole rows of C, 16 bytes a lane.

A lane's accumulators are pairs of neighbouring columns, so that its direct stores are 4 bytes, and those of a warp
touch eight rows at once. Written to shared memory first, over the buffers that are not needed any more, a row is read
back in vectors of 16 bytes by neighbouring lanes.
"""

from typing import TypeVar

from mma_in_flight import multiply

from tiledsl import Float, Global, cdiv, const, f32, fragment, grid, mma, store, threads, tile, tile_kernel
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import scaled, slot, staging, widest

D = TypeVar("D", bound=Float)


@tile_kernel
def mma_staged(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 32,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    As, Bs = staging(A, BM, BK, 3), staging(B, BK, BN, 3)
    Cs = slot(staging(C, BM, BN, over=(As, Bs)), C, 0)
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))
    if alpha != 0:
        acc = multiply(A, B, As, Bs, m, n, BK, acc)
    store(scaled(acc, C[m, n], Cs, widest(C), alpha, beta).to(C.dtype), C[m, n], via=Cs, vec=widest(C))


if __name__ == "__main__":
    from gallery import main

    main(mma_staged)

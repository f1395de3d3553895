"""Tensor cores: copy, wait, multiply. One warp instruction does 16 x 8 x 16 multiply-adds.

Four warps share a tile of 128 x 128. Each step copies a tile of A and one of B through registers, and then every
warp loads its matrix operands (ldmatrix) and multiplies. Nothing overlaps within a block: while it copies, it leaves
the tensor cores idle, and only another block on the same SM can use them.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    barrier,
    cdiv,
    const,
    copy,
    f32,
    fragment,
    grid,
    load_matrix,
    mma,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import pair, scaled, slot, staging, widest

D = TypeVar("D", bound=Float)


@tile_kernel
def mma_blocking(
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
    At, Bt = staging(A, BM, BK), staging(B, BK, BN)
    As, Bs, Cs = slot(At, A, 0), slot(Bt, B, 0), slot(staging(C, BM, BN, over=(At, Bt)), C, 0)
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))
    if alpha != 0:
        for k in tiles(K, BK):
            barrier()
            copy(A[m, k], As, vec=widest(A))
            copy(B[k, n], Bs, vec=widest(B))
            barrier()
            for kk in unroll(tiles(BK, 16)):
                acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(scaled(acc, C[m, n], Cs, widest(C), alpha, beta).to(C.dtype), C[m, n], vec=pair(C))


if __name__ == "__main__":
    from gallery import main

    main(mma_blocking)

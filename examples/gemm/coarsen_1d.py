"""Coarsening: a thread computes TM elements of a column of C, and reads each element of B once for all of them.

TM + 1 reads from shared memory serve TM multiply-adds, and those of A are one address for a whole warp.
"""

from tiledsl import (
    Global,
    barrier,
    cdiv,
    const,
    copy,
    f32,
    fragment,
    grid,
    shared,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import store


@tile_kernel
def coarsen_1d(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    T: const = 64,
    TM: const = 8,
):
    assert TM > 0 and T % TM == 0, f"a thread has TM rows of T: T is a multiple of TM, got T={T}, TM={TM}"
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T // TM)
    As, Bs = shared((T, TM), f32), shared((TM, T), f32)
    acc = fragment((TM, 1), f32)
    for depth in tiles(K if alpha != 0 else 0, TM):
        copy(A[tile(by, T), depth], As, vec=4)
        copy(B[depth, tile(bx, T)], Bs, vec=4)
        barrier()
        for k in unroll(TM):
            b = Bs[k, tx]
            for i in unroll(TM):
                acc[i, 0] += As[ty * TM + i, k] * b
        barrier()
    store(C, by * T + ty * TM, bx * T + tx, acc, range(TM), (0,), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(coarsen_1d)

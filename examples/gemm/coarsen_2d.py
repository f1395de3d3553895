"""Coarsening in both directions: a thread computes TM x TN elements, and each read serves a row or a column of them.

TM + TN reads from shared memory serve TM * TN multiply-adds: registers now carry the reuse that shared memory
carried before.
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
    row_major,
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
def coarsen_2d(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    TM: const = 8,
    TN: const = 8,
):
    bm, bn = 16 * TM, 16 * TN
    bx, by = grid(cdiv(N, bn), cdiv(M, bm))
    tx, ty = threads(16, 16, blocks=2)
    As, Bs = shared((bm, 8), f32, layout=row_major), shared((8, bn), f32, layout=row_major)
    acc = fragment((TM, TN), f32)
    for depth in tiles(K if alpha != 0 else 0, 8):
        copy(A[tile(by, bm), depth], As, vec=4)
        copy(B[depth, tile(bx, bn)], Bs, vec=4)
        barrier()
        for k in unroll(8):
            for i in unroll(TM):
                a = As[ty * TM + i, k]
                for j in unroll(TN):
                    acc[i, j] += a * Bs[k, tx * TN + j]
        barrier()
    store(C, by * bm + ty * TM, bx * bn + tx * TN, acc, range(TM), (0,), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(coarsen_2d)

"""The tile of maxas: 64 x 64 by 64 threads, and a thread's 8 x 8 elements as four blocks of 4 x 4, 32 apart.

One warp loads A and the other one B. A thread's vectors are now adjacent to its neighbours', not 32 bytes away from
them: the eight vectors that a warp reads of A are 128 contiguous bytes, one word for each bank.
"""

from tiledsl import (
    Global,
    barrier,
    cdiv,
    f32,
    fragment,
    grid,
    lane_id,
    outer_fma,
    padded,
    shared,
    threads,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import fetch, read, reading, stash, store


@tile_kernel
def maxas_64(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
):
    bx, by = grid(cdiv(N, 64), cdiv(M, 64))
    t = threads(64, blocks=8)
    m = (t >> 1 & 7) * 4
    n = (t >> 3 & 6 | t & 1) * 4
    As, Bs = shared((8, 64), f32, layout=padded(64 + 4)), shared((8, 64), f32)
    of_a = reading(A.T.unit, A.align, depth=8, width=64, threads=32)
    of_b = reading(B.unit, B.align, depth=8, width=64, threads=32)
    acc = fragment((8, 8), f32)
    for k0 in range(0, K if alpha != 0 else 0, 8):
        if warp_id() == 0:
            stash(As, of_a, lane_id(), fetch(A.T, of_a, k0, by * 64, A.shape[0], lane_id(), True))
        else:
            stash(Bs, of_b, lane_id(), fetch(B, of_b, k0, bx * 64, B.shape[1], lane_id(), True))
        barrier()
        for k in unroll(8):
            acc = outer_fma(acc, read(As, k, m, (0, 32)), read(Bs, k, n, (0, 32)))
        barrier()
    store(C, by * 64 + m, bx * 64 + n, acc, (0, 1, 2, 3, 32, 33, 34, 35), (0, 32), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(maxas_64)

"""maxas with 256 threads: 128 x 128, four blocks of 4 x 4 a thread, 64 apart, and no bank conflict left.

A warp covers 8 positions along A and 4 along B, so that both of its reads are broadcasts of neighbouring vectors. Four
words of padding a row put the transposed writes of A into different banks too.
"""

from tiledsl import (
    Global,
    barrier,
    cdiv,
    copy,
    f32,
    fragment,
    grid,
    outer_fma,
    padded,
    shared,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import read, store


@tile_kernel
def maxas_256(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
):
    bx, by = grid(cdiv(N, 128), cdiv(M, 128))
    t = threads(256, blocks=2)
    m = (t >> 4 & 8 | t >> 1 & 7) * 4
    n = (t >> 3 & 14 | t & 1) * 4
    As, Bs = shared((8, 128), f32, layout=padded(128 + 4)), shared((8, 128), f32)
    acc = fragment((8, 8), f32)
    for depth in tiles(K if alpha != 0 else 0, 8):
        copy(A[tile(by, 128), depth], As.T, vec=A.align)
        copy(B[depth, tile(bx, 128)], Bs, vec=B.align)
        barrier()
        for k in unroll(8):
            acc = outer_fma(acc, read(As, k, m, (0, 64)), read(Bs, k, n, (0, 64)))
        barrier()
    store(C, by * 128 + m, bx * 128 + n, acc, (0, 1, 2, 3, 64, 65, 66, 67), (0, 64), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(maxas_256)

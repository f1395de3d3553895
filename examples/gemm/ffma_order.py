"""The order of the FFMAs: the same 64 of every k, ordered so that each reuses an operand of the one before it.

An FFMA reads three registers from two banks, and a small cache keeps operands that the next instruction reads
again. In row order the first one of every row reuses nothing; back and forth, each reuses one operand. PTX cannot
express this: it can only give the order in which the FFMAs are written.
"""

from dataclasses import replace

from double_buffered import MAXAS, multiply
from staged_epilogue import PITCH, store_staged

from tiledsl import Const, Global, cdiv, f32, fragment, grid, padded, shared, threads, tile_kernel
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import Order


@tile_kernel
def ffma_order(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    ORDER: Const[Order] = "serpentine",
):
    bx, by = grid(cdiv(N, 128), cdiv(M, 128))
    t = threads(256, blocks=2)
    m = (t >> 4 & 8 | t >> 1 & 7) * 4
    n = (t >> 3 & 14 | t & 1) * 4
    As, Bs = shared((2, 8, 128), f32, layout=padded(128 + 4)), shared((2, 8, 128), f32)
    stage = shared((2, 16, 128), f32, over=(As, Bs), layout=PITCH)
    acc = fragment((8, 8), f32)
    # With B's fragments first, the spiral takes more registers than two blocks on an SM have.
    tiling = replace(MAXAS, a_first=ORDER == "spiral")
    if alpha != 0:
        acc = multiply(A, B, As, Bs, by * 128, bx * 128, m, n, t, 0, tiling, ORDER, acc)
    store_staged(C, stage, by * 128, bx * 128, t, acc, alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(ffma_order)

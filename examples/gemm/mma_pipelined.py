"""The same kernel by a pass: it says what to copy and what to multiply; the compiler decides when, and where to.

`pipelined` makes STAGES buffers of every tile that the loop copies into, starts copies STAGES - 1 steps ahead, waits
for the right ones, places the barriers, and loads matrix operands one step ahead of their multiplication. To see this:
`python -m tiledsl explain examples/gemm/mma_pipelined.py:mma_pipelined pipeline`.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    load_matrix,
    mma,
    pipelined,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import fetch, scaled, slot, staging, widest

D = TypeVar("D", bound=Float)


@tile_kernel
def mma_pipelined(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 32,
    STAGES: const = 3,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    threads(128)
    m, n = tile(by, BM), tile(bx, BN)
    At, Bt = staging(A, BM, BK), staging(B, BK, BN)
    As, Bs, Cs = slot(At, A, 0), slot(Bt, B, 0), slot(staging(C, BM, BN, over=(At, Bt)), C, 0)
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))
    if alpha != 0:
        for k in pipelined(tiles(K, BK), stages=STAGES):
            fetch(A[m, k], As, widest(A))
            fetch(B[k, n], Bs, widest(B))
            for kk in unroll(tiles(BK, 16)):
                acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(scaled(acc, C[m, n], Cs, widest(C), alpha, beta).to(C.dtype), C[m, n], via=Cs, vec=widest(C))


if __name__ == "__main__":
    from gallery import main

    main(mma_pipelined)

"""cp.async with two buffers: the next tile is copied while this one is multiplied.

A copy runs asynchronously from global to shared memory, past the registers, and returns a token to wait for. One
barrier a step has two purposes: it makes the arrived tile visible to all warps, and it comes after the last read of
the buffer that is filled next. Past the edge a copy writes zeros, so that the last step needs no special case.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    index,
    load_matrix,
    mma,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
    wait,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import fetch, pair, scaled, slot, staging, widest

D = TypeVar("D", bound=Float)


@tile_kernel
def mma_async(
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
    m, n, first = tile(by, BM), tile(bx, BN), tile(0, BK)
    As, Bs = staging(A, BM, BK, 2), staging(B, BK, BN, 2)
    Cs = slot(staging(C, BM, BN, over=(As, Bs)), C, 0)
    acc = fragment((BM, BN), f32, mma.m16n8k16.acc(warps=(2, 2)))
    if alpha != 0:
        in_flight = fetch(A[m, first], slot(As, A, 0), widest(A)) + fetch(B[first, n], slot(Bs, B, 0), widest(B))
        now = index(0)
        for k in tiles(K, BK):
            if in_flight:
                wait(*in_flight)
            barrier()
            a, b, then = slot(As, A, now), slot(Bs, B, now), 1 - now
            in_flight = fetch(A[m, k + BK], slot(As, A, then), widest(A))
            in_flight += fetch(B[k + BK, n], slot(Bs, B, then), widest(B))
            for kk in unroll(tiles(BK, 16)):
                acc = mma(load_matrix(a[:, kk], acc.a), load_matrix(b[kk, :], acc.b), acc)
            now = then
        if in_flight:
            wait(*in_flight)
    store(scaled(acc, C[m, n], Cs, widest(C), alpha, beta).to(C.dtype), C[m, n], vec=pair(C))


if __name__ == "__main__":
    from gallery import main

    main(mma_async)

"""Two copies in flight, and the matrix operands of the next 16 k loaded while these are multiplied.

Three buffers: one is read while the copies of the next two tiles are in flight, so that each has a whole step longer
to arrive. In registers two sets of operands alternate: before the last multiplication of a tile the kernel waits for
the next tile and loads its first operands. So the tensor cores wait neither for memory nor for ldmatrix.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Fragment,
    Global,
    Range,
    SharedTile,
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
    tile_function,
    tile_kernel,
    tiles,
    unroll,
    wait,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.mma_tiles import fetch, pair, scaled, slot, staging, widest

__all__ = ["multiply"]

D = TypeVar("D", bound=Float)
DEPTH = 16
"""The size of one matrix instruction along k."""


@tile_kernel
def mma_in_flight(
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
    store(scaled(acc, C[m, n], Cs, widest(C), alpha, beta).to(C.dtype), C[m, n], vec=pair(C))


@tile_function
def multiply(
    A: Global[D, M, K],
    B: Global[D, K, N],
    As: SharedTile[D],
    Bs: SharedTile[D],
    m: Range,
    n: Range,
    depth: int,
    acc: Fragment[f32],
) -> Fragment[f32]:
    """acc plus the product of rows m of A and columns n of B, `depth` of k at a time, through three buffers each."""
    va, vb = widest(A), widest(B)
    k0, k1 = tile(0, depth), tile(1, depth)
    arriving = fetch(A[m, k0], slot(As, A, 0), va) + fetch(B[k0, n], slot(Bs, B, 0), vb)
    after = fetch(A[m, k1], slot(As, A, 1), va) + fetch(B[k1, n], slot(Bs, B, 1), vb)
    if arriving:
        wait(*arriving)
    barrier()
    now, then, free = index(0), index(1), index(2)
    a = load_matrix(slot(As, A, now)[:, 0:DEPTH], acc.a)
    b = load_matrix(slot(Bs, B, now)[0:DEPTH, :], acc.b)
    for k in tiles(A.shape[1], depth):
        k2, last = k + 2 * depth, ()
        for kk in unroll(tiles(depth, DEPTH)):
            source, following = now, kk + DEPTH
            if kk.start == depth - DEPTH:  # the next operands are those of the next tile
                if after:
                    wait(*after)
                barrier()
                source, following = then, tile(0, DEPTH)
            next_a = load_matrix(slot(As, A, source)[:, following], acc.a)
            next_b = load_matrix(slot(Bs, B, source)[following, :], acc.b)
            if kk.start == 0:  # after the loads, which are needed sooner
                last = fetch(A[m, k2], slot(As, A, free), va) + fetch(B[k2, n], slot(Bs, B, free), vb)
            acc = mma(a, b, acc)
            a, b = next_a, next_b
        after = last
        now, then, free = then, free, now
    if after:
        wait(*after)
    return acc


if __name__ == "__main__":
    from gallery import main

    main(mma_in_flight)

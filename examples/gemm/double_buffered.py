"""Double buffers: the next tile is loaded while this one is multiplied, and one barrier a step is enough.

Registers hold the next tile between its load from global memory and its store to the other half of shared
memory, and two sets of fragments alternate: k + 1 is read from shared memory while k is multiplied. Tiles that
are inside the operands are read without a guard; the rest of K has a loop of its own.
"""

from __future__ import annotations

from dataclasses import replace

from tiledsl import (
    Fragment,
    Global,
    SharedTile,
    barrier,
    cdiv,
    f32,
    fragment,
    grid,
    index,
    maximum,
    outer_fma,
    padded,
    shared,
    threads,
    tile_function,
    tile_kernel,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import Order, Tiling, both, fetch, guarded, inside, reading, stash, store

__all__ = ["MAXAS", "multiply"]

MAXAS = Tiling(128, 128, 8, 256, (0, 64), (0, 64))


@tile_function
def multiply(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    row: index,
    column: index,
    m: index,
    n: index,
    t: index,
    part: index | int,
    tiling: Tiling,
    order: Order,
    acc: Fragment[f32],
) -> Fragment[f32]:
    """`acc` and this thread's part of the product: its elements at (m, n) of the block at (row, column) of C."""
    bk, steps = tiling.bk, tiling.steps
    of_a = reading(A.T.unit, A.align, bk, tiling.bm, tiling.threads)
    of_b = reading(B.unit, B.align, bk, tiling.bn, tiling.threads)
    rows, depth, columns = A.shape[0], A.shape[1], B.shape[1]
    stash(As[0, :, :], of_a, t, fetch(A.T, of_a, 0, row, rows, t, True))
    stash(Bs[0, :, :], of_b, t, fetch(B, of_b, 0, column, columns, t, True))
    barrier()
    now, skip = index(0), part * steps
    a, b = both(As[now, :, :], Bs[now, :, :], skip, m, n, tiling)
    full = depth // bk * bk if inside(of_a, row, rows) and inside(of_b, column, columns) else index(0)
    for k0 in range(bk, full, bk):
        next_a = fetch(A.T, of_a, k0, row, rows, t, False)
        next_b = fetch(B, of_b, k0, column, columns, t, False)
        for k in unroll(steps):
            if k == steps - 1:
                now = 1 - now
                stash(As[now, :, :], of_a, t, next_a)
                stash(Bs[now, :, :], of_b, t, next_b)
                barrier()
            after_a, after_b = both(As[now, :, :], Bs[now, :, :], skip + (k + 1) % steps, m, n, tiling)
            acc = outer_fma(acc, a, b, order)
            a, b = after_a, after_b
    rest, edges = maximum(full, bk), (rows, columns)
    return guarded(A, B, As, Bs, row, column, m, n, t, part, tiling, of_a, of_b, order, acc, now, rest, depth, edges)


@tile_kernel
def double_buffered(
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
    As, Bs = shared((2, 8, 128), f32, layout=padded(128 + 4)), shared((2, 8, 128), f32)
    acc = fragment((8, 8), f32)
    if alpha != 0:
        acc = multiply(A, B, As, Bs, by * 128, bx * 128, m, n, t, 0, replace(MAXAS, a_first=True), "rows", acc)
    store(C, by * 128 + m, bx * 128 + n, acc, (0, 1, 2, 3, 64, 65, 66, 67), (0, 64), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(double_buffered)

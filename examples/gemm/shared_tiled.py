"""Shared tiles: a block loads a T x T tile of A and of B together, and reads each element T times.

Global traffic falls by the tile's width. A guarded read gives zero past the edge, which adds nothing to
the sum, so that edges need no second loop.
"""

from tiledsl import Global, barrier, cdiv, const, f32, grid, shared, threads, tile_kernel, unroll
from tiledsl.dims import K, M, N


@tile_kernel
def shared_tiled(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, T: const = 16):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    As, Bs = shared((T, T), f32), shared((T, T), f32)
    acc = f32(0)
    for k0 in range(0, K, T):
        As[ty, tx] = A.get(row, k0 + tx, other=0)
        Bs[ty, tx] = B.get(k0 + ty, col, other=0)
        barrier()
        for k in unroll(T):
            acc += As[ty, k] * Bs[k, tx]
        barrier()
    C.put(row, col, acc)


if __name__ == "__main__":
    from gallery import main

    main(shared_tiled)

"""Naive: one thread computes one element of C, straight from global memory.

Each multiply-add waits for two loads of its own. The 16 or 32 neighbours in a row of a warp read the same
A and adjacent B, so that the caches serve most of the loads.
"""

from tiledsl import Global, cdiv, const, f32, grid, threads, tile_kernel
from tiledsl.dims import K, M, N


@tile_kernel
def naive(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, T: const = 16):
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    if row < M and col < N:
        acc = f32(0)
        for k in range(K):
            acc += A[row, k] * B[k, col]
        C[row, col] = acc


if __name__ == "__main__":
    from gallery import main

    main(naive)

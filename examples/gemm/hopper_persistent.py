"""Persistent blocks: one for each processor, each computes tile after tile, in an order that suits the L2 cache.

The producer starts the next tile while the consumers store the last one. Tiles are numbered in bands of GROUP rows of
tiles, so that concurrent blocks share rows of A and columns of B.

CLUSTER: blocks of a cluster take neighbouring tiles. Those along m need the same columns of B: each loads a part of
them, and TMA writes it to all (multicast); those along n share rows of A likewise.
"""

from typing import TypeVar

from tiledsl import (
    Cluster,
    Const,
    Float,
    Global,
    Ring,
    const,
    f32,
    persistent,
    role,
    store,
    tile_kernel,
    tile_schedule,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import as_stored, matrix, staging

D = TypeVar("D", bound=Float)


@tile_kernel(arch="sm_90a")
def hopper_persistent(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    GROUP: const = 8,
    CLUSTER: Const[tuple[int, int]] = (1, 1),
):
    along_m, along_n = CLUSTER
    work = persistent(tile_schedule(M, N, K, (BM, BN, BK), GROUP), Cluster(along_m, along_n))
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, BN))
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.m, k]), s.a, multicast="n" if along_n > 1 else "")
                    tma_load(as_stored(B[k, t.n]), s.b, multicast="m" if along_m > 1 else "")
    with role("math", warpgroups=2, registers=240):
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            for _ in t.k:
                with ring.use(in_flight=1) as s:
                    acc = wgmma(matrix(s.a, A), matrix(s.b, B), acc)
            store(acc.wait().to(C.dtype), C[t.m, t.n])


if __name__ == "__main__":
    from gallery import main

    main(hopper_persistent)

"""Producer and consumers: one thread only copies, warpgroups only multiply.

A `Ring` has two mbarriers a stage: one says that its tiles have arrived, the other that they have been used. The
producer runs ahead until the ring is full, and no barrier stops the whole block. With two consumers a block has a
tile of 128 x 256, and more products for each byte that it loads: the accumulators use the registers that the
producer does not need.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    Ring,
    cdiv,
    const,
    f32,
    grid,
    role,
    store,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import as_stored, matrix, staging

D = TypeVar("D", bound=Float)


@tile_kernel(arch="sm_90a")
def hopper_roles(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 64,
    STAGES: const = 4,
    CONSUMERS: const = 2,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    m, n = tile(by, BM), tile(bx, BN)
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, BN))
    with role("load", registers=24 if CONSUMERS > 1 else 0, threads=1):
        for k in tiles(K, BK):
            with ring.fill() as s:
                tma_load(as_stored(A[m, k]), s.a)
                tma_load(as_stored(B[k, n]), s.b)
    with role("math", warpgroups=CONSUMERS, registers=240 if CONSUMERS > 1 else 0):
        acc = wgmma.accumulator((BM, BN), f32)
        for _ in tiles(K, BK):
            with ring.use(in_flight=1) as s:
                acc = wgmma(matrix(s.a, A), matrix(s.b, B), acc)
        store(acc.wait().to(C.dtype), C[m, n])


if __name__ == "__main__":
    from gallery import main

    main(hopper_roles)

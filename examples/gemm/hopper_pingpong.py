"""Pingpong: two alternating consumers with a tile each.

While one of them stores its result, the other one multiplies: the tensor cores do not wait for an epilogue any more.
This matters most where K is small, since there the epilogue is a large part.
"""

from typing import TypeVar

from tiledsl import (
    Float,
    Global,
    Ring,
    const,
    f32,
    persistent,
    role,
    store_tma,
    tile,
    tile_kernel,
    tile_schedule,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.hopper_tiles import as_stored, chunks, matrix, staging

D = TypeVar("D", bound=Float)


@tile_kernel(arch="sm_90a")
def hopper_pingpong(
    A: Global[D, M, K],
    B: Global[D, K, N],
    C: Global[D, M, N],
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 64,
    STAGES: const = 4,
    OUT: const = 2,
    GROUP: const = 8,
):
    work = persistent(tile_schedule(M, N, K, (BM, BN, BK), GROUP))
    ring = Ring(STAGES, a=staging(A, BM, BK), b=staging(B, BK, BN))
    out = chunks(C, 2 * OUT, BM, BN)
    with role("load", registers=24, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(as_stored(A[t.m, k]), s.a)
                    tma_load(as_stored(B[k, t.n]), s.b)
    with role("math", registers=240, instances=2) as r:
        for t in work:
            acc = wgmma.accumulator((BM, BN), f32)
            with r.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        acc = wgmma(matrix(s.a, A), matrix(s.b, B), acc)
            with r.turn("store"):
                store_tma(acc.wait().to(C.dtype), C[t.m, t.n], via=out[tile(r.index, OUT), :, :])


if __name__ == "__main__":
    from gallery import main

    main(hopper_pingpong)

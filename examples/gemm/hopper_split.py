"""f32 on tensor cores: three planes of bf16, and the six products of them that count.

bf16 has 8 bits, f32 has 24: x is the sum of three numbers of bf16, each the rounding of what is left. So a product of
two f32 is nine products of bf16. Three of these are below the last bits of f32. Tensor cores multiply the other six in
less than half of the time that the FFMA units take for one of f32.

What is left is the sum. Tensor cores truncate it after each 16 of k: that is no more than FFMA's rounding, but towards
zero each time, so the errors add up. Here they add up a step of 32 of k only, from zero, the smallest products first,
and threads add that to the sums, rounding to nearest. Few truncations of small sums are left: the error is smaller than
FFMA's. While one warpgroup adds, the other one's products run.
"""

from typing import Any

from tiledsl import (
    Dim,
    Global,
    Ring,
    bf16,
    cdiv,
    const,
    f32,
    grid,
    role,
    shared,
    store,
    swizzle_64b,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    unroll,
    wgmma,
)
from tiledsl.dims import K, M, N


class P(Dim):
    """Planes."""


@tile_kernel(arch="sm_90a")
def hopper_split(
    A: Global[bf16, P, M, K],
    B: Global[bf16, P, N, K],
    C: Global[f32, M, N],
    *,
    BM: const = 128,
    BN: const = 192,
    BK: const = 32,
    STAGES: const = 3,
    PLANES: const = 3,
):
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    m, n = tile(by, BM), tile(bx, BN)
    left = shared((PLANES, BM, BK), bf16, layout=swizzle_64b)
    ring = Ring(STAGES, a=left, b=shared((PLANES, BN, BK), bf16, layout=swizzle_64b))
    with role("load", registers=40, threads=1):
        for k in tiles(K, BK):
            with ring.fill() as s:
                for p in unroll(PLANES):
                    tma_load(A[p, m, k], s.a[p, :, :])
                    tma_load(B[p, n, k], s.b[p, :, :])
    with role("math", warpgroups=2, registers=232):
        sums = wgmma.accumulator((BM, BN), f32).wait()
        for _ in tiles(K, BK):
            part = wgmma.accumulator((BM, BN), f32)
            with ring.use() as s:
                for below in unroll(PLANES):
                    for i in unroll(PLANES - below):
                        part = wgmma(s.a[i, :, :], s.b[PLANES - 1 - below - i, :, :].T, part)
            sums = sums + part.wait()
        store(sums, C[m, n])


def split(X: Any, planes: int) -> Any:
    """Planes of X in bf16."""
    import ml_dtypes
    import numpy as np

    found: list[Any] = []
    rest = X
    for _ in range(planes):
        found.append(rest.astype(ml_dtypes.bfloat16))
        rest = rest - found[-1].astype(np.float32)
    return np.ascontiguousarray(np.stack(found))


def main(m: int = 100, n: int = 120, k: int = 2048) -> None:
    """Prints errors: of FFMA, and of three, two and one plane."""
    import numpy as np

    from tiledsl.gemm import gemm

    random = np.random.default_rng(0)
    A, B = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((n, k)).astype(np.float32)
    exact = A.astype(np.float64) @ B.astype(np.float64).T
    sizes = abs(A).astype(np.float64) @ abs(B).astype(np.float64).T

    def show(what: str, C: Any) -> None:
        print(f"{what}: {(abs(C - exact) / sizes).max() * 2**24:.2f} units of the last bit of |A| |B|")

    show("FFMA", gemm(A, B.T, device="emulator", batch_invariant=True))
    for planes in (3, 2, 1):
        C = np.zeros((m, n), np.float32)
        hopper_split(split(A, planes), split(B, planes), C, PLANES=planes)
        show(f"{planes} planes, {planes * (planes + 1) // 2} products", C)


if __name__ == "__main__":
    main()

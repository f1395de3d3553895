"""8-bit floats with scales of blocks: sums of 128 of k are scaled and added in f32.

e4m3 has three bits after the point and reaches from 2^-9 to 448, too little for a whole matrix whose numbers differ
much in size. So each row of A has a scale for each 128 of k, and B one for each 128 x 128: the largest number of a
block becomes 448. A scale changes along k, and the tensor cores know none; so a product of 128 of k starts from zero,
and threads add it to the sums, times both scales. That also keeps the bits of long sums: tensor cores keep 14 of them
where they add up 8-bit floats. While one warpgroup adds, the other one's products run.
"""

from typing import Any, TypeVar

from tiledsl import (
    Dim,
    Global,
    Ring,
    Scalar,
    cdiv,
    const,
    coordinates,
    f32,
    grid,
    role,
    shared,
    store,
    swizzle_128b,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N

D = TypeVar("D", bound=Scalar)
E = TypeVar("E", bound=Scalar)


class KBlocks(Dim):
    """Blocks of 128 of k."""


class NBlocks(Dim):
    """Blocks of 128 columns of C."""


BLOCK = 128


@tile_kernel(arch="sm_90a")
def hopper_scaled(
    A: Global[D, M, K],
    B: Global[D, N, K],
    C: Global[E, M, N],
    scale_a: Global[f32, M, KBlocks],
    scale_b: Global[f32, NBlocks, KBlocks],
    *,
    BM: const = 128,
    STAGES: const = 5,
):
    bx, by = grid(cdiv(N, BLOCK), cdiv(M, BM))
    m, n = tile(by, BM), tile(bx, BLOCK)
    left = shared((BM, BLOCK), A.dtype, layout=swizzle_128b)
    ring = Ring(STAGES, a=left, b=shared((BLOCK, BLOCK), B.dtype, layout=swizzle_128b))
    with role("load", registers=24, threads=1):
        for k in tiles(K, BLOCK):
            with ring.fill() as s:
                tma_load(A[m, k], s.a)
                tma_load(B[n, k], s.b)
    with role("math", warpgroups=2, registers=240):
        sums = wgmma.accumulator((BM, BLOCK), f32).wait()
        rows = m.start + coordinates(sums)[0]
        for k in tiles(K, BLOCK):
            block = k.start // BLOCK
            scale = scale_a.get(rows, block) * scale_b[bx, block]
            with ring.use() as s:
                partial = wgmma(s.a, s.b.T, wgmma.accumulator((BM, BLOCK), f32))
            sums = partial.wait() * scale + sums
        store(sums.to(C.dtype), C[m, n])


def quantised(X: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """X in e4m3, and a scale for each block of so many rows and columns."""
    import ml_dtypes
    import numpy as np

    down, across = (-(-size // block) for size, block in zip(X.shape, (rows, columns), strict=True))
    padded = np.zeros((down * rows, across * columns), np.float32)
    padded[: X.shape[0], : X.shape[1]] = X
    largest = abs(padded).reshape(down, rows, across, columns).max(axis=(1, 3))
    scale = np.where(largest > 0, largest / np.float32(448), np.float32(1))
    spread = np.repeat(np.repeat(scale, rows, 0), columns, 1)[: X.shape[0], : X.shape[1]]
    return (X / spread).astype(ml_dtypes.float8_e4m3fn), scale


def main(m: int = 200, n: int = 300, k: int = 1024) -> None:
    """Prints how far the product is from that of the numbers before they were quantised: with scales of blocks, and
    with one for each matrix. Rows of A differ in size, by a factor of up to 2^20."""
    import numpy as np

    random = np.random.default_rng(0)
    sizes = (2 ** random.uniform(-10, 10, (m, 1)), np.ones((n, 1)))
    A, B = ((random.standard_normal((len(size), k)) * size).astype(np.float32) for size in sizes)
    exact = A.astype(np.float64) @ B.astype(np.float64).T
    for name, of_a, of_b in (("blocks", (1, BLOCK), (BLOCK, BLOCK)), ("a whole matrix", A.shape, B.shape)):
        (a, scale_a), (b, scale_b) = quantised(A, *of_a), quantised(B, *of_b)
        C, blocks = np.zeros((m, n), np.float32), -(-k // BLOCK)
        spread_a = np.ascontiguousarray(np.broadcast_to(scale_a, (m, blocks)))
        spread_b = np.ascontiguousarray(np.broadcast_to(scale_b, (-(-n // BLOCK), blocks)))
        hopper_scaled(a, b, C, spread_a, spread_b)
        errors = np.linalg.norm(C - exact, axis=1) / np.linalg.norm(exact, axis=1)
        print(f"scales of {name}: relative error of a row {errors.mean():.3f}, at most {errors.max():.3f}")


if __name__ == "__main__":
    main()

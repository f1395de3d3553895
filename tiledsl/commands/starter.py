"""A kernel to begin with: C = relu(A @ B + bias). A block computes a T x T tile of C, a thread one element.

Run this file: it compares the kernel with NumPy, on the GPU if there is one, else on the emulator. Then change it, and
run it again. `tiledsl check`, `show`, `explain` and `report`, each with the name of this file, say more about it.
"""

from tiledsl import Global, barrier, cdiv, const, f32, grid, maximum, shared, threads, tile_kernel, unroll
from tiledsl.dims import K, M, N


@tile_kernel
def linear(A: Global[f32, M, K], B: Global[f32, K, N], bias: Global[f32, N], C: Global[f32, M, N], *, T: const = 16):
    bx, by = grid(cdiv(N, T), cdiv(M, T))  # blocks: computed on the host, from the arrays' sizes
    tx, ty = threads(T, T)
    row, col = by * T + ty, bx * T + tx
    As, Bs = shared((T, T), f32), shared((T, T), f32)
    acc = f32(0)
    for k0 in range(0, K, T):
        As[ty, tx] = A.get(row, k0 + tx, other=0)  # past the edge: 0, which adds nothing to the sum
        Bs[ty, tx] = B.get(k0 + ty, col, other=0)
        barrier()  # the tiles are complete
        for k in unroll(T):
            acc += As[ty, k] * Bs[k, tx]
        barrier()  # all have read them
    C.put(row, col, maximum(acc + bias.get(col, other=0), 0))  # nothing is written past the edge


def main(m: int = 70, n: int = 68, k: int = 56) -> float:
    """The largest error relative to that which the sum's rounding may have: right if it is at most 1."""
    import numpy as np

    random = np.random.default_rng(0)
    A, B, bias = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (n,)))
    C = np.full((m, n), np.nan, np.float32)
    linear(A, B, bias, C)

    exact = np.maximum(A.astype(float) @ B.astype(float) + bias, 0)
    terms = np.abs(A).astype(float) @ np.abs(B).astype(float) + np.abs(bias)
    return float(np.max(np.abs(C - exact) / ((k + 1) * 2.0**-24 * terms)))


if __name__ == "__main__":
    error = main()
    print(f"the largest error is {error:.2g} of what rounding may cause: {'right' if error <= 1 else 'WRONG'}")
    raise SystemExit(error > 1)

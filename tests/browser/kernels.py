"""Kernels for the tests of the page in a browser, and for the pictures in docs/report.md: three with a planted fault,
and a large one.

    python -m tiledsl report tests/browser/kernels.py:conflict
    python -m tiledsl report tests/browser/kernels.py:spill
    python -m tiledsl report tests/browser/kernels.py:deadlock --check M=64 --check K=512
"""

from tiledsl import (
    Global,
    Ring,
    barrier,
    bf16,
    cdiv,
    f32,
    fragment,
    grid,
    load_fragment,
    mma,
    role,
    row_major,
    shared,
    store,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tiles,
    tma_load,
    unroll,
)
from tiledsl.dims import K, M, N


@tile_kernel
def conflict(X: Global[f32, M, N], Y: Global[f32, N, M]):
    """Transposes tiles; the layout that is given puts a column of the tile into one bank."""
    bx, by = grid(N // 32, M // 32)
    x, y = threads(32, 8)
    S = shared((32, 32), f32, layout=row_major)
    for i in unroll(4):
        S[y + 8 * i, x] = X[by * 32 + y + 8 * i, bx * 32 + x]
    barrier()
    for i in unroll(4):
        Y[bx * 32 + y + 8 * i, by * 32 + x] = S[x, y + 8 * i]


@tile_kernel
def spill(X: Global[f32, N], Y: Global[f32, N]):
    """1024 threads have 64 registers each; the products of 12 and 12 values that are all kept need more."""
    t = grid(N // 1024) * 1024 + threads(1024)
    a, b, sums = fragment((12,), f32), fragment((12,), f32), fragment((12, 12), f32)
    for k in range(64):
        for i in unroll(12):
            a[i] = X[t + i * k]
            b[i] = X[t + i + k]
        for i in unroll(12):
            for j in unroll(12):
                sums[i, j] += a[i] * b[j]
    for i in unroll(12):
        for j in unroll(12):
            Y[t] += sums[i, j]


@tile_kernel(arch="sm_90a")
def deadlock(A: Global[bf16, M, K], C: Global[f32, M, 64]):
    """Adds up tiles of 64 columns; the role "sum" waits for one tile more than the role "load" brings."""
    m = tile(grid(cdiv(M, 64)), 64)
    ring = Ring(3, a=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for k in tiles(K, 64):
            with ring.fill() as s:
                tma_load(A[m, k], s.a)
    with role("sum"):
        acc = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 2)))
        for _ in range(cdiv(K, 64) + 1):
            with ring.use() as s:
                acc += load_fragment(s.a, acc.layout).to(f32)
        store(acc, C[m, tile(0, 64)])


@tile_kernel
def large(X: Global[f32, N], Y: Global[f32, N]):
    """Some 20,000 instructions."""
    t = grid(N // 32) * 32 + threads(32)
    x, y = X[t], Y[t]
    for _ in unroll(2500):
        for _ in unroll(4):
            x = x * y + x
            y = y * x + y
    Y[t] = x + y

"""Vectors: 16 bytes an instruction, from global memory, into registers and out.

The tile of A is stored transposed, so that a thread's elements of it for one k are contiguous as well. The
width of a copy is fixed when the kernel is compiled for its arguments: operands that are aligned to 4 bytes
only are copied element by element.
"""

from tiledsl import (
    Global,
    barrier,
    cdiv,
    copy,
    f32,
    fragment,
    grid,
    outer_fma,
    row_major,
    shared,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import read, store


@tile_kernel
def vectorized(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
):
    bx, by = grid(cdiv(N, 128), cdiv(M, 128))
    tx, ty = threads(16, 16, blocks=2)
    As, Bs = shared((8, 128), f32, layout=row_major), shared((8, 128), f32, layout=row_major)
    acc = fragment((8, 8), f32)
    for depth in tiles(K if alpha != 0 else 0, 8):
        copy(A[tile(by, 128), depth], As.T, vec=A.align)
        copy(B[depth, tile(bx, 128)], Bs, vec=B.align)
        barrier()
        for k in unroll(8):
            acc = outer_fma(acc, read(As, k, ty * 8, (0, 4)), read(Bs, k, tx * 8, (0, 4)))
        barrier()
    store(C, by * 128 + ty * 8, bx * 128 + tx * 8, acc, range(8), (0,), alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(vectorized)

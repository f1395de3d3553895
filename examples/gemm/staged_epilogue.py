"""The result through shared memory: every store of a warp is 32 neighbouring elements of one row of C.

A thread's elements are in eight rows, so that a warp's direct store touches eight rows at once, a segment of each.
Here one row of each thread at a time goes through shared memory, alternating between two halves, which the tiles of
A and B no longer need.
"""

from double_buffered import MAXAS, multiply

from tiledsl import (
    Fragment,
    Global,
    Memory,
    SharedTile,
    barrier,
    cdiv,
    f32,
    fragment,
    grid,
    index,
    lane_id,
    padded,
    shared,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm.ffma_tiles import store

__all__ = ["PITCH", "store_staged"]

PITCH = padded(128 + 8)
"""Layout of the staging area: with eight words of padding the four rows that 8 lanes write are 8 banks apart."""


@tile_function
def store_staged(
    C: Memory[f32],
    stage: SharedTile[f32],
    row: index,
    column: index,
    t: index,
    acc: Fragment[f32],
    alpha: f32 | float,
    beta: f32 | float,
) -> None:
    """C = alpha * acc + beta * C for the 128 x 128 elements that start at (row, column)."""
    barrier()
    m, n = t >> 4 & 8 | t >> 1 & 7, t >> 3 & 14 | t & 1
    wide = C.unit == 1 and C.align >= 16
    first, runs = (lane_id() * 4, (0,)) if wide else (lane_id(), (0, 32, 64, 96))
    line = fragment((1, 4), f32)
    for i, down in enumerate((0, 1, 2, 3, 64, 65, 66, 67)):
        for run in unroll(2):
            stage.store(i % 2, m, n * 4 + 64 * run, alpha * acc[i, 4 * run : 4 * run + 4])
        barrier()
        for part in unroll(2):
            at = warp_id() + 8 * part
            if wide:
                line[0, :] = stage.load(i % 2, at, first, vec=16)
            else:
                for x in unroll(4):
                    line[0, x] = stage[i % 2, at, first + 32 * x]
            store(C, row + at * 4 + down, column + first, line, (0,), runs, None, beta)


@tile_kernel
def staged_epilogue(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
):
    bx, by = grid(cdiv(N, 128), cdiv(M, 128))
    t = threads(256, blocks=2)
    m = (t >> 4 & 8 | t >> 1 & 7) * 4
    n = (t >> 3 & 14 | t & 1) * 4
    As, Bs = shared((2, 8, 128), f32, layout=padded(128 + 4)), shared((2, 8, 128), f32)
    stage = shared((2, 16, 128), f32, over=(As, Bs), layout=PITCH)
    acc = fragment((8, 8), f32)
    if alpha != 0:
        acc = multiply(A, B, As, Bs, by * 128, bx * 128, m, n, t, 0, MAXAS, "rows", acc)
    store_staged(C, stage, by * 128, bx * 128, t, acc, alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(staged_epilogue)

"""The fastest: warp tiles of 64 x 64, 16 x 8 elements a thread, and a loop that is FFMA and little else.

Of 134 instructions for one k, 128 are FFMAs: a thread tile twice as large needs 6 loads of 16 bytes for twice the
work of 4. The FFMAs go back and forth. And the accumulators leave through shared memory in vectors turned by TURN
places, because a vector store wants neighbouring registers: turned by an odd number, they are those of the other
bank than the fragment of B, which each FFMA reads together with them; unturned, nearly every FFMA would have a
register-bank conflict.

BM x BN by BK is the tile of a block, with a warp for each 64 x 64 of it. For small products SLICES warps share
such a tile: each takes its part of every BK, and their sums are added in the order of the slices.
"""

from double_buffered import Order, Tiling, multiply
from tiles import store

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    SharedTile,
    barrier,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    index,
    lane_id,
    padded,
    row_major,
    shared,
    syncwarp,
    threads,
    tile_function,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import K, M, N

__all__ = ["choose", "fastest"]

WARP = 64
"""Rows and columns of a warp's tile."""
ROWS = 4
"""Lanes of a warp along M; the other factor of 32 lies along N."""
PITCH = WARP + 8
"""Of a row in the staging area: the four rows that 8 lanes write lie 8 banks apart."""

CHOICES = (
    ({"BM": 128, "BN": 256, "BK": 16, "SLICES": 1}, 0.936),
    ({"BM": 128, "BN": 128, "BK": 16, "SLICES": 1}, 0.931),
    ({"BM": 64, "BN": 128, "BK": 16, "SLICES": 2}, 0.921),
    ({"BM": 64, "BN": 64, "BK": 32, "SLICES": 4}, 0.913),
)
"""Tiles to choose from, and the share of FFMAs in the main loop of each."""


def choose(m: int, n: int, k: int, format: str = "f32", processors: int = 132) -> dict[str, int]:
    """The consts for a product of m x n x k: those under which the busiest SM of `processors` has least to do."""

    def work(choice: tuple[dict[str, int], float]) -> float:
        consts, share = choice
        tiles = cdiv(m, consts["BM"]) * cdiv(n, consts["BN"])
        return cdiv(tiles, processors) * consts["BM"] * consts["BN"] / share

    return min(CHOICES, key=work)[0]


@tile_kernel
def fastest(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    BM: const = 128,
    BN: const = 256,
    BK: const = 16,
    SLICES: const = 1,
    TURN: const = 3,
    ORDER: Const[Order] = "serpentine",
):
    warps = BM // WARP * (BN // WARP)
    m_runs, n_runs = range(0, WARP, 4 * ROWS), range(0, WARP, 128 // ROWS)
    tiling = Tiling(BM, BN, BK, 32 * warps * SLICES, m_runs, n_runs, SLICES)
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(tiling.threads)
    warp, part = warp_id() % warps, warp_id() // warps
    m, n = warp % (BM // WARP) * WARP, warp // (BM // WARP) * WARP
    As, Bs = shared((2, BK, BM), f32, layout=padded(BM + 4)), shared((2, BK, BN), f32, layout=row_major)
    stage = shared((2, warps * SLICES, SLICES * ROWS, WARP), f32, over=(As, Bs), layout=padded(PITCH))
    acc = fragment((WARP // ROWS, WARP * ROWS // 32), f32)
    if alpha != 0:
        m_lane, n_lane = m + lane_id() % ROWS * 4, n + lane_id() // ROWS * 4
        acc = multiply(A, B, As, Bs, by * BM, bx * BN, m_lane, n_lane, t, part, tiling, ORDER, acc)
    write(C, stage, by * BM + m, bx * BN + n, warp, part, SLICES, TURN, acc, alpha, beta)


@tile_function
def write(
    C: Memory[f32],
    stage: SharedTile[f32],
    row: index,
    column: index,
    warp: index,
    part: index,
    slices: int,
    turn: int,
    acc: Fragment[f32],
    alpha: f32 | float,
    beta: f32 | float,
) -> None:
    """C = alpha * acc + beta * C for the warp's 64 x 64 at (row, column), the slices of one tile added up.

    `slices` rows of each thread at a time: a warp stages its share of all of them and stores one of them.
    """
    wide = C.unit == 1 and C.align >= 16
    first, runs = (lane_id() % 16 * 4, (0,)) if wide else (lane_id(), (0, 32))
    line = fragment((1, 4 if wide else 2), f32)
    barrier()
    for i in unroll(0, acc.shape[0], slices):
        now = i // slices % 2
        for s in unroll(slices):
            for run in unroll(acc.shape[1] // 4):
                four = fragment((4,), f32)
                for x in unroll(4):
                    four[x] = acc[i + s, 4 * run + (x + turn) % 4]
                at = part * ROWS + lane_id() % ROWS
                stage.store(now, warp * slices + s, at, lane_id() // ROWS * 4 + 128 // ROWS * run, four)
        if slices == 1:
            syncwarp()
        else:
            barrier()
        # This warp stores the staged row number `part`: row i + part of every lane, ROWS rows of C.
        down = (i + part) // 4 * (4 * ROWS) + (i + part) % 4
        for r in unroll(0, ROWS, 2 if wide else 1):
            lane_row = r + lane_id() // 16 if wide else index(r)
            for s in unroll(slices):
                at = s * ROWS + lane_row
                if wide:
                    four = stage.load(now, warp * slices + part, at, first, vec=16)
                    for x in unroll(4):
                        line[0, x] = four[(x + 4 - turn) % 4] if s == 0 else line[0, x] + four[(x + 4 - turn) % 4]
                else:
                    for x in unroll(2):
                        one = stage[now, warp * slices + part, at, first // 4 * 4 + (first + 4 - turn) % 4 + 32 * x]
                        line[0, x] = one if s == 0 else line[0, x] + one
            store(C, row + down + lane_row * 4, column + first, line, (0,), runs, alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(fastest)

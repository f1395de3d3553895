"""The fastest: warp tiles of 64 x 64, 16 x 8 elements a thread, and a loop that the assembler leaves as it is written.

A thread tile twice as large needs 6 loads of 16 bytes for twice the work of 4. At its usual level the assembler
schedules the loop anew: the order of the FFMAs is lost, and the loads stand close to their use. At level 1 it keeps
what is written, so that all of that is decided here: `column_pairs`, whose FFMAs read fewest registers, one load after
every fourth of them, and the next tile stored one k before the last.

The accumulators leave through shared memory in vectors turned by TURN places, because a vector store wants
neighbouring registers: turned by an odd number, they are those of the other bank than the fragment of B, which each
FFMA reads together with them.

BM x BN by BK is the tile of a block, with a warp for each 64 x 64 of it. For small products SLICES warps share
such a tile: each takes its part of every BK, and their sums are added in the order of the slices.
"""

from __future__ import annotations

from dataclasses import dataclass

from double_buffered import Order, Tiling, both, guarded
from tiles import fetch, inside, reading, stash, store

from tiledsl import (
    Const,
    Fragment,
    Global,
    Memory,
    SharedTile,
    View,
    barrier,
    cdiv,
    const,
    f32,
    fma,
    fragment,
    grid,
    index,
    lane_id,
    maximum,
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
from tiledsl.layout.orders import ORDERS

__all__ = ["choose", "fastest"]

WARP = 64
"""Rows and columns of a warp's tile."""
ROWS = 4
"""Lanes of a warp along M; the other factor of 32 lies along N."""


@dataclass(frozen=True)
class Schedule:
    """Where the other instructions of the loop stand among its FFMAs. All of it was found by measuring.

    `a_first`: A's fragments are loaded before B's. `every`: how many FFMAs stand between two loads; 0: all loads
    come first. `early`: how many k before the last the next tile is stored. `squares`: the lanes that an LDS serves
    together lie in squares on the warp's tile, not in its columns. `pad`: of a row in the staging area, so that what 8
    lanes write there lies in different banks.
    """

    a_first: bool
    every: int
    early: int
    squares: bool
    pad: int


AS_WRITTEN = Schedule(a_first=True, every=4, early=1, squares=False, pad=8)
"""For level 1 of the assembler."""
ANEW = Schedule(a_first=False, every=0, early=0, squares=True, pad=16)
"""For the other levels."""

CHOICES: tuple[tuple[dict[str, int | str], float], ...] = (
    ({"BM": 128, "BN": 128, "BK": 8, "SLICES": 1, "ORDER": "column_pairs", "LEVEL": 1}, 0.80),
    ({"BM": 128, "BN": 64, "BK": 8, "SLICES": 1, "ORDER": "pairs", "LEVEL": 3}, 0.755),
    ({"BM": 64, "BN": 64, "BK": 32, "SLICES": 4, "ORDER": "pairs", "LEVEL": 3}, 0.73),
)
"""Tiles to choose from, and the share of an H200's FFMA peak that each reaches while all SMs are busy: measured at
4096 x 4096 x 4096, 4096 x 2112 x 7168 and the latter again, with the idle part of the last wave taken out."""

BUSY = 8
"""Warps that keep an SM busy: two for each scheduler, one of which may wait."""


def choose(m: int, n: int, k: int, format: str = "f32", processors: int = 132) -> dict[str, int | str]:
    """The consts for a product of m x n x k: those under which the busiest SM of `processors` is done first."""

    def time(choice: tuple[dict[str, int | str], float]) -> float:
        consts, share = choice
        bm, bn, slices = (int(consts[name]) for name in ("BM", "BN", "SLICES"))
        blocks = cdiv(cdiv(m, bm) * cdiv(n, bn), processors)
        warps = blocks * (bm // WARP) * (bn // WARP) * slices
        return blocks * bm * bn / (share * min(1, warps / BUSY))

    return min(CHOICES, key=time)[0]


@tile_kernel
def fastest(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    C: Global[f32, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 8,
    SLICES: const = 1,
    TURN: const = 1,
    ORDER: Const[Order] = "column_pairs",
    LEVEL: const = 1,
):
    schedule = AS_WRITTEN if LEVEL == 1 else ANEW
    warps = BM // WARP * (BN // WARP)
    m_runs, n_runs = range(0, WARP, 4 * ROWS), range(0, WARP, 128 // ROWS)
    tiling = Tiling(BM, BN, BK, 32 * warps * SLICES, m_runs, n_runs, SLICES, schedule.a_first)
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(tiling.threads, assembler_level=LEVEL)
    warp, part = warp_id() % warps, warp_id() // warps
    m, n = warp % (BM // WARP) * WARP, warp // (BM // WARP) * WARP
    As, Bs = shared((2, BK, BM), f32, layout=padded(BM + 4)), shared((2, BK, BN), f32, layout=row_major)
    pitch = padded(WARP + schedule.pad)
    stage = shared((2, warps * SLICES, SLICES * ROWS, WARP), f32, over=(As, Bs), layout=pitch)
    acc = fragment((WARP // ROWS, WARP * ROWS // 32), f32)
    if alpha != 0:
        down, across = lane(schedule)
        m_lane, n_lane = m + down * 4, n + across * 4
        acc = multiply(A, B, As, Bs, by * BM, bx * BN, m_lane, n_lane, t, part, tiling, ORDER, schedule, acc)
    write(C, stage, by * BM + m, bx * BN + n, warp, part, SLICES, TURN, schedule, acc, alpha, beta)


@tile_function
def lane(schedule: Schedule) -> tuple[index, index]:
    """This lane's place among the ROWS x 32 // ROWS of its warp."""
    t = lane_id()
    if schedule.squares:
        return t >> 1 & 1 | t >> 3 & 2, t & 1 | t >> 1 & 6
    return t % ROWS, t // ROWS


@tile_function
def multiply(
    A: Global[f32, M, K],
    B: Global[f32, K, N],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    row: index,
    column: index,
    m: index,
    n: index,
    t: index,
    part: index,
    tiling: Tiling,
    order: Order,
    schedule: Schedule,
    acc: Fragment[f32],
) -> Fragment[f32]:
    """`double_buffered.multiply`, with each instruction of the main loop in its place."""
    bk, steps = tiling.bk, tiling.steps
    of_a = reading(A.T.unit, A.align, bk, tiling.bm, tiling.threads)
    of_b = reading(B.unit, B.align, bk, tiling.bn, tiling.threads)
    rows, depth, columns = A.shape[0], A.shape[1], B.shape[1]
    stash(As[0, :, :], of_a, t, fetch(A.T, of_a, 0, row, rows, t, True))
    stash(Bs[0, :, :], of_b, t, fetch(B, of_b, 0, column, columns, t, True))
    barrier()
    now, skip = index(0), part * steps
    a, b = both(As[now, :, :], Bs[now, :, :], skip, m, n, tiling)
    full = depth // bk * bk if inside(of_a, row, rows) and inside(of_b, column, columns) else index(0)
    for k0 in range(bk, full, bk):
        next_a = fetch(A.T, of_a, k0, row, rows, t, False)
        next_b = fetch(B, of_b, k0, column, columns, t, False)
        for k in unroll(steps):
            if k == steps - 1 - schedule.early:
                stash(As[1 - now, :, :], of_a, t, next_a)
                stash(Bs[1 - now, :, :], of_b, t, next_b)
            if k == steps - 1:
                now = 1 - now
                barrier()
            later = skip + (k + 1) % steps
            acc, a, b = step(acc, a, b, As[now, :, :], Bs[now, :, :], later, m, n, tiling, order, schedule.every)
    return guarded(A, B, As, Bs, row, column, m, n, t, part, tiling, order, acc, now, maximum(full, bk))


@tile_function
def step(
    acc: Fragment[f32],
    a: Fragment[f32],
    b: Fragment[f32],
    As: View[f32],
    Bs: View[f32],
    k: index,
    m: index,
    n: index,
    tiling: Tiling,
    order: Order,
    every: int,
) -> tuple[Fragment[f32], Fragment[f32], Fragment[f32]]:
    """`outer_fma` of a and b, and the fragments for k, which are loaded meanwhile: one after `every` FFMAs."""
    next_a, next_b = fragment((acc.shape[0],), f32), fragment((acc.shape[1],), f32)
    for number, (i, j) in enumerate(ORDERS[order](acc.shape[0], acc.shape[1])):
        for load, (of_a, at, run) in enumerate(loads(tiling)):
            if number == load * every and of_a:
                next_a[at : at + 4] = As.load(k, m + run, vec=16)
            elif number == load * every:
                next_b[at : at + 4] = Bs.load(k, n + run, vec=16)
        acc[i, j] = fma(a[i], b[j], acc[i, j])
    return acc, next_a, next_b


def loads(tiling: Tiling) -> list[tuple[bool, int, int]]:
    """The loads of both fragments in their order: of A's, where in the fragment, from where."""
    a = [(True, 4 * number, run) for number, run in enumerate(tiling.m_runs)]
    b = [(False, 4 * number, run) for number, run in enumerate(tiling.n_runs)]
    return a + b if tiling.a_first else b + a


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
    schedule: Schedule,
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
                down, across = lane(schedule)  # again: held over the loop, they would cost registers
                at = part * ROWS + down
                stage.store(now, warp * slices + s, at, across * 4 + 128 // ROWS * run, four)
        if slices == 1:
            syncwarp()
        else:
            barrier()
        # This warp stores the staged row number `part`: row i + part of every lane, ROWS rows of C.
        top = (i + part) // 4 * (4 * ROWS) + (i + part) % 4
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
            store(C, row + top + lane_row * 4, column + first, line, (0,), runs, alpha, beta)


if __name__ == "__main__":
    from gallery import main

    main(fastest)

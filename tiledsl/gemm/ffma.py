"""The fp32 kernel: warp tiles of 64 x 64, 16 x 8 elements a thread, and a main loop that ptxas keeps in program order.

A thread tile of 16 x 8 has twice the FFMAs of 8 x 8, for 6 loads of 16 bytes instead of 4. At its default level ptxas
reschedules the loop: the order of the FFMAs is lost, and loads move close to their uses. At level 1 it keeps
program order, so a `Schedule` decides here: the order of the FFMAs, and where among them every other
instruction stands. One schedule is for operands read in vectors, one for those read element by element.

The accumulators are stored through shared memory in rotated vectors. A vector store needs consecutive registers; with
the rotation by an odd number of places, these are in the other register bank than the fragment of B, which each FFMA
reads together with them.

BM x BN by BK is the CTA's tile, with a warp for each 64 x 64 of it. For small products SLICES warps share
such a tile: each computes its part of every BK, and their sums are added in the order of the slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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
from tiledsl.gemm.ffma_tiles import (
    Order,
    Reading,
    Tiling,
    both,
    fetch,
    fetch_one,
    guarded,
    inside,
    reading,
    stash,
    store,
)
from tiledsl.layout.orders import ORDERS

__all__ = ["choose", "fastest"]

WARP = 64
"""Rows and columns of a warp's tile."""
ROWS = 4
"""Lanes of a warp along M; the other factor of 32 is along N."""


@dataclass(frozen=True)
class Schedule:
    """The level of ptxas, and the place of each instruction in the main loop. All values were found by measuring.

    A place is the number of an FFMA: an instruction at place 9 stands before FFMA number 9 of its k, at 128 after all.

    `level`: of ptxas. `warps`: minimum resident warps per SM that registers must allow; 0: ptxas decides. `order`: of
    the FFMAs of one k; `flip`: XORed into their rows and columns. `loads`: the fragment loads of the next k, four
    elements of A or B each; `load_at`: the place of the first, `load_every`: the distance between two. `fetch_at`,
    `fetch_every`: the same for the next tile's global loads, A's before B's, all in the first k. `stash_at`: that tile
    is stored to shared memory this many k before the last, at this place. `barrier_at`: its place in the last k, whose
    loads follow it. `rotation`: of the vectors of the result. `squares`: the lanes that one phase of an LDS serves form
    squares on the warp's tile, not columns. `pad`: added to a row of the staging buffer, so that the writes of 8 lanes
    hit different banks.
    """

    level: int
    warps: int
    order: Order
    flip: tuple[int, int]
    loads: tuple[str, ...]
    load_at: int
    load_every: int
    fetch_at: int
    fetch_every: int
    stash_at: tuple[int, int]
    barrier_at: int
    rotation: int
    squares: bool
    pad: int

    @property
    def a_first(self) -> bool:
        """Whether A's fragments are loaded before B's, also outside the main loop."""
        return self.loads[0] == "a0"


VECTORS = Schedule(
    level=1,
    warps=8,
    order="column_quads",
    flip=(6, 2),
    loads=("b0", "b1", "a3", "a0", "a1", "a2"),
    load_at=9,
    load_every=4,
    fetch_at=1,
    fetch_every=2,
    stash_at=(1, 9),
    barrier_at=24,
    rotation=3,
    squares=False,
    pad=8,
)
"""For operands that are both read in vectors, in program order."""
ELEMENTS = Schedule(
    level=1,
    warps=8,
    order="serpentine",
    flip=(0, 0),
    loads=("a0", "a1", "a2", "a3", "b0", "b1"),
    load_at=0,
    load_every=4,
    fetch_at=0,
    fetch_every=1,
    stash_at=(1, 0),
    barrier_at=0,
    rotation=1,
    squares=False,
    pad=8,
)
"""For operands one of which is read element by element, in program order."""
ALONG_K = replace(ELEMENTS, fetch_every=2, warps=0)
"""The same where B is contiguous along k and transposed on the way: that needs more addresses, which must not spill."""
ANEW = Schedule(
    level=3,
    warps=0,
    order="pairs",
    flip=(0, 0),
    loads=("b0", "b1", "a0", "a1", "a2", "a3"),
    load_at=0,
    load_every=0,
    fetch_at=-1,
    fetch_every=0,
    stash_at=(1, WARP * WARP // 32),
    barrier_at=0,
    rotation=1,
    squares=True,
    pad=16,
)
"""For a loop that ptxas reschedules: all loads first, and the next tile stored right before the barrier."""

CHOICES: tuple[tuple[dict[str, int | str], float], ...] = (
    ({"BM": 128, "BN": 128, "BK": 8, "SLICES": 1, "SCHEDULE": "written"}, 0.84),
    ({"BM": 128, "BN": 64, "BK": 8, "SLICES": 1, "SCHEDULE": "anew"}, 0.755),
    ({"BM": 64, "BN": 64, "BK": 32, "SLICES": 4, "SCHEDULE": "anew"}, 0.73),
)
"""Tiles to choose from, and the share of an H200's FFMA peak that each reaches while all SMs are busy: measured at
4096 x 4096 x 4096, 4096 x 2112 x 7168 and the latter again, with the idle part of the last wave subtracted."""

BUSY = 8
"""Warps that keep an SM busy: two for each scheduler, one of which may stall."""


def choose(m: int, n: int, k: int, format: str = "f32", processors: int = 132) -> dict[str, int | str]:
    """The consts for a product of m x n x k: those with which the busiest of `processors` SMs ends first."""

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
    SCHEDULE: Const[Literal["written", "anew"]] = "written",
):
    assert BM > 0 and BN > 0 and BM % WARP == BN % WARP == 0, f"a warp has {WARP} x {WARP}: BM={BM}, BN={BN} do not fit"
    assert SLICES > 0 and BK % SLICES == 0, f"the slices share each BK: it is a multiple of them, got {BK} for {SLICES}"
    warps = BM // WARP * (BN // WARP)
    size = 32 * warps * SLICES
    of_a, of_b = reading(A.T.unit, A.align, BK, BM, size), reading(B.unit, B.align, BK, BN, size)
    written = VECTORS if of_a.vec == of_b.vec == 4 else ALONG_K if of_b.along_k else ELEMENTS
    schedule = ANEW if SCHEDULE == "anew" else written
    m_runs, n_runs = range(0, WARP, 4 * ROWS), range(0, WARP, 128 // ROWS)
    tiling = Tiling(BM, BN, BK, size, m_runs, n_runs, SLICES, schedule.a_first)
    bx, by = grid(cdiv(N, BN), cdiv(M, BM))
    t = threads(size, blocks=schedule.warps * 32 // size, assembler_level=schedule.level)
    warp, part = warp_id() % warps, warp_id() // warps
    m, n = warp % (BM // WARP) * WARP, warp // (BM // WARP) * WARP
    As, Bs = shared((2, BK, BM), f32, layout=padded(BM + 4)), shared((2, BK, BN), f32, layout=row_major)
    pitch = padded(WARP + schedule.pad)
    stage = shared((2, warps * SLICES, SLICES * ROWS, WARP), f32, over=(As, Bs), layout=pitch)
    acc = fragment((WARP // ROWS, WARP * ROWS // 32), f32)
    if alpha != 0:
        down, across = lane(schedule)
        m_lane, n_lane = m + down * 4, n + across * 4
        acc = multiply(A, B, As, Bs, by * BM, bx * BN, m_lane, n_lane, t, part, tiling, of_a, of_b, schedule, acc)
    write(C, stage, by * BM + m, bx * BN + n, warp, part, SLICES, schedule, acc, alpha, beta)


@tile_function
def lane(schedule: Schedule) -> tuple[index, index]:
    """This lane's row and column in the ROWS x 32 // ROWS grid of its warp."""
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
    of_a: Reading,
    of_b: Reading,
    schedule: Schedule,
    acc: Fragment[f32],
) -> Fragment[f32]:
    """The double-buffered main loop, with each instruction at the place that `schedule` gives."""
    bk, steps = tiling.bk, tiling.steps
    rows, depth, columns = A.shape[0], A.shape[1], B.shape[1]
    stash(As[0, :, :], of_a, t, fetch(A.T, of_a, 0, row, rows, t, True))
    stash(Bs[0, :, :], of_b, t, fetch(B, of_b, 0, column, columns, t, True))
    barrier()
    now, skip = index(0), part * steps
    a, b = both(As[now, :, :], Bs[now, :, :], skip, m, n, tiling)
    full = depth // bk * bk if inside(of_a, row, rows) and inside(of_b, column, columns) else index(0)
    for k0 in range(bk, full, bk):
        next_a, next_b = fragment((of_a.vec * of_a.steps,), f32), fragment((of_b.vec * of_b.steps,), f32)
        for k in unroll(steps):
            later, later_a, later_b = skip + (k + 1) % steps, fragment(a.shape, f32), fragment(b.shape, f32)
            for what, i, j in instructions(schedule, tiling, k, of_a.steps, of_b.steps):
                if what == "fma":
                    acc[i, j] = fma(a[i], b[j], acc[i, j])
                elif what == "load a":
                    later_a[4 * i : 4 * i + 4] = As[now, :, :].load(later, m + tiling.m_runs[i], vec=16)
                elif what == "load b":
                    later_b[4 * i : 4 * i + 4] = Bs[now, :, :].load(later, n + tiling.n_runs[i], vec=16)
                elif what == "fetch a":
                    next_a = fetch_one(A.T, of_a, k0, row, rows, t, False, i, next_a)
                elif what == "fetch b":
                    next_b = fetch_one(B, of_b, k0, column, columns, t, False, i, next_b)
                elif what == "stash":
                    stash(As[1 - now, :, :], of_a, t, next_a)
                    stash(Bs[1 - now, :, :], of_b, t, next_b)
                else:
                    now = 1 - now
                    barrier()
            a, b = later_a, later_b
    return guarded(A, B, As, Bs, row, column, m, n, t, part, tiling, schedule.order, acc, now, maximum(full, bk))


Instruction = tuple[str, int, int]
"""Its kind, and its numbers: row and column of an FFMA, the number of a load."""


def instructions(schedule: Schedule, tiling: Tiling, k: int, fetches_a: int, fetches_b: int) -> list[Instruction]:
    """The instructions of the main loop's k-th outer product, in program order.

    At the same place the barrier comes first, then loads, fetches, stores, and the FFMA.
    """
    order = ORDERS[schedule.order](4 * len(tiling.m_runs), 4 * len(tiling.n_runs))
    last, (early, stash_at) = tiling.steps - 1, schedule.stash_at
    assert early < last, f"the schedule needs {early + 2} k a step, got {tiling.steps}: fewer SLICES, or a larger BK"
    found: list[tuple[int, Instruction]] = []
    if k == last:
        found.append((schedule.barrier_at, ("barrier", 0, 0)))
    load_at = max(schedule.load_at, schedule.barrier_at) if k == last else schedule.load_at
    for n, (of, number) in enumerate(schedule.loads):
        found.append((load_at + n * schedule.load_every, (f"load {of}", int(number), 0)))
    fetches = [("fetch a", n, 0) for n in range(fetches_a)] + [("fetch b", n, 0) for n in range(fetches_b)]
    if k == 0:
        found += [(schedule.fetch_at + n * schedule.fetch_every, fetch) for n, fetch in enumerate(fetches)]
    if k == last - early:
        found.append((stash_at, ("stash", 0, 0)))
    found += [(n, ("fma", i ^ schedule.flip[0], j ^ schedule.flip[1])) for n, (i, j) in enumerate(order)]
    return [what for _, what in sorted(found, key=lambda placed: placed[0])]


@tile_function
def write(
    C: Memory[f32],
    stage: SharedTile[f32],
    row: index,
    column: index,
    warp: index,
    part: index,
    slices: int,
    schedule: Schedule,
    acc: Fragment[f32],
    alpha: f32 | float,
    beta: f32 | float,
) -> None:
    """C = alpha * acc + beta * C for the warp's 64 x 64 at (row, column); the slices of one tile are added.

    It goes through `slices` rows of each thread at a time: a warp stages its part of all of them and stores one.
    """
    wide, rotation = C.unit == 1 and C.align >= 16, schedule.rotation
    first, runs = (lane_id() % 16 * 4, (0,)) if wide else (lane_id(), (0, 32))
    line = fragment((1, 4 if wide else 2), f32)
    barrier()
    for i in unroll(0, acc.shape[0], slices):
        now = i // slices % 2
        for s in unroll(slices):
            for run in unroll(acc.shape[1] // 4):
                four = fragment((4,), f32)
                for x in unroll(4):
                    four[x] = acc[i + s, 4 * run + (x + rotation) % 4]
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
                        one = four[(x + 4 - rotation) % 4]
                        line[0, x] = one if s == 0 else line[0, x] + one
                else:
                    for x in unroll(2):
                        one = stage[now, warp * slices + part, at, first // 4 * 4 + (first + 4 - rotation) % 4 + 32 * x]
                        line[0, x] = one if s == 0 else line[0, x] + one
            store(C, row + top + lane_row * 4, column + first, line, (0,), runs, alpha, beta)

"""The fp32 kernel: 16 x 8 elements a thread in a main loop that ptxas keeps in program order, or smaller tiles.

A thread tile of 16 x 8 has twice the FFMAs of 8 x 8, for 6 loads of 16 bytes instead of 4. At its default level ptxas
reschedules the loop: the order of the FFMAs is lost, and loads move close to their uses. At level 1 it keeps
program order, so a `Schedule` decides here: the order of the FFMAs, and where among them every other
instruction stands. One schedule is for operands read in vectors, one for those read element by element.

The accumulators are stored through shared memory in rotated vectors. A vector store needs consecutive registers; with
the rotation by an odd number of places, these are in the other register bank than the fragment of B, which each FFMA
reads together with them.

BM x BN by BK is the CTA's tile, WARP_TILE that of a warp. SLICES warps share each WARP_TILE: each computes its part of
every BK, and their sums are added in the order of the slices. SCHEDULE names the main loop:

- "written": the one above, for warps of 64 x 64, one slice.
- "anew": the same operands, through registers into two buffers, in a loop that ptxas reschedules. Any warp tile.
- "staged": operands by cp.async into STAGES buffers (`ffma_staged.py`). Any warp tile, from 4 rows on.

A, B and C are batches of matrices. With GATHER, P CTAs share each tile of C but the first `whole`, each with a part of
k (`ffma_parts.py`); the sums of GATHER of them are loaded at once. `plan_f32` (`ffma_choice.py`) says what to pass for
a product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

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
    i32,
    index,
    lane_id,
    maximum,
    minimum,
    padded,
    ptx,
    row_major,
    shared,
    syncwarp,
    threads,
    tile,
    tile_function,
    tile_kernel,
    u32,
    unroll,
    warp_id,
    where,
)
from tiledsl.dims import J, K, L, M, N, P, R
from tiledsl.gemm.bands import in_bands
from tiledsl.gemm.epilogue import Epilogue, add_bias, applied
from tiledsl.gemm.ffma_choice import choose
from tiledsl.gemm.ffma_parts import blocks, part_of, placed
from tiledsl.gemm.ffma_staged import (
    Sharing,
    add_slices,
    element,
    lane_in,
    multiply_staged,
    operand_tile,
    sharing,
    sums_tile,
)
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
)
from tiledsl.gemm.parts import (
    QUAD,
    is_own,
    leave,
    meet,
    shares,
    store_part,
    sum_of_parts,
    vectors_of_piece,
)
from tiledsl.lang.schedules import unwrapped
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
    elements of A or B each; none: all of B, then all of A. `load_at`: the place of the first, `load_every`: the
    distance between two. `fetch_at`,
    `fetch_every`: the same for the next tile's global loads, A's before B's, all in the first k. `stash_at`: that tile
    is stored to shared memory this many k before the last, at this place. `barrier_at`: its place in the last k, whose
    loads follow it. `rotation`: of the vectors of the result. `pad`: added to a row of the staging buffer, so that the
    writes of 8 lanes hit different banks.
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
    rotation: int = 0
    pad: int = 0

    @property
    def a_first(self) -> bool:
        """Whether A's fragments are loaded before B's, also outside the main loop."""
        return self.loads[:1] == ("a0",)


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
    pad=8,
)
"""For operands one of which is read element by element, in program order."""
ALONG_K = replace(ELEMENTS, fetch_every=2, warps=0)
"""The same where B is contiguous along k and transposed on the way: that needs more addresses, which must not spill."""
CROSSED = replace(ALONG_K, level=3)
"""The same where A is not contiguous along k: its addresses would spill at level 1."""
ANEW = Schedule(
    level=3,
    warps=0,
    order="pairs",
    flip=(0, 0),
    loads=(),
    load_at=0,
    load_every=0,
    fetch_at=-1,
    fetch_every=0,
    stash_at=(1, WARP * WARP // 32),
    barrier_at=0,
)
"""For a loop that ptxas reschedules: all loads first, and the next tile stored right before the barrier."""


@tile_kernel
def fastest(
    A: Global[f32, L, M, K],
    B: Global[f32, L, K, N],
    C: Global[f32, L, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, N] | None = None,
    sums: Global[f32, P, R, J] | None = None,
    done: Global[u32, R] | None = None,
    whole: i32 | int = 0,
    *,
    BM: const = 128,
    BN: const = 128,
    BK: const = 8,
    WARP_TILE: Const[tuple[int, int]] = (WARP, WARP),
    SLICES: const = 1,
    SCHEDULE: Const[Literal["written", "anew", "staged"]] = "written",
    STAGES: const = 3,
    GROUP: const = 8,
    GATHER: const = 0,
    EARLY: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    rows, columns = cdiv(M, BM), cdiv(N, BN)
    count = rows * columns * L
    assert not GATHER or (sums is not None and done is not None), (
        "GATHER needs the workspaces sums and done: see plan_f32"
    )
    parts = sums.shape[0] if GATHER and sums is not None else index(1)
    if GATHER:
        number, part = placed(grid(blocks(count, index(whole), parts)), count, index(whole), parts)
    else:
        number, part = grid(count), index(0)
    found: Any = shared((2,), u32) if GATHER else None
    kept = shared((5,), i32) if GATHER else None
    batch, by, bx = position(number, rows, columns, GROUP)
    row, column = by * BM, bx * BN
    if EARLY:
        ptx.griddepcontrol_launch()
        ptx.griddepcontrol_wait()
    a, b, c = A[batch, :, :], B[batch, :, :], C[batch, :, :]
    first, end = part_of(K, BK, part, where(number < index(whole), 1, parts)) if GATHER else (0, K)
    how, along_k, stages = sharing(BM, BN, BK, WARP_TILE, SLICES), (a.unit != 0, b.unit == 0), STAGES
    top, left = corner(how)
    rotation, pad = 0, 0
    if SCHEDULE == "staged":
        t = threads(how.threads)
        widths = tuple(16 if unit >= 0 and align >= 16 else 4 for unit, align in ((a.unit, A.align), (b.unit, B.align)))
        As, Bs = operand_tile(along_k[0], BM, BK), operand_tile(along_k[1], BN, BK)
        if alpha == 0:
            end = index(first)
        acc = multiply_staged(a, b, As, Bs, tile(by, BM), tile(bx, BN), first, end, along_k, widths, how, STAGES)
    else:
        size = how.threads
        of_a, of_b = reading(a.T.unit, A.align, BK, BM, size), reading(b.unit, B.align, BK, BN, size)
        schedule = ANEW if SCHEDULE == "anew" else written(of_a, of_b)
        along_k, stages, rotation, pad = (False, False), 2, schedule.rotation, schedule.pad
        tiling = Tiling(BM, BN, BK, size, *how.runs, SLICES, schedule.a_first)
        t = threads(size, blocks=schedule.warps * 32 // size, assembler_level=schedule.level)
        As = shared((2, BK, BM), f32, layout=padded(BM + 4))
        Bs = shared((2, BK, BN), f32, layout=padded(BN + 4) if of_b.along_k else row_major)
        if GATHER:
            keep(kept, t, (number, part, batch, by, bx))
        acc = fragment(how.part, f32)
        if alpha != 0:
            slice = warp_id() // how.warps
            down, right = lane() if SCHEDULE == "written" else lane_in(how.lanes)
            m, n, edges = top + down * 4, left + right * 4, (a.shape[0], b.shape[1])
            acc = multiply(
                a, b, As, Bs, row, column, first, end, m, n, t, slice, tiling, of_a, of_b, schedule, acc, edges
            )
        if GATHER:
            number, part, batch, by, bx = kept_places(kept, BM, BN)
            row, column, c = by * BM, bx * BN, C[batch, :, :]
    alone = number < index(whole) if GATHER else True
    across, vec = c.unit == 0, C.align >= 16 and c.unit >= 0
    if SCHEDULE == "written":
        assert WARP_TILE == (WARP, WARP) and SLICES == 1, (
            f'SCHEDULE="written" has WARP_TILE=({WARP}, {WARP}) and SLICES=1, got {WARP_TILE} and {SLICES}'
        )
        stage = shared((2, how.warps, ROWS, WARP), f32, over=(As, Bs), layout=padded(WARP + pad))
        rounds, used = 0, how.threads
        x = flat(acc, rotation) if GATHER else acc
        if alone:
            write(c, stage, row + top, column + left, rotation, acc, vec, alpha, beta, bias, EPILOGUE)
    else:
        rounds = how.rounds(stages)
        x = add_slices(acc, sums_tile(how, rounds, along_k, (As, Bs)), along_k, t, how, rounds, across)
        used = how.threads_in_use(rounds)
        if alone:
            for v in unroll(how.vectors(rounds) * rounds):
                if t < used:
                    m, n = element(t, v, how, rounds, across)
                    finish(x[4 * v : 4 * v + 4], c, row + m, column + n, across, vec, alpha, beta, bias, EPILOGUE)
    if GATHER:
        own = number - index(whole)
        if own >= 0:
            vectors: int = x.shape[0] // QUAD
            wide = vectors_of_piece(vectors, GATHER)
            count = shares(parts, vectors)
            if t < used:
                store_part(x, sums, part, own, t, used)
            meet(done, own, parts, vectors, found[:], t)
            for share in range(count):
                if is_own(share, found[:]) and t < used:
                    for j in range(cdiv(vectors // wide - share, count)):
                        first = (share + j * count) * wide
                        y = sum_of_parts(sums, own, GATHER, first, t, used, x[: QUAD * wide])
                        for i in unroll(wide):
                            v, four = first + i, unrotated(y[QUAD * i : QUAD * i + QUAD], rotation)
                            m, n = vector_at(v, how) if SCHEDULE == "written" else element(t, v, how, rounds, across)
                            finish(four, c, row + m, column + n, across, vec, alpha, beta, bias, EPILOGUE)
            leave(done, own, found[:], t)


def written(of_a: Reading, of_b: Reading) -> Schedule:
    """The schedule in program order for operands that are read so."""
    if of_a.vec == of_b.vec == 4:
        return VECTORS
    if not of_b.along_k:
        return ELEMENTS
    return ALONG_K if of_a.along_k else CROSSED


@tile_function
def keep(kept: Any, t: index, places: Any) -> None:
    """Stores what the end of the kernel needs in shared memory: held over the main loop, these and what they follow
    from would cost registers, and ptxas would give up the order of a loop that is short of them."""
    if t == 0:
        for i, place in enumerate(places):
            kept[i] = i32(place)


@tile_function
def kept_places(kept: Any, bm: int, bn: int) -> tuple[index, index, index, index, index]:
    """What `keep` stored: tile, part, batch, and row and column of the tile, which are seen to fit in 32 bits."""
    barrier()
    by, bx = index(kept[3]) % (2**31 // bm), index(kept[4]) % (2**31 // bn)
    return index(kept[0]), index(kept[1]), index(kept[2]), by, bx


@tile_function
def corner(how: Sharing) -> tuple[index, index]:
    """Row and column of this warp's tile in that of the CTA."""
    warp = warp_id() % how.warps
    return warp % (how.bm // how.rows) * how.rows, warp // (how.bm // how.rows) * how.columns


@unwrapped
def position(number: Any, rows: Any, columns: Any, height: int) -> Any:
    """The batch of tile `number` of all, and its row and column among the rows x columns tiles of that batch."""
    by, bx = in_bands(number % (rows * columns), rows, columns, height)
    return number // (rows * columns), by, bx


@tile_function
def flat(acc: Fragment[f32], rotation: int) -> Fragment[f32]:
    """The elements of acc as vectors, rotated as `write` stores them."""
    x = fragment((acc.shape[0] * acc.shape[1],), f32)
    for i in unroll(acc.shape[0]):
        for j in unroll(acc.shape[1]):
            x[i * acc.shape[1] + j] = acc[i, j // 4 * 4 + (j + rotation) % 4]
    return x


@tile_function
def unrotated(four: Fragment[f32], rotation: int) -> Fragment[f32]:
    """A vector of `flat`, in the order of the columns."""
    x = fragment((4,), f32)
    for i in unroll(4):
        x[i] = four[(i + 4 - rotation) % 4]
    return x


@tile_function
def vector_at(v: index, how: Sharing) -> tuple[index, index]:
    """Row and column in the CTA's tile of the first element of this thread's vector number v of `flat`."""
    (top, left), (down, right), runs = corner(how), lane(), how.part[1] // 4
    i = v // runs
    return top + down * 4 + i // 4 * (4 * ROWS) + i % 4, left + right * 4 + v % runs * (128 // ROWS)


@tile_function
def lane() -> tuple[index, index]:
    """This lane's row and column in the ROWS x 32 // ROWS grid of a "written" warp."""
    return lane_id() % ROWS, lane_id() // ROWS


@tile_function
def multiply(
    A: Memory[f32],
    B: Memory[f32],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    row: index,
    column: index,
    first: Any,
    end: Any,
    m: index,
    n: index,
    t: index,
    part: index,
    tiling: Tiling,
    of_a: Reading,
    of_b: Reading,
    schedule: Schedule,
    acc: Fragment[f32],
    edges: Any,
) -> Fragment[f32]:
    """acc + A B for k from `first` to `end`: the double-buffered main loop, with each instruction at the place that
    `schedule` gives. edges: rows of A, columns of B."""
    bk, steps = tiling.bk, tiling.steps
    rows, columns = edges
    stash(As[0, :, :], of_a, t, fetch(A.T, of_a, first, row, rows, t, True))
    stash(Bs[0, :, :], of_b, t, fetch(B, of_b, first, column, columns, t, True))
    barrier()
    now, skip = index(0), part * steps
    a, b = both(As[now, :, :], Bs[now, :, :], skip, m, n, tiling)
    full = end // bk * bk if inside(of_a, row, rows) and inside(of_b, column, columns) else index(0)
    for at in range(bk, maximum(minimum(full - first, end), 0), bk):  # of a length that is seen to fit in 32 bits
        k0 = first + at
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
    rest = maximum(full, first + bk)
    order = schedule.order
    return guarded(A, B, As, Bs, row, column, m, n, t, part, tiling, of_a, of_b, order, acc, now, rest, end, edges)


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
    runs = (("b", tiling.n_runs), ("a", tiling.m_runs))
    loads = schedule.loads or tuple(f"{of}{number}" for of, own in runs for number in range(len(own)))
    for n, (of, number) in enumerate(loads):
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
    rotation: int,
    acc: Fragment[f32],
    vec: bool,
    alpha: f32 | float,
    beta: f32 | float,
    bias: Global[f32, N] | None,
    epilogue: Epilogue,
) -> None:
    """C = epilogue(alpha * acc + beta * C) for the warp's 64 x 64 at (row, column), a row of each thread at a time."""
    wide, warp = C.unit == 1 and vec, warp_id() % stage.shape[1]
    first = lane_id() % 16 * 4 if wide else lane_id()
    line = fragment((4 if wide else 2,), f32)
    barrier()
    for i in unroll(acc.shape[0]):
        now = i % 2
        for run in unroll(acc.shape[1] // 4):
            four = fragment((4,), f32)
            for x in unroll(4):
                four[x] = acc[i, 4 * run + (x + rotation) % 4]
            down, right = lane()  # again: held over the loop, they would cost registers
            stage.store(now, warp, down, right * 4 + 128 // ROWS * run, four)
        syncwarp()
        top = i // 4 * (4 * ROWS) + i % 4
        for r in unroll(0, ROWS, 2 if wide else 1):
            lane_row = r + lane_id() // 16 if wide else index(r)
            at = row + top + lane_row * 4
            if wide:
                four = stage.load(now, warp, lane_row, first, vec=16)
                for x in unroll(4):
                    line[x] = four[(x + 4 - rotation) % 4]
                finish(line, C, at, column + first, False, True, alpha, beta, bias, epilogue)
            else:
                for x in unroll(2):
                    here = first // 4 * 4 + (first + 4 - rotation) % 4 + 32 * x
                    line[x] = stage[now, warp, lane_row, here]
                for x in unroll(2):
                    some = line[x : x + 1]
                    finish(some, C, at, column + first + 32 * x, False, False, alpha, beta, bias, epilogue)


@tile_function
def finish(
    x: Fragment[f32],
    C: Memory[f32],
    row: index,
    column: index,
    across: bool,
    vec: bool,
    alpha: f32 | float,
    beta: f32 | float,
    bias: Global[f32, N] | None,
    epilogue: Epilogue,
) -> None:
    """Stores epilogue(alpha * x + beta * C) to elements of C from (row, column) on, along the row or, if `across`, the
    column. vec: they are one aligned vector. With beta == 0, C is not read."""
    along = fragment(x.shape, i32)
    for i in unroll(x.shape[0]):
        along[i] = i
    here = along.to(index)
    m, n = (here + row, here * 0 + column) if across else (here * 0 + row, here + column)
    y = alpha * x
    if beta != 0:
        y = beta * (C.get(row, column, vec=16) if vec else C.get(m, n)) + y
    y = applied(epilogue, y, bias, n)
    if vec:
        C.put(row, column, y)
    else:
        C.put(m, n, y)

"""Tile functions of the fp32 kernels: a tile through registers into shared memory, its fragments, and the result.

`copy` moves a tile in one step. A double buffer needs two: `fetch` loads a tile to registers, `stash` stores it to
shared memory. An operand is seen as k x w, as `A.T` and `B` are, and is read along its axis of stride 1, in vectors of
16 bytes where its alignment permits, else element by element. In shared memory w is always the inner axis: an operand
that is contiguous along k is transposed on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tiledsl import (
    Fragment,
    Memory,
    SharedTile,
    View,
    barrier,
    boolean,
    f32,
    fragment,
    index,
    maximum,
    minimum,
    outer_fma,
    tile_function,
    unroll,
)

__all__ = [
    "Order",
    "Reading",
    "Tiling",
    "both",
    "fetch",
    "fetch_one",
    "guarded",
    "inside",
    "read",
    "reading",
    "stash",
    "store",
]


Order = Literal["rows", "serpentine", "spiral", "pairs", "column_pairs", "column_quads"]


@dataclass(frozen=True)
class Tiling:
    """The tile of a CTA of `threads` threads: bm x bn elements of C, bk at a time.

    A thread's rows are runs of four at the offsets `m_runs` from its first row, its columns at `n_runs`.
    `slices` warps share each part of C, each with its part of bk. `a_first`: A's fragment is read before B's; results
    are the same, but ptxas schedules differently.
    """

    bm: int
    bn: int
    bk: int
    threads: int
    m_runs: Sequence[int]
    n_runs: Sequence[int]
    slices: int = 1
    a_first: bool = False

    @property
    def steps(self) -> int:
        return self.bk // self.slices


@dataclass(frozen=True)
class Reading:
    """How `threads` threads read a tile, k x w = `depth` x `width`, as vectors of `vec` elements.

    Consecutive threads are consecutive along w, or, if `along_k`, along 8 k and then along w: rows of a shared tile are
    4 words longer than a multiple of 32, so 8 of them start in different banks, and a 9th would conflict with the
    first.
    """

    along_k: bool
    vec: int
    depth: int
    width: int
    threads: int

    @property
    def steps(self) -> int:
        """Vectors per thread."""
        return self.depth * self.width // (self.vec * self.threads)

    @property
    def line(self) -> int:
        """Consecutive threads along the contiguous axis."""
        return (8 if self.along_k else self.width) // self.vec


def reading(unit: int, align: int, depth: int, width: int, threads: int) -> Reading:
    """How to read a tile of an operand, seen as k x w, whose axis of stride 1 is `unit`, with that alignment."""
    plan = Reading(unit == 0, 4 if unit >= 0 and align >= 16 else 1, depth, width, threads)
    across = width if plan.along_k else depth
    even = [max(a, b) % min(a, b) == 0 for a, b in ((plan.line, threads), (across * plan.line, threads))]
    assert depth % 8 == 0 and all(even) and plan.steps, f"{threads} threads cannot share {depth} x {width} evenly"
    return plan


@tile_function
def place(plan: Reading, t: index, step: int) -> tuple[index, index]:
    """(k, w) of the first element of thread t's vector number `step`."""
    along, across = t % plan.line * plan.vec, t // plan.line
    lines = plan.threads // plan.line
    if plan.along_k and lines >= plan.width:
        return along + across // plan.width * 8 + step * (lines // plan.width) * 8, across % plan.width
    if plan.along_k:
        parts = plan.width // lines
        return along + step // parts * 8, across + step % parts * lines
    if lines:
        return across + step * lines, along
    parts = plan.line // plan.threads
    return index(step // parts), (t + step % parts * plan.threads) * plan.vec


@tile_function
def fetch(X: Memory[f32], plan: Reading, k0: index | int, w0: index, end: index, t: index, guarded: bool):
    """This thread's part of the tile of X at (k0, w0), in registers. `end`: X's extent along w.

    guarded: zeros past the edges. Otherwise the tile must be inside along k, and past the edge along w the last
    elements are read again: the results are never stored, and a clamped index costs less than a branch.
    """
    got = fragment((plan.vec * plan.steps,), f32)
    for step in unroll(plan.steps):
        got = fetch_one(X, plan, k0, w0, end, t, guarded, step, got)
    return got


@tile_function
def fetch_one(
    X: Memory[f32],
    plan: Reading,
    k0: index | int,
    w0: index,
    end: index,
    t: index,
    guarded: bool,
    step: int,
    got: Fragment[f32],
) -> Fragment[f32]:
    """`got` with vector number `step` of `fetch` loaded into it."""
    dk, dw = place(plan, t, step)
    k, w = k0 + dk, w0 + dw
    if not guarded:
        w = minimum(w, end - 1) if plan.along_k or plan.vec == 1 else minimum(w, end // 4 * 4 - 4)
    if plan.vec == 1:
        got[step] = X.get(k, w) if guarded else X[k, w]
    else:
        got[4 * step : 4 * step + 4] = X.get(k, w, vec=16) if guarded else X.load(k, w, vec=16)
    return got


@tile_function
def inside(plan: Reading, w0: index, end: index) -> boolean | bool:
    """Whether an unguarded `fetch` at w0 is allowed: no vector may cross the edge."""
    if plan.along_k or plan.vec == 1:
        return True
    return end % 4 == 0 or w0 + plan.width <= end


@tile_function
def stash(S: Memory[f32], plan: Reading, t: index, got: Fragment[f32]) -> None:
    """Stores what `fetch` loaded to S[k, w]."""
    for step in unroll(plan.steps):
        k, w = place(plan, t, step)
        if plan.along_k or plan.vec == 1:
            for i in unroll(plan.vec):
                S[k + i, w] = got[plan.vec * step + i]
        else:
            S.store(k, w, got[4 * step : 4 * step + 4])


@tile_function
def read(S: Memory[f32], k: index | int, first: index, runs: Sequence[int]) -> Fragment[f32]:
    """S[k, first + run] to S[k, first + run + 3] for each of `runs`: one load of 16 bytes each."""
    got = fragment((4 * len(runs),), f32)
    for n, run in enumerate(runs):
        got[4 * n : 4 * n + 4] = S.load(k, first + run, vec=16)
    return got


@tile_function
def both(
    As: View[f32], Bs: View[f32], k: index | int, m: index, n: index, tiling: Tiling
) -> tuple[Fragment[f32], Fragment[f32]]:
    """The fragments of A and B for one k."""
    if tiling.a_first:
        a, b = read(As, k, m, tiling.m_runs), read(Bs, k, n, tiling.n_runs)
    else:
        b, a = read(Bs, k, n, tiling.n_runs), read(As, k, m, tiling.m_runs)
    return a, b


@tile_function
def guarded(
    A: Memory[f32],
    B: Memory[f32],
    As: SharedTile[f32],
    Bs: SharedTile[f32],
    row: index,
    column: index,
    m: index,
    n: index,
    t: index,
    part: index | int,
    tiling: Tiling,
    of_a: Reading,
    of_b: Reading,
    order: Order,
    acc: Fragment[f32],
    now: index,
    first: index,
    depth: Any,
    edges: Any,
) -> Fragment[f32]:
    """The end of the main loop: the tile in half `now` of As and Bs, then those from k = `first` to `depth`, guarded.
    edges: rows of A, columns of B."""
    bk, steps, (rows, columns) = tiling.bk, tiling.steps, edges
    skip = part * steps
    for k0 in range(first, depth + bk, bk):
        next_a = fetch(A.T, of_a, k0, row, rows, t, True)
        next_b = fetch(B, of_b, k0, column, columns, t, True)
        for k in range(skip, minimum(skip + steps, maximum(depth + bk - k0, 0))):
            a, b = both(As[now, :, :], Bs[now, :, :], k, m, n, tiling)
            acc = outer_fma(acc, a, b, order)
        now = 1 - now
        stash(As[now, :, :], of_a, t, next_a)
        stash(Bs[now, :, :], of_b, t, next_b)
        barrier()
    return acc


@tile_function
def store(
    C: Memory[f32],
    row: index,
    column: index,
    acc: Fragment[f32],
    rows: Sequence[int],
    runs: Sequence[int],
    alpha: f32 | float | None,
    beta: f32 | float,
) -> None:
    """C = alpha * acc + beta * C; with beta == 0, C is not read; alpha None means 1.

    acc[i, :] is row `row + rows[i]`. Its elements form len(runs) runs of consecutive columns, which start at
    column + run; they are stored in vectors where the alignment of C permits.
    """
    length = acc.shape[1] // len(runs)
    vec = 4 if length % 4 == 0 and C.unit == 1 and C.align >= 16 else 1
    columns = [run + x for run in runs for x in range(0, length, vec)]
    for i, down in enumerate(rows):
        for n, right in enumerate(columns):
            r, c = row + down, column + right
            if vec == 1:
                value = acc[i, n] if alpha is None else alpha * acc[i, n]
                if beta != 0:
                    value += beta * C.get(r, c)
                C.put(r, c, value)
            else:
                four = acc[i, 4 * n : 4 * n + 4] if alpha is None else alpha * acc[i, 4 * n : 4 * n + 4]
                if beta != 0:
                    four += beta * C.get(r, c, vec=16)
                C.put(r, c, four)

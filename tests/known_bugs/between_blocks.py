"""Shipped bugs between blocks: flags, counters, locks and tiles in global memory."""

from __future__ import annotations

import numpy as np

from known_bugs.case import Case, counters, ones
from tiledsl import (
    Const,
    Global,
    barrier,
    const,
    f32,
    fence,
    grid,
    i32,
    index,
    threads,
    tile_kernel,
)
from tiledsl.dims import B, K, M, N

__all__ = ["CASES"]


@tile_kernel
def released_by_one_thread(C: Global[f32, N], turn: Global[i32, B], *, SAFE: Const[bool] = True):
    """Parts of k are added up in turn, and one thread releases the turn with no barrier behind the others' writes."""
    part, t = grid(3), threads(64)
    if t == 0:
        while turn.atomic_load(0, order="acquire") != i32(part):
            pass
    barrier()
    C[t] = C[t] + f32(part)  # found: T102
    if SAFE:
        barrier()
    if t == 0:
        fence()
        turn.atomic_store(0, i32(part) + 1)


@tile_kernel
def last_block_without_an_acquire(
    X: Global[f32, M, N], part: Global[f32, M], done: Global[i32, B], out: Global[f32, K], *, SAFE: Const[bool] = True
):
    """Blocks release their parts; the last one reads them, and has acquired none."""
    b, t = grid(M), threads(32)
    if t == 0:
        part[b] = X[b, 0]
        fence()
        if done.atomic_add(0, 1) == i32(M) - 1:
            if SAFE:
                fence()
            total = f32(0)
            for i in range(M):
                total += part[i]  # found: T102
            out[0] = total


@tile_kernel
def scan_without_a_fence(
    X: Global[f32, M], total: Global[f32, M], ready: Global[i32, M], Y: Global[f32, M], *, SAFE: Const[bool] = True
):
    """A scan over blocks: a block publishes its sum and then its flag, with no fence between."""
    b, t = grid(M), threads(32)
    if t == 0:
        before = f32(0)
        if b > 0:
            while ready.atomic_load(b - 1, order="acquire") == 0:
                pass
            before = total[b - 1]  # found: T102
        total[b] = before + X[b]
        if SAFE:
            fence()
        ready.atomic_store(b, 1)
        Y[b] = before


@tile_kernel
def start_of_all_reduce(X: Global[f32, M, N], start: Global[i32, M], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Ranks write their data, and pass a barrier of relaxed flags before they read the others'."""
    b, t = grid(M), threads(32)
    X[b, t] = f32(b)
    barrier()
    if t == 0:
        if SAFE:
            start.atomic_store(b, 1, order="release", scope="sys")
        else:
            start.atomic_store(b, 1, scope="sys")
    if t < M:
        if SAFE:
            while start.atomic_load(t, order="acquire", scope="sys") == 0:
                pass
        else:
            while start.atomic_load(t, scope="sys") == 0:
                pass
    barrier()
    total = f32(0)
    for other in range(M):
        total += X[other, t]  # found: T102
    Y[b, t] = total


@tile_kernel
def one_cell_for_all_blocks(X: Global[f32, M, N], Y: Global[f32, K], *, SAFE: Const[bool] = True):
    """All blocks store to one element, and only its initialisation is guarded."""
    b, t = grid(M), threads(32)
    if t == 0:
        if SAFE:
            if b == 0:
                Y[0] = X[0, 0]
        else:
            Y[0] = X[b, 0]  # found: T102


@tile_kernel
def updates_without_atomics(X: Global[i32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Points are added to pixels by a load and a store, and two of them may be in one pixel."""
    i = grid(2) * 32 + threads(32)
    pixel = index(X[i])
    if SAFE:
        Y.atomic_add(pixel, 1)
    else:
        Y[pixel] = Y[pixel] + 1  # found: T102


@tile_kernel
def semaphores_of_another_launch(C: Global[f32, N], turn: Global[i32, B], *, SAFE: Const[bool] = True):
    """The semaphores of serial split K hold counts of another launch: a part waits for its turn for ever."""
    part, t = grid(2), threads(32)
    if t == 0:
        while turn.atomic_load(0, order="acquire") != i32(part):  # found: T403
            pass
    barrier()
    C[t] = C[t] + 1
    barrier()
    if t == 0:
        turn.atomic_store(0, (i32(part) + 1) % 2 if SAFE else i32(part) + 1, order="release")


@tile_kernel
def counted_without_a_fence(
    X: Global[i32, M, N], bins: Global[i32, K], done: Global[i32, B], Y: Global[i32, M], *, SAFE: Const[bool] = True
):
    """Blocks add to a histogram and pass a barrier of the grid, whose counter does not release what they added."""
    b, t = grid(M), threads(32)
    bins.atomic_add(index(X[b, t]), 1)
    if SAFE:
        fence()
    barrier()
    if t == 0:
        done.atomic_add(0, 1)
        while done.atomic_load(0, order="acquire") != i32(M):
            pass
        Y[b] = bins[1]  # found: T102


@tile_kernel
def tail_over_the_next_row(X: Global[f32, M, N], Y: Global[f32, K], *, SAFE: Const[bool] = True):
    """The last vector of a row is stored whole, over the start of the row of another block."""
    row, t = grid(2), threads(8)
    for i in range(4):
        column = t * 4 + i
        if not SAFE or column < 30:
            Y.put(row * 30 + column, X.get(row, column))  # found: T102


@tile_kernel
def partials_in_the_output(
    X: Global[f32, M, N], work: Global[f32, M, N], Y: Global[f32, N], *, SAFE: Const[bool] = True
):
    """All parts of k write their partial sums to the output: the workspace was not set up."""
    part, t = grid(M), threads(32)
    if SAFE:
        work[part, t] = X[part, t]
    else:
        Y[t] = X[part, t]  # found: T102


@tile_kernel
def lock_given_back_relaxed(count: Global[f32, N], held: Global[i32, B], *, SAFE: Const[bool] = True):
    """A lock is given back by a plain exchange, with no fence behind what it guards."""
    grid(3)
    t = threads(32)
    if t == 0:
        while held.atomic_cas(0, 0, 1, order="acquire") != 0:
            pass
        count[0] = count[0] + 1  # found: T102
        if SAFE:
            fence()
        held.atomic_exchange(0, 0)


@tile_kernel
def output_read_with_beta_zero(
    X: Global[f32, N], C: Global[f32, N], Y: Global[f32, N], *, BETA: const = 0, SAFE: Const[bool] = True
):
    """An epilogue multiplies C, which the caller has not initialised, by a beta of 0."""
    i = grid(1) * 32 + threads(32)
    if SAFE and BETA == 0:
        Y[i] = X[i]
    else:
        Y[i] = X[i] + f32(BETA) * C[i]  # found: T201


MANY = {"X": ones(4, 32), "Y": ones(4, 32)}

CASES = [
    Case(released_by_one_thread, "NVIDIA/Fuser#2391", {"C": ones(64), "turn": counters(1)}),
    Case(
        last_block_without_an_acquire,
        "pytorch/pytorch#193321",
        {"X": ones(4, 1), "part": ones(4), "done": counters(1), "out": ones(1)},
    ),
    Case(
        scan_without_a_fence,
        "kokkos/kokkos#2681",
        {"X": ones(3), "total": ones(3), "ready": counters(3), "Y": ones(3)},
    ),
    Case(start_of_all_reduce, "vllm-project/vllm#57059", {**MANY, "start": counters(4)}),
    Case(one_cell_for_all_blocks, "jax-ml/jax#37183", {"X": ones(4, 1), "Y": ones(1)}),
    Case(updates_without_atomics, "xarray-contrib/xarray-spatial#2167", {"X": counters(64), "Y": ones(1)}),
    Case(
        semaphores_of_another_launch,
        "ROCm/aiter#3288",
        {"C": ones(32), "turn": counters(1)},
        wrong={"turn": counters(1, value=2)},
    ),
    Case(
        counted_without_a_fence,
        "ROCm/aiter#4007",
        {"X": counters(3, 32, value=1), "bins": counters(4), "done": counters(1), "Y": counters(3)},
    ),
    Case(tail_over_the_next_row, "ROCm/aiter#5290", {"X": ones(2, 32), "Y": ones(60)}),
    Case(partials_in_the_output, "NVIDIA/cutlass#3538", {"X": ones(2, 32), "work": ones(2, 32), "Y": ones(32)}),
    Case(lock_given_back_relaxed, "ROCm/tritonBLAS#61", {"count": ones(1), "held": counters(1)}),
    Case(
        output_read_with_beta_zero,
        "flashinfer-ai/flashinfer#4724",
        {"X": ones(32), "C": np.full(32, np.nan, np.float32), "Y": ones(32)},
        unwritten="C",
    ),
]

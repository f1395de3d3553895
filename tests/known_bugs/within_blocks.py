"""Shipped bugs within one block: scratch memory used again too early, missing barriers, bounds."""

from __future__ import annotations

import numpy as np

from known_bugs.case import Case, counters, ones
from tiledsl import (
    Const,
    Global,
    barrier,
    cdiv,
    const,
    f32,
    grid,
    i32,
    index,
    lane_id,
    shared,
    shuffle_xor,
    syncwarp,
    threads,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import B, M, N

__all__ = ["CASES"]


@tile_kernel
def steps_without_syncwarp(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """The last steps of a tree, within one warp, rely on lanes that move in step."""
    grid(1)
    t = threads(32)
    S = shared((64,), f32)
    S[t], S[t + 32] = X[t], X[t + 32]
    for step in (32, 16, 8, 4, 2, 1):
        x = S[t] + S[t + step] if t < step else f32(0)  # found: T101
        if SAFE:
            syncwarp()
        if t < step:
            S[t] = x
        if SAFE:
            syncwarp()
    if t == 0:
        Y[0] = S[0]


@tile_kernel
def cleared_while_read(X: Global[i32, N], Y: Global[i32, M], *, BINS: const = 4, SAFE: Const[bool] = True):
    """A histogram is cleared for the next round while threads still read it."""
    grid(1)
    t = threads(64)
    bins = shared((BINS,), i32)
    total = i32(0)
    for k in range(2):
        if t < BINS:
            bins[t] = 0  # found: T101
        barrier()
        bins.atomic_add(index(X[k * 64 + t]), 1, scope="cta")
        barrier()
        total += bins[1]
        if SAFE:
            barrier()
    Y[t] = total


@tile_kernel
def padding_over_scales(X: Global[f32, N], Y: Global[f32, M], *, VALUES: const = 16, SAFE: Const[bool] = True):
    """All 32 lanes write a buffer of 16, whose padding is where other lanes write scales."""
    grid(1)
    t = threads(32)
    S = shared((VALUES + 32,), f32)
    if not SAFE or t < VALUES:
        S[t] = X[t]
    if t % 8 == 0:
        S[VALUES + t // 8] = X[t] * 2  # found: T101
    barrier()
    Y[t] = S[t % VALUES] * S[VALUES + t // 8]


@tile_kernel
def scratch_of_the_last_reduction(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Two reductions of a block in a row share their scratch memory, and the second writes while the first is read."""
    grid(1)
    t = threads(64)
    S = shared((2,), f32)
    result = X[t]
    for _ in unroll(2):
        part = result
        for step in (16, 8, 4, 2, 1):
            part += shuffle_xor(part, step)
        if lane_id() == 0:
            S[warp_id()] = part  # found: T101
        barrier()
        result = S[0] + S[1]
        if SAFE:
            barrier()
    Y[t] = result


@tile_kernel
def searched_before_it_is_written(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """Each thread writes a prefix sum, and all search in them at once."""
    grid(1)
    t = threads(64)
    prefix = shared((64,), i32)
    prefix[t] = X[t] * 4
    if SAFE:
        barrier()
    low, high = index(0), index(64)
    while low + 1 < high:
        middle = (low + high) // 2
        if prefix[middle] <= i32(t):  # found: T101
            low = middle
        else:
            high = middle
    Y[t] = i32(low)


@tile_kernel
def results_over_operands(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Partial sums lie over the operands, and are written while other warps still multiply."""
    grid(1)
    t = threads(64)
    a = shared((64,), f32)
    c = shared((64,), f32, over=a)
    a[t] = X[t]
    barrier()
    part = a[63 - t] * a[t]
    if SAFE:
        barrier()
    c[t] = part  # found: T101
    barrier()
    Y[t] = c[63 - t]


@tile_kernel
def bins_not_cleared_yet(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """Some threads clear the bins of a histogram, and all count at once."""
    grid(1)
    t = threads(64)
    bins = shared((4,), i32)
    if t >= 60:
        bins[t - 60] = 0
    if SAFE:
        barrier()
    bins.atomic_add(index(X[t]), 1, scope="cta")  # found: T101
    barrier()
    if t < 4:
        Y[t] = bins[t]


@tile_kernel
def leader_writes_again(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """All threads read what the leader has published, and the leader publishes the next while others still read."""
    grid(1)
    t = threads(64)
    bound = shared((1,), i32)
    total = i32(0)
    for k in range(3):
        if t == 0:
            bound[0] = X[k]  # found: T101
        barrier()
        total += bound[0]
        if SAFE:
            barrier()
    Y[t] = total


@tile_kernel
def one_thread_writes_all_read(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """One thread reserves room for the block, and all use the place with no barrier between."""
    grid(1)
    t = threads(64)
    place = shared((1,), i32)
    if t == 0:
        place[0] = X[0]
    if SAFE:
        barrier()
    Y[t] = place[0] + i32(t)  # found: T101


@tile_kernel
def one_barrier_in_a_loop(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """Values are exchanged in a loop with one barrier: a fast thread writes those of the next round."""
    grid(1)
    t = threads(64)
    S = shared((64,), i32)
    same = i32(0)
    for k in range(3):
        S[t] = X[k * 64 + t]  # found: T101
        barrier()
        for j in range(2):
            if S[(t + j * 32 + 1) % 64] == X[k * 64 + t]:
                same += 1
        if SAFE:
            barrier()
    Y[t] = same


@tile_kernel
def tail_never_filled(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """The last tile leaves a part of shared memory as it was, and all of it is multiplied."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    if SAFE or t < N:
        S[t] = X.get(t)
    barrier()
    total = f32(0)
    for i in range(64):
        total += S[i]  # found: T201
    Y[t] = total


# -- bounds --------------------------------------------------------------------------------------------


@tile_kernel
def load_without_its_mask(X: Global[f32, N], Y: Global[f32, N], *, T: const = 32, SAFE: Const[bool] = True):
    """The last block masks its stores, and not its loads."""
    i = grid(cdiv(N, T)) * T + threads(T)
    if SAFE:
        x = X.get(i)
    else:
        x = X[i]  # found: T501
    Y.put(i, x * 2)


@tile_kernel
def group_before_the_first(Sizes: Global[i32, B], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """A block without work looks up its group, number -1."""
    b, t = grid(4), threads(32)
    group = i32(b) if b < Sizes.shape[0] else i32(-1)
    if SAFE:
        size = Sizes[index(group)] if group >= 0 else i32(0)
    else:
        size = Sizes[index(group)]  # found: T501
    if group >= 0 and t == 0:
        Y[b] = size


@tile_kernel
def vector_over_the_end(X: Global[f32, N], Y: Global[f32, N], *, SAFE: Const[bool] = True):
    """A vector of four is loaded where its first element is within bounds."""
    i = (grid(1) * 32 + threads(32)) * 4
    if SAFE:
        Y.put(i, X.get(i, vec=16))
    elif i < N:
        x = X.load(i, vec=16)  # found: T501
        for j in unroll(4):
            Y.put(i + j, x[j])


@tile_kernel
def vectors_of_odd_rows(X: Global[f32, M, N], Y: Global[f32, M, N], *, SAFE: Const[bool] = True):
    """Rows are read 16 bytes at a time, and their length is no multiple of that."""
    row, t = grid(M), threads(32)
    if SAFE:
        Y.put(row, t, X.get(row, t))
    else:
        Y.put(row, t * 4, X.get(row, t * 4, vec=16))  # refused


ROW = {"X": ones(64), "Y": ones(64)}
COUNTS = {"X": counters(64, value=1), "Y": counters(64)}

CASES = [
    Case(steps_without_syncwarp, "ORNL/HeCBench#91", {"X": ones(64), "Y": ones(1)}),
    Case(cleared_while_read, "flashinfer-ai/flashinfer#3529", {"X": counters(128, value=1), "Y": counters(64)}),
    Case(padding_over_scales, "ggml-org/llama.cpp#28358", {"X": ones(32), "Y": ones(32)}),
    Case(scratch_of_the_last_reduction, "NVIDIA/cutlass#3597", ROW),
    Case(searched_before_it_is_written, "sgl-project/sglang#37663", COUNTS),
    Case(results_over_operands, "sgl-project/sglang#37287", ROW),
    Case(bins_not_cleared_yet, "alicevision/popsift#82", {"X": counters(64, value=1), "Y": counters(4)}),
    Case(leader_writes_again, "NVIDIA/TensorRT-LLM#18339", {"X": counters(3), "Y": counters(64)}),
    Case(one_thread_writes_all_read, "ORNL/HeCBench#254", {"X": counters(1), "Y": counters(64)}),
    Case(one_barrier_in_a_loop, "yelhousni/zprize-GPU-MSM-harness#1", {"X": counters(192), "Y": counters(64)}),
    Case(tail_never_filled, "Dao-AILab/flash-attention#1395", {"X": ones(48), "Y": ones(64)}),
    Case(load_without_its_mask, "flagos-ai/FlagGems#5230", {"X": ones(45), "Y": ones(45)}),
    Case(group_before_the_first, "NVIDIA/cutlass#1543", {"Sizes": counters(3), "Y": counters(3)}),
    Case(vector_over_the_end, "xlite-dev/LeetCUDA#421", {"X": ones(46), "Y": ones(46)}),
    Case(vectors_of_odd_rows, "flashinfer-ai/flashinfer#5013", {"X": ones(3, 30), "Y": np.zeros((3, 30), np.float32)}),
]

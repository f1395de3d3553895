"""Racy and race-free pairs within a block, of the kind that verifiers of GPU programs are compared on.

Most pairs between blocks are older than these: `ELSEWHERE` names them.
"""

from __future__ import annotations

from known_bugs.case import Case, counters, ones
from tiledsl import (
    Const,
    Global,
    barrier,
    const,
    f32,
    grid,
    i32,
    index,
    lane_id,
    ptx,
    shared,
    shuffle_xor,
    syncwarp,
    threads,
    tile_kernel,
    unroll,
    warp_id,
)
from tiledsl.dims import M, N

__all__ = ["CASES", "ELSEWHERE"]

# -- reductions ----------------------------------------------------------------------------------------


@tile_kernel
def tree_of_sums(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A tree of sums with no barrier between its steps."""
    grid(1)
    t = threads(128)
    S = shared((128,), f32)
    S[t] = X[t]
    barrier()
    for step in (64, 32, 16, 8, 4, 2, 1):
        if t < step:
            S[t] = S[t] + S[t + step]  # found: T101
        if SAFE:
            barrier()
    if t == 0:
        Y[0] = S[0]


@tile_kernel
def sums_of_warps(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Each warp leaves its sum, and the first one adds them up without waiting."""
    grid(1)
    t = threads(128)
    S = shared((4,), f32)
    total = X[t]
    for step in (16, 8, 4, 2, 1):
        total += shuffle_xor(total, step)
    if lane_id() == 0:
        S[warp_id()] = total
    if SAFE:
        barrier()
    if t == 0:
        Y[0] = S[0] + S[1] + S[2] + S[3]  # found: T101


@tile_kernel
def sum_of_blocks(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Each block adds its sum to the result, by a load and a store."""
    b, t = grid(3), threads(32)
    total = X[b * 32 + t]
    for step in (16, 8, 4, 2, 1):
        total += shuffle_xor(total, step)
    if t == 0:
        if SAFE:
            Y.atomic_add(0, total)
        else:
            Y[0] = Y[0] + total  # found: T102


# -- histograms ----------------------------------------------------------------------------------------


@tile_kernel
def histogram_without_atomics(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """Threads count in shared bins by a load and a store."""
    grid(1)
    t = threads(64)
    bins = shared((4,), i32)
    if t < 4:
        bins[t] = 0
    barrier()
    if SAFE:
        bins.atomic_add(index(X[t]), 1, scope="cta")
    else:
        bins[index(X[t])] = bins[index(X[t])] + 1  # found: T101
    barrier()
    if t < 4:
        Y[t] = bins[t]


@tile_kernel
def histogram_read_early(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """The bins are read with no barrier behind the counting."""
    grid(1)
    t = threads(64)
    bins = shared((4,), i32)
    if t < 4:
        bins[t] = 0
    barrier()
    bins.atomic_add(index(X[t]), 1, scope="cta")
    if SAFE:
        barrier()
    if t < 4:
        Y[t] = bins[t]  # found: T101


@tile_kernel
def histograms_of_warps(X: Global[i32, N], Y: Global[i32, M], *, SAFE: Const[bool] = True):
    """Each warp has bins of its own, and they are merged with only the warps' own joins before."""
    grid(1)
    t = threads(64)
    bins = shared((2, 32), i32)
    bins[warp_id(), t % 32] = 0
    syncwarp()
    bins.atomic_add(warp_id(), index(X[t]), 1, scope="cta")
    if SAFE:
        barrier()
    else:
        syncwarp()
    if t < 4:
        Y[t] = bins[0, t] + bins[1, t]  # found: T101


# -- scans ---------------------------------------------------------------------------------------------


@tile_kernel
def scan_in_place(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A scan in one buffer: a sum is written while its old value may still be read."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    barrier()
    for step in (1, 2, 4, 8, 16, 32):
        x = S[t] + S[t - step] if t >= step else S[t]
        if SAFE:
            barrier()
        S[t] = x  # found: T101
        barrier()
    Y[t] = S[t]


@tile_kernel
def scan_of_two_buffers(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A scan that alternates between two buffers, with no barrier between its steps."""
    grid(1)
    t = threads(64)
    S = shared((2, 64), f32)
    S[0, t] = X[t]
    barrier()
    for i, step in enumerate((1, 2, 4, 8, 16, 32)):
        now = i % 2
        S[1 - now, t] = S[now, t] + S[now, t - step] if t >= step else S[now, t]  # found: T101
        if SAFE:
            barrier()
    Y[t] = S[0, t]


@tile_kernel
def scan_up_and_down(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A work-efficient scan with no barrier between the way up and the way down."""
    grid(1)
    t = threads(64)
    S = shared((128,), f32)
    S[2 * t], S[2 * t + 1] = X[2 * t], X[2 * t + 1]
    for step in (1, 2, 4, 8, 16, 32, 64):
        barrier()
        if t < 64 // step:
            S[(2 * t + 2) * step - 1] = S[(2 * t + 2) * step - 1] + S[(2 * t + 1) * step - 1]
    if SAFE:
        barrier()
    if t == 63:
        S[127] = 0  # found: T101
    for step in (64, 32, 16, 8, 4, 2, 1):
        barrier()
        if t < 64 // step:
            left = S[(2 * t + 1) * step - 1]
            S[(2 * t + 1) * step - 1] = S[(2 * t + 2) * step - 1]
            S[(2 * t + 2) * step - 1] = S[(2 * t + 2) * step - 1] + left
    barrier()
    Y[2 * t], Y[2 * t + 1] = S[2 * t], S[2 * t + 1]


@tile_kernel
def carry_of_a_scan(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A scan goes on from chunk to chunk: the carry is updated while others still read it."""
    grid(1)
    t = threads(64)
    carry = shared((1,), f32)
    if t == 0:
        carry[0] = 0
    barrier()
    for k in range(2):
        Y[k * 64 + t] = X[k * 64 + t] + carry[0]
        if SAFE:
            barrier()
        if t == 0:
            carry[0] = carry[0] + 1  # found: T101
        barrier()


# -- stencils and transposes ---------------------------------------------------------------------------


@tile_kernel
def halo_of_a_stencil(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Three neighbours from shared memory, read with no barrier behind the load of the tile and its halo."""
    grid(1)
    t = threads(64)
    S = shared((66,), f32)
    S[t + 1] = X[t + 1]
    if t < 2:
        S[t * 65] = X[t * 65]
    if SAFE:
        barrier()
    Y[t] = S[t] + S[t + 1] + S[t + 2]  # found: T101


@tile_kernel
def steps_of_a_stencil(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Steps in time from one buffer to another: a step starts while others are still at the last one."""
    grid(1)
    t = threads(64)
    S = shared((2, 64), f32)
    S[0, t] = X[t]
    barrier()
    for k in unroll(3):
        now = k % 2
        S[1 - now, t] = S[now, t] + S[now, (t + 1) % 64]  # found: T101
        if SAFE:
            barrier()
    Y[t] = S[1, t]


@tile_kernel
def stencil_within_a_tile(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A stencil in place: an element is replaced while its neighbours may still read it."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    barrier()
    x = S[t] + S[(t + 1) % 64]
    if SAFE:
        barrier()
    S[t] = x  # found: T101
    barrier()
    Y[t] = S[63 - t]


@tile_kernel
def transposed_tile(X: Global[f32, M, N], Y: Global[f32, N, M], *, SAFE: Const[bool] = True):
    """A tile is written by rows and read by columns, with no barrier between."""
    grid(1)
    i, j = threads(8, 8)
    S = shared((8, 8), f32)
    S[j, i] = X[j, i]
    if SAFE:
        barrier()
    Y[j, i] = S[i, j]  # found: T101


@tile_kernel
def tile_transposed_in_place(X: Global[f32, M, N], Y: Global[f32, N, M], *, SAFE: Const[bool] = True):
    """Each thread exchanges an element with its mirror image, which the mirror's thread does, too."""
    grid(1)
    i, j = threads(8, 8)
    S = shared((8, 8), f32)
    S[j, i] = X[j, i]
    barrier()
    if i < j if SAFE else i != j:
        a, b = S[i, j], S[j, i]
        S[i, j], S[j, i] = b, a  # found: T101
    barrier()
    Y[j, i] = S[j, i]


@tile_kernel
def transposed_twice(X: Global[f32, M, N], Y: Global[f32, N, M], *, SAFE: Const[bool] = True):
    """A tile is used again for the next one, while its columns are still being read."""
    grid(1)
    i, j = threads(8, 8)
    S = shared((8, 8), f32)
    for k in range(2):
        S[j, i] = X[k * 8 + j, i]  # found: T101
        barrier()
        Y[i, k * 8 + j] = S[j, i] + S[i, j]
        if SAFE:
            barrier()


# -- double buffers ------------------------------------------------------------------------------------


@tile_kernel
def one_barrier_a_step(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """One barrier a step is enough for two buffers, and not for one."""
    grid(1)
    t = threads(64)
    S = shared((2, 64), f32)
    total = f32(0)
    for k in range(4):
        slot = k % 2 if SAFE else k * 0
        S[slot, t] = X[k * 64 + t]  # found: T101
        barrier()
        total += S[slot, 63 - t]
    Y[t] = total


@tile_kernel
def copies_ahead(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Copies run one step ahead, and the wait leaves out the group that is needed at the last step."""
    grid(1)
    t = threads(64)
    S = shared((2, 64), f32)
    total = f32(0)
    ptx.cp_async(S, (0, t), X, t, bytes=4)
    ptx.commit_group()
    for k in unroll(3):
        if k < 2:
            ptx.cp_async(S, ((k + 1) % 2, t), X, (k + 1) * 64 + t, bytes=4)
            ptx.commit_group()
        if SAFE and k == 2:
            ptx.wait_group(0)
        else:
            ptx.wait_group(1)
        barrier()
        total += S[k % 2, 63 - t]  # found: T106
        barrier()
    ptx.wait_group(0)
    Y[t] = total


@tile_kernel
def buffers_exchanged_early(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """The next tile is written into the buffer that is in use, in place of the other one."""
    grid(1)
    t = threads(64)
    S = shared((2, 64), f32)
    S[0, t] = X[t]
    total = f32(0)
    for k in range(3):
        barrier()
        now = k % 2
        if k < 2:
            S[1 - now if SAFE else now, t] = X[(k + 1) * 64 + t]
        total += S[now, 63 - t]  # found: T101
    Y[t] = total


# -- warp-synchronous code -----------------------------------------------------------------------------


@tile_kernel
def lanes_in_step(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Lanes of a warp exchange elements, and rely on moving in step."""
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    S[t] = X[t]
    if SAFE:
        syncwarp()
    Y[t] = S[t ^ 1]  # found: T101


@tile_kernel
def lane_that_tells_its_warp(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """One lane writes what all lanes of its warp then read."""
    grid(1)
    t = threads(64)
    S = shared((2,), f32)
    if lane_id() == 0:
        S[warp_id()] = X[t]
    if SAFE:
        syncwarp()
    Y[t] = S[warp_id()]  # found: T101


@tile_kernel
def joined_lanes_of_two_warps(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Warps join their lanes, and one reads what the other has written."""
    grid(1)
    t = threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    syncwarp()
    Y[t] = S[t ^ 1] if SAFE else S[t ^ 32]  # found: T101


@tile_kernel
def sorted_in_a_warp(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """Neighbours are put in order in turns, odd and even pairs, with the lanes not joined between turns."""
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    S[t] = X[t]
    syncwarp()
    for turn in range(32):
        left = 2 * t + turn % 2
        if left + 1 < 32:
            a, b = S[left], S[left + 1]  # found: T101
            S[left] = a if a < b else b
            S[left + 1] = b if a < b else a  # found: T101
        if SAFE:
            syncwarp()
    syncwarp()
    Y[t] = S[t]


# -- flags and mailboxes in shared memory --------------------------------------------------------------


@tile_kernel
def flag_of_a_warp(X: Global[f32, N], Y: Global[f32, M], *, SAFE: Const[bool] = True):
    """A warp waits for another one's flag, which does not release what was written before."""
    grid(1)
    t = threads(64)
    S, flag = shared((1,), f32), shared((1,), i32)
    if t == 0:
        flag[0] = 0
    barrier()
    if t == 0:
        S[0] = X[0]
        flag.atomic_store(0, 1, order="release" if SAFE else "relaxed", scope="cta")
    elif t == 32:
        while flag.atomic_load(0, order="acquire", scope="cta") == 0:
            pass
        Y[0] = S[0]  # found: T101


@tile_kernel
def mailbox_used_again(X: Global[f32, N], Y: Global[f32, M], *, LETTERS: const = 3, SAFE: Const[bool] = True):
    """A mailbox is filled again, and nobody has said that it was emptied."""
    grid(1)
    t = threads(64)
    S, sent, taken = shared((1,), f32), shared((1,), i32), shared((1,), i32)
    if t == 0:
        sent[0] = 0
        taken[0] = 0
    barrier()
    if t == 0:
        for k in range(LETTERS):
            if SAFE:
                while taken.atomic_load(0, order="acquire", scope="cta") < i32(k):
                    pass
            S[0] = X[k]
            sent.atomic_store(0, i32(k) + 1, order="release", scope="cta")
    elif t == 32:
        for k in range(LETTERS):
            while sent.atomic_load(0, order="acquire", scope="cta") <= i32(k):
                pass
            Y[k] = S[0]  # found: T101
            taken.atomic_store(0, i32(k) + 1, order="release", scope="cta")


ONE = {"X": ones(64), "Y": ones(64)}
SMALL = {"X": ones(32), "Y": ones(32)}
SUM = {"X": ones(128), "Y": ones(1)}
BINS = {"X": counters(64, value=1), "Y": counters(4)}
SQUARE = {"X": ones(8, 8), "Y": ones(8, 8)}

CASES = [
    Case(tree_of_sums, "reduction", SUM),
    Case(sums_of_warps, "reduction", SUM),
    Case(sum_of_blocks, "reduction", {"X": ones(96), "Y": ones(1)}),
    Case(histogram_without_atomics, "histogram", BINS),
    Case(histogram_read_early, "histogram", BINS),
    Case(histograms_of_warps, "histogram", BINS),
    Case(scan_in_place, "scan", ONE),
    Case(scan_of_two_buffers, "scan", ONE),
    Case(scan_up_and_down, "scan", {"X": ones(128), "Y": ones(128)}),
    Case(carry_of_a_scan, "scan", {"X": ones(128), "Y": ones(128)}),
    Case(halo_of_a_stencil, "stencil", {"X": ones(66), "Y": ones(64)}),
    Case(steps_of_a_stencil, "stencil", ONE),
    Case(stencil_within_a_tile, "stencil", ONE),
    Case(transposed_tile, "transpose", SQUARE),
    Case(tile_transposed_in_place, "transpose", SQUARE),
    Case(transposed_twice, "transpose", {"X": ones(16, 8), "Y": ones(8, 16)}),
    Case(one_barrier_a_step, "double buffer", {"X": ones(256), "Y": ones(64)}),
    Case(copies_ahead, "double buffer", {"X": ones(192), "Y": ones(64)}),
    Case(buffers_exchanged_early, "double buffer", {"X": ones(192), "Y": ones(64)}),
    Case(lanes_in_step, "warp-synchronous", SMALL),
    Case(lane_that_tells_its_warp, "warp-synchronous", ONE),
    Case(joined_lanes_of_two_warps, "warp-synchronous", ONE),
    Case(sorted_in_a_warp, "warp-synchronous", SMALL),
    Case(flag_of_a_warp, "flag", {"X": ones(1), "Y": ones(1)}),
    Case(mailbox_used_again, "mailbox", {"X": ones(3), "Y": ones(3)}, seeds=4),
]

ELSEWHERE = {
    "histogram": ("histogram",),
    "stencil": ("stencil",),
    "transpose": ("transposed_in_place",),
    "last block": (
        "last_block",
        "last_block_released_alone",
        "last_block_acquired_alone",
        "written_by_the_last",
    ),
    "flag": ("flag", "flag_by_fences", "flag_fenced_too_early", "flag_of_a_block", "other_flag"),
    "mailbox": ("mailboxes", "semaphore", "lock"),
}
"""Pairs of tests/unit/race_pairs.py, and the histogram of test_emulator_global_races.py beside it, by theme. That file
checks them at both levels of the IR; their const is `RIGHT`."""

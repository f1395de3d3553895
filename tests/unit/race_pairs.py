"""Kernels with accesses to global memory that nothing orders, each with its right version beside it: `RIGHT` chooses.

`PAIRS`: what to run, and what is to be said of the wrong version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl import (
    Const,
    Global,
    barrier,
    copy,
    f32,
    fence,
    grid,
    i32,
    ptx,
    shared,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tiles,
)
from tiledsl.dims import B, K, M, N

__all__ = ["NO_ACQUIRE", "NO_BARRIER", "PAIRS", "Pair", "aliases"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """shapes: of the arguments, f32, or i32 where a name is in `counts`. says: of the wrong version. levels: where it
    is found; at tile level a `cp.async` is complete at once."""

    kernel: Any
    shapes: dict[str, tuple[int, ...]]
    says: str
    counts: tuple[str, ...] = ()
    levels: tuple[str, ...] = ("tile", "thread")

    def arrays(self) -> dict[str, Array]:
        kinds = {name: np.int32 if name in self.counts else np.float32 for name in self.shapes}
        return {name: np.ones(shape, kinds[name]) * (name not in self.counts) for name, shape in self.shapes.items()}


# -- within a block ----------------------------------------------------------------------------------


@tile_kernel
def exchanged(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Threads hand each other values through global memory."""
    b, t = grid(2), threads(64)
    X[b * 64 + t] = f32(1)
    if RIGHT:
        barrier()
    Y[b * 64 + t] = X[b * 64 + (63 - t)]


@tile_kernel
def exchanged_in_a_warp(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    grid(1)
    t = threads(32)
    X[t] = f32(1)
    if RIGHT:
        syncwarp()
    Y[t] = X[31 - t]


@tile_kernel
def swapped(X: Global[f32, N], *, RIGHT: Const[bool] = True):
    """In place: two halves change places."""
    grid(1)
    t = threads(64)
    x = X[t ^ 32]
    if RIGHT:
        barrier()
    X[t] = x


@tile_kernel
def one_of_a_block(X: Global[f32, N], *, RIGHT: Const[bool] = True):
    """All threads store the same value to one element."""
    grid(1)
    t = threads(64)
    if not RIGHT or t == 0:
        X[0] = f32(1)


@tile_kernel
def named(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Half of the block meets at a barrier of its own; the wrong version reads what the other half has written."""
    grid(1)
    t = threads(128)
    X[t] = f32(1)
    if t < 64:
        ptx.named_barrier(1, 64)
        if RIGHT:
            Y[t] = X[t ^ 32]
        else:
            Y[t] = X[t + 64]


@tile_kernel
def overwritten_source(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """The source of a `cp.async` is written before it was waited for."""
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    ptx.cp_async(S, t, X, t, bytes=4)
    ptx.commit_group()
    if RIGHT:
        ptx.wait_group(0)
    X[t] = f32(2)
    if not RIGHT:
        ptx.wait_group(0)
    Y[t] = S[t]


# -- between blocks ----------------------------------------------------------------------------------


@tile_kernel
def one_element(C: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Two blocks write the same elements."""
    b, t = grid(2), threads(32)
    C[(b if RIGHT else 0) * 32 + t] = f32(1)


@tile_kernel
def others_output(X: Global[f32, N], Y: Global[f32, M], *, RIGHT: Const[bool] = True):
    """A block reads what the one before it writes."""
    b, t = grid(3), threads(32)
    X[(b + 1) * 32 + t] = f32(1)
    barrier()
    Y[b * 32 + t] = X[(b + (1 if RIGHT else 0)) * 32 + t]


@tile_kernel
def input_overwritten(X: Global[f32, N], Y: Global[f32, M], *, RIGHT: Const[bool] = True):
    """All blocks read an element that one of them writes at its end."""
    b, t = grid(8), threads(32)
    Y[b * 32 + t] = X[0]
    syncwarp()
    if b == 7 and t == 0:
        X[1 if RIGHT else 0] = f32(2)


@tile_kernel
def overlapping_tiles(C: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """Tiles of 32 columns, 24 apart: each block writes eight columns of the next one's."""
    b, t = grid(2), threads(32)
    S = shared((8, 32), f32)
    for i in range(8):
        S[i, t] = f32(b)
    barrier()
    first = b * (32 if RIGHT else 24)
    for n in tiles(first + 32, 32, start=first):
        copy(S, C[tile(0, 8), n], vec=4)


@tile_kernel
def stencil(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Three neighbours, in place or not."""
    b, t = grid(2), threads(32)
    i = b * 32 + t + 1
    y = X[i - 1] + X[i] + X[i + 1]
    barrier()
    if RIGHT:
        Y[i] = y
    else:
        X[i] = y


@tile_kernel
def transposed_in_place(X: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """Each element is exchanged with its mirror image, once or by both blocks."""
    i, j = grid(8), threads(8)
    if i < j if RIGHT else i != j:
        x, y = X[i, j], X[j, i]
        X[i, j], X[j, i] = y, x


@tile_kernel
def aliases(X: Global[f32, N], Y: Global[f32, N]):
    """X and Y have bytes in common, or not."""
    b, t = grid(2), threads(32)
    Y[b * 32 + t] = X[b * 32 + t]


# -- releases and acquires -----------------------------------------------------------------------------


@tile_kernel
def last_block(X: Global[f32, M, N], part: Global[f32, M], done: Global[i32, B], out: Global[f32, K], *,
               RIGHT: Const[bool] = True):  # fmt: skip
    """The last block to count adds up what all have left."""
    b, t = grid(M), threads(32)
    if t == 0:
        part[b] = X[b, 0]
        count = done.atomic_add(0, 1, order="acq_rel" if RIGHT else "relaxed")
        if count == i32(M) - 1:
            total = f32(0)
            for i in range(M):
                total += part[i]
            out[0] = total


@tile_kernel
def last_block_released_alone(part: Global[f32, M, N], done: Global[i32, B], out: Global[f32, N], *,
                              RIGHT: Const[bool] = True):  # fmt: skip
    """One thread counts for its block: a barrier comes before."""
    b, t = grid(M), threads(64)
    last = shared((1,), i32)
    part[b, t] = f32(1)
    if RIGHT:
        barrier()
    if t == 0:
        last[0] = done.atomic_add(0, 1, order="acq_rel")
    barrier()
    if last[0] == i32(M) - 1:
        total = f32(0)
        for i in range(M):
            total += part[i, t]
        out[t] = total


@tile_kernel
def last_block_acquired_alone(part: Global[f32, M, N], done: Global[i32, B], out: Global[f32, N], *,
                              RIGHT: Const[bool] = True):  # fmt: skip
    """One thread acquires for its block, and tells the others: by a release, or by a relaxed store."""
    b, t = grid(M), threads(64)
    found = shared((1,), i32)
    if t == 0:
        found[0] = -1
    part[b, t] = f32(1)
    barrier()
    if t == 0:
        number = done.atomic_add(0, 1, order="acq_rel")
        found.atomic_store(0, number, order="release" if RIGHT else "relaxed", scope="cta")
    while found.atomic_load(0, order="acquire", scope="cta") < 0:
        pass
    if found.atomic_load(0, scope="cta") == i32(M) - 1:
        total = f32(0)
        for i in range(M):
            total += part[i, t]
        out[t] = total


@tile_kernel
def written_by_the_last(X: Global[f32, N], done: Global[i32, B], Y: Global[f32, M], *, RIGHT: Const[bool] = True):
    """All blocks read an element; the last one to count overwrites it."""
    b, t = grid(12), threads(32)
    if t == 0:
        Y[b] = X[0]
        if done.atomic_add(0, 1, order="acq_rel" if RIGHT else "relaxed") == 11:
            X[0] = f32(2)


@tile_kernel
def flag(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *, RIGHT: Const[bool] = True):
    """A block waits for a flag: the release is missing."""
    b, t = grid(2), threads(32)
    if t == 0:
        if b == 1:
            data[0] = f32(1)
            ready.atomic_store(0, 1, order="release" if RIGHT else "relaxed")
        else:
            while ready.atomic_load(0, order="acquire") == 0:
                pass
            out[0] = data[0]


@tile_kernel
def flag_by_fences(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Relaxed operations and fences: the reader's fence is missing."""
    b, t = grid(2), threads(32)
    if t == 0:
        if b == 1:
            data[0] = f32(1)
            fence()
            ready.atomic_store(0, 1)
        else:
            while ready.atomic_load(0) == 0:
                pass
            if RIGHT:
                fence()
            out[0] = data[0]


@tile_kernel
def flag_fenced_too_early(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *,
                          RIGHT: Const[bool] = True):  # fmt: skip
    """The writer's fence is before the write, or behind it."""
    b, t = grid(2), threads(32)
    if t == 0:
        if b == 1:
            if not RIGHT:
                fence()
            data[0] = f32(1)
            if RIGHT:
                fence()
            ready.atomic_store(0, 1)
        else:
            while ready.atomic_load(0, order="acquire") == 0:
                pass
            out[0] = data[0]


@tile_kernel
def flag_of_a_block(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *, RIGHT: Const[bool] = True):
    """A release and an acquire whose scope is the block."""
    b, t = grid(2), threads(32)
    if t == 0:
        if b == 1:
            data[0] = f32(1)
            fence("gpu" if RIGHT else "cta")
            ready.atomic_store(0, 1)
        else:
            while ready.atomic_load(0, order="acquire") == 0:
                pass
            out[0] = data[0]


@tile_kernel
def other_flag(data: Global[f32, N], ready: Global[i32, B], out: Global[f32, N], *, RIGHT: Const[bool] = True):
    """The reader acquires another flag than the one that is released."""
    b, t = grid(2), threads(32)
    if t == 0:
        if b == 1:
            data[0] = f32(1)
            ready.atomic_store(0, 1, order="release")
            ready.atomic_store(1, 1)
        else:
            while ready.atomic_load(0 if RIGHT else 1, order="acquire") == 0:
                pass
            out[0] = data[0]


@tile_kernel
def mailboxes(data: Global[f32, N], ready: Global[i32, N], *, RIGHT: Const[bool] = True):
    """A value goes from block to block; the last one reads what the first has written: order is transitive."""
    b, t = grid(4), threads(32)
    if t == 0:
        if b == 0:
            data[0] = f32(1)
        elif b == 2 and not RIGHT:
            while ready.atomic_load(b - 1) == 0:
                pass
        else:
            while ready.atomic_load(b - 1, order="acquire") == 0:
                pass
        if b == 3:
            data[1] = data[0]
        ready.atomic_store(b, 1, order="release")


@tile_kernel
def semaphore(C: Global[f32, N], turn: Global[i32, B], *, RIGHT: Const[bool] = True):
    """Blocks add to a tile in turn: a barrier comes before the release of what all threads have written."""
    b, t = grid(4), threads(64)
    if t == 0:
        while turn.atomic_load(0, order="acquire") != i32(b):
            pass
    barrier()
    C[t] = C[t] + 1
    if RIGHT:
        barrier()
    if t == 0:
        turn.atomic_store(0, i32(b) + 1, order="release")


@tile_kernel
def lock(count: Global[f32, N], held: Global[i32, B], *, RIGHT: Const[bool] = True):
    """A plain counter under a lock."""
    grid(4)
    t = threads(32)
    if t == 0:
        while held.atomic_cas(0, 0, 1, order="acquire" if RIGHT else "relaxed") != 0:
            pass
        count[0] = count[0] + 1
        held.atomic_store(0, 0, order="release")


@tile_kernel
def plain_beside_atomic(C: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Blocks add to an element; one of them does so by a plain load and store."""
    b, t = grid(3), threads(32)
    if t == 0:
        if b == 1 and not RIGHT:
            C[0] = C[0] + 1
        else:
            C.atomic_add(0, 1)


@tile_kernel
def read_beside_atomic(C: Global[f32, N], Y: Global[f32, M], *, RIGHT: Const[bool] = True):
    """A block reads a sum while others add to it."""
    b, t = grid(3), threads(32)
    if t == 0:
        C.atomic_add(0, 1)
        if RIGHT:
            Y[b] = C.atomic_load(0)
        else:
            Y[b] = C[0]


@tile_kernel
def narrow_scope(C: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Atomic operations of several blocks whose scope is one block."""
    grid(3)
    t = threads(32)
    if t == 0:
        if RIGHT:
            C.atomic_add(0, 1)
        else:
            C.atomic_add(0, 1, scope="cta")


NO_BARRIER = "with no barrier of the block between the two"
NO_ACQUIRE = "with no release there that is acquired here"
FLAG: Any = {"data": (4,), "ready": (4,), "out": (4,)}

PAIRS = [
    Pair(exchanged, {"X": (128,), "Y": (128,)}, rf"reads X\[\d+\] .* wrote at .*, {NO_BARRIER}"),
    Pair(exchanged_in_a_warp, {"X": (32,), "Y": (32,)}, r"reads X\[\d+\] .*, with no syncwarp\(\) between"),
    Pair(swapped, {"X": (64,)}, rf"writes X\[0\] .* thread \(32, 0, 0\) of block \(0, 0, 0\) read at .*, {NO_BARRIER}"),
    Pair(one_of_a_block, {"X": (1,)}, r"writes X\[0\] .* wrote at"),
    Pair(named, {"X": (128,), "Y": (128,)}, rf"reads X\[64\] .*, {NO_BARRIER}"),
    Pair(overwritten_source, {"X": (32,), "Y": (32,)}, "read at .*, and no wait for that copy", levels=("thread",)),
    Pair(one_element, {"C": (64,)}, rf"writes C\[0\] at .*block \(1, 0, 0\) wrote at .*, {NO_ACQUIRE}"),
    Pair(
        others_output, {"X": (128,), "Y": (96,)},
        rf"reads X\[32\] at .*, which .* of block \(0, 0, 0\) .*{NO_ACQUIRE}",
    ),
    Pair(input_overwritten, {"X": (4,), "Y": (256,)}, rf"block \(7, 0, 0\) writes X\[0\] at .* read at .*{NO_ACQUIRE}"),
    Pair(overlapping_tiles, {"C": (8, 64)}, rf"writes C\[0, 24\] at .*, {NO_ACQUIRE}"),
    Pair(stencil, {"X": (66,), "Y": (66,)}, rf"writes X\[32\] at .* read at .*, {NO_ACQUIRE}"),
    Pair(transposed_in_place, {"X": (8, 8)}, rf"writes X\[\d+, \d+\] at .*, {NO_ACQUIRE}"),
    Pair(
        last_block, {"X": (4, 1), "part": (4,), "done": (1,), "out": (1,)},
        rf"reads part\[0\] .*{NO_ACQUIRE}", ("done",),
    ),
    Pair(
        last_block_released_alone, {"part": (4, 64), "done": (1,), "out": (64,)},
        rf"reads part\[0, 32\] .*{NO_ACQUIRE}", ("done",),
    ),
    Pair(
        last_block_acquired_alone, {"part": (4, 64), "done": (1,), "out": (64,)},
        rf"reads part\[0, \d+\] .*{NO_ACQUIRE}", ("done",),
    ),
    Pair(
        written_by_the_last, {"X": (1,), "done": (1,), "Y": (12,)},
        rf"writes X\[0\] .* read at .*{NO_ACQUIRE}", ("done",),
    ),
    Pair(flag, FLAG, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(flag_by_fences, FLAG, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(flag_fenced_too_early, FLAG, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(flag_of_a_block, FLAG, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(other_flag, FLAG, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(mailboxes, {"data": (4,), "ready": (4,)}, rf"reads data\[0\] at .*{NO_ACQUIRE}", ("ready",)),
    Pair(semaphore, {"C": (64,), "turn": (1,)}, rf"C\[32\] at .*{NO_ACQUIRE}", ("turn",)),
    Pair(lock, {"count": (1,), "held": (1,)}, rf"reads count\[0\] at .*{NO_ACQUIRE}", ("held",)),
    Pair(plain_beside_atomic, {"C": (1,)}, rf"C\[0\] at .*{NO_ACQUIRE}"),
    Pair(read_beside_atomic, {"C": (1,), "Y": (3,)}, rf"reads C\[0\] at .* atomically wrote at .*{NO_ACQUIRE}"),
    Pair(narrow_scope, {"C": (1,)}, r"atomically updates C\[0\] .*, and the scope of one of the two leaves out"),
]  # fmt: skip

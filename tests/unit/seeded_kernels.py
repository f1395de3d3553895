"""Kernels that go wrong in some orders of the warps only, not in the emulator's usual one. `RIGHT`: in none."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    grid,
    i32,
    ptx,
    row_major,
    shared,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
    warp_id,
)
from tiledsl.dims import M, N

__all__ = ["MISSED", "arguments", "as_one", "loaded", "overtaken"]


@tile_kernel
def asked_once(X: Global[f32, N], Y: Global[f32, N], flag: Global[i32, Literal[2]], *, RIGHT: Const[bool] = True):
    """The reader asks for the flag, but does not wait until it is set."""
    grid(1)
    t = threads(64)
    if t < 32:
        X[t] = f32(1)
        syncwarp()
        if t == 0:
            flag.atomic_store(0, 1, order="release")
    elif RIGHT:
        while flag.atomic_load(0, order="acquire") == 0:
            pass
        Y[t - 32] = X[t - 32]
    else:
        if flag.atomic_load(0, order="acquire") >= 0:
            Y[t - 32] = X[t - 32]


@tile_kernel(arch="sm_90a")
def as_one(X: Global[f32, N], Y: Global[f32, N], flag: Global[i32, Literal[2]], *, RIGHT: Const[bool] = True):
    """Two warps fill a tile in two rounds for a third one, and do not wait for each other: one of them may arrive twice
    while the other has not arrived at all. The results are right as long as they move as one."""
    grid(1)
    t = threads(96)
    S = shared((2, 64), f32)
    if t < 32:
        for i in range(2):
            ptx.named_barrier(1, threads=96)
            Y[t] = S[i, t] + S[i, t + 32]
    else:
        for i in range(2):
            S[i, t - 32] = X[t - 32]
            ptx.named_barrier(1, threads=96, wait=RIGHT)


@tile_kernel(arch="sm_90a")
def overtaken(X: Global[f32, N], Y: Global[f32, N], flag: Global[i32, Literal[2]], *, RIGHT: Const[bool] = True):
    """Two warps wait for each of several phases, and only one of them says that it has seen it."""
    grid(1)
    t = threads(96)
    full, seen = shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(seen, 0, count=2 if RIGHT else 1)
    barrier()
    if t == 0:
        for i in range(6):
            ptx.mbarrier_arrive(full, 0)
            ptx.mbarrier_wait(seen, 0, parity=u32(i % 2))
    elif t % 32 == 0:
        for i in range(6):
            ptx.mbarrier_wait(full, 0, parity=u32(i % 2))
            if RIGHT or warp_id() == 1:
                ptx.mbarrier_arrive(seen, 0)


@tile_kernel(arch="sm_90a")
def loaded(X: Global[f32, M, N], *, RIGHT: Const[bool] = True):
    """A tile is loaded; the wrong one ends before it has arrived, or does not know that it has."""
    grid(1)
    t = threads(96)
    S, full = shared((8, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=1024)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(full, 0))
    barrier()
    if RIGHT:
        ptx.mbarrier_wait(full, 0, parity=0)
    else:
        for _ in range(20):
            barrier()


MISSED: dict[Any, set[str]] = {
    asked_once: {"T102"},
}
"""The wrong ones, and what may be found, depending on the seed."""


def arguments() -> dict[str, Any]:
    return {"X": np.ones(64, np.float32), "Y": np.zeros(64, np.float32), "flag": np.zeros(2, np.int32)}

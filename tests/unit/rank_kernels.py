"""Kernels that several ranks run together. `WITHOUT`: what a kernel leaves out of its synchronisation."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tiledsl import (
    Const,
    Global,
    barrier,
    f32,
    fence,
    grid,
    i32,
    index,
    ptx,
    row_major,
    shared,
    store_tma,
    syncwarp,
    threads,
    tile,
    tile_kernel,
    tma_commit,
    tma_load,
    tma_wait,
    u64,
)
from tiledsl.dims import B, M, N
from tiledsl.ranks import OnRank

__all__ = [
    "ROWS",
    "arrives_alone",
    "branch",
    "copies",
    "copies_ahead",
    "overwrite",
    "overwrites",
    "ping",
    "pings",
    "pushes",
    "reduce_scatter",
    "reductions",
    "rings",
    "scale",
    "shift",
    "store",
    "stores",
    "waits",
]

ROUNDS = 4


@tile_kernel
def ping(
    mine: Global[i32, N],
    flag: Global[i32, Literal[1]],
    peer: Global[i32, N],
    peer_flag: Global[i32, Literal[1]],
    out: Global[i32, N],
    first: i32,
    *,
    SCOPE: Const[str] = "sys",
    ORDER: Const[bool] = True,
    WITHOUT: Const[str] = "",
):
    """In turns, a rank writes to the other's memory and sets its flag there, or waits for its own and adds what it
    got."""
    grid(1)
    t = threads(64)
    for r in range(ROUNDS):
        if r % 2 == index(first):
            peer[t] = i32(r * 100) + i32(t)
            barrier()
            if t == 0:
                peer_flag.atomic_store(0, i32(r) + 1, order="release" if ORDER else "relaxed", scope=SCOPE)
        else:
            if WITHOUT != "wait":
                if t == 0:
                    while flag.atomic_load(0, order="acquire" if ORDER else "relaxed", scope=SCOPE) <= i32(r):
                        pass
                barrier()
            out[t] += mine[t]


def pings(**consts: Any) -> list[OnRank]:
    buffers, flags, outs = ([np.zeros(n, np.int32) for _ in range(2)] for n in (64, 1, 64))
    return [
        OnRank(rank, ping, (buffers[rank], flags[rank], buffers[1 - rank], flags[1 - rank], outs[rank], rank), consts)
        for rank in range(2)
    ]


@tile_kernel
def shift(
    X: Global[f32, B, N],
    inbox: Global[f32, B, N],
    flags: Global[i32, B],
    next_inbox: Global[f32, B, N],
    next_flags: Global[i32, B],
    out: Global[f32, B, N],
    *,
    FENCES: Const[bool] = False,
):
    """Each block sends its row to the next rank, and adds the one that it gets. FENCES: in place of orders of
    atomics."""
    b, t = grid(X.shape[0]), threads(64)
    next_inbox[b, t] = X[b, t]
    barrier()
    if t == 0:
        if FENCES:
            fence("sys")
            next_flags.atomic_store(b, 1, scope="sys")
            while flags.atomic_load(b, scope="sys") == 0:
                pass
            fence("sys")
        else:
            next_flags.atomic_store(b, 1, order="release", scope="sys")
            while flags.atomic_load(b, order="acquire", scope="sys") == 0:
                pass
    barrier()
    out[b, t] = X[b, t] + inbox[b, t]


def rings(blocks: int, ranks: int = 3, **consts: Any) -> list[OnRank]:
    """`ranks` of them in a ring."""
    inputs = [np.random.default_rng(r).integers(-8, 9, (blocks, 64)).astype(np.float32) for r in range(ranks)]
    inboxes, outs = ([np.zeros((blocks, 64), np.float32) for _ in range(ranks)] for _ in range(2))
    flags = [np.zeros(blocks, np.int32) for _ in range(ranks)]
    after = [*range(1, ranks), 0]
    return [
        OnRank(r, shift, (inputs[r], inboxes[r], flags[r], inboxes[after[r]], flags[after[r]], outs[r]), consts)
        for r in range(ranks)
    ]


@tile_kernel
def reduce_scatter(
    mine: Global[f32, B, N],
    others: Global[f32, B, N],
    inbox: Global[f32, B, N],
    flags: Global[i32, B],
    peer_inbox: Global[f32, B, N],
    peer_flags: Global[i32, B],
    out: Global[f32, B, N],
    *,
    WITHOUT: Const[str] = "",
):
    """A rank writes its partial tile of the other's result to the other's memory, and then adds up a tile of its
    own."""
    b, t = grid(mine.shape[0]), threads(64)
    peer_inbox[b, t] = 2 * others[b, t]
    if WITHOUT != "barrier before the release":
        barrier()
    if t == 0:
        if WITHOUT == "release":
            peer_flags.atomic_store(b, 1, scope="sys")
        elif WITHOUT == "scope of the release":
            peer_flags.atomic_store(b, 1, order="release")
        elif WITHOUT != "flag":
            peer_flags.atomic_store(b, 1, order="release", scope="sys")
        if WITHOUT == "acquire":
            while flags.atomic_load(b, scope="sys") == 0:
                pass
        elif WITHOUT == "scope of the acquire":
            while flags.atomic_load(b, order="acquire") == 0:
                pass
        elif WITHOUT != "wait":
            while flags.atomic_load(b, order="acquire", scope="sys") == 0:
                pass
    if WITHOUT != "barrier behind the acquire":
        barrier()
    out[b, t] = 2 * mine[b, t] + inbox[b, t]


def reductions(blocks: int = 6, **consts: Any) -> list[OnRank]:
    """X[r][s]: the partial results of rank r for rank s."""
    rng = np.random.default_rng(5)
    x = [[rng.integers(-8, 9, (blocks, 64)).astype(np.float32) for _ in range(2)] for _ in range(2)]
    inboxes, outs = ([np.zeros((blocks, 64), np.float32) for _ in range(2)] for _ in range(2))
    flags = [np.zeros(blocks, np.int32) for _ in range(2)]
    boxes = [(inboxes[r], flags[r], inboxes[1 - r], flags[1 - r]) for r in range(2)]
    return [OnRank(r, reduce_scatter, (x[r][r], x[r][1 - r], *boxes[r], outs[r]), consts) for r in range(2)]


@tile_kernel
def overwrite(flags: Global[i32, B]):
    """Sets flags to 2, and orders nothing."""
    b, t = grid(flags.shape[0]), threads(32)
    if t == 0:
        flags.atomic_store(b, 2, scope="sys")


# -- a copy engine, and TMA ------------------------------------------------------------------------

ROWS = 8


@tile_kernel
def scale(X: Global[f32, M, N], Y: Global[f32, M, N], ready: Global[i32, B], *, SCOPE: Const[str] = "gpu"):
    """Y = 2 X, rows of a block at a time, each with a flag."""
    b, t = grid(ready.shape[0]), threads(32)
    for i in range(ROWS):
        Y[b * ROWS + i, t] = 2 * X[b * ROWS + i, t]
    barrier()
    if t == 0:
        ready.atomic_store(b, 1, order="release", scope=SCOPE)


@tile_kernel(arch="sm_90a")
def push(
    Y: Global[f32, M, N],
    ready: Global[i32, B],
    far: Global[f32, M, N],
    arrived: Global[i32, B],
    *,
    SENDER: Const[str] = "",
):
    """A copy engine: one block, which copies rows to another rank as they are ready. SENDER: where it makes a proxy
    fence for the receiver."""
    grid(1)
    t = threads(32)
    for b in range(ready.shape[0]):
        if t == 0:
            while ready.atomic_load(b, order="acquire") == 0:
                pass
        barrier()
        for i in range(ROWS):
            far[b * ROWS + i, t] = Y[b * ROWS + i, t]
        if SENDER == "all":
            ptx.fence_proxy_async("global")
        barrier()
        if t == 0:
            if SENDER == "one":
                ptx.fence_proxy_async("global")
            arrived.atomic_store(b, 1, order="release", scope="sys")


@tile_kernel(arch="sm_90a")
def fetch(rows: Global[f32, M, N], arrived: Global[i32, B], out: Global[f32, M, N], *, FENCE: Const[str] = "global"):
    """Loads rows by TMA when they have arrived."""
    b, t = grid(arrived.shape[0]), threads(32)
    S, full = shared((ROWS, 32), f32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        if FENCE == "before the acquire":
            ptx.fence_proxy_async("global")
        while arrived.atomic_load(b, order="acquire", scope="sys") == 0:
            pass
        if FENCE == "global":
            ptx.fence_proxy_async("global")
        if FENCE == "shared":
            ptx.fence_proxy_async()
        ptx.mbarrier_expect_tx(full, 0, bytes=ROWS * 32 * 4)
        tma_load(rows[tile(b, ROWS), tile(0, 32)], S, mbarrier=(full, 0))
    barrier()
    ptx.mbarrier_wait(full, 0, parity=0)
    for i in range(ROWS):
        out[b * ROWS + i, t] = S[i, t]


def pushes(blocks: int = 3, sender: str = "", **consts: Any) -> list[OnRank]:
    """On rank 0 a kernel and, beside it, a copy engine to rank 1, which has another kernel."""
    x = np.random.default_rng(3).integers(-8, 9, (blocks * ROWS, 32)).astype(np.float32)
    y, far, out = (np.zeros_like(x) for _ in range(3))
    ready, arrived = (np.zeros(blocks, np.int32) for _ in range(2))
    return [
        OnRank(0, push, (y, ready, far, arrived), {"SENDER": sender}),
        OnRank(0, scale, (x, y, ready)),
        OnRank(1, fetch, (far, arrived, out), consts),
    ]


@tile_kernel(arch="sm_90a")
def store(X: Global[f32, M, N], far: Global[f32, M, N], arrived: Global[i32, B], *, WAITS: Const[bool] = True):
    """Stores rows by TMA to another rank's memory."""
    b, t = grid(arrived.shape[0]), threads(32)
    S = shared((ROWS, 32), f32, layout=row_major)
    for i in range(ROWS):
        S[i, t] = X[b * ROWS + i, t]
    ptx.fence_proxy_async()
    barrier()
    if t == 0:
        store_tma(S, far[tile(b, ROWS), tile(0, 32)])
        tma_commit()
        if WAITS:
            tma_wait(0)
        else:
            tma_wait(0, read=True)
        arrived.atomic_store(b, 1, order="release", scope="sys")


@tile_kernel
def waits(rows: Global[f32, M, N], arrived: Global[i32, B], out: Global[f32, M, N], *, FLAG: Const[int] = 1):
    """Reads rows when they have arrived."""
    b, t = grid(arrived.shape[0]), threads(32)
    if t == 0:
        while arrived.atomic_load(b, order="acquire", scope="sys") != FLAG:
            pass
    barrier()
    for i in range(ROWS):
        out[b * ROWS + i, t] = rows[b * ROWS + i, t]


@tile_kernel
def copies(rows: Global[i32, M, N], arrived: Global[i32, B], out: Global[i32, M, N]):
    """The same of words."""
    b, t = grid(arrived.shape[0]), threads(32)
    if t == 0:
        while arrived.atomic_load(b, order="acquire", scope="sys") == 0:
            pass
    barrier()
    for i in range(ROWS):
        out[b * ROWS + i, t] = rows[b * ROWS + i, t]


def stores(blocks: int = 3, **consts: Any) -> list[OnRank]:
    x = np.random.default_rng(4).integers(-8, 9, (blocks * ROWS, 32)).astype(np.float32)
    far, out, arrived = np.zeros_like(x), np.zeros_like(x), np.zeros(blocks, np.int32)
    return [OnRank(0, store, (x, far, arrived), consts), OnRank(1, waits, (far, arrived, out))]


@tile_kernel(arch="sm_90a")
def arrives_alone(X: Global[f32, N], *, COUNT: Const[int] = 1):
    """A block waits for COUNT arrivals at an mbarrier, of which there is one."""
    grid(1)
    t = threads(32)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=COUNT)
    barrier()
    if t == 0:
        ptx.mbarrier_arrive(full, 0)
    ptx.mbarrier_wait(full, 0, parity=0)
    X[t] = f32(1)


@tile_kernel
def copies_ahead(rows: Global[f32, M, N], arrived: Global[i32, B], out: Global[f32, N], *, WAITS: Const[bool] = True):
    """Copies from memory that another rank overwrites once it is told to. It tells too early if it does not wait."""
    grid(1)
    t = threads(8)
    S = shared((32,), f32)
    ptx.cp_async(S, 4 * t, rows, (0, 4 * t), bytes=16)
    ptx.commit_group()
    if WAITS:
        ptx.wait_group(0)
        syncwarp()
    if t == 0:
        arrived.atomic_store(0, 1, order="release", scope="sys")
        while arrived.atomic_load(0, order="acquire", scope="sys") != 2:
            pass
    if not WAITS:
        ptx.wait_group(0)
        syncwarp()
    for i in range(t, 32, 8):
        out[i] = S[i]


@tile_kernel
def overwrites(rows: Global[f32, M, N], arrived: Global[i32, B]):
    grid(1)
    t = threads(32)
    if t == 0:
        while arrived.atomic_load(0, order="acquire", scope="sys") != 1:
            pass
    syncwarp()
    rows[0, t] = f32(7)
    syncwarp()
    if t == 0:
        arrived.atomic_store(0, 2, order="release", scope="sys")


@tile_kernel
def branch(X: Global[f32, N], which: i32):
    grid(1)
    t = threads(32)
    if which == 0:
        X[t] = f32(1)
    else:
        X[t] = f32(2)

"""Atomic operations, orders and scopes on a GPU: each public function runs in a process of its own.

Loops that wait are bounded and say so when they give up, and grids are small enough to be resident as a whole: what is
wrong fails, and does not hang. ``PYTHONPATH=. python tests/gpu/memory_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from programs import parity

from tiledsl import (
    Const,
    Global,
    Integer,
    barrier,
    cdiv,
    const,
    f32,
    fence,
    grid,
    i32,
    index,
    minimum,
    shared,
    threads,
    tile_kernel,
)
from tiledsl.dims import B, K, M, N

Array = Any
D = TypeVar("D", bound=Integer)
LAUNCHES = 1000
PAIRS = 48
"""Of blocks that pass messages: all are resident on any GPU with 24 SMs or more."""


def _device(array: Array) -> Any:
    """On the GPU, where it stays from launch to launch."""
    import torch

    return torch.from_numpy(array).cuda()


def _host(tensor: Any) -> Array:
    return tensor.cpu().numpy()


# -- all operations --------------------------------------------------------------------------------------


@tile_kernel
def updates(X: Global[D, N], in_global: Global[D, Literal[6], M], in_shared: Global[D, Literal[6], K, M]):
    """Threads of all blocks update few elements, in global memory and in shared memory; the order does not matter."""
    b, t = grid(cdiv(N, 256)), threads(256)
    S = shared((6, 16), X.dtype)
    if t < 96:
        S[t // 16, t % 16] = in_shared[t // 16, b, t % 16]
    barrier()
    i = b * 256 + t
    if i < N:
        v, at = X[i], i * 7 % 16
        in_global.atomic_add(0, at, v)
        in_global.atomic_min(1, at, v)
        in_global.atomic_max(2, at, v, order="acq_rel")
        in_global.atomic_and(3, at, v, scope="sys")
        in_global.atomic_or(4, at, v, order="release")
        in_global.atomic_xor(5, at, v, order="acquire")
        S.atomic_add(0, at, v, scope="cta")
        S.atomic_min(1, at, v)
        S.atomic_max(2, at, v, order="acq_rel", scope="cta")
        S.atomic_and(3, at, v)
        S.atomic_or(4, at, v, order="release", scope="cta")
        S.atomic_xor(5, at, v, order="acquire", scope="cta")
    barrier()
    if t < 96:
        in_shared[t // 16, b, t % 16] = S[t // 16, t % 16]


def updates_of_all_dtypes() -> None:
    for dtype in (np.int32, np.uint32, np.int64, np.uint64):
        limits = np.iinfo(dtype)
        random = np.random.default_rng(1)
        n = 20_000
        X = random.integers(limits.min, limits.max, n, dtype, endpoint=True)
        start = random.integers(limits.min, limits.max, (6, 16), dtype, endpoint=True)
        per_block = np.repeat(start[:, None], -(-n // 256), axis=1)
        parity(updates, X, start.copy(), per_block)


@tile_kernel
def exchanges(X: Global[i32, N], slots: Global[i32, M], claimed: Global[i32, M], sums: Global[i32, Literal[3]]):
    """What threads exchange is lost by nobody and got by one; a slot is claimed once; compare and swap adds."""
    b, t = grid(cdiv(N, 128)), threads(128)
    i = b * 128 + t
    if i < N:
        got = slots.atomic_exchange(i % M, X[i], order="acq_rel")
        sums.atomic_add(0, got)
        if claimed.atomic_cas(i % M, 0, 1) == 0:
            sums.atomic_add(1, 1)
    if t == 0:
        seen = sums.atomic_load(2)
        for _ in range(1_000_000):
            before = sums.atomic_cas(2, seen, seen + 1, order="acq_rel")
            if before == seen:
                break
            seen = before


def exchange_and_compare_and_swap() -> None:
    X = np.random.default_rng(2).integers(-1000, 1000, 30_000).astype(np.int32)
    slots, claimed, sums = (_device(np.zeros(n, np.int32)) for n in (64, 64, 3))
    exchanges(_device(X), slots, claimed, sums, device="gpu")
    slots, claimed, sums = map(_host, (slots, claimed, sums))
    assert sums[0] + slots.sum() == X.sum()
    assert (claimed == 1).all() and sums[1] == 64
    assert sums[2] == -(-X.size // 128)


# -- message passing -------------------------------------------------------------------------------------

HOWS = ("release acquire", "fences", "volatile and fences", "updates", "system")


@tile_kernel
def messages(data: Global[i32, B, N], flag: Global[i32, M, Literal[32]], out: Global[i32, B, N], bad: Global[i32, M],
             round_: i32, *, HOW: Const[str] = "release acquire"):  # fmt: skip
    """Block p writes a row and raises a flag for block p + B, which reads the row by plain loads of all its threads."""
    b, t = grid(2 * B), threads(128)
    failed = shared((1,), i32)
    if b < B:
        for j in range(t, N, 128):
            data[b, j] = round_ + i32(j)
        barrier()
        if t == 0:
            if HOW == "release acquire":
                flag.atomic_store(b, 0, round_, order="release")
            elif HOW == "fences":
                fence()
                flag.atomic_store(b, 0, round_)
            elif HOW == "volatile and fences":
                fence()
                flag.atomic_store(b, 0, round_, order="volatile")
            elif HOW == "updates":
                flag.atomic_exchange(b, 0, round_, order="acq_rel")
            else:
                flag.atomic_store(b, 0, round_, order="release", scope="sys")
    else:
        p = b - B
        for j in range(t, N, 128):  # a race, whose values nobody uses: old ones come to the cache
            out[p, j] = data[p, j]
        if t == 0:
            failed[0] = 1
            for _ in range(4_000_000):
                if HOW == "release acquire":
                    got = flag.atomic_load(p, 0, order="acquire")
                elif HOW == "fences":
                    got = flag.atomic_load(p, 0)
                elif HOW == "volatile and fences":
                    got = flag.atomic_load(p, 0, order="volatile")
                elif HOW == "updates":
                    got = flag.atomic_or(p, 0, 0, order="acquire")
                else:
                    got = flag.atomic_load(p, 0, order="acquire", scope="sys")
                if got == round_:
                    failed[0] = 0
                    break
            if (HOW == "fences") | (HOW == "volatile and fences"):
                fence()
        barrier()
        for j in range(t, N, 128):
            out[p, j] = data[p, j]
        if t == 0:
            bad.atomic_add(p, failed[0])


def message_passing() -> None:
    for how in HOWS:
        rows = (PAIRS, 1000)
        data, out = _device(np.zeros(rows, np.int32)), _device(np.zeros(rows, np.int32))
        flag, bad = _device(np.zeros((PAIRS, 32), np.int32)), _device(np.zeros(PAIRS, np.int32))
        expected = np.arange(1000, dtype=np.int32)
        for n in range(1, LAUNCHES + 1):
            messages(data, flag, out, bad, n, HOW=how, device="gpu")
            if n % 50 == 0 or n < 5:
                assert not _host(bad).any(), f"{how}: launch {n} gave up"
                wrong = np.count_nonzero(_host(out) != n + expected)
                assert not wrong, f"{how}: launch {n} read {wrong} old elements"


# -- locks, semaphores, the last block -------------------------------------------------------------------


@tile_kernel
def under_a_lock(
    lock: Global[i32, Literal[1]], count: Global[i32, Literal[1]], log: Global[i32, N], bad: Global[i32, N]
):
    """One thread a block adds 1, 8 times, by plain accesses under a lock."""
    b, t = grid(N), threads(64)
    if t == 0:
        for _ in range(8):
            held = i32(0)
            for _ in range(4_000_000):
                if lock.atomic_cas(0, 0, 1, order="acquire") == 0:
                    held = i32(1)
                    break
            if held == 1:
                n = count[0]
                log[b] += n
                count[0] = n + 1
                lock.atomic_store(0, 0, order="release")
            else:
                bad[b] += 1


def a_lock_by_compare_and_swap() -> None:
    blocks = 2 * PAIRS
    for _ in range(20):
        lock, count = _device(np.zeros(1, np.int32)), _device(np.zeros(1, np.int32))
        log, bad = _device(np.zeros(blocks, np.int32)), _device(np.zeros(blocks, np.int32))
        under_a_lock(lock, count, log, bad, device="gpu")
        total = 8 * blocks
        assert not _host(bad).any()
        assert _host(count)[0] == total and _host(log).sum() == total * (total - 1) // 2


@tile_kernel
def last_block(X: Global[i32, M, N], part: Global[i32, M], done: Global[i32, Literal[1]], out: Global[i32, Literal[1]]):
    """The block that ends last adds up, by all of its threads, what all blocks have written."""
    b, t = grid(M), threads(128)
    S, last = shared((1,), i32), shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    total = i32(0)
    for j in range(t, N, 128):
        total += X[b, j]
    S.atomic_add(0, total, scope="cta")
    barrier()
    if t == 0:
        part[b] = S[0]
        last[0] = done.atomic_add(0, 1, order="acq_rel")
        S[0] = 0
    barrier()
    if last[0] == i32(M) - 1:
        rest = i32(0)
        for i in range(t, M, 128):
            rest += part[i]
        S.atomic_add(0, rest, scope="cta")
    barrier()
    if (last[0] == i32(M) - 1) & (t == 0):
        out[0] = S[0]
        done.atomic_store(0, 0)


def the_last_block_adds_up() -> None:
    """More blocks than are resident: nobody waits."""
    random = np.random.default_rng(3)
    part, done, out = (_device(np.zeros(n, np.int32)) for n in (1000, 1, 1))
    for _ in range(LAUNCHES // 10):
        X = random.integers(-1000, 1000, (1000, 500)).astype(np.int32)
        last_block(_device(X), part, done, out, device="gpu")
        assert _host(out)[0] == X.sum() and _host(done)[0] == 0


@tile_kernel
def split_k(A: Global[f32, M, K], X: Global[f32, K, N], C: Global[f32, M, N], sem: Global[i32, Literal[3], B], *,
            T: const = 16, SPLITS: const = 4):  # fmt: skip
    """docs/memory_model.md has it; here the wait is bounded."""
    bx, by, _ = grid(cdiv(N, T), cdiv(M, T), SPLITS)
    tx, ty = threads(T, T)
    row, col, here = by * T + ty, bx * T + tx, by * cdiv(N, T) + bx
    first = (tx == 0) & (ty == 0)
    turn = shared((1,), i32)
    if first:
        turn[0] = sem.atomic_add(0, here, 1)
    barrier()
    part, size = turn[0], cdiv(K, SPLITS)
    acc = f32(0)
    for k in range(index(part) * size, minimum(index(part + 1) * size, K)):
        acc += A.get(row, k) * X.get(k, col)
    if first:
        came = i32(1)
        for _ in range(4_000_000):
            if sem.atomic_load(1, here, order="acquire") == part:
                came = i32(0)
                break
        sem.atomic_add(2, here, came)
    barrier()
    if part > 0:
        acc += C.get(row, col)
    C.put(row, col, acc)
    barrier()
    if first:
        sem.atomic_store(1, here, part + 1, order="release")


def a_semaphore_between_blocks() -> None:
    random = np.random.default_rng(4)
    for _ in range(100):
        A = random.integers(-4, 5, (64, 40)).astype(np.float32)
        X = random.integers(-4, 5, (40, 48)).astype(np.float32)
        C, sem = _device(np.full((64, 48), np.nan, np.float32)), _device(np.zeros((3, 12), np.int32))
        split_k(_device(A), _device(X), C, sem, device="gpu")
        assert not _host(sem)[2].any()
        np.testing.assert_array_equal(_host(C), A @ X)


@tile_kernel
def sums(X: Global[f32, N], out: Global[f32, Literal[2]]):
    """Small integers, whose sums are exact in any order, in f32, and by a loop of compare and swap."""
    b, t = grid(cdiv(N, 128)), threads(128)
    v = X.get(b * 128 + t)
    out.atomic_add(0, v)
    seen = out.atomic_load(1)
    for _ in range(1_000_000):
        before = out.atomic_cas(1, seen, seen + v)
        if before.bitcast(i32) == seen.bitcast(i32):
            break
        seen = before


def floats_by_compare_and_swap() -> None:
    X = np.random.default_rng(5).integers(-8, 9, 4000).astype(np.float32)
    out = _device(np.zeros(2, np.float32))
    sums(_device(X), out, device="gpu")
    assert _host(out).tolist() == [X.sum()] * 2


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")

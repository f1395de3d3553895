"""`ptx.st_async`: stores to the shared memory of another block, counted by its mbarrier; what is missing is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl import (
    Const,
    Global,
    Ring,
    const,
    f16,
    f32,
    grid,
    ptx,
    role,
    row_major,
    shared,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.dims import M, N
from tiledsl.errors import CompileErrors, HazardError, TileError


@tile_kernel(arch="sm_90a")
def exchange(
    X: Global[f32, M, N],
    Y: Global[f32, M, N],
    *,
    ROUNDS: const = 1,
    BYTES: const = 1024,
    EACH: const = 1,
    TOLD: Const[bool] = True,
    WAIT: Const[bool] = True,
    FREE: Const[bool] = True,
):
    """Two blocks of a cluster give each other rows, in rounds. EACH: threads that store to one place."""
    b = grid(M // ROUNDS, cluster=(2,))
    t = threads(64)
    full, free, room = shared((1,), u64), shared((1,), u64), shared((256,), f32, layout=row_major)
    other = ptx.cluster_rank() ^ 1
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.mbarrier_init(free, 0, count=64)
        ptx.fence_mbarrier_init()
    if TOLD:
        ptx.cluster_arrive()
        ptx.cluster_wait()
    for i in range(ROUNDS):
        if FREE and i > 0:
            ptx.mbarrier_arrive(free, 0, rank=other)
            ptx.mbarrier_wait(free, 0, parity=u32(i + 1) % 2)
        if t == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=BYTES)
        x = X.load(b * ROUNDS + i, t * 4, vec=16)
        ptx.st_async(room, t // EACH * 4, x, mbarrier=(full, 0), rank=other)
        if WAIT:
            ptx.mbarrier_wait(full, 0, parity=u32(i) % 2)
        Y.store(b * ROUNDS + i, t * 4, room.load(t * 4, vec=16))


def check(**consts: Any) -> None:
    rounds = consts.get("ROUNDS", 1)
    X = np.arange(4 * rounds * 256, dtype=np.float32).reshape(4 * rounds, 256)
    Y = np.zeros_like(X)
    exchange.check(X, Y, **consts)
    blocks = X.reshape(2, 2, rounds, 256)
    assert np.array_equal(Y, blocks[:, ::-1].reshape(X.shape))


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_what_is_stored_arrives(rounds: int) -> None:
    check(ROUNDS=rounds)


@pytest.mark.parametrize(
    ("consts", "message"),
    [
        ({"WAIT": False}, "reads byte 0 of room .* has not delivered"),
        ({"BYTES": 1020}, "has got 4 bytes which nobody expected"),
        ({"BYTES": 1028}, "lacks 4 bytes"),
        ({"TOLD": False}, "does not know that warp 0 of block .* has initialised it|has no mbarrier"),
        (
            {"ROUNDS": 2, "FREE": False},
            "nothing orders the two|begins a copy that is counted by full.0.",
        ),
        ({"EACH": 2}, "copies to byte 0 of room .* has not delivered"),
    ],
)
def test_what_is_missing_is_found(consts: dict[str, Any], message: str) -> None:
    with pytest.raises(HazardError, match=message) as found:
        check(**consts)
    assert found.value.loc.file == __file__


def test_the_instruction() -> None:
    text = exchange.compile().ptx
    assert "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32" in text
    assert text.count("mapa.shared::cluster") >= 2
    assert ".version 8.1\n" in text  # the target's own is 8.0


def refused(kernel: Any, **consts: Any) -> str:
    with pytest.raises(CompileErrors) as found:
        kernel.compile(**consts)
    return str(found.value)


def test_what_no_instruction_stores() -> None:
    @tile_kernel(arch="sm_90a")
    def halves(X: Global[f16, M, N]):
        grid(2, cluster=(2,))
        t = threads(32)
        full, room = shared((1,), u64), shared((32,), f16)
        ptx.st_async(room, t, X[0, t], mbarrier=(full, 0), rank=0)

    assert "ptx.st_async() of 2 bytes, 1 f16" in refused(halves)

    @tile_kernel(arch="sm_90a")
    def nowhere(X: Global[f32, M, N]):
        grid(2, cluster=(2,))
        t = threads(32)
        full, room = shared((1,), u64), shared((32,), f32)
        ptx.st_async(room, t, X[0, t], mbarrier=full, rank=0)  # pyright: ignore[reportArgumentType]

    assert "mbarrier= is a tile of u64 and an index" in refused(nowhere)

    @tile_kernel(arch="sm_80")
    def early(X: Global[f32, M, N]):
        grid(2)
        t = threads(32)
        full, room = shared((1,), u64), shared((32,), f32)
        ptx.st_async(room, t, X[0, t], mbarrier=(full, 0), rank=0)

    assert "ptx.st_async() needs one of sm_90" in refused(early)


def test_a_ring_is_not_filled_so() -> None:
    @tile_kernel(arch="sm_90a")
    def ringed(X: Global[f32, M, N], Y: Global[f32, M, N]):
        grid(2, cluster=(2,))
        full, ring = shared((1,), u64), Ring(2, a=shared((64, 32), f32, layout=swizzle_128b))
        with role("load", threads=1), ring.fill() as s:
            tma_load(X[tile(0, 64), tile(0, 32)], s.a)
            ptx.st_async(s.a, 0, 0, f32(1), mbarrier=(full, 0), rank=0)
        with role("store", warpgroups=1), ring.use() as s:
            store_tma(s.a, Y[tile(0, 64), tile(0, 32)])

    assert "ptx.st_async() to a tile of a ring" in refused(ringed)


def test_a_rank_that_the_cluster_lacks() -> None:
    @tile_kernel(arch="sm_90a")
    def far(X: Global[f32, M, N]):
        grid(2, cluster=(2,))
        t = threads(32)
        full, room = shared((1,), u64), shared((32,), f32)
        ptx.st_async(room, t, X[0, t], mbarrier=(full, 0), rank=2)

    with pytest.raises(TileError, match="rank 2 in a cluster of 2 blocks"):
        far.check(np.zeros((1, 32), np.float32))

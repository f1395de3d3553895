"""The emulator refuses operands of mbarriers: a place outside their tile, and a parity other than 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl import (
    Global,
    barrier,
    const,
    f32,
    grid,
    i32,
    index,
    ptx,
    row_major,
    shared,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.dims import M, N
from tiledsl.errors import EmulatorError

TILE_BYTES = 8 * 32 * 4


@tile_kernel(arch="sm_90a")
def loaded(X: Global[f32, M, N], Y: Global[f32, M, N], at: i32, *, OTHER: const = 0):
    """TMA counts its bytes at `full[at]`. OTHER: mbarriers of another tile, which are next in memory."""
    grid(1)
    t = threads(32)
    S, full, other = shared((8, 32), f32, layout=row_major), shared((1,), u64), shared((2,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        for i in range(OTHER):
            ptx.mbarrier_init(other, i, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=TILE_BYTES)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(full, index(at)))  # counts here
    barrier()
    ptx.mbarrier_wait(full, 0, parity=0)
    for i in range(8):
        Y[i, t] = S[i, t]


@pytest.mark.parametrize(("at", "other"), [(1, 0), (1, 2), (-1, 0), (1000, 0)])
def test_tma_counts_at_an_mbarrier_of_the_tile_that_is_named(at: int, other: int) -> None:
    X = np.arange(256, dtype=np.float32).reshape(8, 32)
    Y = np.zeros_like(X)
    loaded.check(X, Y, 0, OTHER=other)
    assert np.array_equal(X, Y)
    with pytest.raises(EmulatorError) as error:
        loaded.check(X, Y, at, OTHER=other)
    assert error.value.finding.code == "T501"
    assert "# counts here" in str(error.value)


@tile_kernel(arch="sm_90a")
def in_turns(X: Global[f32, N], Y: Global[f32, N], parities: i32):
    """A warp hands rows to another one, each in a phase of its own; `parities`: modulo what phases are counted."""
    grid(1)
    t = threads(64)
    S, full, free = shared((32,), f32), shared((1,), u64), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=32)
        ptx.mbarrier_init(free, 0, count=32)
    barrier()
    for i in range(4):
        if t < 32:
            if i > 0:
                ptx.mbarrier_wait(free, 0, parity=u32(i32(i - 1) % parities))
            S[t] = X[i * 32 + t]
            ptx.mbarrier_arrive(full, 0)
        else:
            ptx.mbarrier_wait(full, 0, parity=u32(i) % 2)
            Y[i * 32 + t - 32] = S[63 - t]
            ptx.mbarrier_arrive(free, 0)


def test_a_parity_is_0_or_1() -> None:
    X = np.arange(128, dtype=np.float32)
    Y = np.zeros_like(X)
    in_turns.check(X, Y, 2)
    assert np.array_equal(Y, X.reshape(4, 32)[:, ::-1].ravel())
    with pytest.raises(EmulatorError) as error:
        in_turns.check(X, Y, 4)
    assert error.value.finding.code == "T508"

"""Tiles that lie over each other: what was last written through one is not read through the other."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from tiledsl import (
    Global,
    barrier,
    f32,
    grid,
    ptx,
    row_major,
    shared,
    store_tma,
    threads,
    tile_kernel,
    tma_commit,
    tma_wait,
)
from tiledsl.dims import N
from tiledsl.errors import HazardError

CASES: list[Any] = []


def overwritten(kernel: Any) -> Any:
    """Registers a kernel whose line with ``# here`` reads what was written through another tile."""
    CASES.append(kernel)
    return kernel


@overwritten
@tile_kernel
def both_alive(Y: Global[f32, N]):
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    T = shared((32,), f32, over=S)
    S[t] = 1
    barrier()
    T[t] = 2
    barrier()
    Y[t] = S[31 - t]  # here


@overwritten
@tile_kernel
def a_part(Y: Global[f32, N]):
    """The first bytes are still S's own, the others are not."""
    grid(1)
    t = threads(32)
    S = shared((2, 32), f32)
    S[0, t] = 1
    S[1, t] = 1
    T = shared((40,), f32, over=S)
    barrier()
    if t < 8:
        T[32 + t] = 2
    barrier()
    Y[t] = S[0, t] + S[1, 31 - t]  # here


@overwritten
@tile_kernel
def of_the_same_name(Y: Global[f32, N]):
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    first = S
    S[t] = 1
    S = shared((32,), f32, over=S)  # pyright: ignore[reportConstantRedefinition]
    barrier()
    S[t] = 2
    barrier()
    Y[t] = first[t]  # here


@overwritten
@tile_kernel
def by_a_copy(Y: Global[f32, N]):
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    S[t] = 1
    barrier()
    ptx.cp_async(shared((32,), f32, over=S), t, Y, t, bytes=4)
    ptx.commit_group()
    ptx.wait_group(0)
    barrier()
    Y[t] = S[t]  # here


@overwritten
@tile_kernel(arch="sm_90a")
def by_tma(Y: Global[f32, N, N]):
    """TMA reads the tile, not a thread."""
    grid(1)
    t = threads(32)
    S = shared((8, 32), f32, layout=row_major)
    T = shared((8, 32), f32, over=S)
    for i in range(8):
        S[i, t] = 1
    barrier()
    for i in range(8):
        T[i, t] = 2
    ptx.fence_proxy_async()
    barrier()
    if t == 0:
        store_tma(S, Y[0:8, 0:32])  # here
        tma_commit()
        tma_wait(0)


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_what_another_tile_has_overwritten_is_found(kernel: Any) -> None:
    lines, first = inspect.getsourcelines(kernel.__wrapped__)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(HazardError) as caught:
        kernel.check(np.zeros((32, 32) if kernel is by_tma else 32, np.float32))
    assert re.search(r"overwritten: .* byte .* of S, which was last written through .* at ", caught.value.message)
    assert caught.value.loc.line == line


@tile_kernel
def in_turns(Y: Global[f32, N]):
    """Each use of the bytes begins with a write through the tile that is then read, again and again."""
    grid(1)
    t = threads(32)
    S = shared((32,), f32)
    T = shared((16,), f32, over=S)
    total = f32(0)
    for _ in range(3):
        S[t] = Y[t]
        barrier()
        total += S[31 - t]
        barrier()
        if t < 16:
            T[t] = total
        barrier()
        total += T[t // 2] + S[16 + t // 2]  # the bytes behind T are still those of S
        barrier()
    Y[t] = total


def test_bytes_that_tiles_use_in_turns_are_fine() -> None:
    Y = np.ones(32, np.float32)
    in_turns.check(Y)
    assert Y.tolist() == [21.0] * 32  # (x + 1) + (x + 1) + 1 from x = 0: 3, 9, 21

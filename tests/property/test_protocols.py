"""The check under one schedule says of a protocol of mbarriers what all interleavings say: it is clean only if each of
them ends, with every arrival, wait and copy in the same phase."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from protocols import Protocol, damaged, explored, of_text, protocol, ring

from tiledsl import Const, Global, barrier, f32, grid, ptx, shared, threads, tile_kernel, u32, u64
from tiledsl.dims import N

CASES = 40
"""Protocols of a test."""


def found(whole: Protocol) -> set[str]:
    result = protocol.check(
        np.ones((8, 32), np.float32), COUNTS=whole.counts, WARPS=whole.warps, checks=["barriers"], raises=False
    )
    assert not result.error
    return {finding.code for finding in result.findings}


@pytest.mark.parametrize("seed", range(4))
def test_rings_are_clean_and_right_in_all_interleavings(seed: int) -> None:
    rng = random.Random(f"rings {seed}")
    for _ in range(CASES // 4):
        whole = ring(rng)
        assert explored(whole)
        assert not found(whole)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_clean_is_right_in_all_interleavings(seed: int) -> None:
    rng, seen = random.Random(f"damaged {seed}"), Counter[tuple[bool, bool]]()
    for _ in range(CASES):
        whole = ring(rng)
        for _ in range(rng.randint(1, 3)):
            whole = damaged(whole, rng)
        right, codes = explored(whole), found(whole)
        assert right or codes, whole
        seen[right, bool(codes)] += 1
    assert seen[False, True] > CASES // 3 and seen[True, False] > CASES // 20, seen


@pytest.mark.parametrize(
    ("whole", "code"),
    [
        (of_text((1, 1), "a0 w10 a0", "w00", "w00 a1"), "T421"),
        (of_text((2, 1), "a0 a0", "a0 w00 a0"), "T419"),
        # The second copy may bring its bytes to the first phase.
        (of_text((1, 1, 1, 1), "e0 c0 e1 c1 w20 c1 c0 w30 e1 e0", "w00 a2 w10 a3 w01 a2 w11 a3"), "T419"),
    ],
)
def test_what_the_usual_order_does_not_show(whole: Protocol, code: str) -> None:
    assert not explored(whole)
    assert code in found(whole)


@tile_kernel(arch="sm_90a")
def block_by_block(X: Global[f32, N], *, ORDERED: Const[bool] = True):
    """All threads wait for each phase. The next one begins behind a barrier of the block, or not."""
    grid(1)
    t, arrived = threads(256), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(arrived, 0, count=1)
    barrier()
    for i in range(4):
        if t == 0:
            ptx.mbarrier_arrive(arrived, 0)
        ptx.mbarrier_wait(arrived, 0, parity=u32(i % 2))
        X[t] = X[t] + 1
        if ORDERED:
            barrier()


def test_a_barrier_of_the_block_is_behind_all_waits() -> None:
    X = np.zeros(256, np.float32)
    assert block_by_block.check(X).verdict == "clean"
    result = block_by_block.check(X, ORDERED=False, raises=False)
    assert "T421" in {finding.code for finding in result.findings}

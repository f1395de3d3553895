"""k in parts: the clusters that share a tile distribute its pieces, also those of CTAs that did not wait for all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl.backends.emulator import Access, Hook
from tiledsl.gemm.choice import Variant
from tiledsl.gemm.hopper import hopper_fastest

BF16: Any = ml_dtypes.bfloat16


class Stores(Hook):
    """How many bytes of C each CTA stores, and whether some go before all have come."""

    def __init__(self) -> None:
        self.by: Counter[int] = Counter()
        self.gone = False

    def on_access(self, access: Access) -> None:
        if access.label == "C":
            self.by.update(np.repeat(access.blocks, access.width).tolist())
        self.gone = self.gone or "cas" in access.op.name


@pytest.mark.parametrize(
    ("variant", "size", "owners", "gone"),
    [
        (Variant((64, 64, 2), parts=2, groups=3), (64, 64, 1024), 6, False),  # four pieces of each of two slices
        (Variant((64, 64, 2), parts=1, groups=8), (64, 64, 1024), 8, False),  # as many pieces as clusters
        (Variant((128, 128, 1), parts=1, groups=12), (128, 128, 1024), 5, True),  # more than CTAs that run at once
    ],
)
def test_pieces_are_distributed(variant: Variant, size: tuple[int, int, int], owners: int, gone: bool) -> None:
    (m, n, k), stores = size, Stores()
    rng, sums = np.random.default_rng(k), variant.workspace(variant.tiles(m, n))
    A, B = (rng.integers(-3, 4, shape).astype(BF16) for shape in ((1, m, k), (1, n, k)))
    C, done = np.full((1, m, n), np.nan, np.float32), np.zeros(sums[1], np.uint32)
    room = {"sums": np.full(sums, np.nan, np.float32), "done": done}
    kernel: Any = hopper_fastest
    consts = variant.consts(k, 4)
    kernel._emulated((A, B.swapaxes(1, 2), C), room | consts, checks=True, hooks=(stores,))
    assert np.array_equal(C[0], A[0].astype(np.float32) @ B[0].astype(np.float32).T)
    assert not done.any()
    assert (len(stores.by), stores.gone) == (owners, gone)
    assert sum(stores.by.values()) == C.nbytes

"""Slots that products in flight still read, where an instance goes on to the slots of its next item."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hopper_ir import ir, ops

from tiledsl import (
    Const,
    Global,
    Ring,
    bf16,
    f32,
    persistent,
    role,
    shared,
    store,
    swizzle_128b,
    tile_kernel,
    tile_schedule,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N
from tiledsl.ir.core import Op
from tiledsl.ir.ops import control
from tiledsl.ir.ops.wgmma import Wait


@tile_kernel(arch="sm_90a")
def in_turns(
    A: Global[bf16, M, K],
    B: Global[bf16, N, K],
    C: Global[bf16, M, N],
    *,
    WHERE: Const[str] = "always",
) -> None:
    """C = A B^T by two instances; "some": of some tiles nobody waits for the products."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)))
    ring = Ring(3, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    with role("load", threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[t.n, k], s.b)
    with role("math", instances=2) as math:
        for t in work:
            acc = wgmma.accumulator((64, 64), f32)
            with math.turn("multiply"):
                for _ in t.k:
                    with ring.use(in_flight=1) as s:
                        acc = wgmma(s.a, s.b.T, acc)
            if WHERE == "some":
                if t.index % 3 == 1:
                    store(acc.wait().to(bf16), C[t.m, t.n])
            elif WHERE == "either":
                if t.index % 3 == 1:
                    store(acc.wait().to(bf16), C[t.m, t.n])
                else:
                    store((2.0 * acc.wait()).to(bf16), C[t.m, t.n])
            else:
                store(acc.wait().to(bf16), C[t.m, t.n])


@pytest.mark.parametrize("where", ["always", "either", "some"])
def test_an_item_whose_products_nobody_waits_for(where: str) -> None:
    """Its slots are released before the other instance's are passed by: of those it would release one else."""
    rng = np.random.default_rng(0)
    A, B = (rng.integers(-2, 3, (rows, 192)).astype(ml_dtypes.bfloat16) for rows in (256, 128))
    C = np.zeros((256, 128), ml_dtypes.bfloat16)
    in_turns._emulated((A, B, C), {"WHERE": where}, checks=True, processors=1)
    times = {"always": (1, 1), "either": (1, 2), "some": (1, 0)}[where]
    exact: Any = A.astype(np.float32) @ B.astype(np.float32).T
    for tile in range(8):
        m, n = tile % 4 * 64, tile // 4 * 64
        expected = times[tile % 3 != 1] * exact[m : m + 64, n : n + 64]
        np.testing.assert_array_equal(C[m : m + 64, n : n + 64], expected.astype(ml_dtypes.bfloat16), str(tile))


@pytest.mark.parametrize(("where", "count"), [("always", 0), ("either", 0), ("some", 1)])
def test_a_wait_only_where_slots_may_be_held(where: str, count: int) -> None:
    """Behind the products of an item, directly in the loop over them."""
    loop = next(
        op for op in ops(ir(in_turns, WHERE=where), control.For) if _multiplies(op) and ops(op.body, control.For)
    )
    assert len([op for op in loop.body.ops if isinstance(op, Wait) and not op.finish]) == count


def _multiplies(op: Op) -> bool:
    return any(each.name == "wgmma.mma" for each in op.walk())

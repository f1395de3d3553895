"""Rings whose ends make no sense.

A line of a kernel with ``# error: <text>`` is refused for that, and nothing else is.
"""

from __future__ import annotations

from typing import Any

import pytest
from refused import Refused, check

from tiledsl import (
    Global,
    Ring,
    bf16,
    f32,
    grid,
    load_fragment,
    mma,
    persistent,
    role,
    shared,
    store,
    swizzle_128b,
    tile_function,
    tile_kernel,
    tile_schedule,
    tma_load,
    wgmma,
)
from tiledsl.dims import K, M, N

bad = Refused()

# ruff: noqa: F841, B007, SIM117
# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false


@tile_function
def tile_of() -> Any:
    return shared((64, 64), bf16, layout=swizzle_128b)


@bad("make a ring for what each of them fills or reads")
@tile_kernel(arch="sm_90a")
def filled_by_tma_and_by_threads(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of(), b=tile_of())
    with role("load", threads=1):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)  # error: the role load reaches the tiles of a ring by store() and by tma_load
            s.b[0, 0] = A[0, 0]
    with role("math", threads=1):
        with ring.use() as s:
            C[0, 0] = s.a[0, 0] + s.b[0, 0]


@bad('role("load", threads=1): one thread begins what it fills')
@tile_kernel(arch="sm_90a")
def loaded_by_many(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load"):
        with ring.fill() as s:
            tma_load(A[0:64, 0:64], s.a)  # error: tma_load() in the role load, whose body 128 threads run
    with role("math"):
        with ring.use() as s:
            C[0, 0] = s.a[0, 0]


@bad("tma_load(..., s.b) in a role with threads=1, or s.b[i, j] = x, store(x, s.b)")
@tile_kernel(arch="sm_90a")
def tiles_that_nobody_writes(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring, empty = Ring(2, a=tile_of(), b=tile_of()), Ring(2, a=tile_of())
    with role("load"):
        with ring.fill() as s:  # error: ring.fill() writes nothing into s.b
            s.a[0, 0] = s.b[0, 0]
        with empty.fill():  # error: ring.fill() writes nothing into s.a
            pass
    with role("math"):
        with ring.use() as s, empty.use() as e:
            C[0, 0] = s.a[0, 0] + s.b[0, 0] + e.a[0, 0]


@bad("read s.a, or leave a out of the ring")
@tile_kernel(arch="sm_90a")
def tiles_that_users_only_write(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of())  # error: the tile a of this ring is never read in its ring.use()
    with role("load"):
        with ring.fill() as s:
            s.a[0, 0] = A[0, 0]
    with role("math"):
        with ring.use() as s:
            s.a[0, 0] = A[0, 0]


@bad("a ring goes from one role to another")
@tile_kernel(arch="sm_90a")
def filled_and_used_by_one_role(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("all"):
        with ring.fill() as s:
            s.a[0, 0] = A[0, 0]
        with ring.use() as s:  # error: the role all fills this ring, and uses it as well
            C[0, 0] = s.a[0, 0]


@bad("slots have one order: fill or take them in a role with one instance")
@tile_kernel(arch="sm_90a")
def filled_by_instances(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)))
    ring = Ring(2, a=tile_of())
    with role("load", instances=2):
        for t in work:
            for k in t.k:
                with ring.fill() as s:  # error: ring.fill() in the role load, which has 2 instances
                    s.a[0, 0] = A[0, 0]
    with role("math"):
        for t in work:
            for k in t.k:
                with ring.use() as s:
                    C[0, 0] = s.a[0, 0]


@bad("multiply in the role that uses the ring")
@tile_kernel(arch="sm_90a")
def products_of_what_is_filled(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load"):
        acc = wgmma.accumulator((64, 64), f32)
        with ring.fill() as s:
            s.a[0, 0] = A[0, 0]
            acc = wgmma(s.a, s.a.T, acc)  # error: wgmma() reads the tiles of a ring in the role load, which fills it
        store(acc.wait().to(bf16), C[0:64, 0:64])
    with role("math"):
        with ring.use() as s:
            C[0, 0] = s.a[0, 0]


@bad("a role without threads=1 multiplies")
@tile_kernel(arch="sm_90a")
def what_one_thread_cannot_do(A: Global[bf16, M, K], C: Global[bf16, M, N]):
    grid(1)
    ring = Ring(2, a=tile_of())
    with role("load"):
        with ring.fill() as s:
            s.a[0, 0] = A[0, 0]
    with role("math", threads=1):
        acc = wgmma.accumulator((64, 64), f32)  # error: wgmma.accumulator() in the role math, whose body one
        with ring.use() as s:
            x = load_fragment(s.a, mma.m16n8k16.acc(warps=(4, 1)))  # error: the role math has one thread


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_refused(kernel: Any, fix: str) -> None:
    check(kernel, fix)

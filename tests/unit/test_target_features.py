"""Which target has which instructions: each is refused where it is missing, and only there."""

from __future__ import annotations

import pytest

from tiledsl import (
    Cluster,
    Const,
    Global,
    Ring,
    bf16,
    cdiv,
    const,
    f32,
    fragment,
    grid,
    load_matrix,
    mma,
    persistent,
    ptx,
    role,
    shared,
    store,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    tile_schedule,
    tma_load,
    unroll,
    wgmma,
)
from tiledsl.arch import FEATURES, TARGETS
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError

WITH_TMA = ("sm_90", "sm_90a", "sm_100a", "sm_120a")


@tile_kernel
def ring_of_tiles(
    A: Global[bf16, M, K],
    B: Global[bf16, K, N],
    C: Global[bf16, M, N],
    *,
    REGISTERS: const = 0,
    CLUSTER: const = 1,
    MULTICAST: Const[bool] = False,
):
    """TMA fills a ring, ldmatrix and mma.sync read it, TMA stores the result."""
    work = persistent(tile_schedule(M, N, K, tile=(64, 64, 64)), cluster=Cluster(m=CLUSTER))
    ring = Ring(2, a=shared((64, 64), bf16, layout=swizzle_128b), b=shared((64, 64), bf16, layout=swizzle_128b))
    out = shared((64, 64), bf16, layout=swizzle_128b)
    with role("load", threads=1, registers=REGISTERS and 40):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(B[k, t.n], s.b, multicast="m" if MULTICAST else "")
    with role("math", registers=REGISTERS):
        for t in work:
            acc = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 2)))
            for _ in t.k:
                with ring.use() as s:
                    for i in unroll(4):
                        kk = tile(i, 16)
                        acc = mma(load_matrix(s.a[:, kk], acc.a), load_matrix(s.b[kk, :], acc.b), acc)
            store_tma(acc.to(bf16), C[t.m, t.n], via=out)


@tile_kernel
def multiplies(A: Global[bf16, M, K], C: Global[f32, M, N]):
    grid(1)
    threads(128)
    S = shared((64, 64), bf16, layout=swizzle_128b)
    acc = wgmma.accumulator((64, 64), f32)
    acc = wgmma(S, S.T, acc)
    store(acc.wait(), C[0:64, 0:64])


@tile_kernel
def waits(C: Global[f32, M]):
    ptx.griddepcontrol_wait()
    C.put(grid(cdiv(M, 32)) * 32 + threads(32), f32(1))


@pytest.mark.parametrize("arch", WITH_TMA)
def test_tma_and_rings_compile(arch: str) -> None:
    compiled = ring_of_tiles.compile(arch=arch)
    assert "UTMALDG" in compiled.sass and "UTMASTG" in compiled.sass
    assert compiled.resources.stack == 0 and "CALL" not in compiled.sass
    assert ("shared::cta.global" in compiled.ptx) == (arch in ("sm_100a", "sm_120a"))


@pytest.mark.parametrize("arch", WITH_TMA)
def test_clusters_and_dependent_launches_compile(arch: str) -> None:
    assert ".reqnctapercluster 2" in ring_of_tiles.compile(arch=arch, CLUSTER=2).ptx
    assert "griddepcontrol.wait" in waits.compile(arch=arch).ptx


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_roles_move_registers(arch: str) -> None:
    assert "USETMAXREG" in ring_of_tiles.compile(arch=arch, REGISTERS=232).sass


@pytest.mark.parametrize(
    ("arch", "consts", "what"),
    [
        ("sm_80", {}, "Ring() needs one of sm_90, sm_90a, sm_100a, sm_120a,"),
        ("sm_90", {"REGISTERS": 232}, "role() with registers= needs one of sm_90a, sm_100a, sm_120a,"),
        ("sm_89", {"CLUSTER": 2}, "a cluster needs one of sm_90, sm_90a, sm_100a, sm_120a,"),
        ("sm_120a", {"CLUSTER": 2, "MULTICAST": True}, "multicast='m' needs one of sm_90, sm_90a, sm_100a,"),
    ],
)
def test_what_is_missing_is_refused_at_its_line(arch: str, consts: dict[str, object], what: str) -> None:
    with pytest.raises(CompileError) as caught:
        ring_of_tiles.compile(arch=arch, **consts)
    assert what in str(caught.value) and f"compiled for {arch}" in str(caught.value)


@pytest.mark.parametrize("arch", [name for name in TARGETS if name != "sm_90a"])
def test_wgmma_is_of_one_target(arch: str) -> None:
    with pytest.raises(CompileError, match="needs sm_90a, and this is compiled for") as caught:
        multiplies.compile(arch=arch)
    assert "mma()" in caught.value.fix


def test_the_table_speaks_of_targets() -> None:
    assert {name for have in FEATURES.values() for name in have} <= TARGETS.keys()

"""Rings that threads fill, and rings that one thread uses: who arrives, where a proxy fence is, what they compute with
every check of the emulator, and that nothing of it is superfluous."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ring_endpoint_programs as programs
from hopper_ir import called, ir, not_found, ops
from numpy.typing import NDArray

from tiledsl.ir.core import Kernel, Op
from tiledsl.ir.ops import barriers, control, gpu, tma

Array = NDArray[Any]

WAYS = ("matrix", "fragment", "elements")
AT_MBARRIERS = (barriers.Wait, barriers.Arrive, barriers.ExpectTx)


def steps(kernel: Kernel, first: int) -> list[str]:
    """What orders the role that begins with this warp, in order, with the mbarriers where it waits and arrives."""
    branch: Op = next(op for op in ops(kernel, control.If) if op.role and op.role[0] == first)
    found = ops(branch, *AT_MBARRIERS, barriers.FenceProxy, barriers.NamedBarrier, gpu.SyncWarp)
    return [f"{op.name} {op.place[0].name}" if type(op) in AT_MBARRIERS else op.name for op in found]


def arrivals(kernel: Kernel) -> dict[str, int]:
    """At each mbarrier of a ring's slots, for a phase to end."""
    return {op.place[0].name: op.count for op in ops(kernel, barriers.Init)}


# -- who arrives, and what is fenced ---------------------------------------------------------------


@pytest.mark.parametrize("way", ["use", "take"])
def test_one_thread_uses_a_ring(way: str) -> None:
    """It speaks for itself: it meets nobody, and its reads are fenced before TMA writes there."""
    kernel = ir(programs.totals, WAY=way)
    assert steps(kernel, 4) == ["mbarrier.wait full", "fence.proxy_async", "mbarrier.arrive empty"]
    assert arrivals(kernel) == {"full": 1, "empty": 1}


@pytest.mark.parametrize("groups", [1, 2])
def test_threads_fill_a_ring_for_products(groups: int) -> None:
    """Each warp arrives when its lanes have fenced and met. One fence stands for what they wrote of one ring and read
    of another."""
    kernel = ir(programs.converted, GROUPS=groups)
    assert steps(kernel, 4) == [
        "mbarrier.wait full",
        "mbarrier.wait empty1",
        "fence.proxy_async",
        "gpu.sync_warp",
        "mbarrier.arrive full1",
        "gpu.sync_warp",
        "mbarrier.arrive empty",
    ]
    warps = 4 * groups
    expected = {"full": 1, "empty": warps, "full1": warps, "empty1": 1, "full2": 1, "empty2": 1}
    assert arrivals(kernel) == expected


@pytest.mark.parametrize(("one", "fills", "uses"), [("", 4, 4), ("fills", 1, 4), ("uses", 4, 1)])
def test_between_threads_there_is_no_fence(one: str, fills: int, uses: int) -> None:
    kernel = ir(programs.relayed, ONE=one)
    assert not ops(kernel, barriers.FenceProxy)
    assert arrivals(kernel) == {"full": fills, "empty": uses}
    met = ["gpu.sync_warp"]
    assert steps(kernel, 0) == ["mbarrier.wait empty", *met * (fills > 1), "mbarrier.arrive full"]
    assert steps(kernel, 4) == ["mbarrier.wait full", *met * (uses > 1), "mbarrier.arrive empty"]


def test_one_thread_stores_what_others_have_filled() -> None:
    """What threads write is fenced, since TMA reads it; what TMA has read needs but the thread's own wait."""
    kernel = ir(programs.stored_by_one)
    assert steps(kernel, 4)[-4:] == [
        "mbarrier.wait empty1",
        "fence.proxy_async",
        "gpu.sync_warp",
        "mbarrier.arrive full1",
    ]
    assert steps(kernel, 8) == ["mbarrier.wait full1", "mbarrier.arrive empty1"]
    assert (arrivals(kernel)["full1"], arrivals(kernel)["empty1"]) == (4, 1)


def test_ptx_of_a_fill() -> None:
    """All lanes execute the fence, lanes meet, and one arrives for them."""
    text = programs.converted.compile().ptx
    behind = text[text.index("stmatrix") :]
    fence, met, arrived = (behind.index(op) for op in ("fence.proxy.async.shared", "bar.warp.sync", "mbarrier.arrive"))
    assert fence < met < arrived


# -- what they compute -----------------------------------------------------------------------------


def matrices(m: int, n: int, k: int) -> tuple[Array, Array, Array]:
    """Small integers, whose sums are exact in any order, and C."""
    rng = np.random.default_rng(m + n + k)
    A, B = (rng.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return A, B, np.full((m, n), 7, ml_dtypes.bfloat16)


def product_of(A: Array, B: Array) -> Array:
    return (A.astype(np.float32) @ B.astype(np.float32).T).astype(ml_dtypes.bfloat16)


def rows(m: int, k: int) -> Array:
    return np.random.default_rng(m).integers(-4, 5, (m, k)).astype(np.float32)


@pytest.mark.parametrize("consts", [{}, {"WAY": "take"}, {"STAGES": 1}])
def test_sums_by_one_thread(consts: dict[str, Any]) -> None:
    A, S = rows(40, 256), np.zeros(40, np.float32)
    programs.totals._emulated((A, S), consts, checks=True, processors=2)
    np.testing.assert_array_equal(S[::8], A.reshape(5, -1).sum(axis=1))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_products_of_what_threads_have_converted(way: str, groups: int) -> None:
    A, B, C = matrices(136, 72, 200)
    consts = {"WAY": way, "GROUPS": groups}
    programs.converted._emulated((A.astype(np.float32), B, C), consts, checks=True, processors=2)
    np.testing.assert_array_equal(C, product_of(A, B))


@pytest.mark.parametrize("consts", [{"CM": 2}, {"INSTANCES": 2}, {"INSTANCES": 2, "GROUPS": 2}])
def test_products_of_clusters_and_instances(consts: dict[str, Any]) -> None:
    A, B, C = matrices(264, 72, 200)
    programs.converted._emulated((A.astype(np.float32), B, C), consts, checks=True, processors=2)
    np.testing.assert_array_equal(C, product_of(A, B))


@pytest.mark.parametrize("one", ["", "fills", "uses"])
def test_rows_from_threads_to_threads(one: str) -> None:
    A, C = rows(100, 120), np.zeros((100, 120), np.float32)
    programs.relayed._emulated((A, C), {"ONE": one}, checks=True)
    np.testing.assert_array_equal(C, A)


def test_products_stored_by_one_thread() -> None:
    A, B, C = matrices(136, 72, 200)
    programs.stored_by_one._emulated((A, B, C), {}, checks=True, processors=2)
    np.testing.assert_array_equal(C, product_of(A, B))


@pytest.mark.parametrize(
    ("kernel", "consts"),
    [
        (programs.totals, {}),
        (programs.totals, {"WAY": "take"}),
        *((programs.converted, {"WAY": way, "GROUPS": g}) for way in WAYS for g in (1, 2)),
        *((programs.relayed, {"ONE": one}) for one in ("", "fills", "uses")),
        (programs.stored_by_one, {}),
    ],
)
def test_ptxas_makes_no_remark(kernel: Any, consts: dict[str, Any]) -> None:
    """That would be an error: products are not serialised by what stands between them."""
    used = kernel.compile(**consts).resources
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


# -- nothing of it is superfluous ------------------------------------------------------------------

NEEDED = (*AT_MBARRIERS, barriers.FenceProxy, tma.BulkCommit, tma.BulkWait)


def arguments_of(program: Any) -> tuple[Array, ...]:
    """Several items for a block, and several rounds of each ring."""
    if program is programs.totals:
        return rows(24, 160), np.zeros(24, np.float32)
    if program is programs.relayed:
        return rows(10, 120), np.zeros((10, 120), np.float32)
    A, B, C = matrices(264, 64, 136)
    return (A.astype(np.float32) if program is programs.converted else A), B, C


@pytest.mark.parametrize(
    ("program", "consts"),
    [
        (programs.totals, {}),
        (programs.totals, {"WAY": "take"}),
        (programs.converted, {}),
        (programs.converted, {"WAY": "fragment", "GROUPS": 2, "IN_FLIGHT": 0}),
        (programs.converted, {"WAY": "elements", "INSTANCES": 2}),
        (programs.converted, {"CM": 2}),
        *((programs.relayed, {"ONE": one}) for one in ("", "fills", "uses")),
        (programs.stored_by_one, {}),
    ],
)
def test_each_fence_arrive_and_wait_is_needed(
    program: Any, consts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, arguments = called(program, arguments_of(program), consts, monkeypatch)
    assert not not_found(kernel, arguments, NEEDED, consts.get("CM", 1))


def test_a_load_belongs_to_the_fill_around_it() -> None:
    """Whatever region of another ring stands between."""
    A, C = (np.full((64, 64), x, ml_dtypes.bfloat16) for x in (5, 0))
    programs.exchanged._emulated((A, C), {}, checks=True)
    assert (C[0, 0], C[1, 0]) == (3, 5)

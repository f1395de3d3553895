"""Rings whose tiles threads read themselves: a proxy fence comes before a slot is released, by whom it is, and that
the programs compute what they should with every check of the emulator."""

from __future__ import annotations

from typing import Any

import hopper_programs
import ml_dtypes
import numpy as np
import plain_ring_programs as programs
import pytest
from hopper_ir import called, ir, not_found, ops
from numpy.typing import NDArray

from tiledsl.errors import HazardError
from tiledsl.ir.core import Block, Kernel, Op
from tiledsl.ir.ops import arith, barriers, control, gpu, wgmma

Array = NDArray[Any]


def math_of(kernel: Kernel) -> Op:
    return next(op for op in ops(kernel, control.If) if op.role and op.role[0] == 4)


def ends(within: Kernel | Op | Block) -> list[str]:
    """What ends uses of slots, in order."""
    kinds = (
        barriers.FenceProxy,
        barriers.NamedBarrier,
        gpu.SyncWarp,
        barriers.Arrive,
        wgmma.Mma,
        wgmma.Commit,
        wgmma.Wait,
    )
    return [op.name for op in ops(within, *kinds)]


def arrivals(kernel: Kernel) -> int:
    """At a slot, before it is filled again."""
    counts = {op.count for op in ops(kernel, barriers.Init) if op.place[0].name == "empty"}
    assert len(counts) == 1
    return counts.pop()


# -- who releases a slot ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "consts"),
    [
        (programs.by_mma_sync, {}),
        (programs.sums, {"WAY": "fragment"}),
        (programs.sums, {"WAY": "elements"}),
        (programs.by_mma_sync, {"IN_FLIGHT": 1}),
    ],
)
def test_without_products_each_warp_hands_a_slot_back_for_itself(kernel: Any, consts: dict[str, Any]) -> None:
    """All threads have fenced what they read; no warp waits for another, and of no products at all."""
    math = math_of(ir(kernel, **consts))
    assert ends(math) == ["fence.proxy_async", "gpu.sync_warp", "mbarrier.arrive"]
    (arrive,) = ops(math, barriers.Arrive)
    condition = arrive.parent.parent.condition.op  # lane == 0
    assert isinstance(condition.operands[0].op, gpu.LaneId)
    assert isinstance(condition.operands[1].op, arith.Constant) and condition.operands[1].op.value == 0


@pytest.mark.parametrize(
    ("consts", "count"),
    [
        ({}, 8),
        ({"WARPGROUPS": 1}, 4),
        ({"WARPGROUPS": 1, "INSTANCES": 2}, 4),
        ({"CM": 2}, 8 * 2),
        ({"CN": 2}, 8 * 2),
        ({"CM": 2, "CN": 2}, 8 * 3),
    ],
)
def test_a_slot_waits_for_the_warps_of_one_instance_in_every_block_that_gets_it(
    consts: dict[str, int], count: int
) -> None:
    assert arrivals(ir(programs.by_mma_sync, **consts)) == count


def test_products_keep_warpgroups_together() -> None:
    """The fence is that of all threads, the barrier that of the warpgroup, and one arrival speaks for it."""
    kernel = ir(hopper_programs.from_registers)
    loop = ops(math_of(kernel), control.For)[-1]
    assert ends(loop) == [
        "wgmma.mma",
        "wgmma.commit_group",
        "wgmma.wait",
        "fence.proxy_async",
        "gpu.named_barrier",
        "mbarrier.arrive",
    ]
    assert arrivals(kernel) == 1


def test_a_ring_that_products_alone_read_needs_no_fence() -> None:
    kernel = ir(hopper_programs.producer_consumers)
    loop = ops(math_of(kernel), control.For)[-1]
    assert ends(loop) == ["wgmma.mma", "wgmma.commit_group", "wgmma.wait", "mbarrier.arrive"]


@pytest.mark.parametrize("first", [False, True])
def test_all_uses_of_a_ring_hand_slots_back_in_one_way(first: bool) -> None:
    """Whether the use without products is written before that with them, or behind it: the warpgroup does, after a
    barrier, and only what was read by threads is fenced."""
    kernel = ir(programs.mixed_uses, FIRST=first, GROUPS=2)
    loop = next(op for op in ops(math_of(kernel), control.For) if not ops(op.body, control.For))
    plain = ["fence.proxy_async", "gpu.named_barrier", "mbarrier.arrive"]
    product = ["wgmma.mma", "wgmma.commit_group", "wgmma.wait", "mbarrier.arrive"]
    assert ends(loop) == (plain + product if first else product + plain)
    assert arrivals(kernel) == 2


def test_slots_of_a_mixed_ring_become_free_in_order() -> None:
    """With groups on their way, a use without products waits for those before it."""
    kernel = ir(programs.mixed_uses, IN_FLIGHT=1)
    loop = next(op for op in ops(math_of(kernel), control.For) if not ops(op.body, control.For))
    product = ["wgmma.mma", "wgmma.commit_group", "wgmma.wait", "mbarrier.arrive"]
    assert ends(loop) == [*product, "wgmma.wait", "fence.proxy_async", "gpu.named_barrier", "mbarrier.arrive"]
    assert [op.pending for op in ops(loop, wgmma.Wait)] == [1, 0]


@pytest.mark.parametrize(
    ("kernel", "consts"),
    [
        *(
            (programs.mixed_uses, {"IN_FLIGHT": i, "FIRST": f, "GROUPS": g})
            for i, f, g in ((0, False, 1), (0, True, 2), (1, False, 2), (1, True, 1))
        ),
        *((programs.read_besides, {"IN_FLIGHT": i}) for i in (0, 1)),
        (hopper_programs.from_registers, {}),
        (programs.by_mma_sync, {"CM": 2}),
        (programs.loads_ahead, {"STAGES": 3}),
    ],
)
def test_ptxas_makes_no_remark(kernel: Any, consts: dict[str, Any]) -> None:
    """That would be an error: products are not serialised by what stands between them."""
    used = kernel.compile(**consts).resources
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


def test_ptx_of_a_loop_without_products() -> None:
    """All lanes execute the fence, lanes meet, and no barrier of several warps is in the loop."""
    text = programs.by_mma_sync.compile().ptx
    loop = text[text.index("ldmatrix") : text.rindex("mbarrier.arrive.shared")]
    assert "mma.sync" in loop and "bar.sync" not in loop and "barrier.sync" not in loop
    assert loop.index("fence.proxy.async.shared::cta") > loop.rindex("ldmatrix")
    assert loop.index("bar.warp.sync") > loop.index("fence.proxy.async.shared::cta")


# -- what they compute -----------------------------------------------------------------------------


def problem(m: int, n: int, k: int) -> tuple[Array, Array]:
    """Small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return a, b


def product_of(A: Array, B: Array) -> Array:
    return A.astype(np.float32) @ B.astype(np.float32).T


@pytest.mark.parametrize(
    "consts",
    [
        {},
        {"WARPGROUPS": 1},
        {"WARPGROUPS": 1, "INSTANCES": 2},
        {"CM": 2},
        {"CN": 2},
        {"CM": 2, "CN": 2, "BM": 128},
        {"IN_FLIGHT": 1},
    ],
)
def test_matrices_out_of_a_ring(consts: dict[str, Any]) -> None:
    A, B = problem(264, 136, 200)
    C = np.full((264, 136), 7, ml_dtypes.bfloat16)
    programs.by_mma_sync._emulated((A, B, C), consts, checks=True, processors=4)
    np.testing.assert_array_equal(C, product_of(A, B).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("consts", [{}, {"STAGES": 3}, {"CM": 2}])
def test_operands_of_the_next_slot(consts: dict[str, Any]) -> None:
    """A slot is taken while the one before it is still read."""
    A, B = problem(264, 136, 200)
    C = np.full((264, 136), 7, ml_dtypes.bfloat16)
    programs.loads_ahead._emulated((A, B, C), consts, checks=True, processors=2)
    np.testing.assert_array_equal(C, product_of(A, B).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize(("frees", "found"), [("early", r"which thread .* read at"), ("next", "deadlock")])
def test_slots_handed_back_wrongly(frees: str, found: str) -> None:
    A, B = problem(128, 128, 328)
    C = np.zeros((128, 128), ml_dtypes.bfloat16)
    with pytest.raises(HazardError, match=found):
        programs.loads_ahead._emulated((A, B, C), {"FREES": frees}, checks=True, processors=1)


@pytest.mark.parametrize("way", ["fragment", "elements"])
def test_fragments_and_elements_out_of_a_ring(way: str) -> None:
    A = np.random.default_rng(0).integers(-4, 5, (200, 256)).astype(np.float32)
    C = np.full((200, 32), 7, np.float32)
    programs.sums._emulated((A, C), {"WAY": way}, checks=True, processors=2)
    expected = A.reshape(200, 8, 32).sum(axis=1) if way == "fragment" else np.repeat(A.sum(axis=1)[:, None], 32, 1)
    np.testing.assert_array_equal(C, expected)


@pytest.mark.parametrize(
    ("groups", "in_flight", "first"),
    [(1, 0, False), (1, 1, True), (1, 2, False), (2, 0, True), (2, 1, False), (2, 2, True)],
)
def test_products_in_some_uses(groups: int, in_flight: int, first: bool) -> None:
    A, B = problem(256, 64, 328)
    C, S = np.full((256, 64), 7, np.float32), np.full(256, 7, np.float32)
    consts = {"GROUPS": groups, "IN_FLIGHT": in_flight, "FIRST": first}
    programs.mixed_uses._emulated((A, B, C, S), consts, checks=True, processors=1)
    np.testing.assert_array_equal(C, product_of(A, B))
    np.testing.assert_array_equal(S, A.astype(np.float32).sum(axis=1))


@pytest.mark.parametrize("in_flight", [0, 1])
def test_products_and_elements_in_one_use(in_flight: int) -> None:
    A, B = problem(128, 64, 328)
    C, S = np.full((128, 64), 7, np.float32), np.full(128, 7, np.float32)
    programs.read_besides._emulated((A, B, C, S), {"IN_FLIGHT": in_flight}, checks=True, processors=1)
    np.testing.assert_array_equal(C, product_of(A, B))
    np.testing.assert_array_equal(S, A.astype(np.float32).sum(axis=1))


# -- nothing of it is superfluous ------------------------------------------------------------------

TAKEN_OUT: dict[str, tuple[Any, dict[str, Any]]] = {
    "ldmatrix": (programs.by_mma_sync, {}),
    "instances": (programs.by_mma_sync, {"WARPGROUPS": 1, "INSTANCES": 2}),
    "cluster": (programs.by_mma_sync, {"CM": 2}),
    "ahead": (programs.loads_ahead, {}),
    "fragments": (programs.sums, {"WAY": "fragment"}),
    "elements": (programs.sums, {"WAY": "elements"}),
    "mixed": (programs.mixed_uses, {"GROUPS": 2}),
    "mixed, in flight": (programs.mixed_uses, {"IN_FLIGHT": 1, "FIRST": True}),
    "besides": (programs.read_besides, {"IN_FLIGHT": 1}),
}
ORDERING = (barriers.FenceProxy, barriers.Arrive, barriers.Wait)


def arguments_of(program: Any, consts: dict[str, Any]) -> tuple[Array, ...]:
    """Several tiles for each block, or cluster, of one processor."""
    matrices = program in (programs.by_mma_sync, programs.loads_ahead)
    A, B = problem(256 if "GROUPS" in consts else 128, 128 if matrices else 64, 328)
    if program is programs.sums:
        return A[:, :320].astype(np.float32), np.zeros((len(A), 32), np.float32)
    if matrices:
        return A, B, np.zeros((len(A), len(B)), ml_dtypes.bfloat16)
    return A, B, np.zeros((len(A), len(B)), np.float32), np.zeros(len(A), np.float32)


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_each_fence_barrier_arrive_and_wait_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, consts = TAKEN_OUT[name]
    kernel, arguments = called(program, arguments_of(program, consts), consts, monkeypatch)
    turns = "INSTANCES" in consts  # they have barriers of their own
    kinds = ORDERING if turns else (*ORDERING, barriers.NamedBarrier)
    assert not not_found(kernel, arguments, kinds, consts.get("CM", 1))

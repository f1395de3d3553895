"""The order of turns as seeds decide it: some seed finds what the usual order does not, and the same one again; what is
right is right in every order."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulator_rings import CLUSTER, RING, kernel_of, run_ring
from seeded_kernels import MISSED, arguments, as_one, loaded, overtaken

from tiledsl.backends.emulator import Access, Hook, Options
from tiledsl.errors import HazardError, KernelArgumentError
from tiledsl.passes.pipeline import run_pipeline

GEMM = Path(__file__).parents[2] / "examples" / "gemm"
SEEDS = 8


@pytest.mark.parametrize("kernel", MISSED, ids=lambda kernel: kernel.name)
def test_some_seed_finds_what_the_usual_order_does_not(kernel: Any) -> None:
    for usual in ({}, {"seed": 0}):
        assert kernel.check(**arguments(), RIGHT=False, **usual).verdict == "clean"
    result = kernel.check(**arguments(), RIGHT=False, seeds=SEEDS, raises=False)
    assert result.verdict == "findings"
    assert {finding.code for finding in result.findings} <= MISSED[kernel]


@pytest.mark.parametrize("kernel", MISSED, ids=lambda kernel: kernel.name)
def test_right_in_every_order(kernel: Any) -> None:
    assert kernel.check(**arguments(), seeds=SEEDS).verdict == "clean"


@pytest.mark.parametrize("kernel", MISSED, ids=lambda kernel: kernel.name)
def test_a_seed_replays_its_finding(kernel: Any) -> None:
    (found, *_) = kernel.check(**arguments(), RIGHT=False, seeds=SEEDS, raises=False).findings
    for _ in range(2):
        with pytest.raises(HazardError) as caught:
            kernel.check(**arguments(), RIGHT=False, seed=found.seed)
        assert caught.value.finding == found
        assert f"(under seed={found.seed}, which replays it)" in str(caught.value)


def test_a_waiter_that_may_be_overtaken_needs_no_seed() -> None:
    """In the usual order nobody overtakes it."""
    assert overtaken.check(**arguments(), seeds=SEEDS).verdict == "clean"
    result = overtaken.check(**arguments(), RIGHT=False, raises=False)
    assert [finding.code for finding in result.findings] == ["T421"]
    assert "warp 2 of block (0, 0, 0) waits for phase 0 of full[0], and no arrival of the next phase" in str(result)
    unseen = overtaken.check(**arguments(), RIGHT=False, raises=False, without=["barriers"], seeds=SEEDS)
    assert {finding.code for finding in unseen.findings} <= {"T401", "T409"}, "seeds find what became of it"


def test_rounds_of_a_named_barrier_need_no_seed() -> None:
    """An arrival that may count in the round before is found in any order."""
    assert as_one.check(**arguments(), seeds=SEEDS).verdict == "clean"
    result = as_one.check(**arguments(), RIGHT=False, raises=False)
    assert [finding.code for finding in result.findings] == ["T418"]
    assert "warp 1 of block (0, 0, 0) arrives at barrier 1, and nothing orders that behind" in str(result)


class Order(Hook):
    """Which warps access memory, one after the other."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_access(self, access: Access) -> None:
        self.seen.append((access.op.loc.line, tuple(access.threads // 32), tuple(access.blocks)))

    def on_delivery(self, access: Access) -> None:
        self.seen.append("delivery")

    @classmethod
    def of(cls, kernel: Any, seed: int) -> list[Any]:
        order = cls()
        run_ring(kernel, k=200, options=Options(checks=True, seed=seed, hooks=(order,)))
        return order.seen


def test_equal_seeds_are_equal_runs_and_others_are_not() -> None:
    kernel = kernel_of(RING)
    orders = [Order.of(kernel, seed) for seed in range(3)]
    assert orders == [Order.of(kernel, seed) for seed in range(3)]
    assert all(one != other for number, one in enumerate(orders) for other in orders[:number])
    assert any(len(set(each[1])) > 1 for each in orders[0] if each != "delivery"), "warps usually move as one"
    deliveries = [[at for at, each in enumerate(order) if each == "delivery"] for order in orders]
    assert len({tuple(places) for places in deliveries}) == len(orders), "copies arrive earlier or later"


@pytest.mark.parametrize("text", [RING, CLUSTER], ids=["ring", "cluster"])
def test_a_ring_is_right_in_every_order(text: str) -> None:
    kernel = run_pipeline(kernel_of(text))
    for seed in range(1, 4):
        run_ring(kernel, 128, 40, 136, options=Options(checks=True, seed=seed))


@pytest.mark.parametrize(("name", "consts"), [("shared_tiled", {"T": 16}), ("double_buffered", {})])
def test_kernels_of_the_gallery_are_right_in_every_order(
    name: str, consts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run starts from the same arrays, and computes the same."""
    monkeypatch.syspath_prepend(str(GEMM))
    gallery, reference = import_module("gallery"), import_module("reference")
    kernel = gallery.load(next(entry for entry in gallery.GALLERY if entry.kernel == name))
    A, B, C = reference.random_problem(20, 36, 24)
    usual = C.copy()
    kernel.check(*gallery.as_given(kernel, A, B, usual), **consts)
    assert not kernel.check(*gallery.as_given(kernel, A, B, C), **consts, seeds=4).findings
    np.testing.assert_array_equal(C, usual)


def test_any_warp_of_a_warpgroup_waits_for_its_products() -> None:
    """Here the last one releases the slots, whether it or the first one has waited before."""
    first = "%leader = arith.eq %t, %c128 : bool\n      %release"
    last = "%last = arith.constant 224 : index\n      %leader = arith.eq %t, %last : bool\n      %release"
    kernel = kernel_of(RING, replaced=[(first, last)])
    for seed in (0, 1, 7, 17):
        run_ring(kernel, options=Options(checks=True, seed=seed))


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_arrives_early_must_be_waited_for_too(seed: int) -> None:
    X = np.ones((8, 32), np.float32)
    assert loaded.check(X, seed=seed)
    with pytest.raises(HazardError, match=r"block \(0, 0, 0\) ends, and a copy .*: nothing waits for it") as caught:
        loaded.check(X, RIGHT=False, seed=seed)
    assert caught.value.finding.code == "T301"


def test_a_seed_is_an_integer() -> None:
    kernel = next(iter(MISSED))
    for wrong in ({"seed": -1}, {"seed": "1"}, {"seeds": 0}, {"seed": 1, "seeds": 2}):
        with pytest.raises(KernelArgumentError, match="pass"):
            kernel.check(**arguments(), **wrong)

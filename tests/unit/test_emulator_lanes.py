"""An arrival at an mbarrier by some lanes of a warp releases what these lanes did, and what all did before they met; a
wait by some lanes is no wait of the others, until they meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lane_kernels import alone, exchanged, handed_over, in_global_memory, released, waited_for

SEEDS = 4


def row(n: int = 64) -> Any:
    return np.ones(n, np.float32)


def tile() -> Any:
    return np.ones((24, 32), np.float32)


def found(result: Any) -> list[tuple[str, str]]:
    assert not result.error
    return [(f.code, f.missing) for f in result.findings]


@pytest.mark.parametrize(("reads", "sync"), [("own", False), ("own", True), ("others", True)])
def test_what_the_lane_did_or_all_before_they_met_is_released(reads: str, sync: bool) -> None:
    assert handed_over.check(row(), row(), READS=reads, SYNC=sync, seeds=SEEDS)


def test_what_other_lanes_did_since_is_not() -> None:
    result = handed_over.check(row(), row(), READS="others", raises=False, seeds=SEEDS)
    assert found(result) == [("T101", "syncwarp")]
    assert "which thread (4, 0, 0) wrote" in result.findings[0].message
    assert result.findings[0].message.endswith("and another lane of its warp has arrived without waiting for it")


def test_global_memory_is_ordered_by_lanes_as_well() -> None:
    assert in_global_memory.check(row(), row(), LANES="one", seeds=SEEDS)
    assert in_global_memory.check(row(), row(), LANES="all", ALL=True, seeds=SEEDS)
    assert found(in_global_memory.check(row(), row(), LANES="all", raises=False)) == [("T102", "barrier")]


@pytest.mark.parametrize(("reads", "code"), [("shared", "T101"), ("global", "T102")])
def test_lanes_that_have_not_waited_know_of_nothing(reads: str, code: str) -> None:
    result = waited_for.check(row(), row(), READS=reads, raises=False, seeds=SEEDS)
    assert {code for code, _ in found(result)} == {code}
    assert "thread (33, 0, 0) of block (0, 0, 0) reads" in result.findings[0].message


@pytest.mark.parametrize("reads", ["shared", "global"])
@pytest.mark.parametrize("waits", ["all", "halves", "even reads", "even, sync", "even, all"])
def test_lanes_that_have_waited_or_met_do(waits: str, reads: str) -> None:
    assert waited_for.check(row(), row(), WAITS=waits, READS=reads, seeds=SEEDS)


@pytest.mark.parametrize("at", ["arrival", "cluster arrival"])
def test_lanes_do_not_meet_where_their_warp_arrives_alone(at: str) -> None:
    result = exchanged.check(row(128), row(128), AT=at, raises=False, seeds=SEEDS)
    assert {*found(result)} == {("T101", "syncwarp")}


@pytest.mark.parametrize("at", ["arrival, sync", "wait", "cluster"])
def test_lanes_meet_where_their_warp_waits(at: str) -> None:
    assert exchanged.check(row(128), row(128), AT=at, seeds=SEEDS)


@pytest.mark.parametrize(
    ("order", "code"), [("fence, sync", ""), ("sync, fence", "T104"), ("fence", "T101"), ("nothing", "T101")]
)
def test_lanes_meet_behind_their_proxy_fences(order: str, code: str) -> None:
    result = released.check(tile(), tile(), ORDER=order, raises=False, seeds=SEEDS)
    assert {code for code, _ in found(result)} == {*filter(None, [code])}


def test_other_lanes_may_do_something_else() -> None:
    assert alone.check(tile(), tile(), seeds=SEEDS)

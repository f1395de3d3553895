"""Launches of several ranks in one run: they share memory, wait for each other, and race as blocks of one do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import rank_kernels as kernels

from tiledsl.errors import HazardError, KernelArgumentError
from tiledsl.ranks import OnRank, check_ranks, run_ranks
from tiledsl.verdict import CheckResult

SEEDS = 12


def found(result: CheckResult) -> set[str]:
    assert not result.error
    return {finding.code for finding in result.findings}


def ranks_of(result: CheckResult) -> set[frozenset[int | None]]:
    """Which ranks the two sides of each race are of."""
    return {frozenset(side.rank for side in finding.sides) for finding in result.findings}


# -- two ranks that take turns ---------------------------------------------------------------------


def test_ranks_write_to_each_others_memory() -> None:
    launches = kernels.pings()
    run_ranks(launches)
    got = [launch.args[4] for launch in launches]
    t = np.arange(64)
    np.testing.assert_array_equal(got[0], 100 + t + 300 + t)
    np.testing.assert_array_equal(got[1], 0 + t + 200 + t)


def test_turns_are_clean_in_every_order() -> None:
    launches = kernels.pings()
    assert check_ranks(launches, seeds=SEEDS).verdict == "clean"
    np.testing.assert_array_equal(launches[0].args[4], 400 + 2 * np.arange(64))


def test_a_gpus_scope_does_not_reach_another() -> None:
    result = check_ranks(kernels.pings(SCOPE="gpu"), raises=False)
    assert found(result) == {"T102", "T103"}
    assert ranks_of(result) == {frozenset({0, 1})}
    for finding in result.findings:
        assert 'scope="sys"' in finding.fix


def test_within_a_rank_a_gpus_scope_is_enough() -> None:
    """The same launches, all of one rank."""
    one = [OnRank(0, launch.kernel, launch.args, launch.consts) for launch in kernels.pings(SCOPE="gpu")]
    assert check_ranks(one, seeds=SEEDS).verdict == "clean"


def test_relaxed_flags_order_nothing() -> None:
    result = check_ranks(kernels.pings(ORDER=False), raises=False)
    assert found(result) == {"T102"}
    assert {finding.missing for finding in result.findings} == {"release-acquire"}


def test_a_race_names_both_ranks() -> None:
    with pytest.raises(HazardError, match="race: ") as caught:
        check_ranks(kernels.pings(WITHOUT="wait"))
    who = re.findall(r"thread \(\d+, 0, 0\) of block \(0, 0, 0\) of rank (\d)", str(caught.value))
    assert sorted(who) == ["0", "1"]
    assert sorted(str(side.rank) for side in caught.value.finding.sides) == ["0", "1"]


# -- what never comes ------------------------------------------------------------------------------


def test_a_flag_that_nobody_sets() -> None:
    for seed in range(3):
        with pytest.raises(HazardError) as caught:
            run_ranks(kernels.reductions(WITHOUT="flag"), seed=seed)
        assert caught.value.code == "T403"
        assert {side.rank for side in caught.value.finding.sides} == {0, 1}


def test_a_deadlock_names_the_rank() -> None:
    x = np.zeros((2, 32), np.float32)
    launches = [OnRank(4, kernels.arrives_alone, (x[0],)), OnRank(7, kernels.arrives_alone, (x[1],), {"COUNT": 2})]
    for seed in range(3):
        with pytest.raises(HazardError, match=r"(?s)deadlock.*block \(0, 0, 0\) of rank 7: warp 0 waits") as caught:
            run_ranks(launches, seed=seed)
        assert [side.rank for side in caught.value.finding.sides] == [7]


def test_more_blocks_than_are_emulated_at_once() -> None:
    """All blocks of both ranks wait for later ones of the other: they are started while the first ones spin."""
    launches = kernels.rings(blocks=1500, ranks=2)
    run_ranks(launches)
    np.testing.assert_array_equal(launches[0].args[5], launches[0].args[0] + launches[1].args[0])


# -- patterns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("consts", [{}, {"FENCES": True}], ids=str)
def test_three_ranks_in_a_ring(consts: dict[str, Any]) -> None:
    launches = kernels.rings(blocks=3, **consts)
    assert check_ranks(launches, seeds=SEEDS).verdict == "clean"
    for rank, launch in enumerate(launches):
        np.testing.assert_array_equal(launch.args[5], launch.args[0] + launches[rank - 1].args[0])


def test_reduce_scatter() -> None:
    launches = kernels.reductions()
    assert check_ranks(launches, seeds=SEEDS).verdict == "clean"
    for rank, launch in enumerate(launches):
        np.testing.assert_array_equal(launch.args[6], 2 * (launch.args[0] + launches[1 - rank].args[1]))


@pytest.mark.parametrize(
    "without",
    [
        "barrier before the release",
        "release",
        "scope of the release",
        "acquire",
        "scope of the acquire",
        "wait",
        "barrier behind the acquire",
    ],
)
def test_each_part_of_its_synchronisation_is_needed(without: str) -> None:
    result = check_ranks(kernels.reductions(WITHOUT=without), raises=False)
    assert found(result) & {"T102", "T103"}
    assert frozenset({0, 1}) in ranks_of(result)


def test_a_copy_engine_and_loads_by_tma() -> None:
    """Launches of several kernels and grids, two of them on one rank."""
    launches = kernels.pushes()
    assert check_ranks(launches, seeds=SEEDS).verdict == "clean"
    np.testing.assert_array_equal(launches[2].args[2], 2 * launches[1].args[0])


@pytest.mark.parametrize("fence", ["", "shared", "before the acquire"])
def test_tma_needs_a_proxy_fence_behind_the_acquire(fence: str) -> None:
    result = check_ranks(kernels.pushes(FENCE=fence), seeds=3, raises=False)
    assert [finding.code for finding in result.findings] == ["T105"]
    (finding,) = result.findings
    assert 'execute fence_proxy_async("global")' in finding.fix
    assert "of rank 1 (fetch) lets TMA read rows[" in finding.message
    assert "of rank 0 (push) wrote at" in finding.message


@pytest.mark.parametrize("sender", ["all", "one"])
def test_a_proxy_fence_of_the_sender_is_enough(sender: str) -> None:
    assert check_ranks(kernels.pushes(sender=sender, FENCE=""), seeds=SEEDS).verdict == "clean"


def test_stores_by_tma_to_another_rank() -> None:
    launches = kernels.stores()
    assert check_ranks(launches, seeds=SEEDS).verdict == "clean"
    np.testing.assert_array_equal(launches[1].args[2], launches[0].args[0])


def test_a_store_that_was_not_waited_for() -> None:
    result = check_ranks(kernels.stores(WAITS=False), raises=False)
    assert found(result) == {"T107"}
    assert ranks_of(result) == {frozenset({0, 1})}


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_another_rank_overwrites(waits: bool) -> None:
    rows, arrived, out = np.ones((1, 32), np.float32), np.zeros(1, np.int32), np.zeros(32, np.float32)
    reader = OnRank(0, kernels.copies_ahead, (rows, arrived, out), {"WAITS": waits})
    result = check_ranks([reader, OnRank(1, kernels.overwrites, (rows, arrived))], seeds=3, raises=False)
    assert found(result) == (set() if waits else {"T107"})
    assert waits or "of rank 0 (copies_ahead) read at" in result.findings[0].message


def test_a_relaxed_store_over_a_flag_ends_its_release() -> None:
    """By a kernel that has no release or acquire itself."""
    x, y, out = (np.ones((24, 32), np.float32) for _ in range(3))
    flags = np.zeros(3, np.int32)
    sender = OnRank(0, kernels.scale, (x, y, flags), {"SCOPE": "sys"})
    assert check_ranks([sender, OnRank(1, kernels.waits, (y, flags, out))])
    flags[:] = 0
    between, receiver = OnRank(2, kernels.overwrite, (flags,)), OnRank(1, kernels.waits, (y, flags, out), {"FLAG": 2})
    assert found(check_ranks([sender, between, receiver], raises=False)) == {"T102"}


def test_arrays_may_overlap_in_part_and_have_other_dtypes() -> None:
    """One rank's rows are in the middle of what another has, as words of another dtype."""
    launches = kernels.stores()
    x, _, arrived = launches[0].args
    symmetric = np.zeros((64, 32), np.float32)
    sender = OnRank(0, kernels.store, (x, symmetric[8:32], arrived))
    receiver = OnRank(1, kernels.copies, (symmetric.view(np.int32)[8:32], arrived, np.zeros((24, 32), np.int32)))
    assert check_ranks([sender, receiver], seeds=3).verdict == "clean"
    np.testing.assert_array_equal(receiver.args[2].view(np.float32), x)


# -- the result, and what is refused ---------------------------------------------------------------


def test_a_line_is_covered_if_one_rank_runs_it() -> None:
    one, *others = (OnRank(rank, kernels.branch, (np.zeros(32, np.float32), rank)) for rank in range(3))
    result = check_ranks([one, OnRank(1, kernels.branch, (np.zeros(32, np.float32), 0))])
    assert result.verdict == "incomplete" and result.kernel == "branch"
    assert result.loc == kernels.branch.signature.loc
    assert [gap.why for gap in result.not_covered] == ["no thread executed this line"]
    assert check_ranks([one, *others]).verdict == "clean"


def test_a_finding_is_of_its_kernel() -> None:
    result = check_ranks(kernels.pushes(FENCE=""), raises=False)
    assert result.kernel == "push, scale, fetch"
    assert [finding.kernel for finding in result.findings] == ["fetch"]
    assert result.to_dict()["findings"][0]["sides"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("launches", "message"),
    [
        ([], "there are no launches"),
        (3, "launches is a int"),
        ([3], "launch 0 is a int"),
        ([OnRank("0", kernels.ping)], "of launch 0 the rank is '0'"),
        ([OnRank(True, kernels.ping)], "of launch 0 the rank is True"),
        ([OnRank(-1, kernels.ping)], "of launch 0 the rank is -1"),
        ([OnRank(0, kernels.pings)], "of launch 0 the kernel is a function"),
        ([OnRank(0, kernels.ping, 3)], "of launch 0 args is a int"),
        ([OnRank(0, kernels.ping, (), 3)], "of launch 0 consts is a int"),
    ],
)
def test_what_is_no_launch_is_refused(launches: Any, message: str) -> None:
    for function in (run_ranks, check_ranks):
        with pytest.raises(KernelArgumentError, match=message) as caught:
            function(launches)
        assert f"{function.__name__}(): " in str(caught.value)
        assert "fix: pass" in str(caught.value)


def test_arguments_are_checked_as_in_a_call() -> None:
    with pytest.raises(KernelArgumentError, match="ping"):
        run_ranks([OnRank(0, kernels.ping, ())])
    with pytest.raises(KernelArgumentError, match="seed is -1"):
        run_ranks(kernels.pings(), seed=-1)

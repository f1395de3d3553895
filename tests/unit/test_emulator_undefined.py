"""Shuffles that read lanes which the block does not have: a finding where, and only where, a thread uses the value."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import (
    Const,
    Global,
    ballot,
    barrier,
    grid,
    i32,
    index,
    shared,
    shuffle,
    shuffle_down,
    shuffle_up,
    shuffle_xor,
    threads,
    tile_kernel,
    unroll,
    vote_all,
    vote_any,
    where,
)
from tiledsl.backends.emulator.cohort import Cohort
from tiledsl.backends.emulator.rules import gpu
from tiledsl.backends.emulator.rules.registry import RULES
from tiledsl.dims import K, M, N
from tiledsl.ir.ops import warp
from tiledsl.kernel import TileKernel
from tiledsl.verdict import CheckResult


def checked(kernel: TileKernel, *args: Any, **options: Any) -> CheckResult:
    return kernel.check(*args, raises=False, **{"without": "coverage, T101, T102", **options})


def codes(result: CheckResult) -> list[str]:
    assert not result.error
    return [finding.code for finding in result.findings]


# -- sums ------------------------------------------------------------------------------------------


@tile_kernel
def sums(X: Global[i32, N], Y: Global[i32, K], *, T: Const[int], HOW: Const[str] = "down", FROM: Const[int] = 16):
    """Lane 0 of each warp gets the sum of the warp."""
    grid(1)
    t = threads(T)
    s, d = X[t], i32(FROM)
    while d > 0:
        if HOW == "down":
            s += shuffle_down(s, d)
        elif HOW == "xor":
            s += shuffle_xor(s, d)
        elif HOW == "guarded":
            other = shuffle_down(s, d)
            s += where(i32(t % 32) + d < i32(T - t // 32 * 32), other, i32(0))
        d = d // 2
    if t % 32 == 0:
        Y[t // 32] = s


@pytest.mark.parametrize(
    ("t", "how", "first", "code"),
    [
        (64, "down", 16, ""),  # past the end of a warp a lane gets its own value
        (40, "down", 16, "T205"),
        (40, "xor", 16, "T205"),
        (40, "guarded", 16, ""),
        (48, "down", 16, "T205"),
        (16, "down", 16, "T205"),
        (16, "down", 8, ""),  # lanes 8 to 15 get values that no sum of lane 0 has
        (16, "xor", 8, ""),
        (8, "xor", 4, ""),
    ],
)
def test_sums_of_warps(t: int, how: str, first: int, code: str) -> None:
    x, y = np.arange(t, dtype=np.int32), np.zeros(-(-t // 32), np.int32)
    result = checked(sums, x, y, T=t, HOW=how, FROM=first)
    assert codes(result) == [code] * bool(code)
    if code:
        reader, user = result.findings[0].sides
        assert user.op == "mem.store" and user.loc.line > reader.loc.line == result.findings[0].loc.line
        assert reader.thread == (t // 32 * 32, 0, 0)
    elif first * 2 >= min(t, 32):
        assert y.tolist() == [x[w * 32 : w * 32 + 32].sum() for w in range(len(y))]


def test_the_check_can_be_turned_off_or_a_finding_accepted() -> None:
    x, y = np.zeros(40, np.int32), np.zeros(2, np.int32)
    assert not codes(checked(sums, x, y, T=40, without="uninitialised"))
    assert not codes(checked(sums, x, y, T=40, without="T205"))


# -- who uses a value ------------------------------------------------------------------------------


@tile_kernel
def uses(X: Global[i32, N], Y: Global[i32, N], *, HOW: Const[str]):
    """Lane 7 of the last warp, of 8 lanes, gets an undefined value."""
    grid(1)
    t = threads(40)
    S = shared((40,), i32)
    x = shuffle(X[t], t % 32 + 1)
    last = t == 39
    if HOW == "nothing":
        pass
    elif HOW == "another lane":
        Y[t] = shuffle(x, 6)
    elif HOW == "the same lane":
        Y[t] = shuffle_up(x, 0)
    elif HOW == "a choice of the other":
        Y[t] = where(last, i32(0), x)
    elif HOW == "a choice":
        Y[t] = where(last, x, i32(0))
    elif HOW == "a mask":
        Y[t] = x & where(last, i32(0), i32(-1))
    elif HOW == "a sum":
        Y[t] = x * 2 + 3
    elif HOW == "an address":
        Y[t] = Y[index(x & 31)]
    elif HOW == "a branch":
        if x > 3:
            Y[t] = 1
    elif HOW == "a loop":
        total = i32(0)
        for _ in range(x):
            total += 1
        Y[t] = total
    elif HOW == "a value that a branch does not use":
        if t < 39:
            Y[t] = x
    elif HOW == "shared memory":
        S[t] = x
    elif HOW == "an atomic operation":
        Y.atomic_add(0, x)
    elif HOW == "a vote":
        Y[t] = i32(vote_any(x > 3))
    elif HOW == "a ballot":
        Y[t] = i32(ballot(x > 3))
    elif HOW == "a vote of what is defined":
        Y[t] = i32(vote_all(last | (x >= 0)))
    elif HOW == "a loop carries it":
        y = x
        for _ in range(3):
            y = y + 1
        Y[t] = y
    elif HOW == "a loop drops it":
        y = x
        for i in range(X.shape[0] // 20):
            y = i32(i)
        Y[t] = y
    barrier()


CLEAN = (
    "nothing", "another lane", "a choice of the other", "a mask", "a value that a branch does not use",
    "a vote of what is defined", "a loop drops it",
)  # fmt: skip
WRONG = (
    "the same lane", "a choice", "a sum", "an address", "a branch", "a loop", "shared memory", "an atomic operation",
    "a vote", "a ballot", "a loop carries it",
)  # fmt: skip


@pytest.mark.parametrize(("how", "code"), [*((how, "") for how in CLEAN), *((how, "T205") for how in WRONG)])
def test_what_uses_an_undefined_value(how: str, code: str) -> None:
    result = checked(uses, np.zeros(40, np.int32), np.zeros(40, np.int32), HOW=how)
    assert codes(result) == [code] * bool(code)
    for finding in result.findings:
        assert [side.block for side in finding.sides] == [(0, 0, 0)] * 2
        assert finding.sides[0].thread == (39, 0, 0)


# -- against runs with other values ----------------------------------------------------------------


@tile_kernel
def steps(X: Global[i32, N], Y: Global[i32, M], *, T: Const[int], PROGRAM: Const[int]):
    """Each thread executes the steps that the digits of PROGRAM encode, one after the other."""
    grid(1)
    t = threads(T)
    lane, a, b = i32(t % 32), X[t], X[t] * 3 + 1
    for i in unroll(7):
        step = PROGRAM // 100**i % 100
        how, by = step // 8, step % 8
        if how == 0:
            a += shuffle_down(a, by)
        elif how == 1:
            a = shuffle_up(b, by, width=16)
        elif how == 2:
            b = shuffle_xor(a, 2 * by) ^ b
        elif how == 3:
            b = shuffle(a, lane + by)
        elif how == 4:
            a = where(lane < 2 * by, a, b)
        elif how == 5:
            b = where(lane > by, i32(5), b)
        elif how == 6:
            a = a & where(lane < by, i32(-1), i32(0))
        elif how == 7:
            a, b = b, a
        elif how == 8:
            for _ in range(by % 3 + 1):
                a = b + shuffle(a, lane + 1)
                b = b // 2
        elif how == 9:
            if vote_any(a > 10 * by):
                b = b + 1
        elif how == 10:
            a = i32(ballot(b > by))
        elif how == 11:
            if lane < by:
                b = a + 1
            else:
                b = b * 2
    if lane < 3:
        Y[t] = a


def with_values(monkeypatch: pytest.MonkeyPatch, value: list[int]) -> None:
    """Give absent lanes the value that is first in `value` at the time."""

    def shuffled(c: Cohort, op: warp.Shuffle, given: Any, lane: Any) -> NDArray[Any]:
        result = np.asarray(gpu.shuffle(c, op, given, lane))
        _, absent = gpu.shuffle_sources(c, op, lane)
        return np.where(absent, np.full((), value[0], result.dtype), result)

    monkeypatch.setitem(RULES, warp.Shuffle, shuffled)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_clean_depends_on_no_lane_that_is_not_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    t, program = draw.choice((8, 13, 16, 40, 48, 63)), sum(draw.randrange(96) * 100**i for i in range(7))
    x = np.random.default_rng(seed).integers(-40, 40, t).astype(np.int32)
    results, value = list[list[int]](), [0]
    with_values(monkeypatch, value)
    for value[0] in (-1000, 3, 77777):
        y = np.zeros(t, np.int32)
        found = codes(checked(steps, x, y, T=t, PROGRAM=program))
        results.append(y.tolist())
    assert set(found) == {"T205"} or (not found and results[0] == results[1] == results[2])

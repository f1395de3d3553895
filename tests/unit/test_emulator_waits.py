"""Waits that nothing can end are reported at once, and no wait is that something may still end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl import (
    Const,
    Global,
    barrier,
    fence,
    grid,
    i32,
    index,
    processors,
    ptx,
    row_major,
    shared,
    threads,
    tile,
    tile_kernel,
    tma_load,
    u32,
    u64,
)
from tiledsl.dims import K, M, N
from tiledsl.errors import KernelArgumentError
from tiledsl.kernel import TileKernel
from tiledsl.ranks import OnRank, check_ranks
from tiledsl.verdict import CheckResult

FEW_STEPS = 20_000
"""Iterations of loops in which a wait without end is found; `TILEDSL_MAX_STEPS` is a hundred times as much."""


def zeros(*counts: int) -> list[NDArray[np.int32]]:
    return [np.zeros(count, np.int32) for count in counts]


def checked(kernel: TileKernel, *args: Any, **options: Any) -> CheckResult:
    return kernel.check(*args, raises=False, without="coverage", **options)


def codes(result: CheckResult) -> list[str]:
    assert not result.error
    return [finding.code for finding in result.findings]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_MAX_STEPS", str(FEW_STEPS))


# -- loops that nobody ends ------------------------------------------------------------------------


@tile_kernel
def waits(flag: Global[i32, N], out: Global[i32, M], *, HOW: Const[str] = "load", TURNS: Const[int] = 0):
    """Thread 0 of block 0 waits, in one way or another, for what nobody does, or for `TURNS` iterations at most."""
    b, t = grid(2), threads(64)
    turns = i32(0)
    if (b == 0) & (t == 0):
        if HOW == "load":
            while flag.atomic_load(0, order="acquire") == 0:
                pass
        elif HOW == "cas":
            while flag.atomic_cas(0, 1, 2) != 1:
                pass
        elif HOW == "exchange":
            while flag.atomic_exchange(0, 7) != 0:
                pass
            while flag.atomic_exchange(0, 7) != 0:
                pass
        elif HOW == "fence":
            while flag.atomic_load(0) == 0:
                fence()
        elif HOW == "all of some":
            for i in range(3):
                while flag.atomic_load(i, order="acquire") == 0:
                    pass
        elif HOW == "any of some":
            found = i32(0)
            while found == 0:
                for i in range(3):
                    found = found | flag.atomic_load(i)
        elif HOW == "counts":
            while flag.atomic_load(0) == 0:
                turns += 1
        elif HOW == "backs off":
            delay, passed = i32(1), i32(0)
            while flag.atomic_load(0) == 0:
                delay = delay * 2 if delay < 16 else delay
                for _ in range(delay):
                    passed += 1
            turns = passed
        elif HOW == "gives up":
            while (flag.atomic_load(0) == 0) & (turns < TURNS):
                turns += 1
        elif HOW == "gives up by a break":
            for _ in range(TURNS):
                if flag.atomic_load(0) != 0:
                    break
                turns += 1
    barrier()
    if t == 0:
        out[b] = turns


WITHOUT_END = "load", "cas", "exchange", "fence", "all of some", "any of some", "counts", "backs off"


@pytest.mark.parametrize("how", WITHOUT_END)
def test_a_wait_that_nothing_can_end(how: str) -> None:
    result = checked(waits, *zeros(3, 2), HOW=how, seeds=3)
    assert codes(result) == ["T403"]
    (finding,) = result.findings
    spinning, waiting = finding.sides
    assert (spinning.block, spinning.warps) == ((0, 0, 0), (0,)), "thread 0's warp spins"
    assert (waiting.block, waiting.warps) == ((0, 0, 0), (1,)), "the other one waits at the barrier"
    assert finding.loc == spinning.loc
    assert waiting.loc.line > spinning.loc.line


@pytest.mark.parametrize("how", ["gives up", "gives up by a break"])
def test_a_loop_that_gives_up_is_not_reported(how: str) -> None:
    out = zeros(2)[0]
    assert checked(waits, *zeros(3), out, HOW=how, TURNS=500, seeds=2).verdict == "clean"
    assert out.tolist() == [500, 0]


def elapsed(time: list[int]) -> Callable[[NDArray[Any]], NDArray[np.uint32]]:
    def read(x: NDArray[Any]) -> NDArray[np.uint32]:
        time[0] += 1
        return np.full(x.shape, time[0], np.uint32)

    return read


def test_a_loop_that_asks_more_than_memory_is_not_reported() -> None:
    clock = elapsed([0])

    @tile_kernel
    def until(flag: Global[i32, N]):
        grid(1)
        threads(32)
        time = u32(0)
        while (flag.atomic_load(0) == 0) & (time < 400):
            time = ptx.inline("mov.u32 $0, %clock;", u32, time, emulate=clock, volatile=True)

    assert until.check(*zeros(1))


@tile_kernel(arch="sm_90a")
def late_copy(X: Global[i32, M, N], Y: Global[i32, K]):
    """Thread 32 polls what a copy by TMA brings, for which nobody waits until then."""
    grid(1)
    t = threads(64)
    S, bar = shared((8, 32), i32, layout=row_major), shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(bar, 0, count=1)
        S.atomic_store(0, 0, 0)
        ptx.fence_mbarrier_init()
        ptx.fence_proxy_async()
    barrier()
    if t == 0:
        ptx.mbarrier_expect_tx(bar, 0, bytes=1024)
        tma_load(X[tile(0, 8), tile(0, 32)], S, mbarrier=(bar, 0))
    if t == 32:
        while S.atomic_load(0, 0) == 0:
            pass
        Y[0] = S[0, 0]
    barrier()
    ptx.mbarrier_wait(bar, 0, parity=0)


def test_copies_arrive_before_a_wait_is_reported() -> None:
    out = zeros(1)[0]
    late_copy(np.full((8, 32), 3, np.int32), out, device="emulator")
    assert out[0] == 3


# -- what another thread, block, or rank does ------------------------------------------------------


@tile_kernel
def protocol(steps: Global[i32, M, K], flags: Global[i32, N], out: Global[i32, M], *, BYTES: Const[int] = 256):
    """Each warp does its steps in order: sets the flag f for f > 0, waits for the flag -f for f < 0."""
    b, t = grid(steps.shape[0] // 2), threads(64)
    S = shared((BYTES // 4,), i32)
    S[t] = 0
    w = b * 2 + t // 32
    for i in range(K):
        step = index(steps[w, i])
        if step > 0:
            flags.atomic_store(step, 1, order="release")
        if step < 0:
            while flags.atomic_load(-step, order="acquire") == 0:
                pass
    barrier()
    if t % 32 == 0:
        out[w] = 1


def expected(steps: Sequence[Sequence[int]], fit: int) -> str:
    """Return the result of a run of blocks of two warps, `fit` of which run at once: "", T401, T403, or T423."""
    done, flags, blocks = [0] * len(steps), {0}, len(steps) // 2
    resident, following = list(range(min(fit, blocks))), min(fit, blocks)
    changed = True
    while changed:
        changed = False
        for block in resident:
            for w in (2 * block, 2 * block + 1):
                while done[w] < len(steps[w]) and (steps[w][done[w]] >= 0 or -steps[w][done[w]] in flags):
                    flags.add(max(0, steps[w][done[w]]))
                    done[w], changed = done[w] + 1, True
        left = [b for b in resident if min(done[2 * b], done[2 * b + 1]) < len(steps[2 * b])]
        room = range(following, min(blocks, following + len(resident) - len(left)))
        resident, following = [*left, *room], following + len(room)
        changed |= bool(room)
    return "" if not resident else "T403" if following == blocks else "T423"


def random_steps(draw: random.Random, warps: int) -> NDArray[np.int32]:
    """Each flag is set once or never; mostly a warp waits for what can come."""
    steps = np.zeros((warps, 4), np.int32)
    flags = list(range(1, 9))
    for flag in flags:
        if draw.random() < 0.93:
            steps[draw.randrange(warps), draw.randrange(4)] = flag
    for _ in range(draw.randrange(2 * warps)):
        w, i = draw.randrange(warps), draw.randrange(4)
        steps[w, i] = steps[w, i] or -draw.choice(flags)
    return steps


@pytest.mark.parametrize("case", range(12))
def test_random_protocols(case: int) -> None:
    """Flags are never cleared, so that all orders of turns end alike."""
    draw = random.Random(case)
    warps = 2 * draw.choice((1, 2, 5, 9))
    fit, shared_bytes = draw.choice(((1, 128 << 10), (2, 100 << 10), (3, 70 << 10), (32, 256)))
    for number in range(4):
        steps = random_steps(draw, warps)
        out = np.zeros(warps, np.int32)
        result = checked(
            protocol, steps, *zeros(9), out, BYTES=shared_bytes, processors=1, seed=number if case % 3 == 0 else 0
        )
        code = expected(steps.tolist(), fit)
        assert codes(result) == [code] * bool(code), steps.tolist()
        assert code or out.all()


@tile_kernel
def after_the_others(flag: Global[i32, N], out: Global[i32, N], *, T: Const[int] = 1024, BACK: Const[bool] = True):
    """Each block waits for the next one, or for the one before."""
    b, t = grid(flag.shape[0]), threads(T)
    if t == 0:
        if BACK:
            if b + 1 < N:
                while flag.atomic_load(b + 1, order="acquire") == 0:
                    pass
        elif b > 0:
            while flag.atomic_load(b - 1, order="acquire") == 0:
                pass
        flag.atomic_store(b, 1, order="release")
        out[b] = 1


def test_more_blocks_than_a_gpu_holds() -> None:
    """An SM holds two blocks of 1024 threads, and an H200 has 132 SMs."""
    for blocks, options in ((4, {"processors": 2}), (9, {"processors": 2, "BACK": False})):
        assert not codes(checked(after_the_others, *zeros(blocks, blocks), **options))
    for blocks, options, most in ((265, {}, 264), (5, {"processors": 2}, 4)):
        result = checked(after_the_others, *zeros(blocks, blocks), **options)
        assert codes(result) == ["T423"]
        assert result.findings[0].sides[0].block == (0, 0, 0)
        assert f" {most} blocks " in result.findings[0].message


def test_blocks_of_each_rank_have_a_gpu_of_their_own() -> None:
    def launches(blocks: int) -> list[OnRank]:
        return [OnRank(rank, after_the_others, (*zeros(blocks, blocks),)) for rank in range(2)]

    assert not check_ranks(launches(4), processors=2, raises=False).findings
    (finding,) = check_ranks(launches(5), processors=2, raises=False).findings
    assert finding.code == "T423"


@tile_kernel
def meet(count: Global[i32, N], out: Global[i32, M], *, PER_SM: Const[int] = 1):
    """All blocks meet at a barrier of the grid, whose size depends on the GPU."""
    b, t = grid(processors * PER_SM), threads(1024)
    if t == 0:
        count.atomic_add(0, 1, order="release")
        while count.atomic_load(0, order="acquire") < i32(out.shape[0]):
            pass
        out[b] = 1


def test_a_grid_that_depends_on_the_gpu() -> None:
    """It is launched for 8 SMs unless a caller says otherwise, and then no more than those hold its blocks."""
    assert meet.check(*zeros(1, 8))
    assert meet.check(*zeros(1, 16), PER_SM=2)
    assert codes(checked(meet, *zeros(1, 24), PER_SM=3)) == ["T423"]
    assert meet.check(*zeros(1, 3), processors=3)


def test_the_number_of_processors_is_an_integer() -> None:
    for wrong in (0, -1, 2.0, True, "132"):
        with pytest.raises(KernelArgumentError, match="processors is"):
            meet.check(*zeros(1, 8), processors=wrong)

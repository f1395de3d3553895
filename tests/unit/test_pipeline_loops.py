"""Pipelined loops and groups of copies as their author meets them: errors at lines, and ``k.explain("pipeline")``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from refused import Refused, check

from tiledsl import (
    Const,
    Global,
    barrier,
    cdiv,
    const,
    copy,
    copy_async,
    f16,
    f32,
    fragment,
    grid,
    i32,
    index,
    load_matrix,
    mma,
    padded,
    pipelined,
    shared,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
    wait,
)
from tiledsl.__main__ import main
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError
from tiledsl.passes.pipelining.report import PipelineReport, loop_text, schedule

TILED = Path(__file__).parent.parent.parent / "examples" / "gemm" / "shared_tiled.py"

bad = Refused()


# -- what cannot be pipelined ----------------------------------------------------------------------


@bad("by the loop's variable and by what is known before the loop")
@tile_kernel
def chases(A: Global[f32, M, K], links: Global[i32, M], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    at, total = index(0), f32(0)
    for _ in pipelined(range(8), stages=3):
        copy_async(A[tile(0, 4), tile(at, 8)], S, vec=4)  # error: depends on at, a value that one iteration
        at = index(links[at])
        total += S[0, t // 4]
    C[t] = total


@bad("by the loop's variable and by what is known before the loop")
@tile_kernel
def looks_up(A: Global[f32, M, K], pages: Global[i32, M], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    total = f32(0)
    for k in pipelined(range(8), stages=3):
        page = index(pages[k])
        copy_async(A[tile(0, 4), tile(page, 8)], S, vec=4)  # error: copy_async() to S depends on what line
        total += S[0, t // 4]
    C[t] = total


@bad("write the result to another tensor")
@tile_kernel
def in_place(A: Global[f32, M, K]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        copy(A[tile(0, 4), k], S, vec=4)  # error: copy() to S reads A, which line
        A.put(t // 8, k.start + 8 + t % 8, S[t // 8, t % 8])


@bad("copy first")
@tile_kernel
def too_early(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    total = f32(0)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        total += S[t // 8, t % 8]  # error: S is read before it is copied
        copy_async(A[tile(0, 4), k], S, vec=4)
    C[t] = total


@bad("shared(..., over=S)")
@tile_kernel
def before_and_after(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    S[t // 8, t % 8] = 0  # error: S is used outside the pipelined loop
    total = f32(0)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        copy_async(A[tile(0, 4), k], S, vec=4)
        total += S[t // 8, t % 8]
    C[t] = total + S[0, 0]  # error: S is used outside the pipelined loop


@bad("past the edge of a tensor it gives zeros without a condition")
@tile_kernel
def conditional(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S, T = shared((4, 8), f32), shared((4, 8), f32)
    total = f32(0)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        copy_async(A[tile(0, 4), k], S, vec=4)
        if k.start + 8 <= A.shape[1]:
            copy_async(A[tile(1, 4), k], T, vec=4)  # error: copy_async() under an if or in an inner loop
        total += S[t // 8, t % 8] + T[t // 8, t % 8]
    C[t] = total


@bad("copy in the loop's own body")
@tile_kernel
def conditional_only(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        if k.start > 0:
            copy_async(A[tile(0, 4), k], S, vec=4)  # error: copy_async() under an if or in an inner loop
        C[t] = S[t // 8, t % 8]


@bad("let the copies fill it, and write to another tile")
@tile_kernel
def copied_over(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S, T = shared((4, 8), f32), shared((4, 8), f32)
    for k in pipelined(tiles(A.shape[1], 8), stages=2):
        copy_async(A[tile(0, 4), k], S, vec=4)
        copy(T, S, vec=4)  # error: S is written here and by the copies of the pipelined loop
        C[t] = S[t // 8, t % 8]


@bad("pad S to a multiple of 4")
@tile_kernel
def misaligned(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((16, 8), f32, layout=padded(9))
    for k in pipelined(tiles(A.shape[1], 8), stages=3):
        copy_async(A[tile(0, 16), k], S)  # error: with its layout padded(9) a step along axis 0 is 36 bytes
        C[t] = S[t // 8, t % 8]


@bad("or write a plain for")
@tile_kernel
def nothing_to_copy(C: Global[f32, M]):
    grid(1)
    t = threads(32)
    total = f32(0)
    for k in pipelined(range(8), stages=2):  # error: a pipelined loop that copies nothing to a shared tile
        total += f32(k)
    C[t] = total


@bad("pass fragments=1, or leave it out")
@tile_kernel
def no_steps(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S = shared((4, 8), f32)
    total = f32(0)
    for k in pipelined(tiles(A.shape[1], 8), stages=2, fragments=2):  # error: but line
        copy_async(A[tile(0, 4), k], S, vec=4)
        for i in range(8):
            total += S[t % 4, i]
    C[t] = total


@bad("wait for it before the loop, or let the loop carry the token")
@tile_kernel
def waits_inside(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S, T = shared((4, 8), f32), shared((4, 8), f32)
    first = copy_async(A[0:4, 0:8], S, vec=4)
    total = f32(0)
    for k in tiles(A.shape[1], 8):
        token = copy_async(A[tile(0, 4), k], T, vec=4)
        wait(first)  # error: how many groups are in flight here differs between iterations
        wait(token)
        barrier()
        total += S[0, 0] + T[t // 8, t % 8]
        barrier()
    wait(first)
    C[t] = total


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_refused(kernel: Any, fix: str) -> None:
    check(kernel, fix)


# -- copies between tiles are for the consumer -----------------------------------------------------


@tile_kernel
def transposed(A: Global[f32, M, K], C: Global[f32, K, M], *, STAGES: const = 3):
    m = tile(grid(cdiv(M, 16)), 16)
    threads(32)
    S, T = shared((16, 8), f32), shared((8, 16), f32)
    for k in pipelined(tiles(K, 8), stages=STAGES):
        copy_async(A[m, k], S, vec=4)
        copy(S, T.T, vec=4)
        barrier()
        copy(T, C[k, m], vec=4)
        barrier()


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_tile_is_copied_on_to_another_one(stages: int) -> None:
    A, C = np.arange(20 * 37, dtype=np.float32).reshape(20, 37), np.zeros((37, 20), np.float32)
    transposed.check(A, C, STAGES=stages)
    np.testing.assert_array_equal(C, A.T)


# -- schedules -------------------------------------------------------------------------------------


@tile_kernel
def product(
    A: Global[f16, M, K],
    B: Global[f16, K, N],
    C: Global[f16, M, N],
    *,
    BK: const = 32,
    STAGES: const = 3,
    FRAGMENTS: Const[Literal[0, 1, 2]] = 0,
):
    bx, by = grid(cdiv(N, 64), cdiv(M, 64))
    threads(128)
    m, n = tile(by, 64), tile(bx, 64)
    As, Bs = shared((64, BK), f16), shared((BK, 64), f16)
    acc = fragment((64, 64), f32, mma.m16n8k16.acc(warps=(2, 2)))
    for k in pipelined(tiles(K, BK), stages=STAGES, fragments=FRAGMENTS):
        copy_async(A[m, k], As, vec=16)
        copy_async(B[k, n], Bs, vec=16)
        for kk in unroll(tiles(BK, 16)):
            acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(acc.to(f16), C[m, n], via=shared((64, 64), f16, over=(As, Bs)))


def explained(kernel: Any, **consts: int) -> PipelineReport:
    found = kernel.explain("pipeline", arch="sm_90a", **consts)
    assert isinstance(found, PipelineReport)
    return found


def test_two_steps_of_fragments() -> None:
    found = explained(product)
    (loop,) = found.loops
    assert (loop.stages, loop.fragments, loop.why, loop.trips, loop.is_async) == (3, 2, "", None, True)
    assert loop.shares_with is None
    assert [(t.name, t.type.dims, t.type.bytes) for t in loop.tiles] == [
        ("As", (64, 32), 4096),
        ("Bs", (32, 64), 4096),
    ]
    rows = schedule(loop)
    before, first, steady, last = rows[:2], rows[2], rows[3:5], rows[5:]
    assert [(row["copies"], row["commit"]) for row in before] == [("0 to slot 0", "commit"), ("1 to slot 1", "commit")]
    assert (first["wait"], first["in flight"], first["loads"]) == ("wait_group 1", "1", "step 0 of 0")
    assert [row.get("copies") for row in steady] == ["i+2 to slot (i+2) mod 3", None]
    assert [(row.get("wait"), row.get("in flight")) for row in steady] == [(None, None), ("wait_group 1", "i+2")]
    assert [row["loads"] for row in steady] == ["step 1", "step 0 of i+1"]
    assert [row["compute"] for row in (*steady, *last)] == ["1 mma"] * 4
    assert [row.get("loads") for row in last] == ["step 1", None]
    assert not any({"wait", "barrier", "copies"} & row.keys() for row in last)
    assert not found.groups


def test_copies_are_spread_over_the_steps_but_the_last() -> None:
    """The last one begins with a wait: their group has been committed by then."""
    (loop,) = explained(product, BK=64).loops
    steady = [row for row in schedule(loop) if row["iteration"].startswith("each i")]
    assert [row.get("copies") for row in steady] == [None, *["1 of 2 of i+2 to slot (i+2) mod 3"] * 2, None]
    assert ["commit" in row for row in steady] == [False, False, True, False]


def test_the_table() -> None:
    text = str(explained(product))
    assert "product(BK=32, STAGES=3, FRAGMENTS=0) for sm_90a: 1" in text
    assert "3 stages, fragments: 2" in text
    assert "As: 64 x 32 f16, 3 x 4096 = 12288 bytes" in text
    (steady,) = (line for line in text.splitlines() if line.startswith("each i but the last: step 1"))
    for part in ("wait_group 1", "i+2", "shows the copies of i+1, frees the slot of i", "step 0 of i+1", "1 mma"):
        assert part in steady


def test_one_step_says_why() -> None:
    (loop,) = explained(product, FRAGMENTS=1).loops
    assert (loop.fragments, loop.why) == (1, "asked for")
    steady = schedule(loop)[-1]
    assert (steady["wait"], steady["in flight"], steady["copies"]) == ("wait_group 1", "i+1", "i+2 to slot (i+2) mod 3")
    assert (steady["barrier"], steady["compute"]) == ("shows the copies of i, frees the slot of i-1", "2 mma")
    (loop,) = explained(product, STAGES=1).loops
    assert "fragments: 1, because with one stage nothing of the next iteration is there" in loop_text(loop)
    assert [row.get("wait") for row in schedule(loop)] == [None, "wait_group 0", None]


def test_more_stages_than_fit() -> None:
    with pytest.raises(CompileError) as caught:
        product.compile(arch="sm_90a", STAGES=40)
    text = str(caught.value)
    assert "need 327680 bytes, 232448 are possible on sm_90a: As 163840 bytes (64 x 32 f16, " in text
    assert "40 stages)" in text
    assert "pass stages=28, the most that fit (229376 bytes)" in text
    product.compile(arch="sm_90a", STAGES=28)


@tile_kernel
def by_the_threads(A: Global[f32, M, K], C: Global[f32, M, N]):
    grid(1)
    t = threads(32)
    total = f32(0)
    S = shared((4, 8), f32)
    for row in range(4):
        for k in pipelined(tiles(A.shape[1], 8), stages=2):
            copy(A[tile(row, 4), k], S, vec=4)
            for i in range(8):
                total += S[t % 4, i]
    C[t, 0] = total


def test_copies_by_the_threads_in_an_outer_loop() -> None:
    (loop,) = explained(by_the_threads).loops
    assert not loop.is_async
    assert "reads S by more than a load in the loop's own body" in loop.why
    assert "may still access the same bytes" in loop_text(loop)
    assert not any({"commit", "wait"} & row.keys() for row in schedule(loop))
    assert "no groups and no waits, only barriers" in loop_text(loop)


@tile_kernel
def tokens(A: Global[f32, M, K], C: Global[f32, M]):
    grid(1)
    t = threads(32)
    S, T = shared((4, 8), f32), shared((4, 8), f32)
    a = copy_async(A[0:4, 0:8], S, vec=4)
    b = copy_async(A[0:4, 8:16], T, vec=4)
    wait(a)
    barrier()
    total = S[t // 8, t % 8]
    wait(b)
    barrier()
    C[t] = total + T[t // 8, t % 8]


def test_groups_of_tokens() -> None:
    found = explained(tokens)
    first = inspect.getsourcelines(tokens.__wrapped__)[1] + 5
    assert list(found.groups) == [
        f"line {first}: commits S (line {first})",
        f"line {first + 1}: commits T (line {first + 1})",
        f"line {first + 2}: wait_group 1, 1 group may stay in flight",
        f"line {first + 5}: wait_group 0, none stays in flight",
    ]
    assert "\n".join(found.groups) in str(found)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{TILED}:shared_tiled", "pipeline"]) == 0
    assert "shared_tiled(T=16) for sm_90a: none, and no pipelined loop" in capsys.readouterr().out

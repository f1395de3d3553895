"""`tiledsl.gemm.ffma` on the emulator: every candidate of its plans, batches, epilogues, and k in parts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl import Fragment, index, relu, tile_function
from tiledsl.backends.ptx.sass.report import sass_report
from tiledsl.errors import TileError
from tiledsl.gemm import gemm, plan
from tiledsl.gemm.epilogue import add_bias
from tiledsl.gemm.ffma import fastest
from tiledsl.gemm.ffma_choice import CANDIDATES, Candidate, Product, choose, plan_f32, ranked_f32
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import Plan, Problem
from tiledsl.gemm.prepared import SOMEWHERE
from tiledsl.gemm.steps import problem_of, steps_of
from tiledsl.gemm.warm_up import operands_of
from tiledsl.ir.types import F32

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "gemm"))

from reference import error_bound, random_problem

STAGED: dict[str, Any] = {"SCHEDULE": "staged", "BM": 32, "BN": 32, "BK": 32, "WARP_TILE": (32, 32), "SLICES": 4}
ANEW: dict[str, Any] = {**STAGED, "SCHEDULE": "anew"}
KINDS: list[dict[str, Any]] = [{}, ANEW, STAGED]


def _stored(X: Any, order: str) -> Any:
    """The same matrices; T: stored column by column."""
    return np.ascontiguousarray(X.swapaxes(-1, -2)).swapaxes(-1, -2) if order == "T" else X


def _batches(count: int, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    A, B, C = zip(*(random_problem(m, n, k, seed) for seed in range(count)), strict=True)
    return np.stack(A), np.stack(B), np.stack(C)


def _right(A: Any, B: Any, C: Any, bias: Any = 0.0, alpha: float = 1.0) -> bool:
    for a, b, c in zip(A, B, C, strict=True):
        exact = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + bias
        bound = error_bound(a, b, exact, alpha) + 2.0**-23 * np.abs(exact)
        if not (np.abs(c.astype(np.float64) - exact) <= bound).all():  # a NaN is not
            return False
    return True


def _in_parts(
    A: Any, B: Any, C: Any, parts: int, whole: int = 0, run: Callable[..., Any] = fastest.check, **consts: Any
) -> Any:
    """The counters afterwards. The workspace of the sums holds NaN: whatever is added has been written."""
    bm, bn = consts.get("BM", 128), consts.get("BN", 128)
    tiles = len(C) * -(-C.shape[1] // bm) * -(-C.shape[2] // bn)
    sums = np.full((parts, tiles, bm * bn), np.nan, np.float32)
    done = np.zeros(tiles, np.uint32)
    run(A, B, C, sums=sums, done=done, whole=whole, **{"GATHER": parts, **consts})
    return done


def _name(candidate: Candidate) -> str:
    return "-".join(str(value).replace(" ", "") for value in candidate.consts.values())


@pytest.mark.parametrize("candidate", CANDIDATES, ids=_name)
def test_every_candidate_of_the_plans(candidate: Candidate) -> None:
    """Several tiles with edges, and k in three parts of unequal length; every other one has B along k."""
    c = candidate.consts
    A, B, C = _batches(1, c["BM"] + 4, c["BN"] + 8, 4 * c["BK"] + 4)
    done = _in_parts(A, _stored(B, "NT"[CANDIDATES.index(candidate) % 2]), C, 3, 1, **c)
    assert _right(A, B, C) and not done.any()


@pytest.mark.parametrize("consts", KINDS)
@pytest.mark.parametrize("orders", ["NNN", "NTT", "TNT", "TTN"])
def test_batches_in_any_order(consts: dict[str, Any], orders: str) -> None:
    """Of A, B and C, each with each order of each other one."""
    A, B, C = (_stored(X, order) for X, order in zip(_batches(3, 70, 52, 68), orders, strict=True))
    C[...] = np.nan
    fastest(A, B, C, device="emulator", **consts)
    assert _right(A, B, C)


@pytest.mark.parametrize("consts", KINDS)
@pytest.mark.parametrize("size", [(71, 67, 101), (37, 64, 52), (64, 37, 51), (1, 1, 1)])
def test_rows_of_any_alignment(consts: dict[str, Any], size: tuple[int, int, int]) -> None:
    A, B, C = _batches(2, *size)
    fastest(A, B, C, device="emulator", **consts)
    assert _right(A, B, C)
    C[...] = np.nan
    fastest(A, _stored(B, "T"), C, device="emulator", **consts)
    assert _right(A, B, C)


@tile_function
def rectified(x: Fragment[Any], bias: Any, column: Fragment[index]) -> Fragment[Any]:
    return relu(x + bias.get(column))


@pytest.mark.parametrize("consts", KINDS)
@pytest.mark.parametrize("stored", ["N", "T"])
def test_a_bias_and_an_epilogue_function(consts: dict[str, Any], stored: str) -> None:
    A, B, C = _batches(2, 37, 44, 40)
    C, bias = _stored(C, stored), np.linspace(-2, 2, 44, dtype=np.float32)
    fastest(A, B, C, 0.5, 0.0, bias, device="emulator", EPILOGUE=add_bias, **consts)
    assert _right(A, B, C, bias, 0.5)
    summed = C.copy()
    fastest(A, B, C, 0.5, 0.0, bias, device="emulator", EPILOGUE=rectified, **consts)
    assert np.array_equal(C, np.maximum(summed, 0)) and (summed < 0).any()


@pytest.mark.parametrize("consts", KINDS)
@pytest.mark.parametrize(("parts", "whole", "gather"), [(2, 0, 2), (5, 1, 3), (9, 2, 16)])
def test_k_in_parts(consts: dict[str, Any], parts: int, whole: int, gather: int) -> None:
    """All tiles or the last ones; the bits do not depend on the workspaces, and the counters are ready again."""
    A, B, C = _batches(2, 40, 36, 300 if consts else 172)  # some steps of BK for each part
    done = _in_parts(A, B, C, parts, whole, GATHER=gather, **consts)
    assert _right(A, B, C) and not done.any()
    again = np.full_like(C, np.nan)
    _in_parts(A, B, again, parts, whole, GATHER=gather, run=partial(fastest, device="emulator"), **consts)
    assert np.array_equal(C, again)


@pytest.mark.parametrize("consts", KINDS)
def test_more_parts_than_steps_along_k(consts: dict[str, Any]) -> None:
    A, B, C = _batches(1, 33, 34, 20)
    assert not _in_parts(A, B, C, 5, 1, **consts).any()
    assert _right(A, B, C)


@pytest.mark.parametrize("consts", KINDS)
def test_parts_are_scaled_once(consts: dict[str, Any]) -> None:
    """alpha and beta apply to the sum; with alpha = 0, A and B are not read."""
    A, B, C = _batches(1, 33, 36, 200)
    C[...] = 3.0
    done = np.zeros(4, np.uint32)
    given = {"sums": np.empty((3, 4, 32 * 32 if consts else 128 * 128), np.float32), "done": done, "GATHER": 3}
    fastest(A, B, C, 2.0, -1.0, device="emulator", **given, **consts)
    assert _right(A, B, C, -3.0, 2.0)
    A[...], B[...], C[...] = np.nan, np.nan, 3.0
    fastest(A, B, C, 0.0, 2.0, device="emulator", **given, **consts)
    assert np.array_equal(C, np.full_like(C, 6.0)) and not done.any()


@pytest.mark.parametrize("consts", [ANEW, STAGED])
def test_indices_of_a_split_k_have_32_bits(consts: dict[str, Any]) -> None:
    """With 64, the main loop has more instructions, and its registers spill where operands are not aligned."""
    assert "index_bits(32)" in str(fastest.compile(arch="sm_90a", GATHER=4, **consts).ir("after:index-width"))


def test_the_written_loop_of_a_split_k_keeps_its_order() -> None:
    """Where registers are short, ptxas moves loads together, and large products were a quarter slower: B along k."""
    of = operands_of((2560, 8832, 1536), (F32,) * 3, "NT", False, False, 0)
    plan = Plan(fastest, {"GATHER": 4}, sums=(4, 60, 128 * 128), done=60, numbers={"whole": 1320})
    (step,) = steps_of(of, problem_of(of, 0.0, False, "sm_90a", 132), plan, None).launches
    built = fastest.builds.compiled(*fastest.dispatcher.build_of(step.values((*of.addresses, *SOMEWHERE), 0), "sm_90a"))
    report = sass_report(built.cubin, built.ptx)
    assert report.hottest is not None
    loads = [i for i in sorted(report.hottest.body) if report.program.instructions[i].base == "LDS"]
    assert len(loads) == 6 * 8 and all(after - before > 1 for before, after in pairwise(loads))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"BM": 96}, "consists of whole tiles of warps"),
    ({"WARP_TILE": (32, 32)}, r"has WARP_TILE=\(64, 64\) and SLICES=1"),
    ({"SLICES": 2, "BK": 16}, r"has WARP_TILE=\(64, 64\) and SLICES=1"),
    ({**STAGED, "SLICES": 3}, "each slice of BK is a multiple of 4"),
    ({**STAGED, "SLICES": 0}, "are positive"),
    ({**STAGED, "WARP_TILE": (2, 16), "BM": 2}, "a multiple of 4 rows and of 4 columns"),
    ({**STAGED, "BM": 8, "BN": 64, "BK": 16, "WARP_TILE": (8, 64)}, "cannot share equally"),
    ({"GATHER": 2}, "GATHER needs the workspaces sums and done"),
]


@pytest.mark.parametrize(("consts", "message"), BAD)
def test_consts_that_do_not_fit(consts: dict[str, Any], message: str) -> None:
    A, B, C = _batches(1, 40, 40, 40)
    with pytest.raises(TileError, match=message):
        fastest(A, B, C, device="emulator", **consts)


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [(1, 40, 56, 900), (3, 24, 100, 64), (1, 3, 700, 300), (1, 17, 33, 5), (2, 130, 70, 0), (1, 90, 90, 2000)],
)
@pytest.mark.parametrize("along", [False, True])
def test_a_plan_is_right(size: tuple[int, int, int, int], along: bool) -> None:
    A, B, C = _batches(*size)
    plan = plan_f32(Product(*size, along), early=False)
    sums = None if plan.sums is None else np.full(plan.sums, np.nan, np.float32)
    done = None if plan.sums is None else np.zeros(plan.sums[1], np.uint32)
    given = (A, _stored(B, "T" if along else "N"), C, 1.0, 0.0, None, sums, done, plan.whole)
    fastest(*given, device="emulator", **plan.consts)
    assert _right(A, B, C)


def test_what_a_plan_says_of_its_workspaces() -> None:
    whole = plan_f32(Product(1, 4096, 4096, 4096))
    assert (whole.sums, whole.whole) == (None, 0) and "GATHER" not in whole.consts
    deep = plan_f32(Product(1, 64, 128, 100000))
    tiles = -(-64 // deep.consts["BM"]) * -(-128 // deep.consts["BN"])
    assert deep.sums is not None and deep.sums[0] > 16 and deep.whole == 0 and deep.consts["GATHER"]
    assert deep.sums[1:] == (tiles, deep.consts["BM"] * deep.consts["BN"])
    tail = plan_f32(Product(1, 5248, 2560, 1600))
    tiles = -(-5248 // tail.consts["BM"]) * -(-2560 // tail.consts["BN"])
    assert 0 < tail.whole < tiles and tail.sums is not None and tail.sums[1] == tiles - tail.whole


def test_small_products_launch_early_where_the_target_can() -> None:
    assert plan_f32(Product(1, 256, 256, 256)).consts["EARLY"] is True
    assert "EARLY" not in plan_f32(Product(1, 256, 256, 256), early=False).consts
    assert "EARLY" not in plan_f32(Product(1, 8192, 8192, 8192)).consts


LARGE = Problem(1, 4096, 2048, 1024, "f32", "f32", unit_b=1)


@pytest.mark.parametrize(
    ("given", "copied"),
    [
        ({}, "b"),
        ({"unit_b": 2}, ""),
        ({"m": 128}, ""),
        ({"tma_b": False}, "b"),
        ({"unit_a": 1, "unit_b": 2, "unit_c": 1, "n": 4096}, ""),
        ({"unit_a": 2, "unit_b": 1, "unit_c": 1, "n": 4096}, "a"),
        ({"arch": "sm_80"}, ""),
    ],
    ids=repr,
)
def test_b_along_k_is_transposed_before_many_rows(given: dict[str, Any], copied: str) -> None:
    """By columns, C is computed as a transposed product, whose B is A."""
    made = plan.plan(LARGE._replace(**given))
    assert ("a" if made.pad_a else "") + ("b" if made.pad_b else "") == copied
    assert made.across_k is bool(copied)


@pytest.mark.parametrize("size", [(1, 70, 90, 40), (2, 33, 30, 27)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_products_of_a_transposed_copy(
    size: tuple[int, int, int, int], by_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if copies took no time."""
    monkeypatch.setattr(plan, "PAD", -1e9)
    A, B, C = _batches(*size)
    B, C = _stored(B, "T"), _stored(C, "T" if by_columns else "N")
    of = described(A, B, C, None, None, None)
    problem = problem_of(of, 0.0, False, "sm_90a", 132)
    plan.plan.cache_clear()
    assert len(steps_of(of, problem, plan.plan(problem), None).launches) == 2
    gemm(A, B, C, device="emulator")
    plan.plan.cache_clear()
    assert _right(A, B, C)


def test_few_rows_have_flat_tiles() -> None:
    for m, most in ((1, 16), (8, 32), (16, 32)):
        assert plan_f32(Product(1, m, 8192, 8192)).consts["BM"] <= most
        assert choose(m, 8192, 8192)["BM"] <= most


EXTENT = st.integers(1, 1 << 14)


@given(st.integers(1, 40), EXTENT, EXTENT, st.integers(0, 1 << 16), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_compiled_choice_is_that_of_its_model(
    batch: int, m: int, n: int, k: int, along: bool, aligned: bool, invariant: bool
) -> None:
    product = Product(batch, m, n, k, along, 0 if aligned else 1)
    made = plan_f32(product, batch_invariant=invariant)
    ranked = ranked_f32(1000, product, batch_invariant=invariant)
    assert made.us == ranked[0][3].total
    fastest = [(of.consts, *split) for of, *split, times in ranked if times.total == made.us]
    of = {name: made.consts[name] for name in fastest[0][0]}
    parts = made.sums[0] if made.sums else 1
    assert (of, parts, made.whole) in fastest and not (invariant and parts > 1)

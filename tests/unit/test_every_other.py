"""Results whose rows begin within L2's sectors, as two products: of every other row."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.test_gemm_call import numbers
from tiledsl import (
    Global,
    bf16,
    const,
    f32,
    grid,
    shared,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_kernel,
    wgmma,
)
from tiledsl.dims import M, N
from tiledsl.errors import CompileErrors, EmulatorError
from tiledsl.gemm import gemm
from tiledsl.gemm.choice import UNALIGNED_STORE, best_in_time, within_sectors
from tiledsl.gemm.chosen import explain_choice
from tiledsl.gemm.hopper import hopper_fastest
from tiledsl.gemm.operands import described
from tiledsl.gemm.plan import Problem, choice_as_two, choice_of, plan
from tiledsl.gemm.steps import problem_of, steps_of

BF16 = ml_dtypes.bfloat16
THIN = Problem(1, 1040, 1240, 16)


# -- TMA ---------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def before(C: Global[bf16, M, N], *, ROWS: const = 0, COLUMNS: const = 0):
    block = grid(2)
    threads(32, 4)
    x = wgmma.accumulator((64, 64), f32).wait()
    room = shared((64, 64), bf16, layout=swizzle_128b)
    store_tma(x.to(bf16), C[tile(0, 64) + -block * ROWS, tile(0, 64) + -block * COLUMNS], via=room)


@pytest.mark.parametrize(("rows", "columns"), [(8, 0), (0, 8), (0, 64)])
def test_tma_cannot_store_before_a_tensor(rows: int, columns: int) -> None:
    """An H200 stops with an illegal instruction then, as measured."""
    C = numbers(128, 128)
    before(C, device="emulator")
    assert (C[:64, :64] == 0).all() and (C[64:] != 0).any()
    with pytest.raises(EmulatorError, match=rf"begins at \(-?{rows}, -?{columns}\), before the first element of C"):
        before(C, ROWS=rows, COLUMNS=columns, device="emulator")


# -- the kernel --------------------------------------------------------------------------------------

TILES: dict[str, dict[str, Any]] = {
    "narrow, two instances": {"BM": 64, "BN": 64, "INSTANCES": 2},
    "in pieces": {"BM": 64, "BN": 160, "INSTANCES": 2},
    "a narrow piece beside one": {"BM": 64, "BN": 48, "INSTANCES": 2},
    "two warpgroups": {"BM": 128, "BN": 96},
    "in a cluster": {"BM": 64, "BN": 64, "INSTANCES": 2, "CLUSTER": (2, 2)},
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("along_k", [True, False])
def test_right_and_without_hazards(name: str, along_k: bool) -> None:
    """A CTA has several tiles, so that it stores in rooms again."""
    m, n, k = 270, 328, 72
    A, B, C = numbers(m, k), numbers(k, n, seed=1), np.full((m, n), np.nan, BF16)
    expected = A.astype(np.float32) @ B.astype(np.float32)
    strided = np.lib.stride_tricks.as_strided
    halves = [strided(X, (2, m // 2, X.shape[1]), (X.strides[0], 2 * X.strides[0], 2)) for X in (A, C)]
    both = np.broadcast_to(B.T.copy().T if along_k else B, (2, k, n))
    consts = {"BK": 64, "STAGES": 3, "SHIFT": 8, "GROUP": 2, **TILES[name]}
    run: Any = hopper_fastest._emulated  # pyright: ignore[reportPrivateUsage]
    run((halves[0], both, halves[1]), consts, checks=True, processors=4 if "CLUSTER" in consts else 1)
    assert (expected.astype(BF16) == C).all()


def test_what_cannot_be_shifted() -> None:
    A, B, C = numbers(2, 64, 64), numbers(2, 64, 72), np.zeros((2, 64, 72), BF16)
    for more in ({"SPLIT": 2}, {"EXCHANGED": True}, {"ADD_C": True}, {"bias": np.zeros(72, np.float32)}):
        with pytest.raises(CompileErrors, match="SHIFT is for a product whose k is not split"):
            hopper_fastest(A, B, C, SHIFT=8, BM=64, BN=64, INSTANCES=2, device="emulator", **more)


def test_the_whole_product() -> None:
    """The same bits as of one product."""
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(BF16) for shape in ((THIN.m, THIN.k), (THIN.k, THIN.n)))
    assert plan(THIN).every_other
    C = gemm(A, B, device="emulator")
    odd = gemm(A[:-1], B, device="emulator")  # as one product
    assert (C[:-1].view(np.uint16) == odd.view(np.uint16)).all()


def test_memory_of_the_launch() -> None:
    """Rows of A and C in turn; B is that of both."""
    A, B, C = np.zeros((1040, 24), BF16)[:, :16], np.zeros((16, 1240), BF16), np.zeros((1040, 1240), BF16)
    of = described(A, B, C, None, None, None)
    problem = problem_of(of, 0.0, False, "sm_90a", 132)
    (step,) = steps_of(of, problem, plan(problem), None).launches
    shapes = {name: (place.shape, place.strides) for name, place in step.arrays.items()}
    assert shapes == {
        "A": ((2, 520, 16), (24, 48, 1)),
        "B": ((2, 16, 1240), (0, 1240, 1)),
        "C": ((2, 520, 1240), (1240, 2480, 1)),
    }


# -- the choice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"m": 1041},
        {"n": 1248},  # rows begin where sectors do
        {"n": 1236, "tma_c": False},
        {"bias": True},
        {"epilogue": True},
        {"add_c": True},
        {"batch": 2},
        {"unit_a": 1},
        {"unit_c": 1},
        {"out": "f32", "n": 1244},
    ],
)
def test_what_is_one_product(other: dict[str, Any]) -> None:
    assert not plan(THIN._replace(**other)).every_other


def test_two_if_that_is_estimated_to_be_faster() -> None:
    for k in (16, 96, 512, 4096):
        problem = THIN._replace(k=k)
        chosen = plan(problem)
        one, two = best_in_time(choice_of(problem))[0], best_in_time(choice_as_two(problem))[0]
        assert not chosen.every_other or (two < one and chosen.consts["SHIFT"] == 8 and not chosen.exchanged)
    assert not plan(THIN._replace(k=4096)).every_other


def test_what_sectors_cost_at_most() -> None:
    assert within_sectors(1000, 1240, 2) == 2 * within_sectors(500, 1240, 2) > 0 == within_sectors(1000, 1248, 2)
    assert UNALIGNED_STORE > 0


def test_the_choice_says_so() -> None:
    choice = explain_choice(THIN)
    assert "every other row" in str(choice)
    assert choice.candidates[0][1].total == best_in_time(choice_as_two(THIN))[0]

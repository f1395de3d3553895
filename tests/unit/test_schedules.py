"""Schedules that are written in the language: grouped products, stream-K, parts of unequal lengths, clusters, parts of
other names. All run with every check of the emulator and compile to PTX without spills; what is wrong with one is an
error at the line that says so."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import schedule_programs as programs
from hopper_ir import ops, written
from numpy.typing import NDArray

from tiledsl.ir.expr import evaluate
from tiledsl.ir.ops import control, rings, roles

Array = NDArray[Any]


def small(*shape: int, seed: int = 0) -> Array:
    """Integers, so that sums are exact in any order."""
    return np.random.default_rng([*shape, seed]).integers(-4, 5, shape).astype(np.float16)


def product(A: Array, B: Array) -> Array:
    return A.astype(np.float32) @ B.astype(np.float32).T


def extents(seed: int, count: int, most: int = 140) -> list[tuple[int, int, int]]:
    """So many m, n, k; n and k are multiples of 8, and k is 0 once."""
    draw = random.Random(seed).randint
    found = [(draw(1, most), 8 * draw(1, most // 8), 8 * draw(1, 60)) for _ in range(count)]
    return [*found, (*found[0][:2], 0)]


# -- groups ----------------------------------------------------------------------------------------


def _groups(seed: int) -> list[int]:
    """Rows of so many groups: none, one, less than a tile, whole tiles, and what lies between."""
    draw = random.Random(seed)
    return [draw.choice((0, 1, 64, 128, draw.randint(2, 63), draw.randint(65, 300))) for _ in range(draw.randint(1, 8))]


GROUPS = [[0], [0, 0, 0], [128], [0, 64, 0, 1, 0], *(_groups(seed) for seed in range(3))]


@pytest.mark.parametrize("processors", [1, 3])
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
@pytest.mark.parametrize("kernel", [programs.grouped, programs.grouped_in_turns])
def test_groups_of_any_sizes(kernel: Any, sizes: list[int], processors: int) -> None:
    """The number of work items is known on the device alone; blocks may have none, and groups no rows."""
    rows = max(1, sum(sizes))
    A, B, C = small(rows, 136), small(len(sizes), 72, 136), np.full((rows, 72), 7, np.float32)
    expected = C.copy()
    for group, size in enumerate(sizes):
        first = sum(sizes[:group])
        expected[first : first + size] = product(A[first : first + size], B[group])
    kernel._emulated((A, B, C, np.array(sizes, np.int32)), {}, checks=True, processors=processors)
    np.testing.assert_array_equal(C, expected)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("processors", [1, 3])
@pytest.mark.parametrize("steps", [[3], [0, 0], [1, 4, 0, 2], [2, 0, 0, 5, 1]], ids=str)
def test_lengths_along_k_that_are_in_memory(steps: list[int], processors: int, instances: int) -> None:
    """An instance goes past items whose lengths it reads, and reads nothing past the last one."""
    ends = np.cumsum([0, *steps]).astype(np.int32)
    A, B = small(72, 64 * sum(steps)), small(40, 64 * sum(steps), seed=1)
    C = np.full((len(steps), 72, 40), 7, np.float32)
    consts = {"INSTANCES": instances}
    programs.grouped_along_k._emulated((A, B, C, ends), consts, checks=True, processors=processors)
    for number, (first, last) in enumerate(zip(64 * ends[:-1], 64 * ends[1:], strict=True)):
        np.testing.assert_array_equal(C[number], product(A[:, first:last], B[:, first:last]))


def test_a_count_in_memory_takes_a_block_for_each_processor() -> None:
    assert [str(extent) for extent in written(programs.grouped).grid] == ["processors"]


# -- sums that several work items have a part of ---------------------------------------------------


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("processors", [1, 5])
@pytest.mark.parametrize("size", extents(1, 3), ids=str)
def test_stream_k(size: tuple[int, int, int], processors: int, instances: int) -> None:
    """Each block does an equal share of all steps, whatever tiles they are of."""
    _adds(programs.stream_k, size, processors, INSTANCES=instances)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("processors", [1, 5])
@pytest.mark.parametrize("size", extents(2, 3), ids=str)
def test_parts_of_unequal_lengths(size: tuple[int, int, int], processors: int, instances: int) -> None:
    for parts in (2, 5):
        _adds(programs.split_unequally, size, processors, PARTS=parts, INSTANCES=instances)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("processors", [1, 5])
@pytest.mark.parametrize("steps", [0, 1, 4, 7])
def test_equal_parts_of_which_the_last_ones_are_shorter_or_empty(steps: int, processors: int, instances: int) -> None:
    for splits in (2, 3):
        _adds(programs.split, (136, 8, 64 * steps), processors, SPLITS=splits, INSTANCES=instances)


@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("processors", [1, 2, 8])
def test_any_number_of_items_a_block(tiles: int, processors: int) -> None:
    """Odd, even, and fewer than there are blocks, each of two parts of different lengths."""
    _adds(programs.split_unequally, (64 * tiles, 8, 320), processors, PARTS=2, INSTANCES=2)


def _adds(kernel: Any, size: tuple[int, int, int], processors: int, **consts: Any) -> None:
    m, n, k = size
    A, B, C = small(m, k), small(n, k, seed=1), np.full((m, n), 3, np.float32)
    kernel._emulated((A, B, C), consts, checks=True, processors=processors)
    np.testing.assert_array_equal(C, 3 + product(A, B))


def test_only_an_item_that_there_is_is_gone_past() -> None:
    """A schedule is asked for no item past the end, which may be that of its memory."""
    (math,) = [op for op in ops(written(programs.split_unequally), roles.Region) if op.instances == 2]
    guards = [op for op in ops(math, control.If) if ops(op.then, rings.Skip)]
    assert [op.condition.op.fn.name for op in guards] == ["lt", "lt"]
    assert len(ops(math, rings.Skip)) == 2


def test_items_that_are_alike_along_k_are_gone_past_unseen() -> None:
    """Nobody searches for the group of the item after this one, which need not be there."""
    (math,) = [op for op in ops(written(programs.grouped_in_turns), roles.Region) if op.instances == 2]
    assert len(ops(math, rings.Skip)) == 2
    assert len(ops(math, control.While)) == 1


# -- clusters, one item a block, other parts -------------------------------------------------------


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)])
@pytest.mark.parametrize("size", [(264, 136, 200), (64, 8, 64), (1, 72, 0)], ids=str)
def test_a_schedule_with_clusters(size: tuple[int, int, int], cluster: tuple[int, int]) -> None:
    m, n, k = size
    rng = np.random.default_rng(0)
    A, B = (rng.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    C = np.full((m, n), 7, ml_dtypes.bfloat16)
    programs.by_columns._emulated((A, B, C), {"CM": cluster[0], "CN": cluster[1]}, checks=True, processors=8)
    np.testing.assert_array_equal(C.astype(np.float32), product(A, B).astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("size", [(1, 8), (64, 64), (200, 72), (257, 0)], ids=str)
def test_one_item_a_block_with_a_part_of_its_own(size: tuple[int, int]) -> None:
    A, C = small(*size), np.full((size[0], size[0]), 7, np.float32)
    programs.triangle.check(A, C)
    np.testing.assert_array_equal(C, np.where(np.tri(size[0], dtype=bool), product(A, A), 7))


def test_the_host_computes_the_grid_of_one_item_a_block() -> None:
    (blocks,) = written(programs.triangle).grid
    assert [evaluate(blocks, {"M": m}) for m in (1, 64, 65, 200)] == [1, 1, 3, 10]


def test_roles_may_go_through_schedules_that_agree() -> None:
    A, B, C = small(136, 72), small(72, 72, seed=1), np.full((136, 72), 7, np.float32)
    programs.two_schedules.check(A, B, C)
    np.testing.assert_array_equal(C, product(A, B))


@pytest.mark.parametrize("processors", [1, 2, 8])
def test_items_without_m_n_and_k(processors: int) -> None:
    X = np.random.default_rng(0).integers(-9, 9, (10, 5)).astype(np.float32)
    Y = np.zeros(10, np.float32)
    programs.sums_of_rows._emulated((X, Y), {}, checks=True, processors=processors)
    np.testing.assert_array_equal(Y, X.sum(1) * np.where(np.arange(10) // 3 % 2, -1, 1))


# -- PTX -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", programs.__all__)
def test_it_compiles_without_a_stack(name: str) -> None:
    resources = getattr(programs, name).compile(arch="sm_90a").resources
    assert (resources.spill_stores, resources.spill_loads, resources.stack) == (0, 0, 0)

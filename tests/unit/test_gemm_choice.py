"""What `gemm` chooses on a Hopper GPU: variants that exist, that fit, and that are right in kind."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.arch import TARGETS
from tiledsl.gemm.choice import (
    BK,
    CLUSTERS,
    FEW_REGISTERS,
    MOST_WAVES,
    PARTED,
    STAGES,
    TOGETHER,
    WHOLE,
    Request,
    Tile,
    Variant,
    best,
    choose,
    estimate,
    ranked,
    table_of,
)
from tiledsl.gemm.formats import SPLITS
from tiledsl.gemm.hopper_stores import pieces
from tiledsl.gemm.hopper_tiles import staged_width
from tiledsl.gemm.plan import Problem, choice_of, plan
from tiledsl.gemm.split_k import slice_width
from tiledsl.lang import cdiv

EXTENTS = st.one_of(st.integers(0, 300), st.integers(1, 20000), st.sampled_from((64, 4096, 8192)))


@given(
    EXTENTS, EXTENTS, EXTENTS, st.integers(1, 64), st.booleans(), st.booleans(), st.integers(0, 2),
    st.sampled_from(("bf16 by TMA", "f32 by TMA", "bf16", "f32")),
)  # fmt: skip
def test_every_choice_fits(m: int, n: int, k: int, batch: int, a: bool, b: bool, behind: int, c: str) -> None:
    """Shared memory, clusters, and the widths that an operand in row order allows."""
    size, by_tma = (2 if "bf16" in c else 4), "TMA" in c
    chosen = best(Request(batch, m, n, k, (a, b), behind if by_tma else FEW_REGISTERS))
    consts = chosen.consts(k, size, by_tma)
    rows, columns, instances = chosen.tile
    along_k = a if chosen.exchanged else b
    width = slice_width(chosen.parts, columns) if chosen.parts else columns
    buffers = (1 if chosen.parts or not by_tma else 2) * instances
    wide, rest = pieces(rows * instances, width, size, chosen.registers, by_tma)
    staged = 0 if chosen.groups > 1 else rows * size * (buffers * wide + instances * rest * by_tma)
    used = consts["STAGES"] * 2 * consts["BK"] * (rows + staged_width(columns, along_k)) + staged
    assert consts["STAGES"] >= 3 and used + 1024 <= TARGETS["sm_90a"].shared_per_block
    assert chosen.along_m * chosen.along_n * max(chosen.parts, 1) <= 8
    assert along_k or columns % 32 == 0
    assert not (chosen.parts and batch > 1) and chosen.groups >= 1
    assert chosen.parts * chosen.groups != 1, "one part is a whole"


@given(EXTENTS, EXTENTS, EXTENTS, st.sampled_from((0, 1, 2)), st.booleans())
def test_workspace_has_a_slice_for_each_part_and_group(m: int, n: int, k: int, unit: int, along_k: bool) -> None:
    made = plan(Problem(1, m, n, k, unit_b=1 if along_k else 2, unit_c=unit))
    consts = made.consts
    if made.sums is None:
        assert made.done == consts.get("GATHER", 0) == 0
        return
    if made.exchanged:
        m, n = n, m
    along_m, along_n = consts["CLUSTER"]
    parts = max(consts["SPLIT"], 1)
    tiles = math.ceil(m / consts["BM"] / along_m) * along_m * math.ceil(n / consts["BN"] / along_n) * along_n
    slots = tiles * parts
    wide = slice_width(parts, consts["BN"])
    assert made.sums == (consts["GATHER"], slots, consts["BM"] * wide)
    assert made.done == slots and made.early


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1, 8192, 8192), "few rows"),
        ((16, 8192, 8192), "few rows"),
        ((64, 512, 126592), "parts"),
        ((192, 256, 4416), "parts"),
        ((512, 512, 512), "small"),
        ((8192, 8192, 8192), "large"),
        ((4096, 4096, 4096), "large"),
    ],
)
def test_choices_are_right_in_kind(size: tuple[int, int, int], expected: str) -> None:
    """Few rows: the other operand has wgmma's 64 rows. Deep and small: parts for about half of the SMs or more."""
    made = plan(Problem(1, *size, unit_b=1))
    if expected == "large":
        assert made.sums is None and not made.early and made.consts["BN"] >= 128
    elif expected == "parts":
        assert max(1, made.consts["SPLIT"]) * max(1, made.consts["GATHER"]) >= 4
    elif expected == "small":
        assert made.consts["BM"] == 64 and made.consts["BN"] <= 64
    else:
        assert made.exchanged and made.consts["BN"] == 16


@pytest.mark.parametrize(
    ("size", "band"),
    [((16384, 2816, 1024), 4), ((1024, 16384, 1024), 16), ((2816, 16384, 1024), 22), ((12288, 12288, 1024), 16)],
)
def test_tiles_that_run_at_once_span_the_shorter_side(size: tuple[int, int, int], band: int) -> None:
    assert choose(*size)["GROUP"] == band


def test_consts_for_a_launch_of_the_kernel_itself_need_no_workspace() -> None:
    assert all(choose(*size)["SPLIT"] == 0 for size in ((64, 64, 65536), (16, 8192, 8192), (512, 512, 512)))


def test_deeper_steps_of_small_tiles_with_many_of_them() -> None:
    small, parts, large = Variant((64, 64, 2)), Variant((64, 64, 2), parts=4), Variant((128, 128, 2))
    assert [v.consts(1024)["BK"] for v in (small, parts, large)] == [128, 64, 64]
    assert [v.consts(4096)["BK"] for v in (small, parts, large)] == [128, 128, 64]


# -- the search ------------------------------------------------------------------------------------------


def sensible(v: Variant, m: int, n: int) -> bool:
    """Whether a variant is worth a look, one by one: what `choice._search` finds in tables."""
    rows, columns, _ = v.tile
    if v.exchanged:
        m, n = n, m
    shared = (v.along_m == 1 or (columns % (8 * v.along_m) == 0 and m > rows)) and (v.along_n == 1 or n > columns)
    much = columns > (64 if v.by_rows else 16) and columns >= 2 * n
    return shared and not much and not (v.by_rows and columns % 32) and (rows == 64 or m > 64)


@pytest.mark.parametrize("scaled", [False, True])
def test_what_parts_of_k_cost_is_of_those_that_split_it(scaled: bool) -> None:
    """Filters leave the variants in the order by which the tables tell these apart; halves are among the first."""
    for m, n, k in ((512, 4096, 7168), (64, 512, 8192), (4096, 4096, 4096)):
        problem = Problem(1, m, n, k, "e4m3", unit_b=1, promoted=True, scaled=scaled)
        found = ranked(1000, choice_of(problem))
        assert all((times.reduction > 0) == (variant.parts > 0) for variant, times in found)
        assert m < 4096 or found[0][0].in_halves


def candidates(m: int, n: int, along_k: tuple[bool, bool], tiles: Sequence[Tile], clusters: int) -> list[Variant]:
    """Those of these tiles that make sense, in the order of `best`."""
    by_rows = (not along_k[1], not along_k[0])
    found = (
        Variant(tile, x, 0, i, 1, j, by_rows[x], 4)
        for x in (False, True) for i, j in CLUSTERS[:clusters] for tile in tiles
    )  # fmt: skip
    return [v for v in found if sensible(v, m, n)]


def split(v: Variant, m: int, n: int, k: int) -> Iterator[Variant]:
    """All ways to share k that keep most SMs busy; among clusters, if these run at once."""
    tiles, steps = v.tiles(m, n), cdiv(k, BK)
    if tiles > 3 * 132 or (v.along_m > 1 and v.tile[1] < 64) or steps < 8:
        return
    for parts in range(1, (8 // v.along_m if v.along_n == 1 else 1) + 1):
        usable = TOGETHER[parts * v.along_m * v.along_n]
        for groups in range(1, min(steps // (2 * parts), 32) + 1):
            waves = tiles * parts * groups / usable
            full = 0.85 < waves <= 1 or (waves < 1 and tiles * parts * (groups + 1) > usable)
            if (full or groups == 1) and waves <= MOST_WAVES and parts * groups > 1:
                yield v._replace(parts=parts, groups=groups)


def least(variants: list[Variant], product: Any, processors: int = 132) -> tuple[float, Variant]:
    times = estimate(table_of(variants, [2] * len(variants)), *product, processors).total
    return float(times.min()), variants[int(times.argmin())]


@given(st.integers(1, 2), EXTENTS, EXTENTS, EXTENTS, st.booleans(), st.booleans(), st.sampled_from((132, 78)))
def test_the_choice_is_the_fastest_of_all_in_one_piece(
    batch: int, m: int, n: int, k: int, a: bool, b: bool, processors: int
) -> None:
    product = batch, m, n, k, (a, b)
    behind = m % 4
    fitting = [v for v in candidates(m, n, (a, b), WHOLE, len(CLUSTERS)) if v.has_registers(behind)]
    chosen = best(Request(*product, behind, processors, parted=False))
    assert chosen._replace(band=4) == least(fitting, product, processors)[1]


@given(
    st.integers(0, 2), EXTENTS, EXTENTS, EXTENTS, st.sampled_from((132, 78)),
    st.sampled_from((
        ((True, True), 0), ((True, False), 1), ((False, True), 3, True, True), ((False, False), 2, False),
        ((True, True), 0, True, False, True, 1), ((True, True), 0, True, False, True, 1, 2, False),
        *(((True, True), 0, True, False, True, 2, 4, True, split) for split in SPLITS.values()),
    )),
)  # fmt: skip
def test_the_compiled_model_chooses_what_numpy_finds_fastest(
    batch: int, m: int, n: int, k: int, processors: int, kind: tuple[Any, ...]
) -> None:
    along_k, behind, *rest = kind
    request = Request(batch, m, n, k, along_k, behind, processors, *rest)
    assert best(request) == ranked(1, request)[0][0]


@pytest.mark.parametrize(("size", "result"), [(2, 2), (4, 4), (1, 2), (1, 4)])
def test_every_candidate_has_room_for_its_stages(size: int, result: int) -> None:
    """What large tiles in parts of k would receive leaves none: 128 x 112 in 5 parts."""
    request = Request(1, 832, 320, 4928, (True, True), size=size, result=result)
    found = [v for v, _ in ranked(1 << 20, request)]
    assert {v.parts for v in found} >= {0, 1, 2, 4, 8}
    assert min(v.consts(4928, result, size=size)["STAGES"] for v in found) >= 3


def test_what_is_not_looked_at_is_hardly_ever_faster() -> None:
    """Of all ways to share k, one by one. Both at once are for tiny products with a deep k, as 2 x 162 x 8996."""
    drawn, slower = random.Random(5), list[float]()
    while len(slower) < 60:
        m, n, k = (round(math.exp(drawn.uniform(math.log(low), math.log(1 << 15)))) for low in (1, 64, 512))
        if m * n * k > 1 << 38:
            continue
        product = 1, m, n, k, (True, drawn.random() < 0.5)
        parted = [w for v in candidates(m, n, product[-1], PARTED, len(CLUSTERS)) for w in split(v, m, n, k)]
        whole = candidates(m, n, product[-1], WHOLE, len(CLUSTERS))
        possible = [v for v in whole + parted if v.consts(k)["STAGES"] >= STAGES]
        slower.append(least([best(Request(*product))], product)[0] / least(possible, product)[0] - 1)
    assert sum(slower) / len(slower) < 0.003 and max(slower) < 0.09, sorted(slower)[-5:]


def test_terms_add_up_and_are_ranked() -> None:
    request = Request(1, 4096, 4096, 8192, (True, True))
    found = ranked(5, request)
    assert [times.total for _, times in found] == sorted(times.total for _, times in found)
    assert found[0][0] == best(request)
    times = found[0][1]
    assert times.total > times.steps >= max(times.products, times.staging, times.loads) > 0
    assert times.reduction == 0 < ranked(1, Request(1, 64, 512, 126592, (True, True)))[0][1].reduction

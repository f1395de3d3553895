"""The report on a tensor-core loop: counts by hand, bounds by hand, and real loops of every family of products."""

from __future__ import annotations

from functools import cache

import pytest
from mma_samples import FAMILIES, product_loop
from sass_samples import listing, module

from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.assemble import Assembled, assemble
from tiledsl.backends.ptx.sass.classes import class_of, products_of
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.backends.ptx.sass.iteration import access_bytes, full_iteration
from tiledsl.backends.ptx.sass.program import SassProgram
from tiledsl.backends.ptx.sass.report import SassReport
from tiledsl.backends.ptx.sass.tensor import TensorLoop, fold, rate_of, tensor_loop
from tiledsl.layout.mma import TABLE, MmaRow

HALF = next(row for row in TABLE if str(row) == "m16n8k16 f16 x f16 -> f32")

REAL = [
    (row, target)
    for row in (family[0] if name == "f64" else family[-1] for name, family in FAMILIES.items())
    for target in ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
    if row.capability <= TARGETS[target].capability
]


@cache
def assembled(rows: tuple[MmaRow, ...], target: str, tiles: tuple[int, int]) -> Assembled:
    """A loop for each row, with products of that kind, in one module."""
    bodies = {f"loop_{number}": product_loop([row], TARGETS[target], tiles) for number, row in enumerate(rows)}
    return assemble(module(bodies, target), TARGETS[target], name="loop_0")


@cache
def report(row: MmaRow, target: str, tiles: tuple[int, int] = (2, 2)) -> SassReport:
    """Of one loop with products of one kind."""
    rows = (row,) if row is HALF else tuple(row for row, other in REAL if other == target)
    made = assembled(rows, target, tiles)
    name = f"loop_{rows.index(row)}"
    return SassReport(next(found for found in sass_listing(made.cubin) if found.name == name), made.ptx)


def tensor(found: SassReport) -> TensorLoop:
    assert found.tensor is not None
    return found.tensor


# -- by hand


LOOP = (
    "LDSM.16.M88.4 R4, [R2] ;",  # loop
    "LDSM.16.MT88.2 R8, [R2+0x400] ;",
    "HMMA.16816.F32 R12, R4, R8, R12 ;",
    "@!PT LDS RZ, [RZ] ;",
    "HMMA.16816.F32 R16, R4, R10, R16 ;",
    "LDGSTS.E.BYPASS.128 [R3], desc[UR4][R6.64] ;",
    "HMMA.16816.F32 R20, R4, R8, R20 ;",
    "LDGDEPBAR ;",
    "HMMA.16816.F32 R24, R4, R10, R24 ;",
    "DEPBAR.LE SB0, 0x0 ;",
    "BAR.SYNC.DEFER_BLOCKING 0x0 ;",
    "@P0 BRA `(.L_loop) ;",
    "EXIT ;",
)


def counted(*texts: str) -> TensorLoop:
    program = listing(*texts, loop=0)
    (loop,) = program.loops
    return tensor_loop([program.instructions[i] for i in full_iteration(program, loop)], program.target)


def test_a_turn() -> None:
    found = counted(*LOOP)
    assert found.products == {"HMMA.16816.F32": 4} and found.issued == 12
    assert found.others == {"LDSM": 2, "LDGSTS": 1, "LDGDEPBAR": 1, "DEPBAR": 1, "BAR": 1}
    assert found.order == (
        *(("LDSM", 2), ("HMMA", 2), ("LDGSTS", 1), ("HMMA", 1), ("LDGDEPBAR", 1), ("HMMA", 1)),
        *(("DEPBAR", 1), ("BAR", 1)),
    )


def test_its_bounds() -> None:
    """A wavefront is 128 bytes: 4 for LDSM.4, 2 for LDSM.2; an LDS of no lane and a copy past L1 are one each. Four
    schedulers share them. An HMMA.16816 is 2048 multiply-adds at 64% of 512 a clock."""
    found = counted(*LOOP)
    assert found.wavefronts == 4 + 2 + 1 + 1
    assert found.bounds == {"issue slots": 12, "shared memory": 32, "tensor cores": pytest.approx(4 * 6.25)}
    assert found.peak_share == pytest.approx(25 / 32)
    assert "assumed" in found.bases[0] and "not measured" in found.bases[0]


def test_the_longest_run_goes_round_the_loop() -> None:
    """Two products before the copy, two behind it; without the loads at the top, those join the next ones' first."""
    assert counted(*LOOP).longest == 2
    assert counted(*LOOP[2:]).longest == 4
    assert counted(*LOOP[2:5], *LOOP[9:]).longest == 2  # no load at all: the products of one iteration


@pytest.mark.parametrize(
    ("text", "wavefronts"),
    [
        ("LDGSTS.E.BYPASS.128 [R3], desc[UR4][R6.64] ;", 1),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR4][R6.64] ;", 1),
        ("LDGSTS.E.64 [R3], desc[UR4][R6.64] ;", 2),
        ("LDGSTS.E [R3], desc[UR4][R6.64] ;", 1),
        ("LDS.64 R4, [R2] ;", 2),
        ("STS.128 [R2], R4 ;", 4),
        ("@!PT LDS RZ, [RZ] ;", 1),
        ("@!UPT UIADD3 URZ, URZ, URZ, URZ ;", 0),
    ],
)
def test_wavefronts_of_an_instruction(text: str, wavefronts: int) -> None:
    """4 bytes a lane are one; what goes past L1 passes no bank."""
    assert counted(text, *LOOP[2:]).wavefronts - counted(*LOOP[2:]).wavefronts == wavefronts


def test_filler_counts_as_a_slot_and_a_wavefront() -> None:
    program = listing(*LOOP, loop=0)
    assert class_of(program.instructions[3]) == "filler"
    assert class_of(listing("@!UPT UIADD3 URZ, URZ, URZ, URZ ;").instructions[0]) == "filler"
    without = counted(*LOOP[:3], *LOOP[4:])
    assert (without.issued, without.wavefronts) == (counted(*LOOP).issued - 1, counted(*LOOP).wavefronts - 1)
    assert without.others == counted(*LOOP).others


def test_repeats_are_folded() -> None:
    order = [("BAR", 1), ("LDSM", 1), ("HMMA", 4), ("LDSM", 1), ("HMMA", 4), ("LDSM", 1), ("HMMA", 4), ("STS", 2)]
    assert fold(order) == ["BAR", "(LDSM, HMMA x4) x3", "STS x2"]
    assert fold([("LDSM", 4), ("HMMA", 8)]) == ["LDSM x4", "HMMA x8"]


@pytest.mark.parametrize(
    ("text", "products"),
    [
        ("HMMA.16816.F32 R12, R4, R8, R12 ;", 2048),
        ("HMMA.1684.F32.TF32 R12, R4, R8, R12 ;", 512),
        ("IMMA.16832.S8.S8 R12, R4.ROW, R8.COL, R12 ;", 4096),
        ("DMMA.884 R12, R4, R8, R12 ;", 256),
        ("DMMA.16x8x16 R12, R4, R20, R12 ;", 2048),
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;", 16 * 256 * 16),
        ("FFMA R5, R2, R3, R5 ;", 32),
        ("IADD3 R5, R2, R3, R5 ;", 0),
    ],
)
def test_multiply_adds_of_a_warp(text: str, products: int) -> None:
    assert products_of(listing(text).instructions[0]) == products


@pytest.mark.parametrize(
    ("text", "capability", "clocks"),
    [
        ("HMMA.16816.F32 R12, R4, R8, R12 ;", 80, 8),  # A100: 256 a clock and tensor core
        ("HMMA.1688.F32.TF32 R12, R4, R8, R12 ;", 80, 8),
        ("IMMA.16832.S8.S8 R12, R4.ROW, R8.COL, R12 ;", 80, 8),
        ("HMMA.16816.F32 R12, R4, R8, R12 ;", 90, 6.25),
        ("HMMA.1688.F32 R12, R4, R8, R12 ;", 90, 6.25 * 4 / 6),  # as ptxas plans 4 clocks against 6
        ("DMMA.16x8x16 R12, R4, R20, R12 ;", 90, 64),
        ("DMMA.8x8x4 R12, R4, R8, R12 ;", 90, 16),
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;", 90, 128),
    ],
)
def test_rates(text: str, capability: int, clocks: float) -> None:
    sass = listing(text).instructions[0]
    rate = rate_of(sass, capability)
    assert rate is not None and products_of(sass) / rate.products == pytest.approx(clocks)


def test_a_rate_that_is_not_known() -> None:
    """Of sm_89 there are GPUs with different rates: no number is made up."""
    assert rate_of(listing("HMMA.16816.F32 R12, R4, R8, R12 ;").instructions[0], 89) is None
    found = tensor(report(HALF, "sm_89"))
    assert found.clocks is None and found.peak_share is None
    assert set(found.bounds) == {"issue slots", "shared memory"} and "no rate is known" in str(found)


# -- which loop, which iteration


def test_multiply_adds_make_a_loop_hot() -> None:
    """Two HMMAs are more than sixteen FFMAs."""
    program = listing(
        *["FFMA R5, R2, R3, R5 ;"] * 16,  # first
        "@P0 BRA `(.L_first) ;",
        *["HMMA.16816.F32 R12, R4, R8, R12 ;"] * 2,  # second
        "@P0 BRA `(.L_second) ;",
        "EXIT ;",
        first=0,
        second=17,
    )
    hottest = SassReport(program, "").hottest
    assert hottest is not None and hottest.header == 17
    assert SassReport(program, "").arithmetic == "HMMA"
    assert SassReport(listing(*["FFMA R5, R2, R3, R5 ;"] * 16, "EXIT ;"), "").arithmetic == "FFMA"
    assert SassReport(listing("EXIT ;"), "").arithmetic == ""


EDGE = listing(
    "@P0 BRA `(.L_edge) ;",  # loop
    "LDG.E.128 R4, [R2.64] ;",
    "BRA `(.L_both) ;",
    "LDG.E.U16 R4, [R2.64] ;",  # edge
    "IADD3 R2, R2, 0x2, RZ ;",
    "@P2 BRA `(.L_edge) ;",
    "HMMA.16816.F32 R12, R4, R8, R12 ;",  # both
    "@P1 BRA `(.L_loop) ;",
    "EXIT ;",
    loop=0,
    edge=3,
    both=6,
)
"""A loop that goes element by element, in another loop, where a tile reaches past the edge."""


def test_a_loop_inside_that_only_loads_is_not_the_hottest() -> None:
    outer, inner = EDGE.loops
    assert EDGE.inside(outer) == (inner,) and EDGE.own(outer) == (0, 1, 2, 6, 7)
    assert SassReport(EDGE, "").hottest is outer
    assert full_iteration(EDGE, outer) == (0, 1, 2, 6, 7)


def iteration(program: SassProgram) -> tuple[int, ...]:
    """Of the one loop of `program`."""
    (loop,) = program.loops
    return full_iteration(program, loop)


def test_a_turn_takes_the_wide_accesses() -> None:
    program = listing(
        "@P0 BRA `(.L_edge) ;",  # loop
        "LDG.E.64 R4, [R2.64] ;",
        "BRA `(.L_both) ;",
        *["LDG.E.U16 R4, [R2.64] ;"] * 4,  # edge
        "HMMA.16816.F32 R12, R4, R8, R12 ;",  # both
        "@P1 BRA `(.L_loop) ;",
        "EXIT ;",
        loop=0,
        edge=3,
        both=7,
    )
    assert iteration(program) == (0, 1, 2, 7, 8)


def test_a_turn_skips_no_load() -> None:
    """A way around a load is shorter, but a full tile loads."""
    program = listing(
        "@P0 BRA `(.L_past) ;",  # loop
        "LDG.E R4, [R2.64] ;",
        "HMMA.16816.F32 R12, R4, R8, R12 ;",  # past
        "@P1 BRA `(.L_loop) ;",
        "EXIT ;",
        loop=0,
        past=2,
    )
    assert iteration(program) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("LDSM.16.MT88.4 R4, [R2] ;", 16),
        ("LDSM.16.M88 R4, [R2] ;", 4),
        ("LDS.128 R4, [R2] ;", 16),
        ("LDG.E.U16 R4, [R2.64] ;", 2),
        ("LDGSTS.E [R3], [R6.64] ;", 4),
        ("STS.U8 [R2], R4 ;", 1),
    ],
)
def test_bytes_of_an_access(text: str, size: int) -> None:
    assert access_bytes(listing(text).instructions[0]) == size


# -- real loops


@pytest.mark.parametrize(("row", "target"), REAL, ids=lambda value: str(value).replace(" ", "_"))
def test_a_loop_of_each_family(row: MmaRow, target: str) -> None:
    """2 x 2 tiles: four products (twice as many where a target makes two of one), copies of 16 and of 8 bytes."""
    found = report(row, target)
    made = tensor(found)
    in_halves = row.a == "e5m2" and target in ("sm_90a", "sm_100a")
    assert made.count == (8 if in_halves else 4) == sum(made.stalls.values())
    assert found.arithmetic == next(iter(made.products)).partition(".")[0]
    assert made.others["LDGSTS"] == 2 and made.others["DEPBAR"] == made.others["LDGDEPBAR"] == made.others["BAR"] == 1
    assert ("LDSM" in made.others) == (row.a != "f64")
    assert sum(n for name, n in made.order if name == found.arithmetic) == made.count
    assert found.share == made.count / len(found.iteration) and not found.unknown
    assert list(found.lines) == [None]  # PTX by hand has no Python lines


def test_the_text() -> None:
    """The numbers of 4 x 8 tiles: 32 products, A in four LDSM.4 and B in eight LDSM.2."""
    found = report(HALF, "sm_90a", (4, 8))
    text = str(found)
    assert found.arithmetic == "HMMA" and found.histogram["MMA"] == 32 and found.histogram["LDSM"] == 12
    assert "tensor cores: 32 HMMA.16816.F32" in text
    assert "for each HMMA: 0.06 LDGSTS, 0.38 LDSM; at most " in text
    assert (
        "  tensor cores    200.0  assumed: mma.sync at 64% of wgmma (published: 63 to 65%), not measured here" in text
    )
    assert "Python line  instructions  HMMA" in text and "FFMA operands" not in text
    assert all(len(line) <= 112 for line in text.splitlines())


def test_registers_of_the_accumulators_are_alive() -> None:
    """4 x 8 tiles of 4 registers each; in the loop, operands come on top."""
    found = report(HALF, "sm_90a", (4, 8))
    assert found.hottest is not None
    least = min(found.live[place] for place in found.hottest.body)
    assert 4 * 8 * 4 <= least <= found.max_live[0] < 200

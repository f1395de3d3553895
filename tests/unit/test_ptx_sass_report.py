"""The report on a kernel's SASS: numbers of a known kernel, spills, and what the tables look like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ptx_kernels import shared_tiled
from sass_samples import ENTRY, MODULE, program

import tiledsl.backends.ptx.sass.report as module
from benchmarks.ffma_orders import Variant, examine
from examples.gemm.shared_tiled import shared_tiled as gallery_shared_tiled
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.assemble import assemble
from tiledsl.backends.ptx.ptx_lines import encode_path
from tiledsl.backends.ptx.sass.opcodes import CLASSES
from tiledsl.backends.ptx.sass.report import SassReport, sass_report


@pytest.fixture(scope="module")
def report() -> SassReport:
    binary = build(shared_tiled(16), TARGETS["sm_90a"])
    return sass_report(binary.cubin, binary.ptx)


@pytest.fixture(scope="module")
def gemm() -> SassReport:
    return examine(Variant("shared", 8, 8, "serpentine"))[0]


@pytest.mark.parametrize("path", ["/a & b ? c.py", '/ü \\ % "q" <x> $1.py', "/a b/;{}[]'`|~^.py"])
def test_a_path_comes_back_from_the_cubin(path: str) -> None:
    ptx = build(shared_tiled(16), TARGETS["sm_90a"]).ptx
    named = re.sub(r'(?m)^(\s*\.file\s+1) ".*"$', lambda file: f'{file[1]} "{encode_path(path)}"', ptx)
    sasses = sass_report(assemble(named, TARGETS["sm_90a"], name="shared_tiled").cubin, named).program.instructions
    assert {sass.loc.file for sass in sasses if sass.loc is not None} == {path}


def test_the_hottest_loop(report: SassReport) -> None:
    """Of `shared_tiled(16)`: 16 FFMA, 16 scalar LDS of B and 4 wide ones of A, 2 stores, 2 loads, 2 barriers."""
    assert report.hottest is not None and report.hottest.depth == 1
    counts = report.histogram
    assert (counts["FFMA"], counts["LDS"], counts["LDS.128"], counts["STS"], counts["LDG"]) == (16, 16, 4, 2, 2)
    assert set(counts) <= set(CLASSES)
    assert sum(counts.values()) == len(report.hottest.body)
    assert report.arithmetic == "FFMA" and report.tensor is None
    assert report.share == 16 / len(report.hottest.body)


def test_python_lines(report: SassReport) -> None:
    """Lines 10 and 11 load, 12 and 15 are barriers, 14 multiplies (see ptx_kernels.shared_tiled)."""
    by_line = {loc.line: counts for loc, counts in report.lines.items() if loc is not None}
    assert by_line[14][1] == 16
    assert {10, 11, 12, 14, 15} <= set(by_line) and next(iter(by_line)) == 14


def test_live_registers_fit_what_was_given(report: SassReport) -> None:
    most, where = report.max_live
    assert 16 < most <= build(shared_tiled(16), TARGETS["sm_90a"]).resources.registers
    assert report.live[where] == most == max(report.live) and max(report.live[:where]) < most
    assert not report.unknown and not report.spills


def test_the_loop_of_an_fp32_product(gemm: SassReport) -> None:
    text = str(gemm)
    assert gemm.share > 0.9 and gemm.histogram["LDS.128"] == 32
    assert "LDS.128              32    5.8%" in text
    assert "no spills" in text
    assert all(len(line) <= 105 for line in text.splitlines())


def test_the_listing_has_every_instruction(report: SassReport) -> None:
    lines = report.listing(report.hottest).splitlines()
    instructions = [line for line in lines[1:] if not line.endswith(":")]
    assert report.hottest is not None and len(instructions) == len(report.hottest.body)
    (barrier, *_) = [line for line in instructions if "BAR.SYNC" in line]
    assert barrier.startswith("kernel.py:12 ") and ":S0" in barrier


def test_a_kernel_without_a_loop() -> None:
    made = SassReport(program("wide", "sm_90a"), "")
    assert made.hottest is None
    assert str(made).count("no loop") == 2
    assert sum(made.histogram.values()) == sum(s.base != "NOP" for s in made.program.instructions)


def test_matrix_instructions_make_a_loop_hot() -> None:
    made = SassReport(program("mma", "sm_90a"), "")
    assert made.hottest is not None and made.histogram["MMA"] in (3, 6, 9, 12)  # ptxas may unroll
    assert made.banks.fmas == 0 and "FFMA operands" not in str(made)


def test_spills_by_line() -> None:
    """32 values that live across a barrier do not fit in 24 registers."""
    loads = "\n".join(f" ld.volatile.global.f32 %c{i}, [%p1+{4 * i}];" for i in range(32))
    stores = "\n".join(f" st.global.f32 [%p1+{4 * i}], %c{31 - i};" for i in range(32))
    lines = [
        MODULE.format(version="8.0", target="sm_90a"),
        ENTRY.format(name="k").replace(".reqntid 128", ".reqntid 128\n.maxnreg 24"),
        ".loc 1 7 1\n" + loads,
        " .loc 1 8 1\n bar.sync 0;",
        " .loc 1 9 1\n" + stores,
        ' ret;\n}\n.file 1 "kernel.py"\n',
    ]
    assembled = assemble("\n".join(lines), TARGETS["sm_90a"], name="k")
    made = sass_report(assembled.cubin, assembled.ptx)
    assert assembled.usage["spill_stores"] == 4 * sum(stores for stores, _ in made.spills.values()) > 0
    assert assembled.usage["spill_loads"] == 4 * sum(loads for _, loads in made.spills.values()) > 0
    assert {Path(loc.file).name for loc in made.spills if loc is not None} == {"kernel.py"}
    assert {loc.line for loc in made.spills if loc is not None} <= {7, 8, 9}
    assert "local memory  stores  loads" in str(made)


def test_explain_gives_the_report() -> None:
    compiled = gallery_shared_tiled.compile(arch="sm_90a", T=16)
    made = compiled.explain("sass")
    assert isinstance(made, module.SassReport)
    assert made.histogram["FFMA"] == 16
    assert "shared_tiled.py:" in str(made)

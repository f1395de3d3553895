"""benchmarks/mma_sass.py: what ptxas makes of each product, and that docs/tensor_cores.md says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.mma_sass import (
    as_text,
    assembled,
    clock_rows,
    made_of,
    operand_registers,
    planned_clocks,
    sass_rows,
    text_table,
)
from benchmarks.report import table
from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.sass.classes import class_of
from tiledsl.layout.mma import TABLE, MmaRow

ROOT = Path(__file__).parents[2]
ROWS = {str(row): row for row in TABLE}


@pytest.mark.parametrize(
    ("product", "target", "sass"),
    [
        ("m16n8k16 bf16 x bf16 -> f32", "sm_90a", "HMMA.16816.F32.BF16"),
        ("m16n8k32 e4m3 x e4m3 -> f32", "sm_89", "QMMA.16832.F32.E4M3.E4M3"),
        ("m16n8k32 e4m3 x e4m3 -> f32", "sm_90a", "2 HMMA.16816.F32, 12 F2FP.F16.E4M3.UNPACK_B, 4 FADD"),
        ("m16n8k8 f64 x f64 -> f64", "sm_90a", "DMMA.16x8x8"),
        ("m16n8k8 f64 x f64 -> f64", "sm_100a", "4 DMMA.8x8x4"),
    ],
)
def test_what_becomes_of_a_product(product: str, target: str, sass: str) -> None:
    assert as_text(made_of(ROWS[product], TARGETS[target])) == sass


@pytest.mark.parametrize(
    ("product", "target", "clocks"),
    [
        ("m16n8k16 f16 x f16 -> f32", "sm_80", 8),
        ("m16n8k16 f16 x f16 -> f32", "sm_90a", 6),
        ("m16n8k8 f16 x f16 -> f32", "sm_90a", 4),
        ("m16n8k32 e4m3 x e4m3 -> f32", "sm_90a", None),
    ],
)
def test_planned_clocks(product: str, target: str, clocks: int | None) -> None:
    assert planned_clocks(ROWS[product], TARGETS[target]) == clocks


@pytest.mark.parametrize("row", [r for r in TABLE if r.a == r.b and r.a not in ("e4m3", "e5m2")], ids=str)
def test_a_matrix_instruction_takes_the_registers_of_the_product(row: MmaRow) -> None:
    """Of PTX and of the widths in `sass.operands`; there an f64 has two registers."""
    _, sasses = assembled(row, TARGETS["sm_90a"])
    (matrix,) = (s for s in sasses if class_of(s) == "MMA")
    found = [len(registers) for registers in (*matrix.operands.results, *matrix.operands.sources)]
    a, b, c = (count * (2 if kind == "f64" else 1) for kind, count in operand_registers(row))
    assert found == [c, a, b, c]


def test_the_page_says_what_was_found() -> None:
    page = (ROOT / "docs/tensor_cores.md").read_text()
    (results,) = sorted(ROOT.glob("benchmarks/results/mma_sass_ptxas_*.json"))
    cases = json.loads(results.read_text())["cases"]
    assert {case["product"] for case in cases} == set(ROWS)
    assert text_table([("product", "targets", "SASS"), *sass_rows(cases)]) in page
    assert table(("planned clocks of one matrix instruction", *TARGETS), clock_rows(cases)) in page

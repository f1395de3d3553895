"""benchmarks/ffma_orders.py: the orders are orders, the kernels compute what they say, and the table has its rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ffma_orders import DEPTH, ORDERS, THREADS, VARIANTS, Variant, check_result, examine, kept_order, main
from tiledsl.layout.orders import ORDERS as OUTER_FMA_ORDERS


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize(("m", "n"), [(8, 8), (16, 8)])
def test_an_order_visits_every_place_once(name: str, m: int, n: int) -> None:
    assert sorted(ORDERS[name](m, n)) == [(i, j) for i in range(m) for j in range(n)]


@pytest.mark.parametrize("name", OUTER_FMA_ORDERS)
def test_the_orders_of_outer_fma_are_these(name: str) -> None:
    assert list(ORDERS[name](16, 8)) == list(OUTER_FMA_ORDERS[name](16, 8))


@pytest.mark.parametrize("name", ["serpentine", "serpentine columns", "pairs"])
def test_neighbours_share_a_factor(name: str) -> None:
    order = ORDERS[name](16, 8)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(order))


@pytest.mark.parametrize(
    "label",
    [
        "registers 8x8 spiral",
        "shared 16x8 pairs",
        "shared 8x8 serpentine, 16-byte stores turned by 1",
        "shared 8x8 serpentine, 16 k a step",
    ],
)
def test_the_kernels_compute_what_they_say(label: str) -> None:
    (variant,) = (v for v in VARIANTS if v.label == label)
    x = np.random.default_rng(0).standard_normal((THREADS, 32)).astype(np.float32)
    y = np.full((THREADS, 128), np.nan, np.float32)
    variant.kernel(x, y, 2, device="emulator", **variant.consts)
    check_result(variant, x, y, 2)
    y[3, 5] += 1e-3
    with pytest.raises(SystemExit, match="computed a wrong result"):
        check_result(variant, x, y, 2)


def test_work_is_counted() -> None:
    assert Variant("shared", 8, 8, "rows").flops(1, 1) == 2 * 128 * 128 * DEPTH


def test_ptxas_keeps_the_order_of_a_loop_without_loads() -> None:
    report, registers = examine(Variant("registers", 8, 8, "rows"))
    assert kept_order(report) == 1.0
    assert report.banks.rates == (0.875, 0.0, 0.0)
    assert 64 < registers < 128


def test_what_ptx_cannot_steer() -> None:
    """Which factor comes first, and where the loads stand: ptxas makes the same code of all three."""
    texts = {_sass(v) for v in VARIANTS if v.label in _SAME}
    assert len(texts) == 1


_SAME = {f"shared 8x8 serpentine{note}" for note in ("", ", factors swapped", ", loads spread")}


def _sass(variant: Variant) -> str:
    report = examine(variant)[0]
    return "\n".join(s.text for s in report.program.instructions)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "registers 16x8 serpentine", "--out", str(tmp_path)])
    (written,) = tmp_path.glob("ffma_orders_ptxas_*.json")
    cases = json.loads(written.read_text())["cases"]
    assert [c["variant"] for c in cases] == ["registers 16x8 serpentine", "registers 16x8 serpentine columns"]
    assert all(0.25 < c["reuse"][3] < 0.5 for c in cases)
    assert "registers 16x8 serpentine columns" in capsys.readouterr().out


ROOT = Path(__file__).parents[2]


def _cells(section: str) -> dict[str, list[str]]:
    """Rows of the table of docs/registers.md whose header begins with `section`, by their first cell."""
    lines = iter((ROOT / "docs/registers.md").read_text().splitlines())
    next(line for line in lines if line.startswith(f"| {section} |"))
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = rest
    return {name: rest for name, rest in rows.items() if not name.startswith("-")}


def _times() -> dict[str, str]:
    """TFLOP/s of the variants that were timed, as the page writes them."""
    timed = json.loads((ROOT / "benchmarks/results/ffma_orders_time.json").read_text())["cases"]
    return {case["variant"]: f"{case['tflops']:.1f}" for case in timed}


def test_the_assembler_keeps_more_of_an_order_at_level_1() -> None:
    """And `column_pairs`, made for it, then reads fewer registers than any order at level 3."""
    (written,) = (v for v in VARIANTS if v.label == "shared 16x8 column_pairs, level 1")
    anew = Variant("shared", 16, 8, "column_pairs")
    reports = [examine(variant)[0] for variant in (written, anew)]
    kept = [kept_order(report) for report in reports]
    reads = [max(report.banks.bank_reads) / report.banks.fmas for report in reports]
    assert kept[0] > 0.9 > 0.6 > kept[1]
    assert reads[0] < 0.85 < 1.0 < reads[1]


@pytest.mark.parametrize("ptxas", ["13.0", "13.5"])
def test_the_page_says_what_was_found(ptxas: str) -> None:
    results = json.loads((ROOT / f"benchmarks/results/ffma_orders_ptxas_{ptxas}.json").read_text())
    cases = {case["variant"]: case for case in results["cases"]}
    times = _times()
    for section, loop, note in (
        ("registers alone", "registers", ""),
        ("fed from shared memory", "shared", ""),
        ("fed from shared memory, level 1", "shared", ", level 1"),
    ):
        rows = _cells(section)
        assert len(rows) == 2 * len(ORDERS)
        for name, (kept, a, b, every, reads, registers, time) in rows.items():
            case = cases[f"{loop} {name}{note}"]
            assert time == times.get(f"{loop} {name}{note}", "open")
            assert float(kept) == pytest.approx(100 * case["kept_order"], abs=0.5)
            found = (case["reuse"][0], case["reuse"][1], case["reuse"][3])
            assert [float(x) for x in (a, b, every)] == pytest.approx([100 * x for x in found], abs=0.051)
            assert [float(x) for x in reads.split(",")] == pytest.approx(case["reads"], abs=0.0051)
            assert int(registers) == case["registers"]
    for name, (raw, cached, reads, registers, time) in _cells("serpentine, fed from shared memory").items():
        tile, _, note = name.replace("rotated", "turned").partition(", ")  # "turned" in the recorded results
        case = cases[f"shared {tile} serpentine" + (f", {note}" if note != "scalar stores" else "")]
        assert time == times.get(case["variant"], "open")
        percents = [100 * case["conflicts"], 100 * case["conflicts_with_reuse"]]
        assert [float(x.rstrip("%")) for x in (raw, cached)] == pytest.approx(percents, abs=0.051)
        assert [float(x) for x in reads.split(",")] == pytest.approx(case["reads"], abs=0.0051)
        assert int(registers) == case["registers"]

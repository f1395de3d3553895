"""The probe of tensor-core arithmetic without a GPU: its kernels on the emulator, its inputs, and what it concludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import tensor_core_probe
from benchmarks.tensor_core_inputs import Batch, Bits, batches
from benchmarks.tensor_core_probe import as_table, by_rule, compare, consts, on_device, probe, products, rivals
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES
from tiledsl.layout.mma import TABLE, MmaRow


def row_of(text: str) -> MmaRow:
    (row,) = [row for row in TABLE if str(row) == text]
    return row


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_nothing_differs_on_the_emulator(row: MmaRow) -> None:
    """The kernel gives the instruction the registers that the rule's matrices mean, for every product of the table."""
    cases = [case for case, _ in probe(row, 2, "emulator")]
    assert len(cases) == (2 if row.acc == "i32" else 21 if row.a == "tf32" else 20)
    assert [case for case in cases if case.mismatches] == []
    assert all(case.results == 2 * row.shape.m * row.shape.n for case in cases)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_kernel_assembles(row: MmaRow) -> None:
    register = "f64" if row.a == "f64" else "u32"
    compiled = products.compile(arch="sm_90a", W=register, **consts(row))
    assert compiled.ptx.count(f"mma.sync.aligned.{row.shape}.row.col") == 1


@pytest.mark.parametrize("text", ["m16n8k8 f16 x f16 -> f16", "m16n8k32 e4m3 x e5m2 -> f32", "m8n8k4 f64 x f64 -> f64"])
def test_registers_are_those_of_the_matrices(text: str) -> None:
    """A product with one element changed changes in the row or column that the element belongs to, and nowhere else."""
    row = row_of(text)
    a, b, c = batches(row, 1)["random normal"]
    assert changed_at(row, (a, b, c), 0, (0, 5, 3))[:, 1].tolist() == [5] * row.shape.n
    assert changed_at(row, (a, b, c), 1, (0, 3, 6))[:, 2].tolist() == [6] * row.shape.m
    assert changed_at(row, (a, b, c), 2, (0, 2, 1)).tolist() == [[0, 2, 1]]


def changed_at(row: MmaRow, batch: Batch, operand: int, place: tuple[int, int, int]) -> NDArray[Any]:
    """Which results differ when one element becomes far larger than all others."""
    before = on_device(row, batch, "emulator")
    name = (row.a, row.b, row.acc)[operand]
    changed = [bits.copy() for bits in batch]
    changed[operand][place] = np.asarray(100.0).astype(numpy_dtype(DTYPES[name])).view(changed[operand].dtype)
    return np.argwhere(before != on_device(row, (changed[0], changed[1], changed[2]), "emulator"))


def results(row: MmaRow, batch: Batch) -> Bits:
    return by_rule(row, batch).view(numpy_dtype(DTYPES[row.acc])).astype(np.float64)


@pytest.mark.parametrize("row", [row for row in TABLE if row.acc != "i32"], ids=str)
def test_inputs_reach_what_they_are_called(row: MmaRow) -> None:
    acc = numpy_dtype(DTYPES[row.acc])
    found = {name: results(row, batch) for name, batch in batches(row, 8).items()}
    for name in ("random normal", "subnormal operands", "c cancels the sum", "halfway between results"):
        assert np.isfinite(found[name]).all(), name
    assert np.isnan(found["NaNs"]).any() and not np.isnan(found["NaNs"]).all()
    assert np.isinf(found["infinities"]).any()
    zeros = found["signed zeros"]
    assert (zeros == 0).any() and (zeros != 0).any()
    if row.a == "f64":
        assert np.signbit(zeros[zeros == 0]).any() and not np.signbit(zeros[zeros == 0]).all()
    if row.acc == "f16" or row.a in ("bf16", "tf32", "f64"):
        least, largest = (float(getattr(np.finfo(acc), name)) for name in ("smallest_subnormal", "max"))
        assert {-least, 0, least} < set(found["sums about the least result"].ravel())
        name = "halfway between subnormal results"
        assert {-1, 0, 1} <= set(((found[name] - batches(row, 8)[name][2].view(acc)) / least).ravel())
        assert {-np.inf, -largest, largest, np.inf} < set(found["halfway to infinity"].ravel())
    if not {row.a, row.b} & {"e4m3"}:
        assert np.isnan(found["infinity times zero"]).any()
    if row.acc == "f16" or row.a in ("bf16", "tf32", "f64"):
        assert np.isinf(found["overflow"]).any()


def test_tf32_draws_the_bits_that_are_ignored() -> None:
    row = row_of("m16n8k8 tf32 x tf32 -> f32")
    found = batches(row, 8)
    a, b, _ = found["random normal"]
    assert (a & 0x1FFF).any() and (b & 0x1FFF).any()
    a, b, _ = found["NaNs in the bits that are ignored"]
    assert np.isnan(a.view(np.float32)).any()
    assert not np.isnan((a & 0xFFFFE000).view(np.float32)).any()


@pytest.mark.parametrize(
    ("change", "kind"),
    [(1, "one ulp"), (1 << 12, "more than one ulp"), (0x7FC00000, "NaN or not")],
)
def test_a_single_wrong_bit_is_found_and_shown(change: int, kind: str) -> None:
    row = row_of("m16n8k16 bf16 x bf16 -> f32")
    batch = batches(row, 2)["random normal"]
    got = by_rule(row, batch)
    got[1, 4, 3] = got[1, 4, 3] | change if kind == "NaN or not" else got[1, 4, 3] ^ change
    case = compare(row, "random normal", batch, got)
    assert (case.mismatches, case.kinds) == (1, {kind: 1})
    (one,) = case.shown
    assert one["place"] == [1, 4, 3]
    assert int(one["got"], 16) == got[1, 4, 3]
    assert [int(x, 16) for x in one["a"]] == batch[0][1, 4].tolist()
    assert [int(x, 16) for x in one["b"]] == batch[1][1, :, 3].tolist()
    assert "1 " + kind in as_table([case])


def test_zeros_and_nans_differ_by_their_bits() -> None:
    row = row_of("m16n8k8 f64 x f64 -> f64")
    found = batches(row, 2)
    for name, kind in (("signed zeros", "sign of a zero"), ("NaNs", "bits of a NaN")):
        got = by_rule(row, found[name])
        values = got.view(np.float64)
        place = np.argwhere(values == 0 if name == "signed zeros" else np.isnan(values))[0]
        got[tuple(place)] ^= np.uint64(1 << 63)
        assert compare(row, name, found[name], got).kinds == {kind: 1}


@pytest.mark.parametrize(
    ("text", "rival"),
    [
        ("m16n8k16 f16 x f16 -> f32", "8 products a step, 24 bits"),
        ("m16n8k8 f16 x f16 -> f32", "4 products a step, 25 bits"),
        ("m16n8k16 f16 x f16 -> f16", "as into f32, then to nearest"),
        ("m16n8k8 f16 x f16 -> f16", "as into f32, then truncated"),
        ("m16n8k4 tf32 x tf32 -> f32", "4 products a step, 23 bits"),
        ("m16n8k16 f64 x f64 -> f64", "k descending"),
    ],
)
def test_a_machine_with_another_rule_is_recognised(text: str, rival: str) -> None:
    """The inputs tell this rule from the table's, and from every other one that is tried."""
    row = row_of(text)
    fits = set(rivals(row))
    mismatches = 0
    for name, batch in batches(row, 8).items():
        case = compare(row, name, batch, by_rule(row, batch, rivals(row)[rival]))
        mismatches += case.mismatches
        fits &= set(case.fits) if case.mismatches else fits
    assert mismatches > 0
    assert rival in fits
    assert len(fits) == 1, fits


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "raw.npz"
    arguments = ["--emulator", "--products", "1", "--rows", "m16n8k16 i8", "--raw", str(raw), "--out", str(tmp_path)]
    assert tensor_core_probe.main(arguments) == 0
    out = capsys.readouterr().out
    assert "m16n8k16 i8 x u8 -> i32: 0 mismatches of 256" in out
    assert "| m16n8k16 i8 x i8 -> i32 |" in out
    assert sorted(np.load(raw)) == [
        f"m16n8k16 i8 x {b} -> i32, {case}" for b in ("i8", "u8") for case in ("extremes", "random")
    ]
    assert list(tmp_path.iterdir()) == [raw], "the emulator measures nothing, so nothing is written"

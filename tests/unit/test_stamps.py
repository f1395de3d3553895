"""Stamps of the clock: where the pass puts them, that they change nothing, and the timeline that their records give."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report import drawn

from tiledsl.backends.emulator import Options, run
from tiledsl.backends.emulator.stamps import Stamps
from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.backends.stamp_records import RECORDS, REGION, Regions, decode, place_of
from tiledsl.commands.report import add_arguments
from tiledsl.commands.report import run as run_command
from tiledsl.compilation.compiler import build
from tiledsl.errors import UsageError
from tiledsl.inspect.inputs import values_of
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.report import data
from tiledsl.inspect.report.collect import collect
from tiledsl.inspect.report.measure import Run, lowered_run, read_run
from tiledsl.inspect.report.measure import measured as part_measured
from tiledsl.inspect.report.places import Places
from tiledsl.inspect.report.trace import trace_events

HOPPER = Path(__file__).parents[2] / "examples" / "gemm" / "hopper_fastest.py"
NAIVE = HOPPER.with_name("naive.py")
FORMATS = {"D": "bf16", "E": "bf16", "F": "bf16"}
SIZES = ["M=256", "N=256", "K=512", "L=1"]
ARCH = "sm_90a"


def emulated(settings: dict[str, Any]) -> tuple[Run, Timeline]:
    """What `measure` gives on a GPU, of a run on the emulator, whose ops are the time of both clocks."""
    kernel = load_kernel(HOPPER, "hopper_fastest")
    lowered, bound, code = lowered_run(kernel, ARCH, settings, values_of(kernel, "--measure", SIZES), np.zeros)
    timeline = Timeline()
    stamps = Stamps(timeline)
    arguments = {arg.name: bound[arg.name] for arg in kernel.signature.params if bound[arg.name] is not None}
    run(lowered, arguments, options=Options(checks=True, hooks=(timeline, stamps)))
    sizes = dict(text.split("=") for text in SIZES)
    made = Run(kernel.name, ARCH, code, "NVIDIA H100", sizes, (2.0, 1.5), (2.5, 2.4), True, stamps.records)
    return made, timeline


@pytest.fixture(scope="module")
def measured() -> tuple[Run, Timeline]:
    return emulated(FORMATS)


@pytest.fixture(scope="module")
def report(measured: tuple[Run, Timeline]) -> data.Report:
    return collect(load_kernel(HOPPER, "hopper_fastest"), "sm_90a", FORMATS, SIZES, measured[0])


def test_the_pass_stamps_each_wait_on_both_sides_and_each_arrival_before(measured: tuple[Run, Timeline]) -> None:
    kernel = load_kernel(HOPPER, "hopper_fastest")
    text = lowered_run(kernel, ARCH, FORMATS, values_of(kernel, "--measure", SIZES), np.zeros)[0]
    ops = [op.name for op in text.walk()]
    waits = {"mbarrier.wait", "gpu.barrier", "gpu.named_barrier", "ptx.wgmma_wait", "tma.wait_group"}
    for before, op, after in zip(ops, ops[1:], ops[2:], strict=False):
        assert op not in waits or before == after == "debug.stamp"
        assert op not in ("mbarrier.arrive", "mbarrier.expect_tx") or before == "debug.stamp"
    assert ops[0] == ops[-2] == "debug.stamp"
    assert ops.count("debug.stamp") == 2 + 2 * sum(map(ops.count, waits)) + sum(
        map(ops.count, ("mbarrier.arrive", "mbarrier.expect_tx"))
    )


def test_without_the_pass_nothing_is_stamped_and_with_it_the_code_has_a_buffer() -> None:
    kernel = load_kernel(HOPPER, "hopper_fastest")
    spec, arch = kernel.specialized("sm_90a", FORMATS)
    plain, stamped = build(kernel.signature, spec, arch), build(kernel.signature, spec, arch, stamps=True)
    assert "clock64" not in plain.ptx and "$stamps" not in plain.ptx
    size = Regions(ranks=1, warps=12).bytes
    assert stamped.ptx.count("%clock64") > 40 and f"$stamps[{size}]" in stamped.ptx
    assert stamped.ptx.count("%globaltimer") == 2
    assert plain == build(kernel.signature, spec, arch)


def test_the_records_of_a_buffer() -> None:
    kind = np.dtype([("time", "<u8"), ("site", "<u4"), ("place", "<u4")])
    memory = np.zeros((2, RECORDS), kind)
    memory[0, :2] = [(1 << 40, 1, 7), (5, 3, (3 << 24) + 9)]
    memory[1, :] = (1, 1, 0)  # full
    first, second = decode(memory.tobytes(), Regions(ranks=1, warps=2))
    assert memory.nbytes == 2 * REGION
    assert first == [(0, 1 << 40, 7), (2, 5, (3 << 24) + 9)] and len(second) == RECORDS
    assert [place_of(place) for _, _, place in first] == [(-1, 7), (2, 9)]


def test_the_timeline_of_the_records_is_that_of_the_run(report: data.Report) -> None:
    """Without copies and products that take time, both say who waited for whom, at the same lines."""
    run_, found = report.timeline, report.measured.timeline if report.measured else None
    assert run_ is not None and found is not None
    assert (run_.unit, found.unit) == ("ops", "clocks")
    assert [replace(row, end=0) for row in run_.rows] == [replace(row, end=0) for row in found.rows]
    assert [slot.name for slot in run_.slots] == [slot.name for slot in found.slots]
    uses = [len(slot.spans) for slot in run_.slots]
    assert [len(slot.spans) for slot in found.slots] == uses and min(uses) == 2
    assert all(full < free for slot in found.slots for full, free in slot.spans)
    assert all(0 <= start <= end <= found.rows[row].end for row, start, end, *_ in found.waits)
    released = {(row, found.barriers[barrier], by) for row, _, _, barrier, by, _ in found.waits}
    assert {(row, run_.barriers[barrier], by) for row, _, _, barrier, by, _ in run_.waits} <= released


def test_waits_for_products_and_copies_are_told_apart(report: data.Report) -> None:
    assert report.measured is not None
    found = report.measured.timeline
    assert {found.barriers[each] for each in found.work} == {"products (wgmma)", "copies to global memory"}
    assert all(by == -1 for _, _, _, barrier, by, _ in found.waits if barrier in found.work)


def test_the_blocks_of_a_cluster_and_who_frees_a_slot_of_another_block() -> None:
    settings = {**FORMATS, "CLUSTER": (2, 1)}
    made, _ = emulated(settings)
    report = collect(load_kernel(HOPPER, "hopper_fastest"), "sm_90a", settings, [], made)
    assert report.measured is not None
    found = report.measured.timeline
    assert {row.rank for row in found.rows} == {0, 1} and "the cluster's barrier" in found.barriers
    freed = {
        (found.rows[row].rank, found.rows[by].rank)
        for row, _, _, barrier, by, _ in found.waits
        if found.barriers[barrier].startswith("empty") and by >= 0
    }
    assert freed & {(0, 1), (1, 0)}


def test_a_full_region_cuts_the_timeline_off(measured: tuple[Run, Timeline], monkeypatch: pytest.MonkeyPatch) -> None:
    run_ = measured[0]
    monkeypatch.setattr("tiledsl.inspect.report.stamped.RECORDS", len(run_.records[4]))
    kernel = load_kernel(HOPPER, "hopper_fastest")
    found = collect(kernel, "sm_90a", FORMATS, [], run_)
    assert found.measured is not None
    last = run_.records[4][-1][1] - run_.records[0][0][1]
    assert found.measured.timeline.full_at == pytest.approx(last, abs=5)


def test_the_file_of_a_run(measured: tuple[Run, Timeline], tmp_path: Path) -> None:
    file = tmp_path / "k.stamps"
    file.write_text(measured[0].to_json())
    assert read_run(str(file)) == measured[0]
    kernel = load_kernel(HOPPER, "hopper_fastest")
    with pytest.raises(UsageError, match="the stamps are of other code: not of hopper_fastest as it is now"):
        collect(kernel, "sm_90a", {**FORMATS, "GROUP": 4}, [], measured[0])
    with pytest.raises(UsageError, match="of hopper_fastest for sm_90"):
        collect(kernel, "sm_90a", FORMATS, [], replace(measured[0], arch="sm_90", code="0"))
    run = replace(measured[0], records=[[(10**6, 1, 1)] * 2] * 12)
    with pytest.raises(UsageError, match="the stamps are of no run of hopper_fastest"):
        part_measured(kernel, "sm_90a", FORMATS, run, (), (), Places())
    fields = json.loads(measured[0].to_json())
    wrong = [
        *({"us": us} for us in ([1.0], [float("nan"), 1.0], [-1.0, 1.0], [float("inf"), 1.0], ["1", 1.0], None, 3)),
        *({name: None} for name in fields),
        *({"sizes": [1]}, {"sizes": {"M": 4}}, {"same": 1}, {"records": [[[1, 2.5, 3]]]}),
    ]  # fmt: skip
    texts = [json.dumps({**fields, **change}) for change in wrong]
    for text in ("", "[" * 100_000, "[]", '{"schema": "tiledsl.stamps/1"}', '{"schema": "other/1"}', *texts):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"has no stamps of this version, tiledsl.stamps/1\n  fix: give"):
            read_run(str(file))
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        read_run(str(tmp_path / "nowhere"))


def test_what_is_drawn_of_a_measured_run(report: data.Report) -> None:
    parts = drawn(report)["parts"]
    for text in (
        *("On the emulator", "Measured on NVIDIA H100", "takes 2.5 us, the kernel as it is 2 us (median; least"),
        *("is in use from", "is full from", "clocks in all", "ops in all", "waits for products"),
    ):
        assert text in parts["timeline"]
    assert "Measured on NVIDIA H100: 2 us" in parts["roofline"] and "measured" in parts["roofline"]
    assert report.measured is not None
    other = replace(report, measured=replace(report.measured, sizes={"M": "1"}, same=False))
    assert "of other sizes: give those to --check" in drawn(other)["parts"]["roofline"]
    assert "gave other results than the kernel" in drawn(other)["parts"]["timeline"]


def test_the_trace_has_both_runs(report: data.Report) -> None:
    events = trace_events(report)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["block 0", "NVIDIA H100, block 0"]
    assert report.measured is not None and report.measured.mhz == 1000
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1000]
    last = max(row.end for row in report.measured.timeline.rows)
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(last / 1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save-stamps", "x"], "--save-stamps x: nothing is measured\n  fix: give --measure M=... --measure K=..."),
        (["--stamps", "x", "--measure", "M=1"], "--measure and --stamps are two runs"),
        (["--trace", "x"], "--trace x: the kernel does not run"),
    ],
)
def test_options_that_go_with_others(options: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UsageError, match=re.escape(message)):
        run_command(parser.parse_args([f"{NAIVE}:naive", *options]))

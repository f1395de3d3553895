"""The calibration without a GPU: what it predicts, what it makes of ncu's table, and what it concludes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bank_calibration
from benchmarks.bank_calibration import (
    Case,
    cases,
    compare,
    fitting,
    gallery_table,
    micro_table,
    verdict,
    wavefronts_of,
)
from benchmarks.hopper_limits import UNITS, busiest
from benchmarks.micro_kernels import arguments, micro_kernels
from benchmarks.ncu import COUNTERS, Launch, parse
from tiledsl.backends.emulator import Options
from tiledsl.backends.emulator.wavefronts import WavefrontCount
from tiledsl.layout.banks import PHASES, Kind, Phases

# The form of `ncu --csv --metrics ...`, written by hand after the Nsight Compute CLI's documentation.
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def row(number: int, kernel: str, counter: str, value: str) -> str:
    return (
        f'"{number}","4711","python3.11","127.0.0.1","{kernel}","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{COUNTERS[counter]}","","{value}"'
    )


CAPTURED = "\n".join(
    [
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
        '==PROF== Profiling "shared_load" - 0: 0%....50%....100% - 1 pass',
        HEAD,
        row(0, "shared_load", "load conflicts", "0"),
        row(0, "shared_load", "load wavefronts", "1"),
        row(1, "shared_store", "store wavefronts", "1,024"),
        row(1, "shared_store", "load wavefronts", "0"),
        row(10, "shared_load", "load wavefronts", "4"),
        row(2, "shared_load", "load wavefronts", "2"),
        "==PROF== Disconnected from process 4711",
    ]
)


def test_rows_become_launches_in_order() -> None:
    launches = parse(CAPTURED)
    assert [launch.kernel for launch in launches] == ["shared_load", "shared_store", "shared_load", "shared_load"]
    assert launches[0].counters == {"load conflicts": 0, "load wavefronts": 1}
    assert launches[1].counters["store wavefronts"] == 1024
    assert [launch.counters["load wavefronts"] for launch in launches[2:]] == [2, 4]


def test_the_busiest_unit_of_a_launch() -> None:
    """Shares of a peak have the counters' own names, whatever they are averaged over."""
    names = {"tensor cores": UNITS["tensor cores"], "L2": UNITS["L2"]}
    rows = [f'"0","hopper_tma","{names[unit]}","%","{share}"' for unit, share in (("tensor cores", 56.4), ("L2", 66.2))]
    (launch,) = parse("\n".join(['"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"', *rows]), UNITS)
    assert launch.counters == {"tensor cores": 56, "L2": 66}
    assert busiest(launch) == "L2"


def test_a_text_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table of ncu"):
        parse("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    with pytest.raises(ValueError, match="has no value: 'n/a'"):
        parse("\n".join([HEAD, row(0, "k", "load wavefronts", "n/a")]))


def test_every_case_is_one_access_whose_addresses_the_emulator_sees() -> None:
    """The micro kernels do what the predictions are about: one access of one warp at these offsets."""
    for case in cases():
        kernel, consts = micro_kernels(case.kind, case.width, **dict(case.options))
        dispatcher = kernel.dispatcher
        given = {**arguments(case.kind, case.offsets), **consts}
        hook = WavefrontCount()
        dispatcher.emulate(dispatcher.arguments(dispatcher.launcher.bind((), given)), Options(hooks=(hook,)))
        ((_, width), count), *others = hook.counts.items()
        assert not others
        assert (count.kind, width, count.accesses) == (case.kind, case.width, 1)
        assert count.wavefronts == case.wavefronts(), case.label


@pytest.mark.parametrize(
    ("pattern", "width", "wavefronts"),
    [
        ("stride 1", 4, 1), ("stride 2", 4, 2), ("stride 3", 4, 1), ("stride 32", 4, 32), ("stride 33", 4, 1),
        ("all lanes at one place", 4, 1), ("all lanes at one place", 16, 2), ("stride 1", 8, 2), ("stride 1", 16, 4),
        ("stride 2", 16, 8), ("first eight", 16, 1), ("one lane", 8, 1), ("maxas A", 16, 2), ("maxas B", 16, 2),
    ],
)  # fmt: skip
def test_predictions_of_the_table(pattern: str, width: int, wavefronts: int) -> None:
    (case,) = [c for c in cases() if (c.kind, c.width, c.pattern) == ("load", width, pattern)]
    assert case.wavefronts() == wavefronts


@pytest.mark.parametrize(
    ("entry", "pattern", "wavefronts"),
    [
        ("ldmatrix of 16 bytes num=4 trans=0", "rows 64 bytes apart, matrices side by side", 16),
        ("ldmatrix of 16 bytes num=4 trans=1", "rows 80 bytes apart, matrices side by side", 4),
        ("ldmatrix of 16 bytes num=2 trans=0", "rows 128 bytes apart, matrices below each other", 16),
        ("ldmatrix of 16 bytes num=1 trans=0", "rows in swizzled lines", 1),
        ("ldmatrix of 16 bytes num=4 trans=0", "matrices alike", 4),
        ("stmatrix of 16 bytes num=4 trans=0", "rows 144 bytes apart, matrices below each other", 4),
        ("cp_async of 16 bytes zeros=1", "rows of 64 bytes, swizzled", 4),
        ("cp_async of 16 bytes zeros=1", "rows of 64 bytes, padded", 8),  # of two rows, first and last chunk meet
        ("cp_async of 16 bytes zeros=1", "rows of 512 bytes, 64 of each", 8),
        ("cp_async of 8 bytes zeros=0", "rows of 512 bytes, 64 of each", 4),
        ("cp_async of 4 bytes zeros=1", "rows of 512 bytes, 64 of each", 2),
    ],
)
def test_predictions_of_matrices_and_copies(entry: str, pattern: str, wavefronts: int) -> None:
    (case,) = [c for c in cases() if (c.entry, c.pattern) == (entry, pattern)]
    assert case.wavefronts() == wavefronts


def test_which_copies_there_are() -> None:
    """No lane writes where another one does, and what is fetched by 16 bytes is no case: it passes no bank."""
    copies = [c for c in cases() if c.kind == "cp_async"]
    forms = {(c.width, *dict(c.options).values()) for c in copies}
    assert forms == {(4, False), (4, True), (8, False), (8, True), (16, True)}
    for case in copies:
        active = [o for o in case.offsets if o >= 0]
        assert len(set(active)) == len(active), case.label
    assert {"stride 32", "first half", "rows of 64 bytes, padded"} <= {c.pattern for c in copies}
    assert "half warps share" not in {c.pattern for c in copies}


@pytest.mark.parametrize(
    ("kind", "width", "options", "instruction"),
    [
        ("ldmatrix", 16, {"num": 1}, "ldmatrix.sync.aligned.m8n8.x1.shared.b16"),
        ("ldmatrix", 16, {"num": 4, "trans": True}, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
        ("stmatrix", 16, {"num": 2}, "stmatrix.sync.aligned.m8n8.x2.shared.b16"),
        ("cp_async", 4, {}, "cp.async.ca.shared.global"),
        ("cp_async", 8, {"zeros": True}, "cp.async.ca.shared.global"),
        ("cp_async", 16, {}, "cp.async.cg.shared.global"),
    ],
)
def test_micro_kernels_have_the_instruction_once(
    kind: Kind, width: int, options: dict[str, Any], instruction: str
) -> None:
    kernel, consts = micro_kernels(kind, width, **options)
    compiled = kernel.compile(arch="sm_90a", **consts)
    assert compiled.ptx.count(instruction) == 1
    assert not any(f"{other}.shared" in compiled.ptx for other in ("ld", "st"))


def hardware(tried: list[Case], rule: Phases) -> list[Launch]:
    """Launches of a machine that follows `rule` for 16-byte loads, and the table otherwise."""
    counts = [c.wavefronts(rule if (c.kind, c.width) == ("load", 16) else None) for c in tried]
    return [Launch("micro", counters_of(c.kind, count)) for c, count in zip(tried, counts, strict=True)]


def counters_of(kind: Kind, count: int) -> dict[str, int]:
    """As ncu has them on an H200. Three loads that no lane makes stand before an asynchronous copy."""
    match kind:
        case "atomic":
            return {"all wavefronts": count + 1}
        case "cp_async":
            return {"all wavefronts": count + 4, "load instructions": 3, "cp_async wavefronts": 77}
        case _:
            return {"all wavefronts": count + 1, f"{kind} wavefronts": count}


def test_the_rule_that_fits_is_found() -> None:
    tried = cases()
    merging = Phases(8, merge=(1,))
    records = compare(tried, hardware(tried, merging))
    fits = fitting(tried, records)
    assert fits["load", 16] == ["phases of 8, merging pairs at 1"]
    assert fits["store", 16][0] == fits["atomic", 4][0] == fits["cp_async", 8][0] == "the table"
    assert all(r["predicted"] == r["measured"] for r in records if (r["kind"], r["width"]) != ("load", 16))
    text = micro_table(records, fits)
    assert "DIFFERS" in text
    assert "phases of 8, merging pairs at 1" in text


@pytest.mark.parametrize(
    ("kind", "width"), [("load", 8), ("load", 16), ("ldmatrix", 16), ("cp_async", 8), ("cp_async", 16)]
)
def test_the_rules_to_choose_from_differ_in_what_they_predict(kind: Kind, width: int) -> None:
    tried = [c for c in cases() if (c.kind, c.width) == (kind, width)]
    named = {n: r for n, r in bank_calibration.rules(kind, width).items() if n != "the table"}
    predicted = {n: tuple(c.wavefronts(r) for c in tried) for n, r in named.items()}
    assert len(set(predicted.values())) == len(predicted)


def test_launches_that_are_missing_are_noticed() -> None:
    tried = cases()
    with pytest.raises(SystemExit, match=f"{len(tried)} kernels were launched, but ncu has rows for 1"):
        compare(tried, hardware(tried, PHASES["load", 16])[:1])


def test_what_ncu_counts_twice_is_taken_off() -> None:
    launch = Launch(
        "k", {"load wavefronts": 30, "ldmatrix wavefronts": 20, "store wavefronts": 7, "all wavefronts": 40}
    )
    assert [wavefronts_of(kind, launch) for kind in ("load", "store", "ldmatrix", "atomic")] == [10, 7, 20, None]


def test_the_gallery_table_shows_a_difference() -> None:
    record = {"kernel": "k", "kind": "load", "static": 8, "emulated": 8, "ncu": 8, "conflicts": 0}
    assert "DIFFERS" not in gallery_table([record])
    assert "DIFFERS" in gallery_table([{**record, "ncu": 9}])
    assert "DIFFERS" in gallery_table([{**record, "static": None}])


@pytest.mark.parametrize(
    ("kind", "static", "emulated", "ncu", "text"),
    [
        ("load", 10496, 10496, 10496, ""),
        ("load", 10496, 10496, 10510, "14 more"),
        ("load", 10496, 10496, 10520, "DIFFERS"),
        ("load", 10496, 10496, 10495, "DIFFERS"),
        ("load", 10496, 10496, None, "DIFFERS"),
        ("cp_async", 1024, 1024, 2246, "not compared"),
        ("cp_async", 1024, 1023, 2246, "DIFFERS"),
    ],
)
def test_the_verdict_of_a_row(kind: Kind, static: int, emulated: int, ncu: int | None, text: str) -> None:
    """A few wavefronts more are another access that was in the way; what asynchronous copies fetch passes no bank."""
    assert verdict({"kind": kind, "static": static, "emulated": emulated, "ncu": ncu}) == text

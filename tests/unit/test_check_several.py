"""A check goes on behind a finding, its parts can be turned off, and findings can be accepted."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import several_findings as kernels

from tiledsl import Global, const, f32, grid, threads, tile_kernel, verdict
from tiledsl.__main__ import main
from tiledsl.accepted import BASELINE_SCHEMA
from tiledsl.backends.emulator.sanitizer import global_memory, hazards
from tiledsl.dims import M, N
from tiledsl.errors import CompileError, EmulatorError, HazardError, KernelArgumentError, UsageError
from tiledsl.findings import CHECKS, CODES, EVERYTHING, KINDS, selected

HERE = Path(__file__).parent
FILE = HERE / "several_findings.py"
LINES = FILE.read_text().splitlines()


def values(*shape: int) -> Any:
    return np.ones(shape or (64,), np.float32)


def found(result: Any) -> list[tuple[str, ...]]:
    """The code of each finding, and the text of its lines."""
    texts = [{LINES[side.loc.line - 1].strip() for side in f.sides} for f in result.findings]
    return [(f.code, *sorted(text)) for f, text in zip(result.findings, texts, strict=True)]


# -- several findings ------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 4])
def test_a_run_goes_on_and_lists_each_pair_of_lines_once(seeds: int) -> None:
    result = kernels.two_races.check(values(128), values(128), RIGHT=False, raises=False, seeds=seeds)
    races = [each for each in found(result) if each[0] == "T101"]
    assert races == [
        ("T101", "S[t] = X.get(b * 64 + t)", "total += S[t ^ 32] + S[t ^ 33]"),
        ("T101", "R[t] = Y.get(b * 64 + t)", "total += R[t ^ 32]"),
    ]
    others = {each for each in found(result) if each[0] != "T101"}
    assert others <= {("T201", "total += S[t ^ 32] + S[t ^ 33]"), ("T201", "total += R[t ^ 32]")}
    assert not others or seeds > 1, "the usual order has written all that is read"
    assert kernels.two_races.check(values(128), values(128), seeds=seeds)


def test_what_a_run_cannot_go_on_behind_ends_it_and_is_the_last() -> None:
    result = kernels.race_and_more.check(values(), RIGHT=False, raises=False)
    assert [each[0] for each in found(result)] == ["T101", "T201", "T501"]
    assert kernels.race_and_more.check(values())


def test_ops_of_one_line_are_one_place() -> None:
    result = kernels.unrolled.check(values(), raises=False)
    assert found(result) == [
        ("T101", "S[t] += S[t ^ 32]", "S[t] = X[t]"),
        ("T101", "S[t] += S[t ^ 32]"),
    ]


def test_raises_is_the_first_one() -> None:
    with pytest.raises(HazardError) as caught:
        kernels.race_and_more.check(values(), RIGHT=False)
    assert caught.value.finding.code == "T101"


def test_a_check_stops_behind_the_most_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST", 2)
    result = kernels.race_and_more.check(values(), RIGHT=False, raises=False, seeds=3)
    assert [each[0] for each in found(result)] == ["T101", "T201"]
    assert [gap.why for gap in result.not_covered] == ["the check stopped behind 2 findings"]


# -- what is checked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "codes", "off"),
    [
        ({}, ["T101", "T201", "T501"], ()),
        ({"checks": "shared"}, ["T101", "T501"], ("global", "uninitialised", "registers", "barriers", "coverage")),
        ({"without": "shared"}, ["T201", "T501"], ("shared",)),
        ({"without": ["T1"]}, ["T201", "T501"], ("global", "T101", "T104", "T106", "T107", "T108")),
        ({"checks": "T2, global"}, ["T201", "T501"], ("shared", "registers", "barriers", "coverage", "T202")[:4]),
        ({"checks": ("uninitialised",)}, ["T201", "T501"], ("shared", "global", "registers", "barriers", "coverage")),
        ({"checks": "T101", "without": "T101"}, ["T501"], (*CHECKS,)),
    ],
)
def test_what_is_off_is_not_found_and_is_named(asked: dict[str, Any], codes: list[str], off: tuple[str, ...]) -> None:
    result = kernels.race_and_more.check(values(), RIGHT=False, raises=False, **asked)
    assert [each[0] for each in found(result)] == codes
    assert result.off == off
    assert json.loads(result.to_json())["off"] == [*off]
    assert (f"; off: {', '.join(off)}" in str(result)) == bool(off)


def test_what_is_off_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of a check that is off is made, or hears of an access."""

    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("it was made")

    monkeypatch.setattr(hazards, "LastWrites", made)
    monkeypatch.setattr(hazards, "GlobalHistory", made)
    kernels.race_and_more.check(values(), checks="shared")
    monkeypatch.setattr(hazards, "_Blocks", made)
    monkeypatch.setattr(global_memory, "GlobalShadow", made)
    kernels.race_and_more.check(values(), checks="coverage, registers")


def test_codes_that_cannot_be_turned_off_have_no_check() -> None:
    assert set(CODES) - {""} <= set(KINDS)
    assert EVERYTHING.off == () and all(code in EVERYTHING for code in KINDS)
    nothing = selected([])
    assert nothing.off == (*CHECKS,) and [code for code in KINDS if code in nothing] == sorted(set(KINDS) - CODES)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"checks": "races"}, "there is no check 'races'\n  fix: name some of shared, global, uninitialised"),
        ({"without": "T401"}, r"T401 \(deadlock\) is always looked for"),
        ({"checks": 3}, "checks is 3\n  fix: pass names"),
        ({"baseline": 3}, "baseline is 3\n  fix: pass the path of a file"),
    ],
)
def test_a_check_that_there_is_not_is_an_error(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(KernelArgumentError, match=says):
        kernels.race_and_more.check(values(), **asked)


# -- accepted at the line --------------------------------------------------------------------------


def test_a_finding_is_accepted_at_its_line() -> None:
    result = kernels.same_value.check(values(), seeds=2)
    assert result.verdict == "clean" and result and not result.findings and not result.unused
    (accepted,) = result.accepted
    assert (accepted.finding.code, accepted.by.by) == ("T101", "comment")
    assert accepted.by.reason == "all threads write the same value"
    assert ": T101: accepted, because all threads write the same value: race: thread" in str(result)
    assert str(result).splitlines()[-1] == "same_value: clean (2 schedules, 1 accepted)"
    with pytest.raises(HazardError):
        kernels.same_value.check(values(), REASON=False)


def test_a_comment_above_is_for_the_whole_statement_below() -> None:
    result = kernels.accepted_above.check(values())
    (accepted,) = result.accepted
    assert accepted.finding.code == "T101" and accepted.by.reason == "a line that is too long"
    assert [each.code for each in result.unused] == ["T201"]


def test_what_accepts_nothing_is_unused() -> None:
    result = kernels.unused.check(values())
    (unused,) = result.unused
    assert result.verdict == "clean", "it is no finding"
    assert unused.code == "T102" and LINES[unused.loc.line - 1][unused.loc.col - 1 :].startswith("# tiledsl: accept")
    assert str(result).splitlines()[0].endswith("T102 is accepted here, and was not found: remove the comment")
    assert kernels.unused.check(values(), without="T102").unused == ()
    (note,) = json.loads(result.to_sarif())["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["level"] == "note"


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (kernels.no_reason, "names no code or no reason"),
        (kernels.no_such_code, "there is no code T199"),
        (kernels.no_finding, r"T402 \(run does not end\) is no finding"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_comment_that_is_wrong_is_an_error_at_its_line(kernel: Any, says: str) -> None:
    with pytest.raises(CompileError, match=says) as caught:
        kernel.check(values())
    assert "# tiledsl: accept" in LINES[caught.value.loc.line - 1]
    assert caught.value.fix == "write: # tiledsl: accept T101 because REASON"
    result = kernel.check(values(), raises=False)
    assert result.verdict == "error" and "fix: write: #" in result.error


def test_what_ends_a_run_is_accepted_and_the_rest_is_not_covered() -> None:
    for raises in (True, False):
        result = kernels.beyond.check(values(), raises=raises)
        assert result.verdict == "incomplete" and not result.findings
        assert [each.finding.code for each in result.accepted] == ["T501"]
        assert [gap.why for gap in result.not_covered] == ["a run ends here, at T501, which is accepted"]


# -- baselines -------------------------------------------------------------------------------------


def command(*more: str) -> list[str]:
    return ["check", f"{FILE}:two_races", "--size", "N=128", "--const", "RIGHT=False", *more]


def test_a_baseline_is_written_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "accepted.json")
    assert main(command()) == 3
    assert main(command("--write-baseline", file)) == 0
    assert main(command("--baseline", file, "--json", "--sarif", f"{tmp_path}/found.sarif")) == 0
    data = json.loads(capsys.readouterr().out.rpartition("\n{\n")[2].join(("{", "")))
    assert data["verdict"] == "clean" and not data["findings"] and len(data["accepted"]) == 2
    assert data["accepted"][0]["by"] == "baseline" and data["accepted"][0]["accepted_at"]["file"] == file
    results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert [each["suppressions"][0]["kind"] for each in results] == ["external", "external"]
    entry = json.loads(Path(file).read_text())["findings"][0]
    assert (entry["code"], entry["kernel"]) == ("T101", "two_races")
    assert {"function": "two_races", "line": "R[t] = Y.get(b * 64 + t)"} in entry["sides"]


def test_a_baseline_survives_moved_lines_and_not_changed_ones(tmp_path: Path) -> None:
    baseline, moved = tmp_path / "accepted.json", tmp_path / "moved.py"
    asked = ["check", f"{moved}:two_races", "--size", "N=128", "--const", "RIGHT=False"]
    moved.write_text(FILE.read_text())
    assert main([*asked, "--write-baseline", str(baseline)]) == 0
    moved = tmp_path / "moved_on.py"
    asked[1] = f"{moved}:two_races"
    moved.write_text(FILE.read_text().replace("@tile_kernel", "\n# a line\n@tile_kernel"))
    assert main([*asked, "--baseline", str(baseline)]) == 0
    moved = tmp_path / "changed.py"
    asked[1] = f"{moved}:two_races"
    moved.write_text(FILE.read_text().replace("total += R[t ^ 32]", "total += R[t ^ 34]"))
    assert main([*asked, "--baseline", str(baseline)]) == 3


def test_entries_stay_and_those_that_are_not_needed_are_unused(tmp_path: Path) -> None:
    file = tmp_path / "accepted.json"
    wrong = kernels.same_value.check(values(), REASON=False, raises=False)
    assert wrong.write_baseline(file).verdict == "clean"
    data = json.loads(file.read_text())
    data["findings"][0]["reason"] = "all write 3"
    file.write_text(json.dumps(data))
    kernels.two_races.check(values(128), values(128), RIGHT=False, raises=False).write_baseline(file)
    wrong.write_baseline(str(file))
    written = json.loads(file.read_text())
    assert written["schema"] == BASELINE_SCHEMA
    assert [(e["kernel"], e["reason"][:11]) for e in written["findings"]] == [
        ("same_value", "all write 3"),
        ("two_races", "it was ther"),
        ("two_races", "it was ther"),
    ]
    result = kernels.same_value.check(values(), REASON=False, baseline=file)
    assert result.accepted[0].by.reason == "all write 3" and not result.unused
    result = kernels.two_races.check(values(128), values(128), baseline=file)
    assert [each.kernel for each in result.unused] == ["two_races"] * 2
    assert f"{file}: T101 of two_races at R[t] = Y.get(b * 64 + t) and " in str(result)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("{", "it is no JSON"),
        ("[]", "it lacks a field"),
        ('{"schema": "other/1"}', '"schema" is not "tiledsl.baseline/1"'),
        (json.dumps({"schema": BASELINE_SCHEMA, "findings": [{"code": "T101"}]}), "it lacks a field"),
        (
            json.dumps({"schema": BASELINE_SCHEMA, "findings": [{"code": "T1", "sides": []}]}),
            "there is no code T1;",
        ),
    ],
)
def test_a_baseline_that_cannot_be_used(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "accepted.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        kernels.same_value.check(values(), baseline=file)
    assert "\n  fix: " in str(caught.value)
    assert main(command("--baseline", str(file))) == 2


def test_a_baseline_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--write-baseline", str(tmp_path / "no" / "folder.json"))) == 1
    assert "fix: give another file" in capsys.readouterr().err


def test_an_error_of_the_emulator_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised from within `report` is what is found."""
    with pytest.raises(EmulatorError) as caught:
        kernels.race_and_more.check(values(), RIGHT=False, without="T1, T2")
    assert caught.value.finding.code == "T501" and caught.value.finding.kernel == "race_and_more"


# -- arrays that hold nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coarsen_2d", "fastest", "mma_fastest", "hopper_fastest", "hopper_store"])
def test_the_gallery_reads_no_element_of_an_empty_c(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a beta of 0 nobody reads C; with another one each kernel does, which is found at its line."""
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "examples" / "gemm"))
    gallery = import_module("gallery")
    kernel = gallery.load(next(e for e in (*gallery.GALLERY, *gallery.HOPPER) if e.kernel == name))
    dtype = np.float32 if name in ("coarsen_2d", "fastest") else ml_dtypes.bfloat16
    memory = np.ones((72, 96), dtype)
    A, B, C = np.ones((72, 40), dtype), np.ones((40, 80), dtype), memory[:, :80]
    given = gallery.as_given(kernel, A, B, C)
    assert not kernel.check(*given, unwritten="C").findings
    if "beta" not in {scalar.name for scalar in kernel.signature.scalars}:
        return
    adds = {"beta": 2.0, **({"ADD_C": True} if name == "hopper_fastest" else {})}
    for asked in ({}, {"checks": "uninitialised"}):
        result = kernel.check(*given, **adds, unwritten=["C"], raises=False, **asked)
        (found,) = result.findings
        assert (found.code, found.memory.name, found.memory.space) == ("T201", "C", "global")
        assert f"reads {found.memory}, which no thread has written and the caller left empty" in found.message
    assert not kernel.check(*given, **adds, unwritten="C", without="T201").findings
    assert not kernel.check(*given, **adds).findings


def test_what_the_kernel_has_written_may_be_read() -> None:
    """X is read and written by the same threads, in this order and in the other."""
    assert kernels.written_first.check(values(), values(), unwritten="Y")
    result = kernels.written_first.check(values(), values(), unwritten="X, Y", raises=False)
    assert [(f.code, str(f.memory)) for f in result.findings] == [("T201", "X[0]")]


@tile_kernel
def all_but(X: Global[f32, M, N], Y: Global[f32, M, N], *, LEFT: const = 0):
    row, t = grid(M), threads(64)
    if t < N - LEFT:
        Y[row, t] = X[row, t]


def test_elements_that_nobody_writes() -> None:
    X, Y = np.ones((3, 50), np.float32), np.full((3, 60), 7, np.float32)[:, :50]
    assert all_but.check(X, Y, unwritten="Y").verdict == "clean", "what lies between rows is no element"
    assert not all_but.check(X, Y, LEFT=2).findings, "the caller may want to keep them"
    (found,) = all_but.check(X, Y, LEFT=2, unwritten="Y", raises=False).findings
    assert (found.code, str(found.memory)) == ("T204", "Y[0, 48]")
    assert found.message.startswith("6 of 150 elements of Y are written by no thread, Y[0, 48] first")
    assert not all_but.check(X, Y, LEFT=2, unwritten="Y", without="T204").findings
    assert not all_but.check(X[:0], Y[:0], unwritten="Y").findings


def test_only_tensors_are_unwritten() -> None:
    with pytest.raises(KernelArgumentError, match="unwritten names Z, which is no tensor\n  fix: name some of X, Y"):
        kernels.two_races.check(values(128), values(128), unwritten="X Z")
    with pytest.raises(KernelArgumentError, match="unwritten is 1\n  fix: pass names: unwritten='C'"):
        kernels.two_races.check(values(128), values(128), unwritten=1)
    asked = ["check", f"{FILE}:written_first", "--size", "N=64", "--unwritten"]
    assert (main([*asked, "Y"]), main([*asked, "X"]), main([*asked, "Z"])) == (0, 3, 2)

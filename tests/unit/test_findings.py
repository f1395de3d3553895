"""What the emulator finds is data: codes that one table explains, a verdict, JSON and SARIF."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from race_pairs import PAIRS
from race_pairs_hopper import HOPPER_PAIRS

from tiledsl import Const, Global, f32, grid, i32, ptx, refusals, threads, tile_kernel
from tiledsl.__main__ import main
from tiledsl.dims import N
from tiledsl.errors import CompileError, EmulatorError, HazardError, KernelArgumentError, Loc
from tiledsl.findings import EDGES, INCOMPLETE, KINDS, OWN_FAULT, explain
from tiledsl.inspect.inputs import random_arrays
from tiledsl.verdict import SCHEMA, CheckResult, Gap, to_sarif

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"(T\d\d\d)"')

# -- codes -----------------------------------------------------------------------------------------


def test_every_code_of_the_emulator_is_explained_and_no_other() -> None:
    raised: set[str] = set()
    for path in (ROOT / "tiledsl" / "backends" / "emulator").rglob("*.py"):
        raised |= set(CODE.findall(path.read_text()))
    assert raised == set(KINDS)
    assert {*INCOMPLETE, *OWN_FAULT} <= set(KINDS)


def test_every_edge_is_named() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tiledsl/backends/emulator").rglob("*.py"))
    missing = set(re.findall(r'missing="([\w-]+)"', text)) | set(re.findall(r'"T1\d\d",\s*"([\w-]+)",', text))
    missing |= {"syncwarp", "barrier", "mbarrier-wait"}  # of `advice.unordered`
    assert missing == set(EDGES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_explanation_has_an_example_that_could_be_written(kind: Any) -> None:
    text = explain(kind.code.lower())
    assert text.startswith(f"{kind.code}: {kind.name}\n\n{kind.text}\n\nfix: {kind.fix}")
    tree = ast.parse(kind.example)
    called = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ptx"
    }
    assert all(hasattr(ptx, name) for name in called)


def test_the_command_explains_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["error", "T101"]) == 0
    assert capsys.readouterr().out == explain("T101") + "\n"
    assert main(["error"]) == 0
    listed = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    assert listed == [[k.code, k.name] for k in (*refusals.KINDS.values(), *KINDS.values())]
    assert main(["error", "T999"]) == 2
    assert "there is no error T999" in capsys.readouterr().err


# -- what a finding holds ----------------------------------------------------------------------------


def found_in(pair: Any, **options: Any) -> Any:
    with pytest.raises(HazardError) as caught:
        pair.kernel.check(**pair.arrays(), RIGHT=False, **options)
    return caught.value.finding


@pytest.mark.parametrize("pair", [*PAIRS, *HOPPER_PAIRS], ids=lambda pair: pair.kernel.name)
def test_a_race_has_two_sides_an_element_and_an_edge(pair: Any) -> None:
    found = found_in(pair)
    assert found.code in ("T102", "T103", "T105", "T107")
    assert found.kernel == pair.kernel.name
    assert found.missing in EDGES
    for side in found.sides:
        assert side.loc.line and side.op and side.who and side.does
        assert f"{side.loc}" in found.message and side.who in found.message
    assert len(found.sides) == 2
    assert found.sides[0].block is not None and found.sides[0].thread is not None
    assert found.memory.name in pair.shapes and len(found.memory.element) == len(pair.shapes[found.memory.name])
    assert str(found.memory) in found.message


def test_the_first_race_of_the_page_as_data() -> None:
    found = found_in(PAIRS[0])
    reads, wrote = found.sides
    assert (reads.does, reads.block, reads.thread, reads.warps) == ("reads", (0, 0, 0), (0, 0, 0), (0,))
    assert (wrote.does, wrote.block, wrote.thread, wrote.warps) == ("wrote", (0, 0, 0), (63, 0, 0), (1,))
    assert (found.memory.name, found.memory.element, found.memory.byte, found.memory.bytes) == ("X", (63,), 252, 4)
    assert found.missing == "barrier"


@tile_kernel
def bounded(X: Global[f32, N], *, SHIFT: Const[int] = 0, EXTRA: Const[bool] = False):
    t = grid(1) + threads(32)
    X[t + SHIFT] = f32(1)
    if X.shape[0] > 100:
        X[0] = f32(2)


def test_an_access_out_of_bounds_names_its_thread() -> None:
    with pytest.raises(EmulatorError) as caught:
        bounded.check(np.zeros(32, np.float32), SHIFT=2)
    found = caught.value.finding
    assert (found.code, found.sides[0].thread, found.memory.name) == ("T501", (30, 0, 0), "X")


def test_roles_are_those_of_the_kernel() -> None:
    """A deadlock has a side for each group of warps that waits, with its role."""
    from emulator_rings import RING, kernel_of, run_ring

    with pytest.raises(HazardError) as caught:
        run_ring(kernel_of(RING, "release"))
    found = caught.value.finding
    assert found.code == "T401"
    by_warps = {side.warps: side for side in found.sides}
    assert (4, 5, 6, 7) in by_warps and (0,) in by_warps
    roles = {side.role.line for side in found.sides if side.role is not None}
    assert len(roles) == 2
    assert all("waits for" in side.does for side in found.sides)
    result = CheckResult("ring", found.loc, (0,), (found,))
    sides = json.loads(result.to_json())["findings"][0]["sides"]
    assert [tuple(side["warps"]) for side in sides] == [side.warps for side in found.sides]


# -- verdicts ----------------------------------------------------------------------------------------


def test_clean() -> None:
    pair = PAIRS[0]
    result = pair.kernel.check(**pair.arrays())
    assert result and result.verdict == "clean"
    assert str(result) == "exchanged: clean (1 schedule)"


def test_findings_of_several_schedules_are_listed_once() -> None:
    pair = PAIRS[0]
    result = pair.kernel.check(**pair.arrays(), RIGHT=False, raises=False, seeds=4)
    assert not result and result.verdict == "findings"
    assert len({(f.code, frozenset(side.loc for side in f.sides)) for f in result.findings}) == len(result.findings)
    assert result.seeds == (0, 1, 2, 3)


def test_lines_that_no_thread_executed_are_not_covered() -> None:
    result = bounded.check(np.zeros(32, np.float32))
    assert not result and result.verdict == "incomplete"
    (gap,) = result.not_covered
    assert Path(gap.loc.file).read_text().splitlines()[gap.loc.line - 1].strip() == "X[0] = f32(2)"
    assert str(result).splitlines()[0].endswith(": no thread executed this line")


def test_a_grid_without_blocks_covers_nothing() -> None:
    none = np.zeros(0, np.float32)
    assert stopped.check(none, 1).verdict == "incomplete"


def test_a_run_that_is_stopped_is_incomplete_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_MAX_STEPS", "200")
    result = stopped.check(np.zeros(1, np.float32), 1000, raises=False)
    assert result.verdict == "incomplete"
    (gap,) = result.not_covered
    assert gap.why.startswith("the run does not end") and gap.loc.line
    with pytest.raises(HazardError, match="the run does not end"):
        stopped.check(np.zeros(1, np.float32), 1000)


@tile_kernel
def stopped(X: Global[f32, N], n: i32):
    b = grid(N) + threads(1)
    for i in range(n):
        X[b] += f32(i)


@tile_kernel
def not_compiled(X: Global[f32, N]):
    threads(32)
    X[grid(1)] = unknown  # noqa: F821


def test_a_kernel_that_does_not_compile_is_an_error() -> None:
    result = not_compiled.check(np.zeros(1, np.float32), raises=False)
    assert result.verdict == "error"
    assert "the name unknown is not defined" in result.error and not result.findings
    with pytest.raises(CompileError):
        not_compiled.check(np.zeros(1, np.float32))


def test_wrong_arguments_are_no_result() -> None:
    with pytest.raises(KernelArgumentError):
        stopped.check(np.zeros(1, np.int32), 1, raises=False)


# -- JSON and SARIF --------------------------------------------------------------------------------


def wrong() -> CheckResult:
    pair = PAIRS[0]
    return pair.kernel.check(**pair.arrays(), RIGHT=False, raises=False)


def test_json_holds_everything() -> None:
    data = json.loads(wrong().to_json())
    fields = "schema kernel location verdict seeds findings not_covered error accepted unused off assumed"
    assert set(data) == {*fields.split()}
    assert (data["schema"], data["kernel"], data["verdict"], data["seeds"]) == (SCHEMA, "exchanged", "findings", [0])
    (found,) = data["findings"]
    names = {"code", "name", "message", "fix", "location", "sides", "memory", "missing", "seed"}
    assert set(found) == names
    assert found["missing"] == {"name": "barrier", "text": "a barrier() of the block"}
    assert found["memory"] == {"name": "X", "space": "global", "element": [63], "byte": 252, "bytes": 4}
    assert [side["thread"] for side in found["sides"]] == [[0, 0, 0], [63, 0, 0]]
    assert all(side["location"]["file"].endswith("race_pairs.py") for side in found["sides"])


def test_sarif_is_what_its_readers_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The required properties of SARIF 2.1.0 (3.13, 3.14, 3.27, 3.28, 3.30); paths are relative to the folder."""
    monkeypatch.chdir(ROOT)
    gap = CheckResult("k", Loc(str(ROOT / "a b.py"), 3), (0,), not_covered=(Gap(Loc(str(ROOT / "a b.py"), 7), "why"),))
    failed = CheckResult("k", Loc("/elsewhere/k.py", 3), (0,), error="it fails")
    log = to_sarif([wrong(), gap, failed])
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] and [rule["id"] for rule in rules] == ["T102"]
    (found,) = run["results"]
    assert rules[found["ruleIndex"]]["id"] == found["ruleId"] == "T102"
    assert found["level"] == "error" and found["message"]["text"].startswith("race: ")
    for location in (*found["locations"], *found["relatedLocations"]):
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "tests/unit/race_pairs.py"
        assert place["region"]["endColumn"] > place["region"]["startColumn"] >= 1 <= place["region"]["startLine"]
    (done,) = run["invocations"]
    assert done["executionSuccessful"] is False
    notes = done["toolExecutionNotifications"]
    assert [(note["level"], note["message"]["text"]) for note in notes] == [("error", "it fails"), ("warning", "why")]
    uris = [note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for note in notes]
    assert uris == ["file:///elsewhere/k.py", "a%20b.py"]
    assert json.loads(wrong().to_sarif()) == to_sarif([wrong()])


# -- the command -------------------------------------------------------------------------------------

PAIRS_FILE, SEEDED = f"{ROOT}/tests/unit/race_pairs.py", f"{ROOT}/tests/unit/seeded_kernels.py"
HERE = f"{ROOT}/tests/unit/test_findings.py"


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ([f"{PAIRS_FILE}:exchanged", "--size", "N=128"], 0, "exchanged: clean (1 schedule)"),
        ([f"{PAIRS_FILE}:exchanged", "--size", "N=128", "--const", "RIGHT=False"], 3, "T102: race: thread"),
        ([f"{SEEDED}:asked_once", "--size", "N=64", "--const", "RIGHT=False"], 0, "asked_once: clean (1 schedule)"),
        ([f"{SEEDED}:asked_once", "--size", "N=64", "--const", "RIGHT=False", "--seeds", "8"], 3, "T102"),
        ([f"{HERE}:bounded", "--size", "N=32"], 4, "no thread executed this line"),
        ([f"{HERE}:not_compiled", "--size", "N=32"], 1, "the name unknown is not defined"),
        ([f"{PAIRS_FILE}:exchanged"], 2, "fix: add --size N=..."),
        ([f"{PAIRS_FILE}:exchanged", "--size", "Q=1"], 2, "has no size or scalar 'Q'"),
        ([f"{PAIRS_FILE}:exchanged", "--size", "N=128", "--seeds", "0"], 2, "seeds is 0"),
        ([f"{PAIRS_FILE}:none", "--size", "N=128"], 2, "no kernel 'none'"),
    ],
)
def test_the_command_has_an_exit_code_for_each_verdict(
    command: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *command]) == code
    shown = capsys.readouterr()
    assert says in (shown.err if code == 2 else shown.out)


def test_the_command_names_the_seed_that_replays_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["check", f"{SEEDED}:asked_once", "--size", "N=64", "--const", "RIGHT=False"]
    assert main([*asked, "--seeds", "8"]) == 3
    (seed,) = re.findall(r"--seed (\d+) replays", capsys.readouterr().out)
    assert main([*asked, "--seed", seed]) == 3


def test_the_command_prints_json_and_writes_sarif(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = [f"{PAIRS_FILE}:exchanged", "--size", "N=128", "--const", "RIGHT=False", "--json"]
    assert main(["check", *asked, "--sarif", str(tmp_path / "found.sarif")]) == 3
    data = json.loads(capsys.readouterr().out)
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert data["findings"][0]["code"] == log["runs"][0]["results"][0]["ruleId"] == "T102"


def test_inputs_are_random_but_for_counters() -> None:
    make = random_arrays()
    assert make((64,), np.dtype(np.float16)).std() > 0.5
    assert set(make((64,), np.dtype(np.int8)).tolist()) == set(range(8))
    assert not make((64,), np.dtype(np.int32)).any()
    assert (random_arrays()((4,), np.dtype(np.float32)) == random_arrays()((4,), np.dtype(np.float32))).all()

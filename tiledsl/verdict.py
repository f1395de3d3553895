"""The result of a check: a verdict, what was found, what was not looked at; as JSON and as SARIF.

(OASIS: Static Analysis Results Interchange Format, version 2.1.0.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from tiledsl import html
from tiledsl.errors import Accessed, EmulatorError, Finding, KernelArgumentError, Loc, Side, TileError, render_at
from tiledsl.findings import EDGES, INCOMPLETE, KINDS, OWN_FAULT
from tiledsl.runtime.arrays import host_array
from tiledsl.signatures.specialize import Named, argument_error

if TYPE_CHECKING:
    from tiledsl.runtime.dispatch import Arguments, Dispatcher

__all__ = ["SCHEMA", "CheckResult", "Gap", "Verdict", "location", "to_sarif"]

SCHEMA = "tiledsl.check/1"
"""Of `CheckResult.to_json`. A field that is gone, or means something else, is a new number; a new field is not."""

Verdict = Literal["clean", "findings", "incomplete", "error"]


@dataclass(frozen=True, slots=True)
class Gap:
    """What a check did not look at, and why."""

    loc: Loc
    why: str


@dataclass(frozen=True)
class CheckResult:
    """Of a kernel, at `loc`, that ran once under each of the `seeds`; 0 is the usual order of turns.

    `findings`: the first one of each run, each once. `not_covered`: what no run looked at. `error`: why the check
    itself failed, or "". It is true if the verdict is "clean".
    """

    kernel: str
    loc: Loc
    seeds: tuple[int, ...]
    findings: tuple[Finding, ...] = ()
    not_covered: tuple[Gap, ...] = ()
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        """ "error": the check itself failed. Else "findings" if there is one, "incomplete" if something was not looked
        at, or "clean"."""
        if self.error:
            return "error"
        if self.findings:
            return "findings"
        return "incomplete" if self.not_covered else "clean"

    def __bool__(self) -> bool:
        return self.verdict == "clean"

    def __str__(self) -> str:
        """A line for each thing to know, and a last one with the verdict."""
        return "\n".join([*self._findings(), *self._others(), self._last()])

    def _findings(self) -> list[str]:
        return [f"{at_line(f.loc)}: {f.code}: {f.message}\n  fix: {f.fix}" for f in self.findings]

    def _others(self) -> list[str]:
        return [f"{at_line(gap.loc)}: {gap.why}" for gap in self.not_covered] + ([self.error] if self.error else [])

    def _last(self) -> str:
        runs = f"{len(self.seeds)} schedule{'s' * (len(self.seeds) != 1)}"
        seeds = sorted({f.seed for f in self.findings if f.seed})
        replay = f"; --seed {seeds[0]} replays the first that needs one" if seeds else ""
        return f"{self.kernel}: {self.verdict} ({runs}{replay})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Each finding with the lines that it is about."""
        parts: list[str] = []
        for finding, text in zip(self.findings, self._findings(), strict=True):
            shown = dict.fromkeys(render_at(side.loc, side.does) for side in finding.sides if side.loc.line)
            parts.append(html.paragraph("\n".join([text, *shown]), html.MARK))
        return html.section(self._last(), *parts, *map(html.paragraph, self._others()))

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "location": location(self.loc),
            "verdict": self.verdict,
            "seeds": [*self.seeds],
            "findings": [_finding(each) for each in self.findings],
            "not_covered": [{"location": location(gap.loc), "why": gap.why} for gap in self.not_covered],
            "error": self.error,
        }

    def to_json(self, **options: Any) -> str:
        """options: of `json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    def to_sarif(self, **options: Any) -> str:
        """SARIF 2.1.0, for editors and CI. options: of `json.dumps`."""
        return json.dumps(to_sarif([self]), **options)


def seeds_of(called: Named, seed: Any, seeds: Any) -> tuple[int, ...]:
    """Those of a check: one, or the first so many. Raises KernelArgumentError."""
    for name, value, least in (("seed", seed, 0), ("seeds", seeds, 1)):
        if value is not None and (type(value) is not int or value < least):
            raise argument_error(called, f"{name} is {value!r}", f"pass an integer from {least} on")
    if seed is not None and seeds is not None:
        raise argument_error(called, f"seed={seed} and seeds={seeds} are both given", "pass one of the two")
    return (seed or 0,) if seeds is None else tuple(range(seeds))


def checked(dispatcher: Dispatcher, arguments: Arguments, seeds: tuple[int, ...], raises: bool) -> CheckResult:
    """Run with the emulator's checks under each of the seeds, every time on what the arrays hold now. raises: the first
    error; else it is in the result."""
    from tiledsl.backends.emulator import Options

    arrays = [host_array(info) for info in arguments.present.values() if info.writable]
    before = [array.copy() for array in arrays] if len(seeds) > 1 else []
    errors, not_run = list[TileError](), list[dict[tuple[str, int], Loc]]()
    for seed in seeds:
        for array, values in zip(arrays, before, strict=False):
            array[...] = values
        try:
            result = dispatcher.emulate(arguments, Options(checks=True, seed=seed))[1]
            not_run.append({(loc.file, loc.line): loc for loc in result.not_run})
        except KernelArgumentError:
            raise
        except TileError as error:
            if raises:
                raise
            errors.append(error)
    left = [loc for line, loc in not_run[0].items() if all(line in each for each in not_run)] if not_run else []
    signature = dispatcher.signature
    return result_of(signature.name, signature.loc, seeds, errors, left)


def result_of(
    kernel: str, loc: Loc, seeds: tuple[int, ...], errors: Iterable[TileError], not_run: Iterable[Loc] = ()
) -> CheckResult:
    """errors: those of the runs. not_run: where lines are that no run executed."""
    findings: dict[Any, Finding] = {}
    gaps = [Gap(loc, "no thread executed this line") for loc in not_run]
    text = ""
    for error in errors:
        if not isinstance(error, EmulatorError) or error.finding.code in OWN_FAULT:
            text = text or str(error)
        elif error.finding.code in INCOMPLETE:
            gaps.append(Gap(error.loc, error.message))
        else:
            found = error.finding
            findings.setdefault((found.code, frozenset(side.loc for side in found.sides)), found)
    return CheckResult(kernel, loc, seeds, (*findings.values(),), (*dict.fromkeys(gaps),), text)


def at_line(loc: Loc) -> str:
    return str(loc) if loc.line else loc.file


# -- JSON ------------------------------------------------------------------------------------------


def location(loc: Loc | None) -> dict[str, Any] | None:
    """None for none. `called_at`: of an inlined function."""
    if loc is None or not loc.line:
        return None
    place: dict[str, Any] = {"file": loc.file, "line": loc.line, "column": loc.col, "end_column": loc.end_col}
    return {**place, "function": loc.function, "called_at": location(loc.caller)}


def _side(side: Side) -> dict[str, Any]:
    return {
        "location": location(side.loc),
        "op": side.op,
        "who": side.who,
        "does": side.does,
        "block": side.block,
        "thread": side.thread,
        "warps": [*side.warps],
        "role": location(side.role),
    }


def _memory(memory: Accessed | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    fields = "name", "space", "element", "byte", "bytes"
    return {name: getattr(memory, name) for name in fields}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": KINDS[finding.code].name,
        "message": finding.message,
        "fix": finding.fix,
        "location": location(finding.loc),
        "sides": [_side(side) for side in finding.sides],
        "memory": _memory(finding.memory),
        "missing": {"name": finding.missing, "text": EDGES[finding.missing]} if finding.missing else None,
        "seed": finding.seed or 0,
    }


# -- SARIF -----------------------------------------------------------------------------------------


def to_sarif(results: Iterable[CheckResult]) -> dict[str, Any]:
    """One run of the tool, with all of these."""
    results = [*results]
    rules = sorted({finding.code for result in results for finding in result.findings})
    driver = {"name": "tiledsl check", "rules": [_rule(code) for code in rules]}
    found = [_result(finding, rules) for result in results for finding in result.findings]
    notes = [_note("error", r.error, r.loc) for r in results if r.error]
    notes += [_note("warning", gap.why, gap.loc) for r in results for gap in r.not_covered]
    done = {"executionSuccessful": not any(r.error for r in results), "toolExecutionNotifications": notes}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "invocations": [done], "results": found}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    kind = KINDS[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in kind.name.split()),
        "shortDescription": {"text": kind.name},
        "fullDescription": {"text": kind.text},
        "help": {"text": f"{kind.text} Fix: {kind.fix}"},
        "defaultConfiguration": {"level": "error"},
    }


def _result(finding: Finding, rules: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rules.index(finding.code),
        "level": "error",
        "message": {"text": f"{finding.message}\nfix: {finding.fix}" if finding.fix else finding.message},
        "locations": _physical(finding.loc),
        "properties": {"kernel": finding.kernel, "seed": finding.seed or 0, "missing": finding.missing},
    }
    others = [(side, place) for side in finding.sides for place in _physical(side.loc) if side.loc != finding.loc]
    related = [{**place, "message": {"text": f"{side.who} {side.does}".strip() or side.op}} for side, place in others]
    calls = [{**place, "message": {"text": "called here"}} for place in _physical(finding.loc.caller)]
    if related or calls:
        found["relatedLocations"] = related + calls
    return found


def _note(level: str, text: str, loc: Loc) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}, "locations": _physical(loc)}


def _physical(loc: Loc | None) -> list[dict[str, Any]]:
    """A location, or none."""
    if loc is None or not loc.line:
        return []
    region = {"startLine": loc.line, "startColumn": max(loc.col, 1)}
    if loc.end_col > loc.col:
        region["endColumn"] = loc.end_col
    return [{"physicalLocation": {"artifactLocation": {"uri": _uri(loc.file)}, "region": region}}]


def _uri(file: str) -> str:
    """Relative to the current folder where it is inside, as CI expects."""
    path, here = Path(file), Path.cwd()
    if path.is_absolute() and not path.is_relative_to(here):
        return path.as_uri()
    return quote((path.relative_to(here) if path.is_absolute() else path).as_posix())

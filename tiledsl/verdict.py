"""The result of a check: a verdict, what was found, what was not looked at; as JSON and as SARIF.

(OASIS: Static Analysis Results Interchange Format, version 2.1.0.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast
from urllib.parse import quote

from tiledsl import html
from tiledsl.accepted import Acceptance, comments, entry_of, read_baseline, write_baseline
from tiledsl.errors import Accessed, EmulatorError, Finding, KernelArgumentError, Loc, Side, TileError, render_at
from tiledsl.findings import CODES, EDGES, INCOMPLETE, KINDS, OWN_FAULT, Selection, selected
from tiledsl.measure import expected_of, require_shape
from tiledsl.outside import python_number
from tiledsl.runtime.arrays import host_array
from tiledsl.signatures.specialize import Named, argument_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tiledsl.backends.emulator import Options, Prepared, RunResult
    from tiledsl.runtime.dispatch import Arguments, Dispatcher

SCHEMA = "tiledsl.check/1"
"""Of `CheckResult.to_json`. A field that is gone, or means something else, is a new number; a new field is not."""

Verdict = Literal["clean", "findings", "incomplete", "error"]

MOST = 50
"""Findings behind which a check stops."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a check did not look at, and why."""

    loc: Loc
    why: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding, and what accepts it."""

    finding: Finding
    by: Acceptance


@dataclass(frozen=True)
class CheckResult:
    """Of a kernel, at `loc`, that ran once under each of the `seeds`; 0 is the usual order of turns. Of several that
    ran together (`ranks`), `kernel` has the names of all, and `loc` is the first one's.

    `findings`: of all runs, each once. `not_covered`: what no run looked at. `error`: why the check itself failed, or
    "". `accepted`: findings that count for nothing. `unused`: what accepts a finding that a clean check has not.
    `off`: the checks, and codes of others, that were turned off. `assumed`: where the emulator ran a function that was
    given as ``emulate=`` in place of PTX; the check takes its results for those of the PTX. It is true if the verdict
    is "clean".
    """

    kernel: str
    loc: Loc
    seeds: tuple[int, ...]
    findings: tuple[Finding, ...] = ()
    not_covered: tuple[Gap, ...] = ()
    error: str = ""
    accepted: tuple[Accepted, ...] = ()
    unused: tuple[Acceptance, ...] = ()
    off: tuple[str, ...] = ()
    assumed: tuple[Loc, ...] = ()

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
        lines = [f"{at_line(gap.loc)}: {gap.why}" for gap in self.not_covered]
        for each in self.accepted:
            found, by = each.finding, each.by
            where = f" ({by.loc.file})" if by.by == "baseline" else ""
            lines.append(f"{at_line(found.loc)}: {found.code}: accepted{where}, because {by.reason}: {found.message}")
        lines += [f"{at_line(loc)}: {_ASSUMED}" for loc in self.assumed]
        return lines + [str(each) for each in self.unused] + ([self.error] if self.error else [])

    def _last(self) -> str:
        runs = f"{len(self.seeds)} schedule{'s' * (len(self.seeds) != 1)}"
        runs += f", {len(self.accepted)} accepted" if self.accepted else ""
        runs += f"; off: {', '.join(self.off)}" if self.off else ""
        seeds = sorted({f.seed for f in self.findings if f.seed})
        replay = f"; --seed {seeds[0]} replays the first that needs one" if seeds else ""
        return f"{self.kernel}: {self.verdict} ({runs}{replay}){assuming(self.assumed)}"

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
            "accepted": [{**_finding(each.finding), **_acceptance(each.by)} for each in self.accepted],
            "unused": [{"code": each.code, **_acceptance(each)} for each in self.unused],
            "off": [*self.off],
            "assumed": [location(loc) for loc in self.assumed],
        }

    def write_baseline(self, file: str | Path) -> CheckResult:
        """Adds the findings to a baseline. Returns the result of a check with it. Raises TileError."""
        file = Path(file)
        new = [
            Accepted(found, entry_of(found, file, "it was there when the baseline was written"))
            for found in self.findings
        ]
        write_baseline(file, [each.by for each in new])
        accepted = *self.accepted, *new
        gaps = _unique([*self.not_covered, *_behind(new)])
        return replace(self, findings=(), accepted=accepted, not_covered=gaps)

    def to_json(self, **options: Any) -> str:
        """options: of `json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    def to_sarif(self, **options: Any) -> str:
        """SARIF 2.1.0, for editors and CI. options: of `json.dumps`."""
        return json.dumps(to_sarif([self]), **options)


@dataclass(frozen=True)
class Asked:
    """What a caller asks of a check: under which `seeds`, which checks, what a baseline accepts; `raises`: the first
    finding that nobody accepts is raised, else it is in the result. `algebra`: None, or the reference for exact
    arithmetic. `unwritten`: tensors that hold nothing yet. `processors`: SMs of the GPU; None: as the emulator's
    `Options`."""

    seeds: tuple[int, ...]
    raises: bool
    selection: Selection
    baseline: tuple[Acceptance, ...]
    algebra: Callable[..., Any] | None = None
    unwritten: frozenset[str] = frozenset()
    processors: int | None = None

    @classmethod
    def of(
        cls,
        called: Named,
        kernels: Collection[str],
        tensors: Collection[str],
        seed: Any = None,
        seeds: Any = None,
        raises: bool = True,
        checks: Any = None,
        without: Any = (),
        baseline: Any = None,
        algebra: Any = None,
        unwritten: Any = (),
        processors: Any = None,
    ) -> Asked:
        """kernels: which are checked, by name. tensors: those that `unwritten` may name. Raises KernelArgumentError, or
        UsageError for the baseline."""
        seed, seeds, processors = python_number(seed), python_number(seeds), python_number(processors)
        for name, value, least in (("seed", seed, 0), ("seeds", seeds, 1), ("processors", processors, 1)):
            if value is not None and (type(value) is not int or value < least):
                message = f"{name} is {value!r}; expected an integer of at least {least}"
                raise argument_error(called, message, "pass one, or leave it out")
        if seed is not None and seeds is not None:
            raise argument_error(called, f"seed={seed} and seeds={seeds} are both given", "pass one of the two")
        try:
            names = None if checks is None else _names("checks", checks)
            selection = selected(names, _names("without", without))
            empty = frozenset(_names("unwritten", unwritten))
        except ValueError as error:
            problem, _, fix = str(error).partition("\n  fix: ")
            raise argument_error(called, problem, fix) from error
        if not isinstance(baseline, (str, Path, type(None))):
            raise argument_error(called, f"baseline is {baseline!r}", "pass the path of a file")
        entries = () if baseline is None else (*read_baseline(Path(baseline)),)
        mine = tuple(entry for entry in entries if entry.kernel in kernels)
        if algebra is not None and not callable(algebra):
            fix = "pass a function of the kernel's arguments, which gets arrays of integers"
            raise argument_error(called, f"algebra is {algebra!r}", fix)
        if unknown := empty - {*tensors}:
            fix = f"name some of {', '.join(tensors)}"
            raise argument_error(called, f"unwritten names {', '.join(sorted(unknown))}, which is no tensor", fix)
        orders = (seed or 0,) if seeds is None else tuple(range(seeds))
        return cls(orders, raises, selection, mine, algebra, empty, processors)


def _names(option: str, value: Any) -> list[str]:
    """Raises ValueError."""
    example = "C" if option == "unwritten" else "T101, global"
    if isinstance(value, str):
        return value.replace(",", " ").split()
    if isinstance(value, (tuple, list, set, frozenset)) and all(
        isinstance(name, str) for name in cast("Iterable[object]", value)
    ):
        return [*value]
    raise ValueError(f"{option} is {value!r}\n  fix: pass names: {option}='{example}'")


def assuming(assumed: Iterable[Loc]) -> str:
    """Return what a verdict adds for the lines that rest on models of PTX; "" if there are none."""
    lines = [*dict.fromkeys(map(at_line, assumed))]
    if not lines:
        return ""
    several = f"models of ptx.inline at {len(lines)} lines"
    return f", assuming the {several if len(lines) > 1 else f'model of ptx.inline at {lines[0]}'}"


_ASSUMED = "emulated by the function given as emulate=; that the PTX does the same was not checked"
"""The text for a line whose result rests on the user's model of PTX."""


class _Found:
    """The findings of the runs of a check. `acceptances` and `assumed`: set before the first run."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises
        self.acceptances: list[Acceptance] = []
        self.assumed: tuple[Loc, ...] = ()
        self.findings: dict[Any, Finding] = {}
        self.accepted: dict[Any, Accepted] = {}

    def add(self, error: EmulatorError) -> None:
        """Raises it if the run has to end."""
        found = error.finding
        if found.key in self.findings or found.key in self.accepted:
            return
        by = next((each for each in self.acceptances if each.accepts(found)), None)
        if by is not None:
            self.accepted[found.key] = Accepted(found, by)
            return
        self.findings[found.key] = found
        if self.raises or self.full:
            raise error

    @property
    def full(self) -> bool:
        return len(self.findings) >= MOST


class Subject(Protocol):
    """What is checked: the `name` and line of its kernel or kernels."""

    @property
    def name(self) -> str: ...
    @property
    def loc(self) -> Loc: ...

    def arrays(self) -> list[NDArray[Any]]:
        """Those that it may write."""
        ...

    def code(self) -> list[Prepared]:
        """Return all that it runs. Raises CompileError."""
        ...

    def run(self, options: Options) -> RunResult:
        """On the emulator, once."""
        ...


class OneKernel:
    """A call of one kernel. `algebra`: None, or the reference that its results on residues are compared with."""

    def __init__(self, dispatcher: Dispatcher, arguments: Arguments, algebra: Callable[..., Any] | None) -> None:
        self.dispatcher, self.arguments, self.algebra = dispatcher, arguments, algebra
        self.name, self.loc = dispatcher.signature.name, dispatcher.signature.loc

    def arrays(self) -> list[NDArray[Any]]:
        return written_arrays(self.arguments)

    def code(self) -> list[Prepared]:
        return [self.dispatcher.emulated(self.arguments).prepared]

    def run(self, options: Options) -> RunResult:
        written, result = self.dispatcher.emulate(self.arguments, options)
        if self.algebra is not None:
            _compare(self.dispatcher, self.arguments, self.algebra, written, result.tensors, options.seed or 0)
        return result


def written_arrays(arguments: Arguments) -> list[NDArray[Any]]:
    """Those that a kernel may write."""
    return [host_array(info) for info in arguments.present.values() if info.writable]


def checked(subject: Subject, asked: Asked) -> CheckResult:
    """Run with the emulator's checks under each of the seeds, every time on what the arrays hold now."""
    arrays = subject.arrays()
    before = [array.copy() for array in arrays] if len(asked.seeds) > 1 else []
    found, gaps, failed = _Found(asked.raises), list[Gap](), ""
    not_run = list[Mapping[Any, Loc]]()
    for seed in asked.seeds:
        for array, values in zip(arrays, before, strict=False):
            array[...] = values
        try:
            if (lines := _run(subject, asked, seed, found)) is not None:
                not_run.append(lines)
        except KernelArgumentError:
            raise
        except EmulatorError as error:
            if asked.raises:
                raise
            if error.finding.code in INCOMPLETE:
                gaps.append(Gap(error.loc, error.message))
            elif error.finding.code in OWN_FAULT:
                failed = failed or str(error)
        except TileError as error:
            if asked.raises:
                raise
            failed = failed or str(error)
        if found.full:
            gaps.append(Gap(subject.loc, f"the check stopped behind {MOST} findings"))
            break
    left = [loc for line, loc in not_run[0].items() if all(line in each for each in not_run)] if not_run else []
    gaps = [*(Gap(loc, "no thread executed this line") for loc in left), *gaps, *_behind(found.accepted.values())]
    result = CheckResult(
        subject.name, subject.loc, asked.seeds, (*found.findings.values(),), _unique(gaps), failed,
        (*found.accepted.values(),), (), asked.selection.off, found.assumed,
    )  # fmt: skip
    if not result:
        return result
    used = [each.by for each in result.accepted]
    unused = [each for each in found.acceptances if each not in used and each.code in asked.selection]
    return replace(result, unused=tuple(unused))


def _run(subject: Subject, asked: Asked, seed: int, found: _Found) -> Mapping[tuple[str, int], Loc] | None:
    """One run. Gives a location in each line that no thread executed; None if a finding has ended it."""
    from tiledsl.backends.emulator import Options

    code = subject.code()
    if seed == asked.seeds[0]:
        lines = frozenset[tuple[str, int]]().union(*(each.lines for each in code))
        found.acceptances = [*comments(lines), *asked.baseline]
        found.assumed = tuple(dict.fromkeys(loc for each in code for loc in each.models))
    options = Options(
        checks=True,
        selection=asked.selection,
        unwritten=asked.unwritten,
        report=found.add,
        processors=asked.processors,
        residues=asked.algebra is not None,
        seed=seed,
    )
    try:
        result = subject.run(options)
    except EmulatorError as error:
        if error.finding.code in (*INCOMPLETE, *OWN_FAULT):
            raise
        found.add(error)
        if found.raises and error.finding.key in found.findings:
            raise
        return None
    return {(loc.file, loc.line): loc for loc in result.not_run}


def _compare(
    dispatcher: Dispatcher,
    arguments: Arguments,
    reference: Callable[..., Any],
    written: tuple[str, ...],
    tensors: Mapping[str, Any],
    seed: int,
) -> None:
    """Raises EmulatorError where what the kernel has made of residues is not what the reference does."""
    import numpy as np

    from tiledsl.backends.emulator.residues import differs, of_argument

    signature = dispatcher.signature
    mine = {name: info and of_argument(host_array(info), info.dtype) for name, info in arguments.arrays.items()}
    mine |= {p.name: of_argument(arguments.scalars[p.name], p.dtype) for p in signature.scalars}
    mine = {p.name: mine[p.name] for p in signature.params}
    expected = expected_of(dispatcher, reference(*mine.values()), mine, [*written])
    for name in written:
        should = np.asarray(expected[name])
        require_shape(name, tensors[name], should)
        error = differs(signature.name, signature.loc, name, tensors[name], should)
        if error is not None:
            error.finding = replace(error.finding, kernel=signature.name, seed=seed or None)
            raise error


def _behind(accepted: Iterable[Accepted]) -> list[Gap]:
    """What is not looked at since a run ends where these are found."""
    ends = [each.finding for each in accepted if each.finding.code not in CODES]
    return [Gap(found.loc, f"a run ends here, at {found.code}, which is accepted") for found in ends]


def _unique(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    return (*dict.fromkeys(gaps),)


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
        "rank": side.rank,
        "role": location(side.role),
    }


def _memory(memory: Accessed | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    fields = "name", "space", "element", "byte", "bytes"
    return {name: getattr(memory, name) for name in fields}


def _acceptance(by: Acceptance) -> dict[str, Any]:
    return {"reason": by.reason, "by": by.by, "accepted_at": {"file": by.loc.file, "line": by.loc.line or None}}


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
    accepted = [each for result in results for each in result.accepted]
    findings = [finding for result in results for finding in result.findings]
    rules = sorted({finding.code for finding in (*findings, *(each.finding for each in accepted))})
    driver = {"name": "tiledsl check", "rules": [_rule(code) for code in rules]}
    found = [_result(finding, rules) for finding in findings]
    found += [{**_result(each.finding, rules), "suppressions": [_suppression(each.by)]} for each in accepted]
    notes = [_note("error", r.error, r.loc) for r in results if r.error]
    notes += [_note("warning", gap.why, gap.loc) for r in results for gap in r.not_covered]
    notes += [_note("note", _ASSUMED, loc) for r in results for loc in r.assumed]
    notes += [_note("note", str(each), each.loc) for r in results for each in r.unused]
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


def _suppression(by: Acceptance) -> dict[str, Any]:
    kind = {"comment": "inSource", "baseline": "external"}[by.by]
    return {"kind": kind, "status": "accepted", "justification": by.reason}


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

"""The tables: what became of the mutants, by kernel, by operator and by kind of op, and those that nothing found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.report import table
from benchmarks.report import write as write_results
from tests.mutation.processes import Result
from tests.mutation.reviewed import REASONS, Reason
from tests.mutation.runner import CAUGHT, OUTCOMES, Kinds, Mutant, Unmutated
from tests.mutation.subjects import SUBJECTS, digest_of

__all__ = ["Chosen", "column_of", "report"]

Results = list[tuple[Mutant, Result]]
Unchanged = list[tuple[Unmutated, Result]]
COLUMNS = *OUTCOMES[:-3], "reviewed", "miss"
"""reviewed: no fault, by a reason that a person gave. miss: all others that survived or were not reached."""
REVIEWED = "survived", "no difference"
"""The outcomes of which a person may say why they are no fault."""


@dataclass(frozen=True)
class Chosen:
    """The choice of mutants to run: of these operators and at most `most` places, `count` (None: all) by `seed`."""

    kinds: Kinds
    most: int
    count: int | None = None
    seed: int = 0


def report(results: Results, unmutated: Unchanged, counts: dict[str, int], chosen: Chosen, *, write: bool) -> None:
    """Print the tables, or write them to `benchmarks/results` as well. counts: of all mutants of each subject."""
    columns = [column_of(mutant, result) for mutant, result in results]
    caught = sum(column in CAUGHT for column in columns)
    faults = sum(column not in ("equivalent", "no difference", "reviewed") for column in columns)
    where = "in the gallery" if chosen.kinds == "general" else "in protocols, in the gallery and outside it,"
    title = f"Proof by mutation: {caught} of {faults} faults {where} found"
    every = f"at most {chosen.most} places (4 x {chosen.most} of ops that order)"
    every = "all" if chosen.most >= max(counts.values(), default=0) else every
    drawn = (
        ""
        if chosen.count is None
        else f"; of these {chosen.count}, drawn with seed {chosen.seed}, by operators in turn"
    )
    text = "\n\n".join(
        [
            f"{len(results)} mutants of {sum(counts.values())}: of those that are alike, {every}{drawn}.",
            _by("kernel", results, columns, lambda mutant: mutant.subject),
            _by("operator", results, columns, lambda mutant: mutant.by),
            _by("op", results, columns, lambda mutant: mutant.op),
            _classes(results),
            _reviewed(results),
            _missed(results, columns),
            _unmutated(unmutated),
        ]
    )
    if write:
        kernels = {name: digest_of(name) for name in counts}
        name = "mutation" if chosen.kinds == "general" else f"mutation_{chosen.kinds}"
        write_results(name, title, text, {"kernels": kernels, "results": _rows(results, columns)})
    else:
        print(f"{title}\n\n{text}")


def column_of(mutant: Mutant, result: Result) -> str:
    """One of `COLUMNS`."""
    if result.outcome in REVIEWED and _reason(mutant) is not None:
        return "reviewed"
    return "miss" if result.outcome in OUTCOMES[-3:] else result.outcome


def _reason(mutant: Mutant) -> Reason | None:
    return next((reason for reason in REASONS if reason.fits(mutant)), None)


def _by(name: str, results: Results, columns: list[str], of: Callable[[Mutant], str]) -> str:
    found: dict[str, Counter[str]] = {}
    for (mutant, _), column in zip(results, columns, strict=True):
        found.setdefault(of(mutant), Counter())[column] += 1
    names = [*found] if name == "kernel" else sorted(found)
    rows: list[list[Any]] = [[each, found[each].total(), *(found[each][c] for c in COLUMNS)] for each in names]
    rows.append(["all", len(results), *(columns.count(c) for c in COLUMNS)])
    return table([name, "mutants", *COLUMNS], rows)


def _classes(results: Results) -> str:
    found = Counter(result.detail for _, result in results if result.outcome == "equivalent")
    return table(["equivalents, by the rule that proves it", "mutants"], found.most_common())


def _reviewed(results: Results) -> str:
    """By reason. One that nothing needs is shown, too: it is to be deleted where all mutants ran."""
    left = [m for m, r in results if r.outcome in REVIEWED]
    found = Counter(id(reason) for reason in map(_reason, left) if reason is not None)
    rows = [[reason.text, found[id(reason)]] for reason in REASONS]
    return table(["reviewed reason", "mutants"], rows)


def _missed(results: Results, columns: list[str]) -> str:
    left = [(m, r) for (m, r), column in zip(results, columns, strict=True) if column == "miss"]
    lines = [f"- {r.outcome}: {m.subject}, {m.stage}, `{m.op}` at {m.line}, {m.by}: {m.what}" for m, r in left]
    return "\n".join(["Missed:", "", *(lines or ["- none"])])


def _unmutated(results: Unchanged) -> str:
    """What the check says of the kernels as they are."""
    rows: list[list[Any]] = []
    for name in dict.fromkeys(run.subject for run, _ in results):
        mine = [(run, result) for run, result in results if run.subject == name]
        inputs = SUBJECTS[name].inputs
        sizes = ", ".join(dict.fromkeys(f"{each.m} x {each.n} x {each.k}" for each in inputs))
        seeds = len({run.seed for run, _ in mine})
        rows.append([name, sizes, len(inputs), seeds, len(mine), sum(r.outcome != "nothing" for _, r in mine)])
    found = [f"- {run.key}: {r.outcome}: {r.detail}" for run, r in results if r.outcome != "nothing"]
    total = f"The kernels as they are, by seeds: {len(results)} runs, {len(found)} false findings."
    return "\n\n".join([total, table(["kernel", "sizes", "inputs", "seeds", "runs", "findings"], rows), *found])


def _rows(results: Results, columns: list[str]) -> list[str]:
    """How many mutants of a kernel, a kind of op and an operator became what."""
    found = Counter(
        (m.subject, m.stage, m.op, m.by, column, r.detail[:4] if column == "finding" else "")
        for (m, r), column in zip(results, columns, strict=True)
    )
    return [" | ".join([*key, str(count)]) for key, count in found.items()]

"""The tables: what became of the mutants, by operator, by kind of op and by kernel, and those that nothing found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks.report import table
from benchmarks.report import write as write_results
from tests.mutation.runner import CAUGHT, OUTCOMES, Mutant, Result

__all__ = ["report", "score"]

Results = list[tuple[Mutant, Result]]


def score(results: Results) -> tuple[int, int]:
    """How many were caught, and how many are no equivalents."""
    caught = sum(result.outcome in CAUGHT for _, result in results)
    return caught, sum(result.outcome != "equivalent" for _, result in results)


def report(results: Results, counts: dict[str, int], most: int, *, write: bool) -> None:
    """counts: of all mutants of each subject."""
    caught, valid = score(results)
    title = f"Proof by mutation: {caught} of {valid} faults in the gallery found"
    text = "\n\n".join(
        [
            f"{len(results)} mutants of {sum(counts.values())}: of like ones, at most {most} places each.",
            _by("kernel", results, lambda mutant: mutant.subject),
            _by("operator", results, lambda mutant: mutant.by),
            _by("op", results, lambda mutant: mutant.op),
            _left(results),
        ]
    )
    if write:
        rows = [{**asdict(mutant), **asdict(result)} for mutant, result in results]
        write_results("mutation", title, text, {"results": rows})
    else:
        print(f"{title}\n\n{text}")


def _by(name: str, results: Results, of: Callable[[Mutant], str]) -> str:
    found: dict[str, Counter[str]] = {}
    for mutant, result in results:
        found.setdefault(of(mutant), Counter())[result.outcome] += 1
    names = sorted(found) if name != "kernel" else [*found]
    rows: list[list[Any]] = [[each, found[each].total(), *(found[each][o] for o in OUTCOMES)] for each in names]
    rows.append(["all", len(results), *(sum(found[each][o] for each in names) for o in OUTCOMES)])
    return table([name, "mutants", *OUTCOMES], [[str(cell) for cell in row] for row in rows])


def _left(results: Results) -> str:
    left = [(m, r) for m, r in results if r.outcome in ("survived", "not reached")]
    return "\n".join(f"- {r.outcome}: `{m.key}` {m.line}: {m.by}: {m.what}" for m, r in left)
